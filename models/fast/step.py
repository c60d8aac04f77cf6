"""One token for each row through a small decoder, in as few calls as it takes.

With a handful of rows and a few million weights, calls cost more than sums. So layers that read the same input become
one product: the weights of q, k and v with the A factors of their adapters, stacked; then the B factors, block by block
on a diagonal. Every bit that comes out should be that of models/decoder.py; `exact_step` tries it out first.
"""

import itertools
from contextlib import nullcontext
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from models.attention import KEY_BLOCK, LOG2E, MIN_QUERIES, masked, score, span, weigh
from models.cache import KVCache
from models.decoder import CausalLM, rotate
from models.fast.onednn import onednn_matmul, weight_copy
from models.fast.products import StackedOnCPU, parts
from models.linear import ROW_MULTIPLE

_agreed = WeakKeyDictionary()  # {model: {kind: whether its Step agrees with it}}
MKL_BATCH = 32  # as many small products MKL makes faster than oneDNN, with the same bits
SMALL = 20_000_000  # parameters: of so small a model the frozen weights are copied for every adapter


class Step:
    """A stacked copy of a model as it is now."""

    @torch.inference_mode()
    def __init__(self, model: CausalLM):
        cfg, self.model, self.layers = model.config, model, []
        small = _is_small(model)
        for block in model.model.layers:
            attention, norm = block.self_attn, None
            if cfg.qk_norm:
                norm = torch.cat([attention.q_norm.weight.expand(cfg.num_attention_heads, -1),
                                  attention.k_norm.weight.expand(cfg.num_key_value_heads, -1)])  # fmt: skip
            self.layers.append((block, norm, *(StackedOnCPU(layers, small) for layers in block.groups())))

    @torch.inference_mode()
    def __call__(self, ids_B: torch.Tensor, positions_B: torch.Tensor, view) -> torch.Tensor:
        """Hidden states [B, D] after the final norm, of one more token for each of the view's rows."""
        cfg, decoder, B = self.model.config, self.model.model, len(ids_B)
        H, K, E = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
        G, scale = H // K, LOG2E * E**-0.5
        places_N = _padded(positions_B)
        tables = self.model.rotary_tables(int(positions_B.max()) + 1, ids_B.device)
        turns = {rope: (cos[places_N], sin[places_N]) for rope, (cos, sin) in tables.items()}
        masks = {window: _mask(positions_B, window, K, view.blocks) for window in set(cfg.windows)}
        queries_ZME = torch.zeros(B * K, max(G, MIN_QUERIES), E)
        buffer_UZML = torch.empty(view.blocks, *queries_ZME.shape[:2], KEY_BLOCK)

        x_ND = F.embedding(_padded(ids_B), decoder.embed_tokens.weight)
        for i, (block, norm, qkv, out, gate_up, down) in enumerate(self.layers):
            heads_NHE = qkv(block.input_layernorm(x_ND)).unflatten(-1, (-1, E))
            qk_NHE = heads_NHE[:, : H + K]
            if norm is not None:
                qk_NHE = F.rms_norm(qk_NHE, (E,), None, cfg.rms_norm_eps) * norm
            qk_BHE = rotate(qk_NHE, *turns[cfg.ropes[i]])[:B]
            k_UZEL, v_UZLE = view.layer(i).extend(qk_BHE[:, H:, None], heads_NHE[:B, H + K :, None])
            queries_ZME[:, :G] = (qk_BHE[:, :H] * scale).view(B * K, G, E)
            first, seen, bias_UZ1L = masks[cfg.windows[i]]
            with onednn_matmul() if B * K > MKL_BATCH else nullcontext():
                score(queries_ZME, k_UZEL[first:], buffer_UZML[first:])
                buffer_UZML[seen:].add_(bias_UZ1L)
                attended_ZGE, _, _ = weigh(buffer_UZML[first:], v_UZLE[first:], used=G)
            x_ND = x_ND + out(_padded(attended_ZGE.reshape(B, H * E)))
            gate, up = gate_up(block.post_attention_layernorm(x_ND)).chunk(2, -1)
            x_ND = x_ND + down(block.mlp.act(gate) * up)
        return decoder.norm(x_ND)[:B]


def _mask(positions_B: torch.Tensor, window: int | None, K: int, blocks: int) -> tuple[int, int, torch.Tensor]:
    """(the first block of keys that any row sees, the first that not all see whole, what to add to the scores from
    there on [U, Z, 1, L])."""
    first, seen, _ = span(positions_B, window)
    key_U1L = torch.arange(seen * KEY_BLOCK, blocks * KEY_BLOCK).view(-1, 1, KEY_BLOCK)
    masked_UZL = masked(key_U1L, positions_B.repeat_interleave(K), window)
    return first, seen, torch.where(masked_UZL, float("-inf"), 0.0)[:, :, None]


def _is_small(model: CausalLM) -> bool:
    return sum(p.numel() for p in model.parameters()) < SMALL


def _padded(x: torch.Tensor) -> torch.Tensor:
    """With zero rows up to a multiple of ROW_MULTIPLE."""
    more = -len(x) % ROW_MULTIPLE
    return torch.cat((x, x.new_zeros(more, *x.shape[1:]))) if more else x


@torch.no_grad()
def exact_step(model: CausalLM) -> Step | None:
    """A Step of the model, if on three tokens of 1, 16 and 64 rows it is seen to agree with it in every bit: tried once
    for a model, because that hangs on kernels and shapes and not on what an adapter has learned since."""
    weight = model.lm_head.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    groups = [[parts(layer) for layer in layers] for block in model.model.layers for layers in block.groups()]
    if not _is_small(model) and any(weight_copy([weight for weight, *_ in group]) is None for group in groups):
        return None  # the stacks would be a copy of it
    kinds = tuple((weight.requires_grad, A is None or A.shape) for group in groups for weight, _, A, _, _ in group)
    seen, kind = _agreed.setdefault(model, {}), (torch.get_num_threads(), kinds)
    if seen.get(kind) is False:
        return None
    step = Step(model)
    if kind not in seen:
        seen[kind] = _agrees(step, model)
    return step if seen[kind] else None


def _agrees(step: Step, model: CausalLM) -> bool:
    for rows, more in itertools.product((1, 16, 64), (0, 1)):  # the whole of a cache lies otherwise than a part of it
        caches = [KVCache(model, rows + more) for _ in range(2)]
        ids_B = torch.arange(rows) % model.config.vocab_size
        for position in (0, 3, KEY_BLOCK + 1):
            positions_B = (torch.arange(rows) % 3 + position - 2).clamp(min=0)
            views = [cache.view(slice(0, rows), positions_B, 1) for cache in caches]
            expected = model(ids_B[:, None], positions_B[:, None], cache=views[0])[:, 0]
            if not torch.equal(step(ids_B, positions_B, views[1]), expected):
                return False
    return True
