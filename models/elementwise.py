"""Elementwise functions whose bits for an element do not depend on its place: silu and exp2; not gelu in 16 bits.

On a CPU torch rounds silu and exp2 of whole vectors otherwise than the rest of a row, or of a thread's share. So rows
are padded to whole vectors, and threads share whole rows. Gelu is shared by another rule: models/fast/trial.py.
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F

VECTORS = 64  # elements that torch's loops take at once: two vectors of AVX-512 in 16 bits, or four in 32


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
    from models.shares import even_parts

    return even_parts(x.view(-1, *x.shape[-2:]) if x.dim() > 3 else x)
