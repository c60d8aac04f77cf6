"""models/decoder.py for one more token of each row, or a short prompt, in few calls on a CPU, with the same bits.

With a handful of rows and a few million weights, calls cost more than sums. So layers that read the same input become
one product (models/stacked.py), results go in place where they are needed, and what the layers share is computed once:
masks, buffers, places in the cache. `exact_step` tries some tokens before the engine uses it.
"""

import copy
from dataclasses import replace
from functools import partial
from itertools import chain, product
from typing import get_args
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from models.attention import KEY_BLOCK, LOG2E, QUERY_MULTIPLE, SMALL_PRODUCT, attend, masked, score, span
from models.cache import CacheView, KVCache
from models.config import ModelConfig
from models.cpu import packed
from models.cpu.block import normalize
from models.cpu.onednn import batch_matmul
from models.cpu.packed import FEW_ROWS
from models.cpu.products import Copies, StackedOnCPU
from models.decoder import CausalLM, rotate, scaled
from models.elementwise import shares
from models.linear import ROW_MULTIPLE, LinearParts
from models.stacked import groups, padded, random_factors, step_layers

Step = tuple[Copies, int, int]  # arguments of a CPUStep beside the model
# {model: {kind of model: the Step of an exact CPUStep, or None}}
_agreed: WeakKeyDictionary[CausalLM, dict] = WeakKeyDictionary()
SMALL = 20_000_000  # parameters; the frozen weights of smaller models are copied for every adapter
SHORT = 256  # tokens of a prefill; in longer ones sums cost more than calls


