"""Several LoRA layers of one input as one autograd function: the fast way to compute lora/layer.py's formula.

`FusedLoRA` saves x and computes A x again. `LeanLoRA` is for training in 16 bits on CUDA: it takes fewer launches and
an input that need not be kept; factors are cast once, A x is kept, and gradients of factors are summed in float32.

Both take base layers that multiply several frozen weights at once, models/linear.py's Linear and its descendants. Such
a layer has `joint_product` (x, layers) -> the outputs side by side, `joint_gradient` (their gradient, layers) -> the
gradient of x, and `matmul`, a replacement of F.linear in every product, or None.
"""

import torch
import torch.nn.functional as F

RANK_MULTIPLE = 16


class FusedLoRA(torch.autograd.Function):
    """Return base(x) + scale * B A x of all layers side by side, [N, in] -> [N, sum of out].

    bases: the frozen layers; scales: the adapter's scale for each, None without an adapter; factors: A and B of each
    adapter in turn. Saves x and the factors: the backward computes A x again, and frozen weights get no gradient. The
    factors are multiplied in the dtype of x; their gradients have the factors' dtype.
    """

    @staticmethod
    def forward(ctx, x, bases, scales, *factors):
        ctx.bases, ctx.scales = bases, scales
        ctx.save_for_backward(x, *factors)
        y = bases[0].joint_product(x, bases)
        if factors:
            A, Bs = _cast(factors, scales, x.dtype)
            matmul = bases[0].matmul
            for out, low, B in _columns(y, (matmul or F.linear)(x, A), bases, scales, Bs):
                out.addmm_(low, B.mT) if matmul is None else out.add_(matmul(low, B))
        return y

    @staticmethod
    def backward(ctx, grad):
        (x, *factors), grad = ctx.saved_tensors, grad.contiguous()
        grad_x = ctx.bases[0].joint_gradient(grad, ctx.bases) if ctx.needs_input_grad[0] else None
        if not factors:
            return grad_x, None, None
        A, Bs = _cast(factors, ctx.scales, x.dtype)
        parts = list(_columns(grad, F.linear(x, A), ctx.bases, ctx.scales, Bs))
        grad_low = torch.cat([out @ B for out, _, B in parts], -1)
        if grad_x is not None:
            grad_x.addmm_(grad_low, A)
        grads_A = (grad_low.mT @ x).split([B.shape[1] for B in Bs])
        scales, grads = [scale for scale in ctx.scales if scale is not None], []
        for (out, low, _), grad_A, scale, B in zip(parts, grads_A, scales, factors[1::2], strict=True):
            r, dtype = B.shape[1], B.dtype
            grads += grad_A[:r].to(dtype).mul_(scale), (out.mT @ low)[:, :r].to(dtype)
        return grad_x, None, None, *grads


class LeanLoRA(torch.autograd.Function):
    """`FusedLoRA` that need not keep x. again: (function, its tensors) from which the backward computes x, or ()."""

    @staticmethod
    def forward(ctx, x, bases, scales, again, *factors):
        ctx.bases, ctx.scales = bases, scales
        ctx.again, inputs = again or (None, (x,))
        y, matmul = bases[0].joint_product(x, bases), bases[0].matmul
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
        grad_x = ctx.bases[0].joint_gradient(grad, ctx.bases) if ctx.needs_input_grad[0] else None
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


def _cast(factors, scales, dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return (scale * A of all adapters stacked [R, in], their B factors) in dtype. Zeros pad each adapter's rank to
    RANK_MULTIPLE: libraries multiply a narrow matrix by another kernel, with other rounding, for few rows than for
    many."""
    scales, missing = [scale for scale in scales if scale is not None], [-len(A) % RANK_MULTIPLE for A in factors[::2]]
    As = torch._foreach_mul(factors[::2], scales)
    As = [F.pad(A, (0, 0, 0, n)) if n else A for A, n in zip(As, missing, strict=True)]
    Bs = [F.pad(B, (0, n)) if n else B for B, n in zip(factors[1::2], missing, strict=True)]
    return torch.cat(As).to(dtype), [B.to(dtype) for B in Bs]


def _columns(y, low, bases, scales, Bs):
    """Yield, for each base with an adapter, (its columns of y, its columns of low = A x, B)."""
    outs = y.split([base.out_features for base in bases], -1)
    adapted = [out for out, scale in zip(outs, scales, strict=True) if scale is not None]
    return zip(adapted, low.split([B.shape[1] for B in Bs], -1), Bs, strict=True)


def _product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a @ b in dtype, on CUDA without rounding it to the dtype of a first."""
    return torch.mm(a, b, out_dtype=dtype) if a.is_cuda and a.dtype != dtype else (a @ b).to(dtype)
