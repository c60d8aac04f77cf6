"""Several LoRA layers of one input as one autograd function: the fast way to compute lora/layer.py's formula.

It takes base layers that multiply several frozen weights at once, models/linear.py's Linear and its descendants. Such a
layer has `joint_product` (x, layers) -> the outputs side by side, `joint_gradient` (their gradient, layers) -> the
gradient of x, and `matmul`, a replacement of F.linear in every product, or None.
"""

import torch
import torch.nn.functional as F

RANK_MULTIPLE = 16


class FusedLoRA(torch.autograd.Function):
    """Return base(x) + scale * B A x of all layers side by side, [N, in] -> [N, sum of out].

    bases: the frozen layers; scales: the adapter's scale for each, None without an adapter; factors: A and B of each
    adapter in turn. The factors are multiplied in the dtype of x; their gradients have the factors' dtype.
    lean: for training in 16 bits on CUDA. The cast factors and scale * A x are kept, for fewer launches, and gradients
    of factors are summed in the factors' dtype. Else the backward computes both again, and sums in the dtype of x.
    again: (function, its tensors) from which the backward of a lean one computes x, so that x need not be kept; or ().
    """

    @staticmethod
    def forward(ctx, x, bases, scales, lean, again, *factors):
        ctx.bases, ctx.scales = bases, scales
        ctx.again, inputs = again or (None, (x,))
        y, matmul = bases[0].joint_product(x, bases), bases[0].matmul
        if factors:
            A, Bs = _cast(factors, scales, x.dtype)
            low = (matmul or F.linear)(x, A)  # scale * A x of all adapters side by side
            for out, own_low, B in _columns(y, low, bases, scales, Bs):  # y += B (scale * A x)
                out.addmm_(own_low, B.mT) if matmul is None else out.add_(matmul(own_low, B))
            ctx.ranks, ctx.dtype, ctx.lean = [len(A) for A in factors[::2]], factors[0].dtype, lean
            ctx.sum_dtype = ctx.dtype if lean else x.dtype
            kept = (A, low, *Bs) if lean else factors
            ctx.save_for_backward(*kept, *(tensor.detach() for tensor in inputs))
        return y

    @staticmethod
    def backward(ctx, grad):
        saved, grad = ctx.saved_tensors, grad.contiguous()  # first: checkpointing computes the block again for these
        # grad_x = grad W; the frozen W has no gradient.
        grad_x = ctx.bases[0].joint_gradient(grad, ctx.bases) if ctx.needs_input_grad[0] else None
        if not saved:
            return grad_x, None, None, None, None
        if ctx.lean:
            A, low, *Bs = saved[: len(ctx.ranks) + 2]
            inputs = saved[len(ctx.ranks) + 2 :]
            x = ctx.again(*inputs) if ctx.again else inputs[0]
        else:
            *factors, x = saved
            A, Bs = _cast(factors, ctx.scales, x.dtype)
            low = F.linear(x, A)
        grad_low, widths = torch.empty_like(low), [B.shape[1] for B in Bs]
        parts = list(_columns(grad, low, ctx.bases, ctx.scales, Bs))
        for (grad_out, _, B), grad_own_low in zip(parts, grad_low.split(widths, -1), strict=True):
            torch.mm(grad_out, B, out=grad_own_low)  # grad_low = grad B
        if grad_x is not None:
            grad_x.addmm_(grad_low, A)  # grad_x += grad_low (scale * A)
        # grad_A = scale * grad_low^T x, and grad_B = grad^T low
        grads: list[torch.Tensor] = []
        grads_A = _product(grad_low.mT, x, ctx.sum_dtype).to(ctx.dtype).split(widths)
        torch._foreach_mul_(grads_A, [scale for scale in ctx.scales if scale is not None])
        for (grad_out, own_low, _), grad_A, r in zip(parts, grads_A, ctx.ranks, strict=True):
            grads += grad_A[:r], _product(grad_out.mT, own_low, ctx.sum_dtype)[:, :r].to(ctx.dtype)
        return grad_x, None, None, None, None, *grads


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
    """Yield, for each base with an adapter, (its columns of y, its columns of low, B)."""
    outs = y.split([base.out_features for base in bases], -1)
    adapted = [out for out, scale in zip(outs, scales, strict=True) if scale is not None]
    return zip(adapted, low.split([B.shape[1] for B in Bs], -1), Bs, strict=True)


def _product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a @ b in dtype, on CUDA without rounding it to the dtype of a first."""
    return torch.mm(a, b, out_dtype=dtype) if a.is_cuda and a.dtype != dtype else (a @ b).to(dtype)
