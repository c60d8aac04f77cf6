"""A block's forward for training on a CPU in 16 bits: the MLP keeps the outputs of gate_proj and up_proj alone.

The backward computes act(gate) * up again, by the same operations on the same numbers, so gradients have the bits of
the plain code. A token keeps 2I numbers of the MLP, where the plain code keeps 4I. In float32 the plain code runs:
there products are fast beside activations, and computing these again took 1.03x the time of a training pass.
"""

import torch

from models.decoder import MLP, Block
from models.layout import Layout
from models.linear import Linear, joint_linear


class Gated(torch.autograd.Function):
    """Return act(gate) * up; keep gate and up."""

    @staticmethod
    def forward(ctx, gate, up, act):
        ctx.act = act
        ctx.save_for_backward(gate, up)
        return act(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        gate = gate.detach().requires_grad_()
        with torch.enable_grad():
            opened = ctx.act(gate)
        grad_gate = torch.autograd.grad(opened, gate, grad * up)[0]
        return grad_gate, opened.detach().mul_(grad), None


def lean_block(block: Block, x_ND: torch.Tensor, layout: Layout, wanted) -> torch.Tensor | None:
    """Return the rows after a block, as Block.forward does; None on CUDA, in float32, and where nothing is kept."""
    if x_ND.device.type != "cpu" or x_ND.dtype.itemsize != 2 or not torch.is_grad_enabled():
        return None
    attended = block.self_attn(block.input_layernorm(x_ND), layout, None, wanted)
    x_ND = (x_ND if wanted is None else x_ND[wanted]) + attended
    return x_ND + lean_mlp(block.mlp, block.post_attention_layernorm(x_ND))


def lean_mlp(mlp: MLP, x_ND: torch.Tensor) -> torch.Tensor:
    """Return what MLP.forward does."""
    gate, up = joint_linear(x_ND, mlp.gate_proj, mlp.up_proj)
    product, down = Gated.apply(gate, up, mlp.act), mlp.down_proj
    if isinstance(down, Linear):
        return down(product)
    again = lambda gate, up: mlp.act(gate) * up  # noqa: E731
    return down.joint(product, (down,), (again, (gate, up)))[0]
