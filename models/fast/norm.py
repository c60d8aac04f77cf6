"""RMSNorm in float32 on a CPU: the bits of F.rms_norm in fewer passes, and a backward in five.

torch has no kernel of it for a CPU: F.rms_norm is a sequence of operations, each of which autograd records.
"""

from functools import cache

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor | None:
    """Implement the hook of models/kernels.py: RMSNorm with a frozen weight, or None."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or weight.requires_grad:
        return None
    if torch.is_grad_enabled() and x.requires_grad:
        return RMSNormalized.apply(x, weight, eps)
    return normalize(x, weight, eps)[0]


def normalize(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (x / rms(x) * weight, 1 / rms(x) with a last dimension of 1)."""
    eps, width = _constants(eps, x.shape[-1])
    inverse = torch.addcdiv(eps, torch.mul(x, x).sum(-1, keepdim=True), width).rsqrt_()
    return torch.mul(x, inverse).mul_(weight), inverse


class RMSNormalized(torch.autograd.Function):
    """With i = 1 / rms(x) and g = weight * grad, over D numbers: dx = i g - x i^3 sum(g x) / D."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        y, inverse = normalize(x, weight, eps)
        ctx.save_for_backward(x, weight, inverse)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, weight, inverse = ctx.saved_tensors
        grad = grad * weight
        along = torch.mul(grad, x).sum(-1, keepdim=True).mul_(inverse.pow(3)).div_(x.shape[-1])
        return grad.mul_(inverse).addcmul_(x, along, value=-1), None, None


@cache
def _constants(eps: float, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both as tensors, which torch takes without a conversion at each call."""
    with torch.inference_mode(False):
        return torch.tensor(eps), torch.tensor(float(width))
