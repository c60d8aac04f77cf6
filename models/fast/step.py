"""The decoder for one more token of each row, in few calls: on a CPU, and inside the CUDA graph of cuda_graph.py.

With a handful of rows and a few million weights, calls cost more than sums. So layers that read the same input become
one product (products.py). On a CPU every bit should be that of models/decoder.py; `exact_step` tries some tokens first.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from models.attention import KEY_BLOCK, LOG2E, QUERY_MULTIPLE, SMALL_PRODUCT, masked, score, span, weigh
from models.cache import CacheView, KVCache
from models.config import ModelConfig
from models.decoder import Block, CausalLM, rotate
from models.fast import onednn, packed
from models.fast.onednn import batch_matmul
from models.fast.products import Stacked, StackedOnCPU, Unstacked, groups, random_factors
from models.linear import ROW_MULTIPLE, LinearParts

_agreed = WeakKeyDictionary()  # {model: {kind of model: (copies, row_multiple) of an exact CPUStep, or None}}
SMALL = 20_000_000  # parameters; the frozen weights of smaller models are copied for every adapter
FEW_ROWS = 4  # libraries take other kernels for one to three rows
FEW_CALLS = 100_000_000  # parameters; without copies of weights fewer calls save a larger model little


class HeadNorms:
    """q_norm and k_norm of a layer as one norm of the query and key heads side by side."""

    def __init__(self, block: Block, cfg: ModelConfig):
        self.norms = [block.self_attn.q_norm] * cfg.num_attention_heads
        self.norms += [block.self_attn.k_norm] * cfg.num_key_value_heads
        self.weight, self.eps = self._copy(), cfg.rms_norm_eps
        self.wide = torch.promote_types(self.weight.dtype, torch.float32)

    def _copy(self) -> torch.Tensor:
        return torch.stack([norm.weight for norm in self.norms])

    def __call__(self, x_NHE: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x_NHE.to(self.wide), x_NHE.shape[-1:], None, self.eps).to(x_NHE.dtype) * self.weight

    def refresh(self) -> None:
        """Copy the weights again, in place."""
        self.weight.copy_(self._copy())


@dataclass
class StepLayer:
    """A layer of the decoder with its linear layers as four products (models/fast/products.py)."""

    block: Block
    head_norms: HeadNorms | None
    qkv: Stacked | Unstacked
    out: Stacked | Unstacked
    gate_up: Stacked | Unstacked
    down: Stacked | Unstacked

    def refresh(self) -> None:
        """Copy all weights again, in place."""
        for copied in (self.head_norms, self.qkv, self.out, self.gate_up, self.down):
            if copied is not None:
                copied.refresh()


class Step:
    """A decoder whose layers of one input are stacked by `stack` (a class of products.py)."""

    def __init__(self, model: CausalLM, stack: Callable):
        cfg, self.model, self.layers = model.config, model, []
        for block in model.model.layers:
            norms = HeadNorms(block, cfg) if cfg.qk_norm else None
            self.layers.append(StepLayer(block, norms, *(stack(layers) for layers in groups(block))))

    def hidden(self, ids_N: torch.Tensor, rotary: dict, view: CacheView, rows: int, attend: Callable) -> torch.Tensor:
        """Return hidden states [N, D] after the final norm; write the new keys and values to the cache.

        rotary: {rope: (cos_NE, sin_NE)}. rows: of the view, B; the rows of ids_N after them are padding.
        attend: (q_BHE, k_UZEL, v_UZLE, window) -> out_BHE.
        """
        cfg, decoder = self.model.config, self.model.model
        H, K, E = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
        x_ND = F.embedding(ids_N, decoder.embed_tokens.weight)
        for i, layer in enumerate(self.layers):
            block = layer.block
            heads_NHE = layer.qkv.joint(block.input_layernorm(x_ND)).unflatten(-1, (-1, E))
            qk_NHE = heads_NHE[:, : H + K]
            if layer.head_norms is not None:
                qk_NHE = layer.head_norms(qk_NHE)
            qk_BHE = rotate(qk_NHE, *rotary[cfg.ropes[i]])[:rows]
            k_UZEL, v_UZLE = view.layer(i).extend(qk_BHE[:, H:, None], heads_NHE[:rows, H + K :, None])
            attended_BHE = attend(qk_BHE[:, :H], k_UZEL, v_UZLE, cfg.windows[i])
            x_ND = x_ND + layer.out(_padded(attended_BHE.reshape(rows, H * E), len(x_ND)))[0]
            gate, up = layer.gate_up(block.post_attention_layernorm(x_ND))
            x_ND = x_ND + layer.down(block.mlp.act(gate) * up)[0]
        return decoder.norm(x_ND)


class CPUStep(Step):
    """A stacked copy of a model as it is now. copies: the frozen weights are copied for each adapter. row_multiple: the
    number of rows is padded to a multiple of it."""

    @torch.inference_mode()
    def __init__(self, model: CausalLM, copies: bool = True, row_multiple: int = ROW_MULTIPLE):
        self.row_multiple, self.copies = row_multiple, copies
        super().__init__(model, lambda layers: StackedOnCPU(layers, copies))

    @torch.inference_mode()
    def __call__(self, ids_B: torch.Tensor, positions_B: torch.Tensor, view: CacheView) -> torch.Tensor:
        """Return hidden states [B, D] of one more token for each row of the view."""
        rows = len(ids_B)
        N = -(-rows // self.row_multiple) * self.row_multiple
        positions_N = _padded(positions_B, N)
        tables = self.model.rotary_tables(int(positions_B.max()) + 1, ids_B.device)
        rotary = {rope: (cos[positions_N], sin[positions_N]) for rope, (cos, sin) in tables.items()}
        attend = BlockedAttention(self.model.config, positions_B, view.blocks)
        return self.hidden(_padded(ids_B, N), rotary, view, rows, attend)[:rows]


class BlockedAttention:
    """models/attention.py's exact attention of one query a row, with masks and buffers that all layers share."""

    def __init__(self, cfg: ModelConfig, positions_B: torch.Tensor, blocks: int):
        K, E = cfg.num_key_value_heads, cfg.head_dim
        self.group, self.scale = cfg.num_attention_heads // K, LOG2E * E**-0.5
        self.masks = {window: _mask(positions_B, window, K, blocks) for window in set(cfg.windows)}
        self.queries_ZME = torch.zeros(len(positions_B) * K, self.group + -self.group % QUERY_MULTIPLE, E)
        self.scores_UZML = torch.empty(blocks, *self.queries_ZME.shape[:2], KEY_BLOCK)
        self.matmul = partial(batch_matmul, len(self.queries_ZME), blocks)

    def __call__(self, q_BHE: torch.Tensor, k_UZEL: torch.Tensor, v_UZLE: torch.Tensor, window) -> torch.Tensor:
        first, mask_from, bias = self.masks[window]
        queries_ZME, scores_UZML = self.queries_ZME, self.scores_UZML
        queries_ZME[:, : self.group] = (q_BHE * self.scale).view(len(queries_ZME), self.group, -1)
        with self.matmul():
            score(queries_ZME, k_UZEL[first:], scores_UZML[first:])
            scores_UZML[mask_from:].add_(bias)
            out_ZGE, _, _ = weigh(scores_UZML[first:], v_UZLE[first:], used=self.group)
        return out_ZGE


