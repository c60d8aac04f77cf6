"""The memory that this folder takes beside a model's weights, computed from the model's sizes: for rl/plan.py."""

from functools import cache
from typing import NamedTuple

import torch

from models.fast import cpu_step, cuda_graph, fused_step, head, onednn, packed, process, quant
from models.fast.products import JOINED
from models.linear import ROW_MULTIPLE
from models.logprob import SLAB
from models.quant import BLOCK
from models.sizes import Sizes

KEPT_SHARE = 1 / 16  # of the device's memory, up to which an engine is kept (kept.py): training has the rest
HOPPER = 227 * 1024  # bytes of shared memory of a program; with less the head's scratch is no larger


class Footprint(NamedTuple):
    """Bytes, but for the first."""

    products: str  # on a CPU: "onednn" | "mkl" | "plain"
    copies: int  # frozen weights in a library's own layout, for forward and backward
    stacks: int  # the decode step's copies of the blocks' weights and adapters
    base_stacks: int  # the same without adapters
    short: int  # tokens up to which such a step computes a prompt on a CPU
    slab: int  # a slab of the head in float32, where there is no copy of it
    dequantised: int  # what the product with a block's largest quantised layer makes beside its output
    head: int  # what the log-probabilities of `rows` tokens make beside their hidden states and gradients
    small: int  # up to so many bytes a rollout's cache and stacks stay for the next one (models/fast/kept.py)


def footprint(
    sizes: Sizes,
    device: str,
    dtype: torch.dtype,
    kind: str,
    rank: int,
    products: str,
    card: int,
    rows: int,
    again: bool,
) -> Footprint:
    """Implement the hook of models/kernels.py.

    kind: of models/quant.py, of the blocks' linear layers. rank: of the adapters, 0 where every weight trains.
    products: as train.py's; tried on this machine with "auto", and plain where it lacks the library. card: bytes of the
    CUDA device, 0 if unknown. rows: tokens whose log-probabilities are computed together. again: whether their backward
    computes the logits again.
    """
    products = _best_library(products, sizes.D, sizes.I, dtype, sizes.weights) if device == "cpu" else "plain"
    wanted = dict.fromkeys((torch.float32, dtype), 0)  # numbers of copied weights
    if device == "cpu" and rank:
        wanted[dtype] += 2 * sizes.block_weights if kind == "none" else 0
        wanted[dtype] += sizes.V * sizes.D  # the head, for the backward,
        wanted[torch.float32] += sizes.V * sizes.D  # and for the forward, which sums in float32
    made = {of: count * _bytes_of_copy(of, products) for of, count in wanted.items()}
    slab = 0 if made[torch.float32] or dtype == torch.float32 or device != "cpu" else 4 * min(SLAB, sizes.V) * sizes.D
    shared = bool(rank) and products == "onednn" and not onednn.multiplies_float32()  # as StackedOnCPU decides
    return Footprint(
        products,
        min(sum(made.values()), packed.budget()),
        stacks(sizes, device, dtype, kind, rank, card, shared),
        stacks(sizes, device, dtype, kind, 0, card, shared),
        cpu_step.SHORT if device == "cpu" and _steps(dtype, kind) else 0,
        slab,
        0 if kind == "none" else dequantised(kind, sizes.largest_linear, dtype, device),
        _head(sizes, device, dtype, rows, again, slab, products == "mkl" and rank > 0),
        0 if device == "cpu" else int(KEPT_SHARE * card),
    )


@cache
def _best_library(*args) -> str:
    return process.best_library(*args)[0]


def _bytes_of_copy(dtype: torch.dtype, products: str) -> int:
    """Return the bytes of a number in a weight's copy, 0 where none is made."""
    by = packed.library_of(dtype, products)
    return packed.bytes_of(dtype, by) if by else 0


def stacks(sizes: Sizes, device: str, dtype: torch.dtype, kind: str, rank: int, card: int, shared: bool = False) -> int:
    """Return the bytes that the decode step copies: the blocks' weights, if cpu_step.py or cuda_graph.py would,
    and the adapters' factors, as if every layer had one. shared: a CPU's step multiplies by training's copies."""
    joined = 0  # zeros beside the block diagonal of the B factors of layers with one input
    if device == "cpu":
        stacked = _steps(dtype, kind) and sizes.weights < cpu_step.SMALL and not shared
        rank = _steps(dtype, kind) * -(-rank // ROW_MULTIPLE) * ROW_MULTIPLE
        joined += 2 * (sizes.Q + 2 * sizes.K) * (3 * rank <= JOINED)
        joined += 2 * sizes.I * (2 * rank <= JOINED)
    else:
        stacked = kind == "none" and sizes.weights * dtype.itemsize <= cuda_graph.STACKED_SHARE * card
        rank = fused_step.padded_rank(rank)
    factors = sizes.L * rank * (joined + sum(outputs + inputs for outputs, inputs in sizes.linears.values()))
    return dtype.itemsize * (factors + (sizes.block_weights if stacked else 0))


def _steps(dtype: torch.dtype, kind: str) -> bool:
    """Return whether cpu_step.py makes a step for such a model."""
    return kind == "none" and dtype == torch.float32


def _head(sizes: Sizes, device: str, dtype: torch.dtype, rows: int, again: bool, slab: int, widened: bool) -> int:
    """Return the bytes of logits, probabilities, their gradients and sums while a slab of some rows is computed.
    widened: MKL's copies multiply 16 bits."""
    if device == "cpu":
        rows, half, words = min(rows, head.ROWS), dtype.itemsize == 2, min(SLAB, sizes.V)
        logits, cast = 4 * rows * words, 2 * rows * words if half and not again else 0  # the probabilities in 16 bits,
        cast += 4 * min(rows, packed.WIDENED) * (words + sizes.D) if half and widened else 0  # and as float32
        return max(logits + slab, (4 if again else 2) * logits + cast) + 8 * rows * sizes.D
    from models.fast.triton import logprob

    tiles = logprob.tiles(sizes.D, dtype, HOPPER)
    of = lambda count: logprob.scratch_bytes(count, sizes.D, sizes.V, dtype, tiles)  # noqa: E731
    return of(min(rows, max(logprob.SCRATCH_BYTES // of(tiles.rows), 1) * tiles.rows))


def dequantised(kind: str, weights: int, dtype: torch.dtype, device: str) -> int:
    """Return the bytes that exist while a layer of so many weights is dequantised, its result included."""
    result = weights * dtype.itemsize
    if device != "cpu":
        return result
    if kind == "int8":
        return 4 * weights + (0 if dtype == torch.float32 else result)
    scales = 4 * weights // BLOCK if kind == "nf4-double" else 0
    piece = min(weights, quant.BLOCKS * BLOCK)
    return result + scales + 2 * piece + 4 * piece  # the codes as int32, and the levels of both of a byte's codes
