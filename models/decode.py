"""One token for each row through a small decoder, in as few calls as it takes.

With a handful of rows and a million weights, calls cost more than sums. So the layers that read the same input become
one product: the weights of q, k and v with the A factors of their adapters, stacked; then the B factors, block by block
on a diagonal. Every bit that comes out should be that of models/decoder.py; `exact_step` tries it out first.
"""

import torch
import torch.nn.functional as F

from models.attention import KEY_BLOCK, MIN_QUERIES, hidden, tiles, weigh
from models.cache import KVCache
from models.decoder import ROW_MULTIPLE, CausalLM, rotate

SMALL = 50_000_000  # parameters: the stacks are a copy of them, and larger models gain nothing


class Stack:
    """Linear layers of the same input as one: [N, in] -> [N, all their outputs side by side]."""

    def __init__(self, layers):
        weights, biases, As, Bs, scales = zip(*map(_parts, layers), strict=True)
        self.scale = next((scale for scale, A in zip(scales, As, strict=True) if A is not None), None)
        self.width = sum(len(weight) for weight in weights)
        self.weight = torch.cat([*weights, *(A for A in As if A is not None)])
        self.bias = None
        if any(bias is not None for bias in biases):
            each = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
            self.bias = F.pad(torch.cat(each), (0, len(self.weight) - self.width))
        diagonal = [
            w.new_zeros(len(w), 0) if B is None else B * (scale / self.scale)
            for w, B, scale in zip(weights, Bs, scales, strict=True)
        ]
        self.up = torch.block_diag(*diagonal).mT.contiguous()

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        y = F.linear(x_ND, self.weight, self.bias)
        if self.scale is None:
            return y
        y, low = y.split((self.width, len(self.up)), -1)
        return y.addmm_(low, self.up, alpha=self.scale)


def _parts(layer):
    """(weight, bias, A, B, scale) of a linear layer; one with adapters tells its own, and A is None without."""
    return layer.parts() if hasattr(layer, "parts") else (layer.weight, layer.bias, None, None, 1.0)


class Step:
    """A stacked copy of a model as it is now."""

    @torch.inference_mode()
    def __init__(self, model: CausalLM):
        cfg, self.model, self.layers = model.config, model, []
        for block in model.model.layers:
            attention, mlp = block.self_attn, block.mlp
            norm = None
            if cfg.qk_norm:
                norm = torch.cat([attention.q_norm.weight.expand(cfg.num_attention_heads, -1),
                                  attention.k_norm.weight.expand(cfg.num_key_value_heads, -1)])  # fmt: skip
            qkv = Stack((attention.q_proj, attention.k_proj, attention.v_proj))
            out, gate_up = Stack((attention.o_proj,)), Stack((mlp.gate_proj, mlp.up_proj))
            self.layers.append((block, norm, qkv, out, gate_up, Stack((mlp.down_proj,))))

    @torch.inference_mode()
    def __call__(self, ids_B: torch.Tensor, positions_B: torch.Tensor, view) -> torch.Tensor:
        """Hidden states [B, D] after the final norm, of one more token for each of the view's rows."""
        cfg, decoder, B = self.model.config, self.model.model, len(ids_B)
        H, K, E = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
        G, scale = H // K, E**-0.5
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
            for u in range(first, view.blocks):
                torch.bmm(queries_ZME, k_UZEL[u], out=buffer_UZML[u])
            buffer_UZML[seen:].add_(bias_UZ1L)
            attended_ZGE, _, _ = weigh(buffer_UZML[first:], v_UZLE[first:], used=G)
            x_ND = x_ND + out(_padded(attended_ZGE.reshape(B, H * E)))
            gate, up = gate_up(block.post_attention_layernorm(x_ND)).chunk(2, -1)
            x_ND = x_ND + down(block.mlp.act(gate) * up)
        return decoder.norm(x_ND)[:B]


def _mask(positions_B: torch.Tensor, window: int | None, K: int, blocks: int) -> tuple[int, int, torch.Tensor]:
    """(the first block of keys that any row sees, the first that not all see whole, what to add to the scores from
    there on [U, Z, 1, L])."""
    ((_, first, seen, _),) = tiles(positions_B[:, None], window)
    key_U1L = torch.arange(seen * KEY_BLOCK, blocks * KEY_BLOCK).view(-1, 1, KEY_BLOCK)
    hidden_UZL = hidden(key_U1L, positions_B.repeat_interleave(K), window)
    return first, seen, torch.where(hidden_UZL, float("-inf"), 0.0)[:, :, None]


def _padded(x: torch.Tensor) -> torch.Tensor:
    """With zero rows up to a multiple of ROW_MULTIPLE."""
    more = -len(x) % ROW_MULTIPLE
    return torch.cat((x, x.new_zeros(more, *x.shape[1:]))) if more else x


@torch.no_grad()
def exact_step(model: CausalLM) -> Step | None:
    """A Step of the model, if on two tokens of sixteen rows it is seen to agree with it in every bit."""
    weight = model.lm_head.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    if sum(p.numel() for p in model.parameters()) > SMALL:
        return None
    step, caches = Step(model), [KVCache(model, ROW_MULTIPLE) for _ in range(2)]
    ids_B = torch.arange(ROW_MULTIPLE) % model.config.vocab_size
    for position in range(2):
        positions_B = torch.full((ROW_MULTIPLE,), position)
        views = [cache.view(slice(0, ROW_MULTIPLE), positions_B, 1) for cache in caches]
        expected = model(ids_B[:, None], positions_B[:, None], cache=views[0])[:, 0]
        if not torch.equal(step(ids_B, positions_B, views[1]), expected):
            return None
    return step
