"""A block's forward for training on a CPU: the MLP keeps the outputs of gate_proj and up_proj alone.

The backward computes act(gate) * up again, by the same operations on the same numbers, so gradients have the bits of
the plain code. A token keeps 2I numbers of the MLP, where the plain code keeps 4I.
"""

from functools import partial

import torch
from torch.autograd.graph import saved_tensors_hooks

from models.decoder import MLP, Block
from models.layout import Layout
from models.linear import joint_linear


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


def lean_block(block: Block, x_ND: torch.Tensor, layout: Layout, wanted) -> torch.Tensor | None:
    """Return the rows after a block, as Block.forward does; None on CUDA, and where nothing is kept."""
    if x_ND.device.type != "cpu" or not torch.is_grad_enabled():
        return None
    attended = block.self_attn(block.input_layernorm(x_ND), layout, None, wanted)
    x_ND = (x_ND if wanted is None else x_ND[wanted]) + attended
    return x_ND + lean_mlp(block.mlp, block.post_attention_layernorm(x_ND))


def lean_mlp(mlp: MLP, x_ND: torch.Tensor) -> torch.Tensor:
    """Return what MLP.forward does."""
    product = Gated.apply(*joint_linear(x_ND, mlp.gate_proj, mlp.up_proj), mlp.act)
    pack = partial(node_or_tensor, product.grad_fn, product.data_ptr(), product.shape)  # torch keeps it: no tensor
    with saved_tensors_hooks(pack, tensor_of):
        return mlp.down_proj(product)


def node_or_tensor(gated, address: int, shape: torch.Size, x: torch.Tensor):
    """Return what is kept in place of x: of the product at this address the node of `Gated`, if it has one."""
    return gated if gated is not None and (x.data_ptr(), x.shape) == (address, shape) else x


def tensor_of(kept) -> torch.Tensor:
    """Return the tensor in whose place `kept` was kept; leave the factors of a product to the backward of `Gated`."""
    if isinstance(kept, torch.Tensor):
        return kept
    kept.factors = _, opened, up = factors_of(kept)
    return opened.detach() * up
