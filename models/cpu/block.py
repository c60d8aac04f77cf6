"""The training block of models/decoder.py on a CPU: RMSNorm in fewer passes, and an MLP that keeps half as much.

torch has no kernel of RMSNorm for a CPU: F.rms_norm is a sequence of operations, each of which autograd records. Here
it has the same bits, and a backward of five operations.

The MLP keeps the outputs of gate_proj and up_proj alone. The backward computes act(gate) * up again, by the same
operations on the same numbers, so gradients have the bits of the plain code. A token keeps 2I numbers of the MLP, where
the plain code keeps 4I.
"""

from functools import cache, partial

import torch
from torch.autograd.graph import saved_tensors_hooks

from models.decoder import MLP, Block
from models.layout import Layout


def train_block(block: Block, x_ND: torch.Tensor, layout: Layout, wanted) -> torch.Tensor | None:
    """Return the rows after a block, as Block.forward does; None where nothing is kept for a backward."""
    if not torch.is_grad_enabled():
        return None
    mlp = partial(lean_mlp, block.mlp) if isinstance(block.mlp, MLP) else block.mlp
    return block.compute(x_ND, layout, None, wanted, mlp)


def lean_mlp(mlp: MLP, x_ND: torch.Tensor) -> torch.Tensor:
    """Return what MLP.forward does."""
    product = Gated.apply(*mlp.gate_and_up(x_ND), mlp.act)
    pack = partial(node_or_tensor, product.grad_fn, product.data_ptr(), product.shape)  # torch keeps it: no tensor
    with saved_tensors_hooks(pack, tensor_of):
        return mlp.down_proj(product)


class Gated(torch.autograd.Function):
    """Return act(gate) * up; keep gate and up."""

    @staticmethod
    def forward(ctx, gate, up, act):
        ctx.act, ctx.factors = act, None
        ctx.save_for_backward(gate, up)
        return act(gate) * up

    @staticmethod
    def backward(ctx, grad):
        (gate, opened, up), ctx.factors = ctx.factors or factors_of(ctx), None
        grad_gate = torch.autograd.grad(opened, gate, grad * up)[0]
        return grad_gate, opened.detach().mul_(grad), None


def factors_of(gated) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (gate as a leaf, act(gate) with a gradient to it, up). gated: the node of `Gated`."""
    gate, up = gated.saved_tensors  # which checkpointing gives out once
    gate = gate.detach().requires_grad_()
    with torch.enable_grad():
        return gate, gated.act(gate), up


def node_or_tensor(gated, address: int, shape: torch.Size, x: torch.Tensor):
    """Return what is kept in place of x: of the product at this address the node of `Gated`, if it has one."""
    return gated if gated is not None and (x.data_ptr(), x.shape) == (address, shape) else x


def tensor_of(saved) -> torch.Tensor:
    """Return the tensor in whose place `saved` was kept; leave the factors of a product to the backward of `Gated`."""
    if isinstance(saved, torch.Tensor):
        return saved
    saved.factors = _, opened, up = factors_of(saved)
    return opened.detach() * up


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor | None:
    """Return models/decoder.py's RMSNorm in float32 with a frozen weight, else None."""
    if x.dtype != torch.float32 or weight.requires_grad:
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
