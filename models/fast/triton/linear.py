"""Compute a linear layer's product with a Triton kernel in which each row depends on its own inputs alone.

cuBLAS chooses its tiles, and whether to split the sum over the inputs, by the number of rows: a token sampled alone and
the same token among the thousands of a training batch get different last bits. Here the tile is the same for any number
of rows, and each sum runs over the inputs in one order. Sampling and training must agree in the forward only, so
cuBLAS computes the gradients.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from models.fast.triton.common import FUSED, Tiles, pair_product, place

HALF = Tiles(rows=64, vocab=64, width=0, inner=64, warps=4, stages=4)  # the loads of two tiles side by side take 96 KiB
FULL = Tiles(rows=64, vocab=32, width=0, inner=16, warps=4, stages=2)  # float32 does not use tensor cores


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
        x_ND, weight_OD = x_ND.contiguous(), weight_OD.contiguous()
        (N, D), outputs = x_ND.shape, len(weight_OD)
        y_NO, t = x_ND.new_empty(N, outputs, dtype=dtype), FULL if x_ND.dtype == torch.float32 else HALF
        if N:
            _multiply[(triton.cdiv(N, t.rows) * triton.cdiv(outputs, 2 * t.vocab),)](
                *(x_ND, weight_OD, bias_O, y_NO, N, D, outputs),
                **dict(ROWS=t.rows, COLUMNS=t.vocab, INNER=t.inner, num_warps=t.warps, num_stages=t.stages, **FUSED),
            )
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


@triton.jit(do_not_specialize=["N"])
def _multiply(
    x_ND, weight_OD, bias_O, y_NO, N, D, outputs, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr
):  # fmt: skip
    """Compute two tiles of y side by side."""
    row_tile, pair = place(tl.cdiv(N, ROWS), tl.cdiv(outputs, 2 * COLUMNS))
    rows, columns = row_tile * ROWS + tl.arange(0, ROWS), 2 * pair * COLUMNS + tl.arange(0, COLUMNS)
    left, right = pair_product(x_ND, weight_OD, tl.minimum(rows, N - 1), columns, outputs, D, D, 1, D, INNER)
    _store(y_NO, bias_O, left, rows, columns, N, outputs)
    _store(y_NO, bias_O, right, rows, columns + COLUMNS, N, outputs)


@triton.jit
def _store(y_NO, bias_O, sums, rows, columns, N, outputs):
    """Add the bias to a tile and write it."""
    if bias_O is not None:
        sums += tl.load(bias_O + columns, mask=columns < outputs, other=0).to(tl.float32)[None, :]
    at = y_NO + rows[:, None].to(tl.int64) * outputs + columns[None, :]
    tl.store(at, sums.to(y_NO.dtype.element_ty), mask=(rows < N)[:, None] & (columns < outputs)[None, :])
