"""The memory that models/cpu takes beside a model's weights, computed from the model's sizes: for plan=."""

from functools import cache

import torch

from models import head
from models.cpu import onednn, packed, process, products, step
from models.linear import ROW_MULTIPLE
from models.logprob import SLAB
from models.memory import Footprint
from models.quant import BLOCK
from models.sizes import Sizes
from models.stacked import JOINED


def footprint(
    sizes: Sizes, dtype: torch.dtype, kind: str, rank: int, library: str, card: int, rows: int, again: bool
) -> Footprint:
    """Return the footprint of a model.

    kind: of models/quant.py, of the blocks' linear layers. rank: of the adapters, 0 where every weight trains.
    library: products= of train.py; tried on this machine with "auto", and plain where it lacks the library. rows:
    tokens whose log-probabilities are computed together. again: whether their backward computes the logits again.
    """
    library = _best_library(library, sizes.D, sizes.I, dtype, sizes.weights)
    wanted = dict.fromkeys((torch.float32, dtype), 0)  # numbers of copied weights
    if rank:
        wanted[dtype] += 2 * sizes.block_weights if kind == "none" else 0
        wanted[dtype] += sizes.V * sizes.D  # the head, for the backward,
        wanted[torch.float32] += sizes.V * sizes.D  # and for the forward, which sums in float32
    made = {of: count * _bytes_of_copy(of, library) for of, count in wanted.items()}
    slab = 0 if made[torch.float32] or dtype == torch.float32 else 4 * min(SLAB, sizes.V) * sizes.D
    shared = bool(rank) and library == "onednn" and not onednn.multiplies_float32()  # as StackedOnCPU decides
    return Footprint(
        library,
        min(sum(made.values()), packed.budget()),
        stacks(sizes, dtype, kind, rank, shared),
        stacks(sizes, dtype, kind, 0, shared),
        step.SHORT if _steps(dtype, kind) else 0,
        slab,
        0 if kind == "none" else dequantised(kind, sizes.largest_linear, dtype),
        _head(sizes, dtype, rows, again, slab, library == "mkl" and rank > 0),
        0,
    )


@cache
def _best_library(*args) -> str:
    return process.best_library(*args)[0]


def _bytes_of_copy(dtype: torch.dtype, library: str) -> int:
    """Return the bytes of a number in a weight's copy, 0 where none is made."""
    by = packed.library_of(dtype, library)
    return packed.bytes_of(dtype, by) if by else 0


def stacks(sizes: Sizes, dtype: torch.dtype, kind: str, rank: int, shared: bool = False) -> int:
    """Return the bytes that the decode step copies: the blocks' weights, where step.py does, and the adapters' factors,
    as if every layer had one. shared: the step multiplies by training's copies."""
    steps = _steps(dtype, kind)
    stacked = steps and sizes.weights < step.SMALL and not shared
    rank = steps * -(-rank // ROW_MULTIPLE) * ROW_MULTIPLE
    joined = 2 * (sizes.Q + 2 * sizes.K) * (3 * rank <= JOINED)  # zeros beside the block diagonal of the B factors
    joined += 2 * sizes.I * (2 * rank <= JOINED)
    factors = sizes.L * rank * (joined + sum(outputs + inputs for outputs, inputs in sizes.linears.values()))
    return dtype.itemsize * (factors + (sizes.block_weights if stacked else 0))


def _steps(dtype: torch.dtype, kind: str) -> bool:
    """Return whether step.py makes a step for such a model."""
    return kind == "none" and dtype == torch.float32


def _head(sizes: Sizes, dtype: torch.dtype, rows: int, again: bool, slab: int, widened: bool) -> int:
    """Return the bytes of logits, probabilities, their gradients and sums while a slab of some rows is computed.
    widened: MKL's copies multiply 16 bits."""
    rows, half, words = min(rows, head.ROWS), dtype.itemsize == 2, min(SLAB, sizes.V)
    logits, cast = 4 * rows * words, 2 * rows * words if half and not again else 0  # the probabilities in 16 bits,
    cast += 4 * min(rows, packed.WIDENED) * (words + sizes.D) if half and widened else 0  # and as float32
    return max(logits + slab, (4 if again else 2) * logits + cast) + 8 * rows * sizes.D


def dequantised(kind: str, weights: int, dtype: torch.dtype) -> int:
    """Return the bytes that exist while a layer of so many weights is dequantised, its result included."""
    result = weights * dtype.itemsize
    if kind == "int8":
        return 4 * weights + (0 if dtype == torch.float32 else result)
    scales = 4 * weights // BLOCK if kind == "nf4-double" else 0
    piece = min(weights, products.BLOCKS * BLOCK)
    return result + scales + 2 * piece + 4 * piece  # the codes as int32, and the levels of both of a byte's codes
