"""A block's forward for training: on a CPU lean_mlp.py's, on CUDA in 16 bits fewer launches and half the memory.

Between the products stand the functions of triton/block.py. Inputs of products that are cheap to compute from what is
kept anyway, the normed rows and silu(gate) * up, are computed again in the backward. A token then keeps 4D + 4Dq + 4Dkv
+ 4I bytes of a layer (2Dq more beside shared prompts), where the plain code keeps 12D + 8Dq + 6Dkv + 8I.
"""

from functools import partial
from types import ModuleType

import torch

from models.decoder import Block, RMSNorm
from models.fast.dispatch import triton_problem
from models.fast.lean_mlp import lean_block
from models.fast.products import groups
from models.layout import Layout
from models.linear import Linear, joint_linear


def train_block(block: Block, x_ND: torch.Tensor, layout: Layout, wanted) -> torch.Tensor | None:
    """Implement the hook of models/kernels.py: the rows after a block, on CUDA one whose norms are frozen; or None."""
    if layout.packed_attend is None:
        return lean_block(block, x_ND, layout, wanted)
    if wanted is not None or problem(block, x_ND.device):
        return None
    from models.fast.triton import block as fused

    return fused_block(block, x_ND, layout, fused)


def problem(block: Block, device: torch.device) -> str | None:
    """Return None if this code computes a block, else why not."""
    if block.mlp.hidden_act != "silu":
        return f"the fused kernels compute silu, not {block.mlp.hidden_act}"
    if any(module.weight.requires_grad for module in block.modules() if isinstance(module, RMSNorm)):
        return "the norms train"
    return "Triton does not work here" if triton_problem(device) else None


def fused_block(block: Block, x_ND: torch.Tensor, layout: Layout, fused: ModuleType) -> torch.Tensor:
    """Return the rows after a block. fused: triton/block.py."""
    qkv, out, gate_up, down = groups(block)
    attention, (cos_NE, sin_NE) = block.self_attn, layout.rotary[block.self_attn.rope]
    x_ND, normed_ND, again = _norm(x_ND, None, block.input_layernorm, fused)
    heads = *attention.heads, attention.head_dim
    norms = [norm.weight if isinstance(norm, RMSNorm) else None for norm in (attention.q_norm, attention.k_norm)]
    eps = block.input_layernorm.eps
    q_NHE, k_NKE, v_NKE = fused.Rotate.apply(_product(normed_ND, qkv, again), cos_NE, sin_NE, heads, *norms, eps)
    attended = layout.packed_attend(q_NHE, k_NKE, v_NKE, attention.window).flatten(1)
    x_ND, normed_ND, again = _norm(x_ND, _product(attended, out), block.post_attention_layernorm, fused)
    gates = _product(normed_ND, gate_up, again)
    return x_ND + _product(fused.SwiGLU.apply(gates), down, (fused.swiglu, (gates,)))


def _norm(x_ND: torch.Tensor, added_ND: torch.Tensor | None, norm: RMSNorm, fused: ModuleType):
    """Return (x + added, its norm, how to compute the norm again)."""
    x_ND, normed_ND = fused.AddNorm.apply(x_ND, added_ND, norm.weight, norm.eps)
    return x_ND, normed_ND, (partial(fused.normalize, weight_D=norm.weight, eps=norm.eps), (x_ND,))


def _product(x: torch.Tensor, layers: tuple, again: tuple = ()) -> torch.Tensor:
    """Return the outputs of the layers side by side. again: how the backward may compute x (lora/fused.py)."""
    wrapper = next((layer for layer in layers if not isinstance(layer, Linear)), None)
    if wrapper is not None:
        return wrapper.joint_lean(x, layers, again)
    outputs = joint_linear(x, *layers)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
