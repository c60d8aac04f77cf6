"""Compute models/linear.py's product with a Triton kernel in which each row depends on its own inputs alone.

cuBLAS chooses its tiles, and whether to split the sum over the inputs, by the number of rows: a token sampled alone and
the same token among the thousands of a training batch get different last bits. Here each sum runs over the inputs in
one order, in steps of one size; for few rows the tiles have fewer columns, so that they fill the device. Sampling and
training must agree in the forward only, so cuBLAS computes the gradients.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from models.cuda.triton.common import FUSED, Tiles, pair_product, place

HALF = Tiles(rows=64, vocab=64, width=0, inner=64, warps=4, stages=4)  # the loads of two tiles side by side take 96 KiB
FULL = Tiles(rows=64, vocab=32, width=0, inner=16, warps=4, stages=2)  # float32 does not use tensor cores
NARROW = (32, 16)  # columns of a tile where wider ones would leave processors idle: few rows


def product(
    x_ND: torch.Tensor, weight_OD: torch.Tensor, bias_O: torch.Tensor | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return x @ weight.T + bias, [N, O], summed in float32.

    The inputs are CUDA tensors of one dtype: bfloat16, float16 or float32. A row's bits depend on that row alone. Every
    input that requires a gradient gets one.
    dtype: the result's dtype, by default x's; logits are float32, so that near ties are not rounded to one number.
    """
    return _Product.apply(x_ND, weight_OD, bias_O, dtype or x_ND.dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_ND, weight_OD, bias_O, dtype):
        ctx.save_for_backward(x_ND if weight_OD.requires_grad else None, weight_OD)
        y_NO = x_ND.new_empty(len(x_ND), len(weight_OD), dtype=dtype)
        multiply(x_ND if x_ND.stride(1) == 1 else x_ND.contiguous(), weight_OD.contiguous(), bias_O, y_NO)
        return y_NO

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_NO):
        x_ND, weight_OD = ctx.saved_tensors
        wanted, grad_NO = ctx.needs_input_grad, grad_NO.to(weight_OD.dtype)
        return (
            grad_NO @ weight_OD if wanted[0] else None,
            grad_NO.mT @ x_ND if wanted[1] else None,
            grad_NO.sum(0) if wanted[2] else None,
            None,
        )


def multiply(x_ND, weight_OD, bias_O, y_NO, columns: int | None = None) -> None:
    """Write x @ weight.T + bias into y. The rows of x and y may be parts of longer rows. columns: of a tile."""
    (N, D), outputs, t = x_ND.shape, len(weight_OD), FULL if x_ND.dtype == torch.float32 else HALF
    columns = columns or tile_columns(N, outputs, x_ND.dtype, x_ND.device)
    if N:
        _multiply[(triton.cdiv(N, t.rows) * triton.cdiv(outputs, 2 * columns),)](
            *(x_ND, weight_OD, bias_O, y_NO, N, D, outputs, x_ND.stride(0), y_NO.stride(0)),
            **dict(ROWS=t.rows, COLUMNS=columns, INNER=t.inner, num_warps=t.warps, num_stages=t.stages, **FUSED),
        )


def tile_columns(N: int, outputs: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the most columns of a tile with which the product has a program for every processor, or the fewest."""
    if dtype == torch.float32:
        return FULL.vocab
    programs = triton.cdiv(N, HALF.rows)
    for columns in (HALF.vocab, *NARROW):
        if programs * triton.cdiv(outputs, 2 * columns) >= processors(device):
            break
    return columns if columns == HALF.vocab or narrow_tiles_agree(dtype, device) else HALF.vocab


@cache
def processors(device: torch.device) -> int:
    """Return the number of a CUDA device's processors; an H200's for other devices."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


@cache
def narrow_tiles_agree(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether tiles of all widths give the same bits on a device, from one trial.

    They should: sums run over the inputs in the same steps. But a chip might multiply narrow tiles in another way.
    """
    if device.type != "cuda":
        return True
    generator = torch.Generator().manual_seed(0)
    x_ND, weight_OD = (torch.randn(n, 1000, generator=generator).to(device, dtype) for n in (70, 300))
    results = [x_ND.new_empty(70, 300, dtype=torch.float32) for _ in (HALF.vocab, *NARROW)]
    for columns, y_NO in zip((HALF.vocab, *NARROW), results, strict=True):
        multiply(x_ND, weight_OD, None, y_NO, columns)
    return all(torch.equal(y_NO, results[0]) for y_NO in results)


@triton.jit(do_not_specialize=["N"])
def _multiply(
    x_ND, weight_OD, bias_O, y_NO, N, D, outputs, x_row, y_row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Compute two tiles of y side by side."""
    row_tile, pair = place(tl.cdiv(N, ROWS), tl.cdiv(outputs, 2 * COLUMNS))
    rows, columns = row_tile * ROWS + tl.arange(0, ROWS), 2 * pair * COLUMNS + tl.arange(0, COLUMNS)
    left, right = pair_product(x_ND, weight_OD, tl.minimum(rows, N - 1), columns, outputs, D, x_row, 1, D, INNER)
    _store(y_NO, bias_O, left, rows, columns, N, outputs, y_row)
    _store(y_NO, bias_O, right, rows, columns + COLUMNS, N, outputs, y_row)


@triton.jit
def _store(y_NO, bias_O, sums, rows, columns, N, outputs, y_row):
    """Add the bias to a tile and write it."""
    if bias_O is not None:
        sums += tl.load(bias_O + columns, mask=columns < outputs, other=0).to(tl.float32)[None, :]
    at = y_NO + rows[:, None].to(tl.int64) * y_row + columns[None, :]
    tl.store(at, sums.to(y_NO.dtype.element_ty), mask=(rows < N)[:, None] & (columns < outputs)[None, :])
