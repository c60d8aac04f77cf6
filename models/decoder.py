"""The decoder of Qwen2/2.5, Qwen3, Llama and Mistral: one definition, Hugging Face module names.

Everything except attention works on rows: the tokens of a batch laid end to end, x_ND. Only attention knows which
rows form a sequence, and it is told by a `Layout`. So padding and packing cost nothing in the rest of the model, and
a row's result does not depend on its neighbours (see models/attention.py for why that matters).

Dimension key: B sequences, T tokens, N rows, D model width, V vocabulary, H query heads, K key/value heads, E head
size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from models.attention import Packed, attend, in_blocks
from models.config import ModelConfig
from models.kernels import fast_matmul, kernels
from models.linear import ROW_MULTIPLE, Linear, joint_linear
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
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


@dataclass
class Layout:
    """Where the rows of a batch stand in their sequences; made once per forward, read by every attention layer."""

    last_key_ST: torch.Tensor  # int64: of S sequences of at most T tokens what each sees last, -1 where none asks
    turns: dict[Rope, tuple[torch.Tensor, torch.Tensor]]  # rows of the rotary tables cos_NE, sin_NE, one per row
    N: int  # rows
    to_sequences: torch.Tensor | None  # int64 [S*T]: the row of each token, or None where the rows already lie so
    to_rows: torch.Tensor | None  # int64 [N]: the inverse; of the places of a row that sequences share, the first
    exact: bool = False  # as models/attention.py has it
    packed: Packed | None = None  # where all this is better said so

    def sequences(self, x_NHE: torch.Tensor) -> torch.Tensor:
        """[N, H, E] -> [S, H, T, E]"""
        S, T = self.last_key_ST.shape
        rows = x_NHE[: S * T] if self.to_sequences is None else x_NHE.index_select(0, self.to_sequences)
        return rows.view(S, T, *x_NHE.shape[1:]).transpose(1, 2)

    def rows(self, x_SHTE: torch.Tensor) -> torch.Tensor:
        """[S, H, T, E] -> [N, H*E]"""
        x = x_SHTE.transpose(1, 2).flatten(0, 1).flatten(1)
        if self.to_rows is not None:
            return x.index_select(0, self.to_rows)
        return F.pad(x, (0, 0, 0, self.N - x.shape[0]))

    def of(self, rows_W: torch.Tensor) -> "Layout":
        """The layout of these rows alone as queries to the same S sequences; one that sequences share asks once."""
        S, T = self.last_key_ST.shape
        place_W = rows_W if self.to_rows is None else self.to_rows[rows_W]
        order_W = place_W.argsort()
        sequence_W = place_W[order_W] // T
        counts_S = sequence_W.bincount(minlength=S)
        count, longest = torch.arange(len(rows_W), device=rows_W.device), int(counts_S.max())
        to_rows = torch.empty_like(rows_W)
        to_rows[order_W] = sequence_W * longest + count - (counts_S.cumsum(0) - counts_S)[sequence_W]
        to_sequences, last_key = rows_W.new_zeros(S * longest), rows_W.new_full((S * longest,), -1)
        to_sequences[to_rows], last_key[to_rows] = count, self.last_key_ST.flatten()[place_W]
        turns = {rope: (cos_NE[rows_W], sin_NE[rows_W]) for rope, (cos_NE, sin_NE) in self.turns.items()}
        return Layout(last_key.view(S, longest), turns, len(rows_W), to_sequences, to_rows, self.exact)


class Attention(nn.Module):
    def __init__(self, cfg: ModelConfig, index: int):
        super().__init__()
        self.head_dim, self.rope, self.window = cfg.head_dim, cfg.ropes[index], cfg.windows[index]
        width_q, width_kv = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim
        self.q_proj = Linear(cfg.hidden_size, width_q, bias=cfg.qkv_bias)
        self.k_proj = Linear(cfg.hidden_size, width_kv, bias=cfg.qkv_bias)
        self.v_proj = Linear(cfg.hidden_size, width_kv, bias=cfg.qkv_bias)
        self.o_proj = Linear(width_q, cfg.hidden_size, bias=cfg.o_bias)
        self.q_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps) if cfg.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps) if cfg.qk_norm else nn.Identity()

    def forward(self, x_ND: torch.Tensor, layout: Layout, cache=None, rows_W=None) -> torch.Tensor:
        """All rows give keys and values; those of rows_W (default: all) are the queries, and get a result."""
        if rows_W is None:
            q, k, v = joint_linear(x_ND, self.q_proj, self.k_proj, self.v_proj)
        else:
            k, v = joint_linear(x_ND, self.k_proj, self.v_proj)
            q = self.q_proj(x_ND[rows_W])
        q_NHE, k_NKE, v_NKE = (x.unflatten(-1, (-1, self.head_dim)) for x in (q, k, v))
        k_NKE = rotate(self.k_norm(k_NKE), *layout.turns[self.rope])
        if layout.packed is not None and rows_W is None:
            q_NHE = rotate(self.q_norm(q_NHE), *layout.turns[self.rope])
            return self.o_proj(layout.packed.attend(q_NHE, k_NKE, v_NKE, self.window).flatten(1))
        k, v = layout.sequences(k_NKE), layout.sequences(v_NKE)  # [S, K, T, E]
        k, v = cache.extend(k, v) if cache is not None else (in_blocks(k).mT, in_blocks(v))
        layout = layout if rows_W is None else layout.of(rows_W)
        q = layout.sequences(rotate(self.q_norm(q_NHE), *layout.turns[self.rope]))  # [S, H, T, E]
        return self.o_proj(layout.rows(attend(q, k, v, layout.last_key_ST, self.window, layout.exact)))


class MLP(nn.Module):
    """SwiGLU: down(act(gate(x)) * up(x)) (Shazeer 2020, eq. 6)."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.gate_proj = Linear(cfg.hidden_size, cfg.intermediate_size, bias=cfg.mlp_bias)
        self.up_proj = Linear(cfg.hidden_size, cfg.intermediate_size, bias=cfg.mlp_bias)
        self.down_proj = Linear(cfg.intermediate_size, cfg.hidden_size, bias=cfg.mlp_bias)
        self.act = {
            "silu": F.silu,
            "relu": F.relu,
            "gelu": F.gelu,
            "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
        }[cfg.hidden_act]

    def forward(self, x_ND: torch.Tensor) -> torch.Tensor:
        gate, up = joint_linear(x_ND, self.gate_proj, self.up_proj)
        return self.down_proj(self.act(gate) * up)