def _mask(positions_B: torch.Tensor, window: int | None, K: int, blocks: int) -> tuple[int, int, torch.Tensor]:
    """Return (the first block of keys that any row sees, the first that needs a mask, what to add to the scores from
    that one on [U, Z, 1, L])."""
    first, mask_from, _ = span(positions_B, window)
    keys = torch.arange(mask_from * KEY_BLOCK, blocks * KEY_BLOCK).view(-1, 1, KEY_BLOCK)
    masked_UZL = masked(keys, positions_B.repeat_interleave(K), window)
    return first, mask_from, torch.where(masked_UZL, float("-inf"), 0.0)[:, :, None]


def _size(model: CausalLM) -> int:
    return sum(p.numel() for p in model.parameters())


def _padded(x: torch.Tensor, N: int) -> torch.Tensor:
    """Return x with zero rows up to N."""
    return torch.cat((x, x.new_zeros(N - len(x), *x.shape[1:]))) if len(x) < N else x


@torch.no_grad()
def exact_step(model: CausalLM) -> CPUStep | None:
    """Return a CPUStep that agrees with the model in every bit on five or six tokens of 1 to 64 rows, or None.

    Rows are padded to FEW_ROWS if that agrees: a product of four rows takes half the time of one of sixteen. The trial
    runs once for each model, number of threads and shape of the adapters, with random B factors.
    """
    weight = model.lm_head.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or model.config.quant != "none":
        return None  # of quantised weights the stacks would be a dense copy
    inputs = [[layer.parts() for layer in layers] for block in model.model.layers for layers in groups(block)]
    copied = (packed.weight_copy([layer.weight for layer in group]) is not None for group in inputs)
    if _size(model) > FEW_CALLS and not all(copied):
        return None
    layers = [layer for group in inputs for layer in group]
    shapes = tuple((layer.weight.requires_grad, layer.A is None or layer.A.shape) for layer in layers)
    agreed, kind = _agreed.setdefault(model, {}), (torch.get_num_threads(), packed.library, onednn.least_batch, shapes)
    if kind not in agreed:
        with random_factors(model):
            copies, multiples = (True, False) if _size(model) < SMALL else (False,), _row_multiples(layers)
            steps = itertools.product(copies, multiples)
            agreed[kind] = next((step for step in steps if _agrees(CPUStep(model, *step), model)), None)
    return CPUStep(model, *agreed[kind]) if agreed[kind] else None


