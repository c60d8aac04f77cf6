"""Call silu and exp2 so that an element's bits do not depend on its position; gelu in 16 bits does not keep to that.

On a CPU torch rounds silu and exp2 of whole vectors otherwise than the rest of a row, or of a thread's share. So rows
are padded to whole vectors, and threads share whole rows. Gelu is shared by another rule: models/trial.py.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F

VECTORS = 64  # elements that torch's loops take at once: two vectors of AVX-512 in 16 bits, or four in 32
SHARE = 32768  # elements: torch gives a thread no less (at::internal::GRAIN_SIZE)


def by_whole_vectors(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Return function(x) for an elementwise function, x [rows, width]."""
    width = x.shape[-1]
    if width % VECTORS:
        return by_whole_vectors(function, F.pad(x, (0, -width % VECTORS)))[..., :width]
    parts = [function(part) for part in shares(x)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def shares(x: torch.Tensor) -> Iterable[torch.Tensor]:
    """Return x [..., width] in parts of which each thread gets whole rows, or half rows of two threads."""
    if torch.get_num_threads() <= 2 or x.device.type != "cpu":
        return (x,)
    return even_parts(x.view(-1, *x.shape[-2:]) if x.dim() > 3 else x)


def even_parts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield x [n, ..., width] cut along its first dimension so that torch's threads share each part by whole rows.

    A single entry of the first dimension is not cut, even if its rows do not divide evenly among the threads.
    """
    size, width = x[:1].numel(), x.shape[-1]
    while True:
        n = len(x)
        while n > 1 and n * size // width % _threads(n * size):
            n -= 1
        yield x[:n]
        x = x[n:]
        if len(x) == 0:
            return


def _threads(elements: int) -> int:
    """Return the number of threads that torch shares an elementwise loop among."""
    return max(1, min(torch.get_num_threads(), -(-elements // SHARE)))
