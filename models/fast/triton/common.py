"""What the kernels share: constants, tile sizes, and the product of two tiles from one load."""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

FUSED = {"enable_fp_fusion": True}  # explicit, because the default depends on Triton's version, and the bits on it
LOWEST = tl.constexpr(-1e38)  # below every logit and score, and finite: its difference with itself is 0
LOG2E = tl.constexpr(1.4426950408889634)


class Tiles(NamedTuple):
    rows: int  # of hidden states, in both products
    vocab: int  # columns of the first product, the logits; a program makes two such tiles side by side
    width: int  # columns of the second, out of D; two as well
    inner: int  # summed at once
    warps: int
    stages: int  # loads in flight


@cache
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a program can have; on other devices than CUDA those of an H200."""
    if device.type != "cuda":
        return 227 * 1024
    return triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"]


@triton.jit
def place(row_tiles, column_tiles):
    """Return (row tile, column tile) of this program: 8 rows of tiles abreast, so that programs that run at the same
    time share their loads in the L2 cache."""
    program = tl.program_id(0)
    first = program // (8 * column_tiles) * 8
    height = tl.minimum(row_tiles - first, 8)
    return first + program % (8 * column_tiles) % height, program % (8 * column_tiles) // height


@triton.jit
def pair_product(a, b, rows, columns, limit, K, a_row, b_inner, b_column, INNER: tl.constexpr):
    """Return a[rows] @ b[:, columns] in float32, and the same for the next columns; b is 0 from column `limit` on. Two
    tiles from one load of a: what follows has registers for one at a time. a_row, b_inner, b_column are strides."""
    COLUMNS: tl.constexpr = columns.shape[0]
    left = tl.zeros((rows.shape[0], COLUMNS), tl.float32)
    right = tl.zeros((rows.shape[0], COLUMNS), tl.float32)
    for start in range(0, K, INNER):
        inner = start + tl.arange(0, INNER)
        inside = (inner < K)[:, None]
        x = tl.load(a + (rows[:, None] * a_row + inner[None, :]), mask=inner[None, :] < K, other=0)
        at = b + (inner[:, None] * b_inner + columns[None, :] * b_column)
        y = tl.load(at, mask=inside & (columns < limit)[None, :], other=0)
        z = tl.load(at + COLUMNS * b_column, mask=inside & (columns + COLUMNS < limit)[None, :], other=0)
        left = tl.dot(x, y, left, input_precision="ieee")
        right = tl.dot(x, z, right, input_precision="ieee")
    return left, right