def _row_multiples(layers: list[LinearParts]) -> list[int]:
    """Return the numbers of rows to try. FEW_ROWS only where neither threads share them, which leaves shares of other
    kernels, nor torch counts a product of them as small and gives it to another library."""
    narrowest = min(min(layer.weight.shape) for layer in layers)
    few = torch.get_num_threads() == 1 and FEW_ROWS * ROW_MULTIPLE * narrowest > SMALL_PRODUCT
    return [FEW_ROWS, ROW_MULTIPLE] if few else [ROW_MULTIPLE]


def _agrees(step: CPUStep, model: CausalLM) -> bool:
    counts = (1, 16, 64) if step.row_multiple == ROW_MULTIPLE else (1, 7, 9, 16, 64)
    for rows, more in itertools.product(counts, (0, 1)):  # a whole cache has other strides than a part of it
        longest = 4 * KEY_BLOCK + 1 if rows < 64 else KEY_BLOCK + 1  # less memory for many rows
        caches = [KVCache(model, rows + more) for _ in range(2)]
        for cache in caches:
            cache.reserve(longest // KEY_BLOCK + 1)
            _fill(cache)
        ids_B = torch.arange(rows) % model.config.vocab_size
        positions = {KEY_BLOCK + 1, longest} if more else {0, 3, KEY_BLOCK + 1, longest}  # one block has equal strides
        for position in sorted(positions):
            positions_B = (torch.arange(rows) % 3 + position - 2).clamp(min=0)
            views = [cache.view(slice(0, rows), positions_B, 1) for cache in caches]
            expected = model(ids_B[:, None], positions_B[:, None], cache=views[0])[:, 0]
            if not torch.equal(step(ids_B, positions_B, views[1]), expected):
                return False
    return True


def _fill(cache: KVCache) -> None:
    """Fill all blocks with random numbers, whose sums show the order of adding: each block with another part of one
    sample."""
    size, tensors = cache.keys[0][0].numel(), cache.keys + cache.values
    sample = torch.randn(size + len(tensors) * len(tensors[0]), generator=torch.Generator().manual_seed(0))
    for i, block in enumerate(block for tensor in tensors for block in tensor):
        block.copy_(sample[i : i + size].view_as(block))