class CPUStep:
    """A stacked copy of a model as it is now. copies: how the frozen weights are copied for each adapter, as
    StackedOnCPU says. row_multiple: the number of rows is padded to a multiple of it. short: the most tokens of a
    prefill."""

    @torch.inference_mode()
    def __init__(self, model: CausalLM, copies: Copies = "columns", row_multiple=ROW_MULTIPLE, short: int = SHORT):
        self.row_multiple, self.copies, self.short = row_multiple, copies, short
        self.model, self.layers = model, step_layers(model, lambda layers: StackedOnCPU(layers, copies))

    @torch.inference_mode()
    def __call__(self, ids_B: torch.Tensor, positions_B: torch.Tensor, view: CacheView) -> torch.Tensor:
        """Return hidden states [B, D] of one more token for each row of the view."""
        return self.hidden(ids_B, positions_B, BlockedAttention(self.model.config, positions_B, view))

    @torch.inference_mode()
    def prefill(self, ids_N: torch.Tensor, positions_N: torch.Tensor, view: CacheView, counts_B: torch.Tensor) -> bool:
        """Write the keys and values of the next counts_B tokens of each row of the view, which lie end to end in ids_N.
        Return False, with nothing written, for a prefill that is not short."""
        if len(ids_N) > self.short:
            return False
        self.hidden(ids_N, positions_N, RaggedAttention(self.model.config, positions_N, view, counts_B), output=False)
        return True

    def hidden(self, ids_B: torch.Tensor, positions_B: torch.Tensor, attention, output: bool = True):
        """Return hidden states [B, D]; with output=False only write the keys and values of all layers.

        attention.write(layer, k_BKE, v_BKE) writes new keys and values to the cache; attention(layer, q_BHE, out_BHE)
        writes the attended heads to out_BHE.
        """
        B, cfg, decoder = len(ids_B), self.model.config, self.model.model
        norm = lambda x, weight: normalize(x, weight, cfg.rms_norm_eps)[0]  # noqa: E731
        N, H, E = -(-B // self.row_multiple) * self.row_multiple, cfg.num_attention_heads, cfg.head_dim
        both = H + cfg.num_key_value_heads
        positions_N = padded(positions_B, N)
        tables = self.model.rotary_tables(int(positions_B.max()) + 1, ids_B.device)
        rotary = {rope: (cos[positions_N], sin[positions_N]) for rope, (cos, sin) in tables.items()}
        attended_ND = torch.zeros(N, H * E)  # its rows after B stay zero
        out_BHE = attended_ND[:B].view(B, H, E)
        x_ND = scaled(F.embedding(padded(ids_B, N), decoder.embed_tokens.weight), cfg.embedding_multiplier)
        for i, layer in enumerate(self.layers):
            heads_NHE = layer.qkv.joint(norm(x_ND, layer.block.input_layernorm.weight), B).view(N, -1, E)
            qk_NHE = heads_NHE[:, :both]
            if layer.head_norms is not None:
                qk_NHE = norm(qk_NHE, layer.head_norms.weight)
            qk_BHE = rotate(qk_NHE, *rotary[cfg.ropes[i]])[:B]
            attention.write(i, qk_BHE[:, H:], heads_NHE[:B, both:])
            if not output and i == len(self.layers) - 1:
                return None
            attention(i, qk_BHE[:, :H], out_BHE)
            x_ND = scaled(layer.out.joint(attended_ND, B), cfg.residual_multiplier).add_(x_ND)
            gate_up_N = layer.gate_up.joint(norm(x_ND, layer.block.post_attention_layernorm.weight), B)
            gate, up = gate_up_N.chunk(2, -1)
            down_ND = layer.down.joint(layer.block.mlp.act(gate).mul_(up), B)
            x_ND = scaled(down_ND, cfg.residual_multiplier).add_(x_ND)
        return scaled(norm(x_ND, decoder.norm.weight)[:B], cfg.hidden_multiplier)


class Places:
    """Where new keys and values go: indices of all numbers of a layer's keys [U, Z, E, L] and values [U, Z, L, E]."""

    def __init__(self, view: CacheView, tokens: slice | torch.Tensor = slice(None)):
        """tokens: the tokens that are written, of the view's B*T."""
        (_, heads, E, _), self.cache = view.cache.keys[0].shape, view.cache
        block_NK1 = (view.block * heads + view.heads).flatten(0, 1)[tokens, :, None]
        offset_N11, numbers_E = view.offset.flatten(0, 1)[tokens, :, None], torch.arange(E)
        self.keys_NKE = (block_NK1 * E + numbers_E) * KEY_BLOCK + offset_N11
        self.values_NKE = (block_NK1 * KEY_BLOCK + offset_N11) * E + numbers_E

    def write(self, i: int, k_NKE: torch.Tensor, v_NKE: torch.Tensor) -> None:
        """Write the keys and values of layer i."""
        self.cache.keys[i].put_(self.keys_NKE, k_NKE)
        self.cache.values[i].put_(self.values_NKE, v_NKE)

    def read(self, cache: KVCache) -> list[torch.Tensor]:
        """Return what such a cache holds there, of all layers."""
        return [*(x.take(self.keys_NKE) for x in cache.keys), *(x.take(self.values_NKE) for x in cache.values)]


class RaggedAttention:
    """models/attention.py's attention of some queries a row."""

    def __init__(self, cfg: ModelConfig, positions_N: torch.Tensor, view: CacheView, counts_B: torch.Tensor):
        B, T, N = len(counts_B), int(counts_B.max()), len(positions_N)
        first_B = counts_B.cumsum(0) - counts_B
        token_N = torch.arange(N) + (torch.arange(B) * T - first_B).repeat_interleave(counts_B)  # of B*T
        row_of_token = torch.zeros(B * T, dtype=torch.long).index_copy_(0, token_N, torch.arange(N))
        self.positions_BT = torch.full((B * T,), -1).index_copy_(0, token_N, positions_N).view(B, T)
        self.view, self.windows, self.token_N, self.row_BT = view, cfg.windows, token_N, row_of_token.view(B, T)
        self.write = Places(view, token_N).write

    def __call__(self, i: int, q_NHE: torch.Tensor, out_NHE: torch.Tensor) -> None:
        keys, values = self.view.cache.keys[i], self.view.cache.values[i]
        k_UZEL, v_UZLE = keys[: self.view.blocks, self.view.read], values[: self.view.blocks, self.view.read]
        q_BHTE = q_NHE[self.row_BT].transpose(1, 2)
        attended_BHTE = attend(q_BHTE, k_UZEL, v_UZLE, self.positions_BT, self.windows[i])
        out_NHE.copy_(attended_BHTE.transpose(1, 2).flatten(0, 1)[self.token_N])


class BlockedAttention:
    """models/attention.py's exact attention of one query a row."""

    def __init__(self, cfg: ModelConfig, positions_B: torch.Tensor, view: CacheView):
        self.view, self.windows, self.scale = view, cfg.windows, LOG2E * cfg.head_dim**-0.5
        B, K, E, blocks = len(positions_B), cfg.num_key_value_heads, cfg.head_dim, view.blocks
        self.shape = B, K, cfg.num_attention_heads // K, E
        group = self.shape[2]
        self.queries_BKME = torch.zeros(B, K, group + -group % QUERY_MULTIPLE, E)
        self.queries_ZME = self.queries_BKME.view(B * K, -1, E)
        self.scores_UZML = torch.empty(blocks, *self.queries_ZME.shape[:2], KEY_BLOCK)
        self.masks = {window: _mask(positions_B, window, K, blocks) for window in set(cfg.windows)}
        self.matmul = partial(batch_matmul, B * K, blocks)
        self.write = Places(view).write

    def __call__(self, i: int, q_BHE: torch.Tensor, out_BHE: torch.Tensor) -> None:
        (B, K, G, E), view = self.shape, self.view
        keys, values = view.cache.keys[i], view.cache.values[i]
        first, mask_from, bias = self.masks[self.windows[i]]
        k_UZEL, v_UZLE = keys[first : view.blocks, view.read], values[first : view.blocks, view.read]
        torch.mul(q_BHE.view(B, K, G, E), self.scale, out=self.queries_BKME[:, :, :G])
        scores_UZML = self.scores_UZML[first:]
        with self.matmul():
            score(self.queries_ZME, k_UZEL, scores_UZML)
            self.scores_UZML[mask_from:].add_(bias)
            weights_UZGL = scores_UZML[:, :, :G]
            weights_UZGL.sub_(weights_UZGL.amax((0, 3), keepdim=True))
            for part in shares(weights_UZGL):
                part.exp2_()
            total_UZG = weights_UZGL.sum(-1)
            total_ZG = total_UZG[0] if len(total_UZG) == 1 else total_UZG.cumsum(0)[-1]
            if v_UZLE.is_contiguous():
                out_ZME, *more = torch.bmm(scores_UZML.flatten(0, 1), v_UZLE.flatten(0, 1)).chunk(len(v_UZLE))
            else:
                out_ZME, *more = map(torch.bmm, scores_UZML, v_UZLE)
            for block_ZME in more:
                out_ZME.add_(block_ZME)
        out_BKGE = out_ZME[:, :G].view(B, K, G, E)
        torch.div(out_BKGE, total_ZG.view(B, K, G, 1), out=out_BHE.view(B, K, G, E))


def _mask(positions_B: torch.Tensor, window: int | None, K: int, blocks: int) -> tuple[int, int, torch.Tensor]:
    """Return (the first block of keys that any row sees, the first that needs a mask, what to add to the scores from
    that one on [U, Z, 1, L])."""
    first, mask_from, _ = span(positions_B, window)
    keys = torch.arange(mask_from * KEY_BLOCK, blocks * KEY_BLOCK).view(-1, 1, KEY_BLOCK)
    masked_UZL = masked(keys, positions_B.repeat_interleave(K), window)
    return first, mask_from, torch.where(masked_UZL, float("-inf"), 0.0)[:, :, None]


def exact_step(model: CausalLM) -> CPUStep | None:
    """Return a CPUStep that agrees with the model in every bit, or None."""
    arguments = exact_arguments(model)
    return CPUStep(model, *arguments) if arguments else None


@torch.no_grad()
def exact_arguments(model: CausalLM) -> Step | None:
    """Return the arguments of a CPUStep that agrees with the model in every bit on five or six tokens of 1 to 64 rows,
    or None.

    Rows are padded to FEW_ROWS if that agrees: a product of four rows takes half the time of one of sixteen. A small
    model's weights are stacked if that agrees. The step also prefills if that agrees. The trial runs once for each
    model, library, number of threads and shape of the adapters, with random B factors, on the first layers alone that
    have every kind: those after them multiply the same shapes.
    """
    steps = possible_arguments(model, sum(p.numel() for p in model.parameters()))
    shapes = adapter_shapes(model)
    agreed, kind = _agreed.setdefault(model, {}), (torch.get_num_threads(), packed.library, shapes)
    if steps and kind not in agreed:
        short = layers_of_every_kind(model, shapes)
        with random_factors(short):
            exact = next((step for step in steps if _agrees(CPUStep(short, *step), short)), None)
            agreed[kind] = exact and (*exact[:2], SHORT * _prefills_alike(CPUStep(short, *exact), short))
    return agreed[kind] if steps else None


def possible_arguments(model: CausalLM, size: int) -> list[Step]:
    """Return the arguments to try, the fastest first, for a model, or for the first layers of one, of `size`
    weights in all."""
    weight = model.lm_head.weight
    if not model.config.stackable:
        return []
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or model.config.quant != "none":
        return []  # of quantised weights the stacks would be a dense copy
    inputs = [[layer.parts() for layer in layers] for block in model.model.layers for layers in groups(block)]
    frozen = [weights for layers in inputs if not (weights := [layer.weight for layer in layers])[0].requires_grad]
    if len({packed.weight_copy(weights) is None for weights in frozen}) > 1:
        return []  # beyond the budget of copies later layers would not multiply as the first ones, which are tried
    copies = get_args(Copies) if size < SMALL else ("none",)
    layers = list(chain(*inputs))
    return [(*step, SHORT) for step in product(copies, _row_multiples(layers))]


def adapter_shapes(model: CausalLM) -> tuple:
    """Return for each linear layer of each block whether it trains, and the shape of its adapter's A or True."""
    layers = [[layer.parts() for layer in chain(*groups(block))] for block in model.model.layers]
    return tuple(tuple((x.weight.requires_grad, x.A is None or x.A.shape) for x in block) for block in layers)


def layers_of_every_kind(model: CausalLM, shapes: tuple) -> CausalLM:
    """Return a model of the first layers: two, or as many as have every kind of layer. A kind is a window, a rotary
    embedding and its part of `shapes`. Of sharded weights it is the whole model: FSDP gathers by module."""
    if type(model) is not CausalLM:
        return model
    kinds = list(zip(model.config.windows, model.config.ropes, shapes, strict=True))
    return first_layers(model, max(2, 1 + max(map(kinds.index, kinds))))


def first_layers(model: CausalLM, count: int) -> CausalLM:
    """Return a model of the first layers, which are this model's own, at most `count`."""
    cfg, blocks = model.config, model.model.layers
    count = min(len(blocks), count)
    short, decoder = copy.copy(model), copy.copy(model.model)
    decoder._modules = {**model.model._modules, "layers": blocks[:count]}
    short._modules = {**model._modules, "model": decoder}
    short.config = replace(cfg, num_hidden_layers=count, windows=cfg.windows[:count], ropes=cfg.ropes[:count])
    return short


def _row_multiples(layers: list[LinearParts]) -> list[int]:
    """Return the numbers of rows to try. FEW_ROWS only where neither threads share them, which leaves shares of other
    kernels, nor torch counts a product of them as small and gives it to another library."""
    narrowest = min(min(layer.weight.shape) for layer in layers)
    few = torch.get_num_threads() == 1 and FEW_ROWS * ROW_MULTIPLE * narrowest > SMALL_PRODUCT
    return [FEW_ROWS, ROW_MULTIPLE] if few else [ROW_MULTIPLE]


def _agrees(step: CPUStep, model: CausalLM) -> bool:
    counts = (1, 16, 64) if step.row_multiple == ROW_MULTIPLE else (1, 7, 9, 16, 64)
    for rows, more in product(counts, (0, 1)):  # a whole cache has other strides than a part of it
        longest = 4 * KEY_BLOCK + 1 if rows < 64 else KEY_BLOCK + 1  # less memory for many rows
        caches = [filled_cache(model, rows + more, longest // KEY_BLOCK + 1) for _ in range(2)]
        ids_B = torch.arange(rows) % model.config.vocab_size
        positions = {KEY_BLOCK + 1, longest} if more else {0, 3, KEY_BLOCK + 1, longest}  # one block has equal strides
        for position in sorted(positions):
            positions_B = (torch.arange(rows) % 3 + position - 2).clamp(min=0)
            views = [cache.view(slice(0, rows), positions_B, 1) for cache in caches]
            expected = model(ids_B[:, None], positions_B[:, None], cache=views[0])[:, 0]
            if not torch.equal(step(ids_B, positions_B, views[1]), expected):
                return False
    return True


def _prefills_alike(step: CPUStep, model: CausalLM) -> bool:
    """Return whether the step and the model write the same keys and values, for prefills of few and many tokens."""
    for counts in ((1,), (5,), (3, 1, 20), (40,), (70, 30, 2), (KEY_BLOCK,) * (SHORT // KEY_BLOCK)):
        counts_B = torch.tensor(counts)
        ids_N, segments_N = torch.arange(sum(counts)), torch.arange(len(counts)).repeat_interleave(counts_B)
        starts_B = torch.arange(len(counts)) * (KEY_BLOCK - 1)
        positions_N = torch.cat([torch.arange(start, start + n) for start, n in zip(starts_B, counts, strict=True)])
        caches = [filled_cache(model, len(counts) + 1, int(positions_N.max()) // KEY_BLOCK + 1) for _ in range(2)]
        ours, theirs = (cache.view(torch.arange(len(counts)).flip(0), starts_B, max(counts)) for cache in caches)
        ids_N %= model.config.vocab_size
        step.prefill(ids_N, positions_N, ours, counts_B)
        model(ids_N[None], positions_N[None], segments_N[None], theirs, wanted=counts_B[:0])
        written = Places(ours, (torch.arange(max(counts)) < counts_B[:, None]).flatten().nonzero()[:, 0])
        if not all(map(torch.equal, *map(written.read, caches))):
            return False
    return True


def filled_cache(model: CausalLM, rows: int, blocks: int) -> KVCache:
    """Return a cache of random numbers, whose sums show the order of adding: each block has another part of one
    sample."""
    cache = KVCache(model, rows)
    cache.reserve(blocks)
    size, tensors = cache.keys[0][0].numel(), cache.keys + cache.values
    sample = torch.randn(size + len(tensors) * len(tensors[0]), generator=torch.Generator().manual_seed(0))
    for i, block in enumerate(block for tensor in tensors for block in tensor):
        block.copy_(sample[i : i + size].view_as(block))
    return cache
