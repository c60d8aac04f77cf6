"""models/decoder.py's training block on CUDA in 16 bits: no padding, fewer launches and half the memory.

Attention is torch's `varlen_attn`, without padding or a mask: the plain code up to rounding. Between the products stand
the functions of triton/block.py. Inputs of products that are cheap to compute from what is kept anyway, the normed rows
and silu(gate) * up, are computed again in the backward. A token then keeps 4D + 4Dq + 4Dkv + 4I bytes of a layer (2Dq
more beside shared prompts), where the plain code keeps 12D + 8Dq + 6Dkv + 8I.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
import torch.nn.functional as F

from models.cuda import available
from models.cuda.available import HALF, triton_problem
from models.decoder import Block, RMSNorm
from models.layout import Layout
from models.linear import Linear, joint_linear
from models.stacked import groups


def train_block(block: Block, x_ND: torch.Tensor, layout: Layout, wanted) -> torch.Tensor | None:
    """Return the rows after a block without padding whose norms are frozen, as Block.forward does, else None."""
    if layout.packed_attend is None or wanted is not None or problem(block, x_ND.device):
        return None
    return fused_block(block, x_ND, layout, available.kernels().block)


def problem(block: Block, device: torch.device) -> str | None:
    """Return None if this code computes a block, else why not."""
    if not block.config.plain_blocks:
        return f"the fused kernels do not compute the blocks of {block.config.model_type}"
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


@dataclass
class PackedRows:
    """Sequences laid end to end for `varlen_attn`. Each row is a query once, in the sequence that owns it, and a key in
    every sequence that contains it; a sequence's own rows are its last."""

    queries: torch.Tensor | slice  # rows, int64
    keys: torch.Tensor | slice
    query_starts_S: torch.Tensor  # int32 [S + 1]: where each sequence begins in `queries`, and where the last one ends
    key_starts_S: torch.Tensor
    most_queries: int  # of one sequence
    most_keys: int

    def attend(self, q_NHE, k_NKE, v_NKE, window: int | None = None) -> torch.Tensor:
        """Return out_NHE: each packed row sees itself and the rows before it in its sequence, `window` of them at most.
        Other rows get 0."""
        pick = lambda x, rows: x[rows] if isinstance(rows, slice) else x.index_select(0, rows)  # noqa: E731
        out = load_varlen()(
            *(pick(q_NHE, self.queries), pick(k_NKE, self.keys), pick(v_NKE, self.keys)),
            *(self.query_starts_S, self.key_starts_S, self.most_queries, self.most_keys),
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=True,
        )
        if isinstance(self.queries, slice):
            return F.pad(out, (0, 0, 0, 0, 0, len(q_NHE) - len(out)))
        return torch.zeros_like(q_NHE).index_copy(0, self.queries, out)


def pack(ids_BT, sequences_ST, own_ST, cos_NE: torch.Tensor) -> Callable | None:
    """Return `attend` of a batch's packed rows, or None where `varlen_attn` does not run. Without sequences_ST each row
    of ids_BT is one sequence."""
    if varlen_problem(ids_BT.device, cos_NE.dtype, cos_NE.shape[-1]):
        return None
    if sequences_ST is None:
        sequences_ST = torch.arange(ids_BT.numel(), device=ids_BT.device).view_as(ids_BT)
        own_ST = sequences_ST >= 0
    packed = pack_rows(sequences_ST, own_ST)
    return packed and packed.attend


def pack_rows(sequences_ST: torch.Tensor, own_ST: torch.Tensor) -> PackedRows | None:
    """Pack ragged sequences. sequences_ST holds rows, padded with -1; own_ST marks each row once, in the sequence that
    owns it. Return None if a sequence's own rows are not its last ones."""
    real_ST = sequences_ST >= 0
    if bool((own_ST[:, :-1] & real_ST[:, 1:] & ~own_ST[:, 1:]).any()):
        return None
    counts = own_ST.sum(1), real_ST.sum(1)
    rows = (_as_slice(sequences_ST[mask_ST]) for mask_ST in (own_ST, real_ST))
    starts = (F.pad(count_S.cumsum(0), (1, 0)).int() for count_S in counts)
    return PackedRows(*rows, *starts, *(int(count_S.max()) for count_S in counts))


def _as_slice(rows: torch.Tensor) -> torch.Tensor | slice:
    """Return a slice if the rows are 0, 1, ..., in order."""
    return slice(len(rows)) if torch.equal(rows, torch.arange(len(rows), device=rows.device)) else rows


def load_varlen() -> Callable | None:
    """Return torch's varlen_attn, None before torch 2.10. The import takes seconds, so only its users pay for it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


def varlen_problem(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Return None if `varlen_attn` takes such heads on this device, else why not."""
    if device.type != "cuda":
        return "varlen_attn takes a CUDA device"
    if load_varlen() is None:
        return f"torch {torch.__version__} has no varlen_attn; 2.10 has"
    if dtype not in HALF:
        return "varlen_attn takes 16 bits"
    if head_dim % 8 or head_dim > 256:
        return f"varlen_attn takes no heads of {head_dim}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "varlen_attn takes compute capability 8.0"
    if not {"window_size", "enable_gqa"} <= inspect.signature(load_varlen()).parameters.keys():
        return f"varlen_attn of torch {torch.__version__} lacks windows or grouped heads; 2.13 has both"
    return None
