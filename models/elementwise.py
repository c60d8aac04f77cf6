"""Elementwise functions whose bits for an element do not depend on its place in the tensor.

torch computes silu, gelu and exp2 on whole vectors by one approximation, and what is left of a row, or of a thread's
share, by another. So rows are padded to whole vectors, and tensors are cut where every thread gets whole rows.
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F

VECTORS = 64  # elements that torch's loops take at once: two vectors of AVX-512 in 16 bits, or four in 32


def by_whole_vectors(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Return function(x) for an elementwise function, x [rows, width]."""
    padded = F.pad(x, (0, -x.shape[-1] % VECTORS)) if x.shape[-1] % VECTORS else x
    parts = [function(part) for part in shares(padded)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[..., : x.shape[-1]]


def shares(x: torch.Tensor) -> Iterable[torch.Tensor]:
    """Return x [n, ..., width] in parts of which each thread gets whole rows, or half rows of two threads."""
    if torch.get_num_threads() <= 2:
        return [x]
    from models.shares import even_parts

    return even_parts(x)
