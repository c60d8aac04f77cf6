"""The memory that models/cpu takes beside a model's weights, computed from the model's sizes: for plan=."""

from functools import cache
from typing import Literal

import torch

from models import head
from models.cpu import onednn, packed, process, products, speed, step
from models.cpu.packed import Library
from models.linear import ROW_MULTIPLE
from models.logprob import SLAB
from models.memory import Footprint
from models.quant import BLOCK
from models.sizes import Sizes


def footprint(
    sizes: Sizes, dtype: torch.dtype, kind: str, rank: int, library: str, card: int, rows: int, again: bool
) -> Footprint:
    """Return the footprint of a model, within a few percent of what is allocated.

    kind: of models/quant.py, of the blocks' linear layers. rank: of the adapters, 0 where every weight trains.
    library: products= of train.py; tried on this machine with "auto", and plain where it lacks the library. rows:
    tokens whose log-probabilities are computed together. again: whether their backward computes the logits again.
    """
    library, copies = _library(library, sizes, dtype), 0
    if rank:
        head_weights = sizes.V * sizes.D  # copied for the backward, and for the forward, which sums in float32
        linears = 2 * sizes.block_weights if kind == "none" else 0
        copies = (linears + head_weights) * _bytes_of_copy(dtype, library)
        copies += head_weights * _bytes_of_copy(torch.float32, library)
    shared = bool(rank) and library == "onednn" and not onednn.multiplies_float32()  # as StackedOnCPU decides
    return Footprint(
        library,
        min(copies, packed.budget()),
        stacks(sizes, dtype, kind, rank, shared),
        0 if kind == "none" else dequantised(kind, sizes.largest_linear, dtype),
        _head(sizes, dtype, rows, again),
        0,
    )


@cache
def _library(kind: Library | Literal["auto"], sizes: Sizes, dtype: torch.dtype) -> Library:
    if kind != "auto":
        return process.asked_library(kind)[0]
    return process.best_library(speed.random_part(sizes, dtype))[0]


def _bytes_of_copy(dtype: torch.dtype, library: Library) -> int:
    """Return the bytes of a number in a weight's copy, 0 where none is made."""
    by = packed.library_of(dtype, library)
    return packed.bytes_of(dtype, by) if by else 0


def stacks(sizes: Sizes, dtype: torch.dtype, kind: str, rank: int, shared: bool = False) -> int:
    """Return the bytes that the decode step copies: the blocks' weights, where step.py does, and the adapters' factors,
    as if every layer had one. shared: the step multiplies by training's copies."""
    steps = kind == "none" and dtype == torch.float32
    stacked = steps and sizes.weights < step.SMALL and not shared
    rank = steps * -(-rank // ROW_MULTIPLE) * ROW_MULTIPLE
    factors = sizes.L * rank * sum(outputs + inputs for outputs, inputs in sizes.linears.values())
    return dtype.itemsize * (factors + (sizes.block_weights if stacked else 0))


def _head(sizes: Sizes, dtype: torch.dtype, rows: int, again: bool) -> int:
    """Return the bytes of logits, probabilities, their gradients and sums while a slab of some rows is computed."""
    rows, half = min(rows, head.ROWS), dtype.itemsize == 2  # in 16 bits a slab of the head is cast to float32
    logits = 4 * rows * min(SLAB, sizes.V)
    return (4 if again else 3 if half else 2) * logits + 8 * rows * sizes.D


def dequantised(kind: str, weights: int, dtype: torch.dtype) -> int:
    """Return the bytes that exist while a layer of so many weights is dequantised, its result included."""
    result = weights * dtype.itemsize
    if kind == "int8":
        return 4 * weights + (0 if dtype == torch.float32 else result)
    piece = min(weights, products.BLOCKS * BLOCK)
    return result + 6 * piece  # the codes as int32, and the levels of a byte's two codes
