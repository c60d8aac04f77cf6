"""The decoder of Qwen, Llama, Mistral and their relatives: one definition, Hugging Face module names.

Everything except attention works on rows: the tokens of a batch laid end to end, x_ND. Only attention needs to know
which rows form a sequence; a `Layout` (models/layout.py) says so. So padding and packing cost nothing elsewhere.

Gradient checkpointing by block (Chen et al. 2016) keeps only each block's input, [N, D]; the backward computes the
block again before its gradient. The same operations run on the same numbers: on a CPU the gradients have the same bits.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from torch.utils.checkpoint import checkpoint

from models.attention import attend, in_blocks
from models.config import ModelConfig
from models.elementwise import by_whole_vectors
from models.hooks import fast_matmul, hooks
from models.layout import Layout, make_layout, segments_to_sequences, take_rows
from models.linear import ROW_MULTIPLE, Linear, joint_linear
from models.moe import SparseMLP
from models.refusal import Refusal
from models.rope import Rope, frequencies


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the division in float32 (Zhang and Sennrich 2019, eq. 4)."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype in (torch.bfloat16, torch.float16):
            return F.rms_norm(x.float(), x.shape[-1:], None, self.eps).to(x.dtype) * self.weight
        y = hooks(x).rms_norm(x, self.weight, self.eps)
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps) if y is None else y


class WidthNorm(RMSNorm):
    """RMSNorm of all heads of a row together (OLMo 2)."""

    def forward(self, x_NHE: torch.Tensor) -> torch.Tensor:
        return super().forward(x_NHE.flatten(1)).view_as(x_NHE)


class Attention(nn.Module):
    """Grouped-query attention with rotary embeddings and, as configured, biases, norms of q and k, and a window."""

    def __init__(self, cfg: ModelConfig, index: int):
        super().__init__()
        self.head_dim, self.rope, self.window = cfg.head_dim, cfg.ropes[index], cfg.windows[index]
        self.heads = cfg.num_attention_heads, cfg.num_key_value_heads
        width_q, width_kv = (heads * cfg.head_dim for heads in self.heads)
        self.widths, self.joined = (width_q, width_kv, width_kv), cfg.joined_layers
        if self.joined:
            self.qkv_proj = Linear(cfg.hidden_size, sum(self.widths), bias=cfg.qkv_bias)
        else:
            self.q_proj = Linear(cfg.hidden_size, width_q, bias=cfg.qkv_bias)
            self.k_proj = Linear(cfg.hidden_size, width_kv, bias=cfg.qkv_bias)
            self.v_proj = Linear(cfg.hidden_size, width_kv, bias=cfg.qkv_bias)
        self.o_proj = Linear(width_q, cfg.hidden_size, bias=cfg.o_bias)
        self.q_norm: Any = nn.Identity()
        self.k_norm: Any = nn.Identity()
        if cfg.qk_norm == "heads":
            self.q_norm, self.k_norm = (RMSNorm(cfg.head_dim, cfg.rms_norm_eps) for _ in "qk")
        if cfg.qk_norm == "width":
            self.q_norm, self.k_norm = (WidthNorm(width, cfg.rms_norm_eps) for width in (width_q, width_kv))

    def forward(self, x_ND: torch.Tensor, layout: Layout, cache=None, wanted=None) -> torch.Tensor:
        """Return the attended rows, [N, D]. Every row gives a key and a value; only the rows of `wanted` (default: all)
        are queries and get a result.

        cache: a CacheView (models/cache.py), turned to this layer; None in training. wanted: int64, indices of rows.
        """
        if self.joined:
            q, k, v = self.qkv_proj(x_ND).split(self.widths, -1)
            q = q if wanted is None else take_rows(q, wanted)
        elif wanted is None:
            q, k, v = joint_linear(x_ND, self.q_proj, self.k_proj, self.v_proj)
        else:
            k, v = joint_linear(x_ND, self.k_proj, self.v_proj)
            q = self.q_proj(take_rows(x_ND, wanted))
        q_NHE, k_NKE, v_NKE = (rearrange(x, "n (h e) -> n h e", e=self.head_dim) for x in (q, k, v))
        queries = layout if wanted is None else layout.with_queries(wanted)
        q_NHE = rotate(self.q_norm(q_NHE), *queries.rotary[self.rope])
        k_NKE = rotate(self.k_norm(k_NKE), *layout.rotary[self.rope])
        if queries.packed_attend is not None:  # training on CUDA in 16 bits, without padding
            return self.o_proj(queries.packed_attend(q_NHE, k_NKE, v_NKE, self.window).flatten(1))
        k_SKTE, v_SKTE = layout.sequences(k_NKE), layout.sequences(v_NKE)
        if cache is None:
            k_UZEL, v_UZLE = in_blocks(k_SKTE).mT, in_blocks(v_SKTE)
        else:  # with the tokens before these
            k_UZEL, v_UZLE = cache.extend(k_SKTE, v_SKTE)
        # The layout's S sequences are the B sequences of `attend`.
        out_SHTE = attend(queries.sequences(q_NHE), k_UZEL, v_UZLE, queries.last_key_ST, self.window, layout.exact)
        return self.o_proj(queries.rows(out_SHTE))


class MLP(nn.Module):
    """SwiGLU: down(act(gate(x)) * up(x)) (Shazeer 2020, eq. 6)."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.joined = cfg.joined_layers
        if self.joined:
            self.gate_up_proj = Linear(cfg.hidden_size, 2 * cfg.intermediate_size, bias=cfg.mlp_bias)
        else:
            self.gate_proj = Linear(cfg.hidden_size, cfg.intermediate_size, bias=cfg.mlp_bias)
            self.up_proj = Linear(cfg.hidden_size, cfg.intermediate_size, bias=cfg.mlp_bias)
        self.down_proj = Linear(cfg.intermediate_size, cfg.hidden_size, bias=cfg.mlp_bias)
        self.hidden_act, tanh = cfg.hidden_act, partial(F.gelu, approximate="tanh")
        acts: dict[str, Callable] = {"silu": F.silu, "relu": F.relu, "gelu": F.gelu, "gelu_pytorch_tanh": tanh}
        self.act = partial(by_whole_vectors, acts[cfg.hidden_act])

    def forward(self, x_ND: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_and_up(x_ND)
        return self.down_proj(self.act(gate) * up)

    def gate_and_up(self, x_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.joined:
            gate, up = self.gate_up_proj(x_ND).chunk(2, -1)
        else:
            gate, up = joint_linear(x_ND, self.gate_proj, self.up_proj)
        return gate, up


class Block(nn.Module):
    """One layer: attention and MLP, each added to the rows. Most families norm what they read, some what they add."""

    input_layernorm: RMSNorm  # the norms of most families, see `_add_norms`
    post_attention_layernorm: RMSNorm

    def __init__(self, cfg: ModelConfig, index: int):
        super().__init__()
        self.config = cfg
        self._add_norms(*cfg.norms[:2])
        self.self_attn = Attention(cfg, index)
        self._add_norms(*cfg.norms[2:])
        self.mlp: Any = SparseMLP(cfg, MLP) if cfg.num_experts else MLP(cfg)

    def _add_norms(self, *names: str) -> None:
        for name in filter(None, names):
            self.add_module(name, RMSNorm(self.config.hidden_size, self.config.rms_norm_eps))

    def forward(self, x_ND: torch.Tensor, layout: Layout, cache=None, wanted=None) -> torch.Tensor:
        """Return the rows after this layer; with `wanted` only those rows."""
        # In training a device may have a faster block: models/cpu/block.py, models/cuda/block.py.
        if cache is None and (fused := hooks(x_ND).train_block(self, x_ND, layout, wanted)) is not None:
            return fused
        return self.compute(x_ND, layout, cache, wanted, self.mlp)

    def compute(self, x_ND: torch.Tensor, layout: Layout, cache, wanted, mlp: Callable) -> torch.Tensor:
        """Return the rows after this layer by the plain code, the reference.

        mlp: self.mlp, or the form of it that keeps half as much for the backward (models/cpu/block.py).
        """
        norms = (getattr(self, name) if name else unchanged for name in self.config.norms)
        before_attention, after_attention, before_mlp, after_mlp = norms
        attended = after_attention(self.self_attn(before_attention(x_ND), layout, cache, wanted))
        x_ND = (x_ND if wanted is None else take_rows(x_ND, wanted)) + scaled(attended, self.config.residual_multiplier)
        return x_ND + scaled(after_mlp(mlp(before_mlp(x_ND))), self.config.residual_multiplier)


class Decoder(nn.Module):
    """Embedding, blocks and final norm, under Hugging Face's names; CausalLM.forward calls them."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        words = torch.randn(cfg.vocab_size, cfg.hidden_size)  # nn.Embedding's own take a second on the meta device
        self.embed_tokens = nn.Embedding.from_pretrained(words, freeze=False)
        self.layers: Any = nn.ModuleList(Block(cfg, i) for i in range(cfg.num_hidden_layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)


class CausalLM(nn.Module):
    """A decoder and its output head. `forward` stops before the head: log-probabilities never need all logits."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.config = cfg
        self.model = Decoder(cfg)
        self.lm_head = Linear(cfg.hidden_size, cfg.vocab_size, bias=False)
        if cfg.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.exact = False  # on CUDA: one kernel for sampling and for training, everywhere
        self.run_block = Block.__call__  # `checkpoint_blocks` replaces it
        # (step, ids_B, positions_B, view) -> what step(ids_B, positions_B, view) returns; rl/adapters.py computes the
        # steps of several models at once.
        self.step_together: Callable | None = None
        self._tables = {rope: (torch.empty(0), torch.empty(0)) for rope in cfg.ropes}  # no buffers: never cast or saved

    @fast_matmul()
    def forward(self, ids_BT, positions_BT=None, segments_BT=None, cache=None, sequences_ST=None, wanted=None):
        """Return hidden states after the final norm, [B, T, D], in the dtype of the weights. Indices are int64.
        Their product with the head's weight is the logits.

        positions_BT: position of each token in its sequence; default 0, 1, ... in each row or segment.
        segments_BT:  a run of tokens with one id >= 0 is a sequence of its own; -1 is padding, whose outputs are finite
                      and meaningless. Default: each row is one sequence.
        cache:        a CacheView (models/cache.py) of earlier keys and values, which positions_BT continues.
        sequences_ST: instead of segments: the index in ids_BT.flatten() of each token of S sequences, padded with -1.
                      Sequences may share indices at their beginning: a group's prompt is computed once.
        wanted:       indices in ids_BT.flatten(). Only the hidden states of these tokens are returned,
                      [len(wanted), D]; for the others the last block computes only keys and values.
        """
        if segments_BT is not None:
            sequences_ST = segments_to_sequences(segments_BT)
        layout = make_layout(ids_BT, positions_BT, sequences_ST, cache is not None, self.exact, self.rotary_tables)
        x_ND = self.model.embed_tokens(F.pad(ids_BT.reshape(-1), (0, layout.N - ids_BT.numel())))
        x_ND = scaled(x_ND, self.config.embedding_multiplier)
        # The last block's rows are filled up with copies of row 0, because products take a multiple of ROW_MULTIPLE.
        last_rows = None if wanted is None else F.pad(wanted, (0, -len(wanted) % ROW_MULTIPLE))
        for i, layer in enumerate(self.model.layers):
            is_last = i == len(self.model.layers) - 1
            view = None if cache is None else cache.layer(i)
            x_ND = self.run_block(layer, x_ND, layout, view, last_rows if is_last else None)
        x_ND = scaled(self.model.norm(x_ND), self.config.hidden_multiplier)
        return x_ND[: ids_BT.numel()].view(*ids_BT.shape, -1) if wanted is None else x_ND[: len(wanted)]

    def rotary_tables(self, length: int, device) -> dict[Rope, tuple[torch.Tensor, torch.Tensor]]:
        """Return (cos, sin), [at least length, E] in the dtype of the weights, for each kind of rotary embedding.

        Pairs are half-split, and the first half of the sines is negated, as `rotate` reads them (Su et al. 2021).
        Raises ValueError for dynamic RoPE beyond its length, where angles would depend on the rest of the batch.
        """
        dtype = self.model.norm.weight.dtype
        for rope, (cos, _) in self._tables.items():
            if rope.max_length is not None and length > rope.max_length:
                raise Refusal(
                    f"a sequence of {length} tokens is longer than max_position_embeddings {rope.max_length}: the "
                    "angles of dynamic RoPE would change with the longest sequence of the batch"
                )
            if cos.shape[0] < length or cos.dtype != dtype or cos.device != device:
                positions = torch.arange(-(-length // 1024) * 1024, device=device)
                inverse, scaling = frequencies(rope, self.config.head_dim, device)
                angles = positions.float()[:, None] * inverse
                cos, sin = angles.cos() * scaling, angles.sin() * scaling
                self._tables[rope] = (torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))
        return self._tables


def unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Return x * factor, and x itself for 1, the factor of most families."""
    return x if factor == 1 else x * factor


def rotate(x_NHE: torch.Tensor, cos_NE: torch.Tensor, sin_NE: torch.Tensor) -> torch.Tensor:
    """Apply the rotary embedding to half-split pairs: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)."""
    swapped = x_NHE.roll(x_NHE.shape[-1] // 2, -1)
    return torch.addcmul(x_NHE * cos_NE[:, None], swapped, sin_NE[:, None])


def checkpoint_blocks(model: CausalLM) -> None:
    """Make every block of the model keep only its input when it is trained."""
    model.run_block = _checkpointed


def _checkpointed(block: Block, x_ND: torch.Tensor, layout, cache=None, wanted=None) -> torch.Tensor:
    """Return what `Block.forward` does. In training keep only the block's input, and compute it again for gradients."""
    if cache is not None or not torch.is_grad_enabled():
        return block(x_ND, layout, cache, wanted)
    # Random numbers are only drawn for dropout, in train mode.
    compute, drops = fast_matmul()(block.__call__), block.training
    return checkpoint(compute, x_ND, layout, cache, wanted, use_reentrant=False, preserve_rng_state=drops)
