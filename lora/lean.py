"""The formula of lora/fused.py for training in 16 bits on CUDA: fewer launches, an input that need not be kept.

Factors are cast once for forward and backward, A x is kept, and gradients of factors are summed in float32.
"""

import torch
import torch.nn.functional as F

from lora.fused import _cast, _columns


class LeanLoRA(torch.autograd.Function):
    """`FusedLoRA` with the argument `again`: (function, its tensors) from which the backward computes x, or () for one
    that keeps x."""

    @staticmethod
    def forward(ctx, x, bases, scales, again, *factors):
        ctx.bases, ctx.scales = bases, scales
        ctx.again, inputs = again or (None, (x,))
        y, matmul = bases[0].product(x, bases), bases[0].matmul
        if factors:
            A, Bs = _cast(factors, scales, x.dtype)
            low = (matmul or F.linear)(x, A)
            for out, part, B in _columns(y, low, bases, scales, Bs):
                out.addmm_(part, B.mT) if matmul is None else out.add_(matmul(part, B))
            ctx.ranks, ctx.dtype = [len(A) for A in factors[::2]], factors[0].dtype
            ctx.save_for_backward(A, low, *Bs, *(tensor.detach() for tensor in inputs))
        return y

    @staticmethod
    def backward(ctx, grad):
        saved, grad = ctx.saved_tensors, grad.contiguous()  # first: checkpointing computes the block again for these
        grad_x = ctx.bases[0].product_back(grad, ctx.bases) if ctx.needs_input_grad[0] else None
        if not saved:
            return grad_x, None, None, None
        A, low, *Bs = saved[: len(ctx.ranks) + 2]
        inputs, widths = saved[len(Bs) + 2 :], [B.shape[1] for B in Bs]
        x, grad_low = ctx.again(*inputs) if ctx.again else inputs[0], torch.empty_like(low)
        parts = list(_columns(grad, low, ctx.bases, ctx.scales, Bs))
        for (out, _, B), grad_part in zip(parts, grad_low.split(widths, -1), strict=True):
            torch.mm(out, B, out=grad_part)
        if grad_x is not None:
            grad_x.addmm_(grad_low, A)
        grads, grads_A = [], _product(grad_low.mT, x, ctx.dtype).split(widths)
        torch._foreach_mul_(grads_A, [scale for scale in ctx.scales if scale is not None])
        for (out, part, _), grad_A, r in zip(parts, grads_A, ctx.ranks, strict=True):
            grads += grad_A[:r], _product(out.mT, part, ctx.dtype)[:, :r]
        return grad_x, None, None, None, *grads


def _product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a @ b in dtype, on CUDA without rounding it to the dtype of a first."""
    return torch.mm(a, b, out_dtype=dtype) if a.is_cuda and a.dtype != dtype else (a @ b).to(dtype)