class Block(nn.Module):
    def __init__(self, cfg: ModelConfig, index: int):
        super().__init__()
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg, index)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = MLP(cfg)

    def groups(self) -> tuple[tuple[nn.Module, ...], ...]:
        """The linear layers, those together that read the same input: qkv, out, gate and up, down."""
        attention, mlp = self.self_attn, self.mlp
        qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
        return qkv, (attention.o_proj,), (mlp.gate_proj, mlp.up_proj), (mlp.down_proj,)

    def forward(self, x_ND: torch.Tensor, layout: Layout, cache=None, rows_W=None) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(x_ND), layout, cache, rows_W)
        x_ND = (x_ND if rows_W is None else x_ND[rows_W]) + attended
        return x_ND + self.mlp(self.post_attention_layernorm(x_ND))


class Decoder(nn.Module):
    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(Block(cfg, i) for i in range(cfg.num_hidden_layers))
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
        self._tables = {rope: (torch.empty(0), torch.empty(0)) for rope in cfg.ropes}  # no buffers: never cast or saved

    @fast_matmul()
    def forward(
        self,
        ids_BT: torch.Tensor,
        positions_BT: torch.Tensor | None = None,
        segments_BT: torch.Tensor | None = None,
        cache=None,
        sequences_ST: torch.Tensor | None = None,
        wanted_W: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states after the final norm, [B, T, D], in the dtype of the weights.

        positions_BT: int64, position of each token in its sequence; default 0, 1, ... in each row or segment.
        segments_BT:  int64, for packed or padded rows: a run of tokens with one id >= 0 is a sequence of its own,
                      -1 is padding, whose outputs are finite and meaningless. Default: each row is one sequence.
        cache:        a view of a key/value cache (models/engine.py), which `positions_BT` continues.
        sequences_ST: int64, instead of segments: where in ids_BT.flatten() each token of each sequence stands, -1 past
                      its end. Sequences that begin with the same tokens may name the same places, which are then
                      computed once: the samples of a group share their prompt.
        wanted_W:     int64, places in ids_BT.flatten() whose hidden states alone are returned, [W, D]; of the others
                      the last block then computes only keys and values.
        """
        B, T = ids_BT.shape
        if segments_BT is not None:
            sequences_ST = segments_to_sequences(segments_BT)
        layout = self._layout(ids_BT, positions_BT, sequences_ST, cached=cache is not None)
        ids_N = F.pad(ids_BT.reshape(-1), (0, layout.N - B * T))
        x_ND = self.model.embed_tokens(ids_N)
        *before, last = self.model.layers
        for i, layer in enumerate(before):
            x_ND = layer(x_ND, layout, cache and cache.layer(i))
        if wanted_W is None:
            x_ND = last(x_ND, layout, cache and cache.layer(len(before)))
            return self.model.norm(x_ND)[: B * T].view(B, T, -1)
        rows_W = F.pad(wanted_W, (0, -len(wanted_W) % ROW_MULTIPLE))
        x_WD = last(x_ND, layout, cache and cache.layer(len(before)), rows_W)
        return self.model.norm(x_WD)[: len(wanted_W)]

    def _layout(self, ids_BT, positions_BT, sequences_ST, cached: bool) -> Layout:
        device, N = ids_BT.device, -(-ids_BT.numel() // ROW_MULTIPLE) * ROW_MULTIPLE
        to_sequences = to_rows = own_ST = None
        if sequences_ST is None:
            last_key_ST = index_BT = torch.arange(ids_BT.shape[1], device=device).expand_as(ids_BT)
        else:
            longest, named_R = sequences_ST.shape[1], sequences_ST.flatten()
            last_key_ST = torch.arange(longest, device=device).expand_as(sequences_ST)
            to_sequences, places = named_R.clamp(min=0), (named_R >= 0).nonzero()[:, 0]
            to_rows = torch.zeros(N, dtype=torch.long, device=device)
            to_rows.scatter_reduce_(0, named_R[places], places, "amin", include_self=False)
            index_BT = (to_rows[: ids_BT.numel()] % longest).view_as(ids_BT)
            first_R = to_rows[to_sequences] == torch.arange(len(named_R), device=device)
            own_ST = (sequences_ST >= 0) & first_R.view_as(sequences_ST)
        if positions_BT is None:
            positions_BT = index_BT
        elif cached and to_sequences is not None:
            last_key_ST = positions_BT.flatten()[to_sequences].view_as(sequences_ST)
        elif cached:
            last_key_ST = positions_BT
        if to_sequences is not None:
            last_key_ST = last_key_ST.where(own_ST, -1)
        packed = None
        if not (cached or self.exact):
            packed = kernels.pack(ids_BT, sequences_ST, own_ST, self.model.norm.weight, self.config.head_dim)
        positions_N = F.pad(positions_BT.flatten(), (0, N - ids_BT.numel()))
        tables = self.rotary_tables(int(positions_BT.max()) + 1, device)
        turns = {rope: (cos[positions_N], sin[positions_N]) for rope, (cos, sin) in tables.items()}
        return Layout(last_key_ST, turns, N, to_sequences, to_rows, self.exact, packed)

    def rotary_tables(self, length: int, device) -> dict[Rope, tuple[torch.Tensor, torch.Tensor]]:
        """Of each Rope of the layers cosines and sines [at least length, E], half-split pairs, the sines' first half
        negated (Su et al. 2021, eq. 34). Angles in float32, the tables in the dtype of the weights.

        Raises ValueError where angles depend on the longest sequence of the batch.
        """
        dtype = self.model.norm.weight.dtype
        for rope, (cos, _) in self._tables.items():
            if rope.max_length is not None and length > rope.max_length:
                raise ValueError(
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


def rotate(x_NHE: torch.Tensor, cos_NE: torch.Tensor, sin_NE: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of half-split pairs: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)."""
    swapped = x_NHE.roll(x_NHE.shape[-1] // 2, -1)
    return torch.addcmul(x_NHE * cos_NE[:, None], swapped, sin_NE[:, None])


def segments_to_sequences(segments_BT: torch.Tensor) -> torch.Tensor:
    """sequences_ST of packed or padded rows: one sequence for each run of a segment id >= 0 within a row."""
    B, T = segments_BT.shape
    starts_BT = segments_BT != F.pad(segments_BT, (1, 0), value=-2)[:, :T]
    run_R = starts_BT.flatten().cumsum(0) - 1  # the run that each token is in
    first_U = starts_BT.flatten().nonzero()[:, 0]  # the first token of each run
    real_R = segments_BT.flatten() >= 0
    if not bool(real_R.any()):
        raise ValueError("every token of the batch is padding")
    row_R = torch.arange(B * T, device=segments_BT.device)
    index_R = row_R - first_U[run_R]
    sequence_R = (real_R[first_U].cumsum(0) - 1)[run_R]  # runs of padding are no sequences
    sequences_ST = row_R.new_full((int(sequence_R.max()) + 1, int(index_R[real_R].max()) + 1), -1)
    sequences_ST[sequence_R[real_R], index_R[real_R]] = row_R[real_R]
    return sequences_ST
