"""How torch shares an elementwise loop among threads. Imported for three threads or more (models/elementwise.py)."""

from collections.abc import Iterator

import torch

SHARE = 32768  # elements: torch gives a thread no less (at::internal::GRAIN_SIZE)


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
