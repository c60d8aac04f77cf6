"""Parts that the kernels share: constants, tile sizes, and the product of two tiles from one load."""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

FUSED = {"enable_fp_fusion": True}  # the bits depend on this, and its default on Triton's version
LOWEST = tl.constexpr(-1e38)  # below every logit and score, and finite: its difference with itself is 0
LOG2E = tl.constexpr(1.4426950408889634)


class Tiles(NamedTuple):
    """The tile sizes and the launch options of a kernel."""

    rows: int  # rows of hidden states, in both products
    vocab: int  # columns of logits, in the first product; a program computes two such tiles side by side
    width: int  # columns of D, in the second product; a program computes two such tiles side by side
    inner: int  # columns that one step of the inner loop sums
    warps: int  # warps of a program
    stages: int  # loads in flight


@cache
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a program can use; on a device other than CUDA, an H200's."""
    if device.type != "cuda":
        return 227 * 1024
    return triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"]


def try_kernel(device: torch.device) -> None:
    """Compile and launch a kernel on a CUDA device; raise whatever goes wrong. Other devices are not tried."""
    if device.type == "cuda":
        _nothing[(1,)](torch.empty(1, dtype=torch.int64, device=device))


@triton.jit
def _nothing(x):
    tl.store(x, 0)


@triton.jit
def inverse_rms(squares, count, eps):
    """Return 1 / rms of rows from the sums of their squares."""
    return tl.rsqrt(squares / count + eps)


@triton.jit
def normed(x, scale, weight, dtype: tl.constexpr):
    """Return x * scale * weight, from float32, rounded to dtype where models/decoder.py's RMSNorm rounds."""
    return ((x * scale).to(dtype).to(tl.float32) * weight).to(dtype)


@triton.jit
def silu_times(gate, up, dtype: tl.constexpr):
    """Return silu(gate) * up, from float32, each factor and the product rounded to dtype."""
    return ((gate / (1 + tl.exp(-gate))).to(dtype).to(tl.float32) * up).to(dtype)


@triton.jit
def place(row_tiles, column_tiles):
    """Return (row tile, column tile) of this program. Programs go through 8 rows of tiles together, column by column,
    so that programs that run at the same time share their loads in the L2 cache."""
    program = tl.program_id(0)
    first = program // (8 * column_tiles) * 8
    height = tl.minimum(row_tiles - first, 8)
    return first + program % (8 * column_tiles) % height, program % (8 * column_tiles) // height


@triton.jit
def pair_product(a, b, rows, columns, limit, K, a_row, b_inner, b_column, INNER: tl.constexpr):
    """Return a[rows] @ b[:, columns] and a[rows] @ b[:, columns + COLUMNS], both float32, from one load of a.

    Return two tiles, not one of twice the width: the caller has registers to work on one tile at a time.
    columns: a tile's columns. Columns of b from `limit` on count as 0. K: length of the sums.
    a_row, b_inner, b_column: strides.
    """
    COLUMNS: tl.constexpr = columns.shape[0]
    left = tl.zeros((rows.shape[0], COLUMNS), tl.float32)
    right = tl.zeros((rows.shape[0], COLUMNS), tl.float32)
    for start in range(0, K, INNER):
        inner = start + tl.arange(0, INNER)
        inside = (inner < K)[:, None]
        x = tl.load(a + (rows[:, None].to(tl.int64) * a_row + inner[None, :]), mask=inner[None, :] < K, other=0)
        at = b + (inner[:, None] * b_inner + columns[None, :] * b_column)
        y = tl.load(at, mask=inside & (columns < limit)[None, :], other=0)
        z = tl.load(at + COLUMNS * b_column, mask=inside & (columns + COLUMNS < limit)[None, :], other=0)
        left = tl.dot(x, y, left, input_precision="ieee")
        right = tl.dot(x, z, right, input_precision="ieee")
    return left, right
