"""Causal attention: `masked_attention` is the specification, and `attend` chooses what runs.

On a CPU `attend` runs `ExactAttention`; the faster decode step runs BlockedAttention (models/cpu/step.py). Both give a
query the same bits in any batch, on CPUs that pass the trial of exactness: so the log-probability recorded while
sampling, from a cache, is the one that training recomputes. Three rules:

- matrix products have a multiple of QUERY_MULTIPLE rows, because the last one to three take another kernel;
- keys come in blocks of KEY_BLOCK whose sums are added in order, so trailing masked blocks add exact zeros;
- queries come in tiles, each of which reads only the keys up to its last position.

16-bit inputs become float32 block by block, because torch would round their products to 16 bits. On other devices
models/cuda may supply a kernel; the fallback is torch's scaled_dot_product_attention.

Letters of this file: U blocks of L = KEY_BLOCK keys; Z = B * K key heads of all sequences; M rows of a product, the
queries of the G heads that share a key head.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange

from models.elementwise import shares
from models.hooks import hooks

KEY_BLOCK = 64
QUERY_MULTIPLE = 4
SMALL_PRODUCT = 4096  # multiplications; up to here torch uses one library, however few the rows; `_group` pads others
QUERY_TILE = 64
LOG2E = math.log2(math.e)  # scores are in base 2: torch's exp2 takes a third of the time of its exp


def masked_attention(q_BHTE, k_UZEL, v_UZLE, last_key_BT, window=None) -> torch.Tensor:
    """Return what `attend` does: the specification, torch's scaled_dot_product_attention with a mask.

    Read it first. Tests compare the other forms with it. It runs on devices without a faster form, never on a CPU.
    Other episodes' keys need no mask: each sequence of a packed batch is a row of its own (models/layout.py, Layout).
    """
    B = len(q_BHTE)
    k = rearrange(k_UZEL, "u (b k) e l -> b k (u l) e", b=B)
    v = rearrange(v_UZLE, "u (b k) l e -> b k (u l) e", b=B)
    last_key = last_key_BT.clamp(min=0)[..., None]  # the gradient of a query that sees no key would be NaN
    key = torch.arange(k.shape[2], device=q_BHTE.device)
    seen = key <= last_key  # [B, T, keys]
    if window is not None:
        seen &= key > last_key - window
    return F.scaled_dot_product_attention(q_BHTE, k, v, attn_mask=seen[:, None], enable_gqa=True)


def attend(q_BHTE, k_UZEL, v_UZLE, last_key_BT, window: int | None = None, exact: bool = False) -> torch.Tensor:
    """Return out_BHTE, causal attention over U blocks of L = KEY_BLOCK keys, in the dtype of q.

    Query t of sequence b sees the keys 0..last_key_BT[b, t], or the last `window` of them; -1 marks padding, whose
    output is finite and meaningless. Z = B*K: the K key heads of sequence 0, then those of sequence 1; head h reads key
    head h // (H / K). Softmax in float32 at least, scale 1/sqrt(E). exact: bitwise on CUDA too.
    """
    if q_BHTE.device.type == "cpu":
        return ExactAttention.apply(q_BHTE, k_UZEL, v_UZLE, last_key_BT, window)
    out_BHTE = hooks(q_BHTE).attend(q_BHTE, k_UZEL, v_UZLE, last_key_BT, window, exact)
    return masked_attention(q_BHTE, k_UZEL, v_UZLE, last_key_BT, window) if out_BHTE is None else out_BHTE


class ExactAttention(torch.autograd.Function):
    """`masked_attention` on a CPU, by blocks; saves q, k, v and the log-sum-exp, and the backward computes the weights
    again."""

    @staticmethod
    def forward(ctx, q_BHTE, k_UZEL, v_UZLE, last_key_BT, window=None):
        (B, H, _, E), Z, wide = q_BHTE.shape, k_UZEL.shape[1], torch.promote_types(q_BHTE.dtype, torch.float32)
        K, G, out_BHTE = Z // B, H * B // Z, torch.zeros_like(q_BHTE)
        lse_BHT = out_BHTE.new_empty(out_BHTE.shape[:3], dtype=wide)  # base-2 log-sum-exp of the scores
        for tile in tiles(last_key_BT, K, window):
            in_tile, T = (tile.sequences, slice(None), tile.queries), tile.last_key_BT.shape[1]
            queries_ZME = _group(q_BHTE[in_tile].to(wide) * (LOG2E * E**-0.5), K)
            scores_UZML = queries_ZME.new_empty(tile.end - tile.first, *queries_ZME.shape[:2], KEY_BLOCK)
            score(queries_ZME, tile.blocks(k_UZEL).to(wide), scores_UZML)
            _mask(scores_UZML, tile, window, G)
            out, total, peak = weigh(scores_UZML, tile.blocks(v_UZLE), used=G * T)
            out_BHTE[in_tile] = out.to(q_BHTE.dtype).reshape(-1, H, T, E)
            lse_BHT[in_tile] = total.log2_().add_(peak).view(-1, H, T)
        ctx.window = window
        ctx.save_for_backward(q_BHTE, k_UZEL, v_UZLE, last_key_BT, out_BHTE, lse_BHT)
        return out_BHTE

    @staticmethod
    def backward(ctx, grad_BHTE):
        q_BHTE, k_UZEL, v_UZLE, last_key_BT, out_BHTE, lse_BHT = ctx.saved_tensors
        (B, H, _, E), (U, Z), wide = q_BHTE.shape, k_UZEL.shape[:2], lse_BHT.dtype
        K, G = Z // B, H * B // Z
        grad_q = torch.zeros_like(q_BHTE)
        grad_k, grad_v = lse_BHT.new_zeros(2, Z, U * KEY_BLOCK, E)
        for tile in tiles(last_key_BT, K, ctx.window):
            in_tile = tile.sequences, slice(None), tile.queries
            keys = rearrange(tile.blocks(k_UZEL).to(wide), "u z e l -> z (u l) e")
            values = rearrange(tile.blocks(v_UZLE).to(wide), "u z l e -> z (u l) e")
            queries = _group(q_BHTE[in_tile].to(wide) * (LOG2E * E**-0.5), K)
            scores = torch.bmm(queries, keys.mT)
            _mask(scores.unflatten(-1, (-1, KEY_BLOCK)).movedim(-2, 0), tile, ctx.window, G)  # a view, as blocks
            weights = scores.sub_(_group(lse_BHT[in_tile][..., None], K, len(queries[0]))).exp2_()
            grad_out = _group(grad_BHTE[in_tile].to(wide), K)
            delta = (grad_out * _group(out_BHTE[in_tile], K)).sum(-1, keepdim=True)
            grad_scores = torch.bmm(grad_out, values.mT).sub_(delta).mul_(weights)
            grad = torch.bmm(grad_scores, keys)[:, : G * tile.last_key_BT.shape[1]].mul_(E**-0.5)
            grad_q[in_tile] = grad.to(q_BHTE.dtype).reshape_as(q_BHTE[in_tile])
            read = tile.heads, slice(tile.first * KEY_BLOCK, tile.end * KEY_BLOCK)
            grad_k[read] += torch.bmm(grad_scores.mT, queries).div_(LOG2E)
            grad_v[read] += torch.bmm(weights.mT, grad_out)
        grad_k, grad_v = (x.unflatten(1, (U, KEY_BLOCK)).transpose(0, 1).to(q_BHTE.dtype) for x in (grad_k, grad_v))
        return grad_q, grad_k.mT, grad_v, None, None


@dataclass
class Tile:
    """Adjacent queries of some sequences of the batch, and the blocks of keys that they see."""

    sequences: slice | torch.Tensor  # of B, those that have a query in this tile
    heads: slice | torch.Tensor  # their key heads, of Z
    queries: slice  # of T
    last_key_BT: torch.Tensor  # the last key that each of these queries sees
    first: int  # the first block that any query sees
    mask_from: int  # the first block that needs a mask
    end: int  # the end of the blocks that any query sees

    def blocks(self, x_UZ: torch.Tensor) -> torch.Tensor:
        """Return the keys or values that the queries see."""
        return x_UZ[self.first : self.end, self.heads]


def tiles(last_key_BT: torch.Tensor, K: int, window: int | None) -> Iterator[Tile]:
    """Yield tiles of at most QUERY_TILE queries of each sequence; tiles without any query but padding are skipped."""
    for start in range(0, last_key_BT.shape[1], QUERY_TILE):
        queries = slice(start, min(start + QUERY_TILE, last_key_BT.shape[1]))
        real = (last_key_BT[:, queries].amax(1) >= 0).nonzero()[:, 0]
        if len(real) == 0:
            continue
        first, end = int(real[0]), int(real[-1]) + 1
        if end - first == len(real):  # a slice is read without a copy
            sequences, heads = slice(first, end), slice(first * K, end * K)
        else:
            sequences, heads = real, (real[:, None] * K + torch.arange(K)).flatten()
        tile_BT = last_key_BT[sequences, queries]
        tile_BT = tile_BT.where(tile_BT >= 0, tile_BT.max())  # padding sees what the last query sees: no NaN
        yield Tile(sequences, heads, queries, tile_BT, *span(tile_BT, window))


def span(last_key_BT: torch.Tensor, window: int | None) -> tuple[int, int, int]:
    """Return (first, mask_from, end) of a Tile's blocks."""
    least, most = map(int, last_key_BT.aminmax())
    first, mask_from = 0, (least + 1) // KEY_BLOCK
    if window is not None and most >= window:
        first = mask_from = max(least + 1 - window, 0) // KEY_BLOCK
    return first, mask_from, most // KEY_BLOCK + 1


def masked(key: torch.Tensor, last_key_BT: torch.Tensor, window: int | None) -> torch.Tensor:
    """Return True where a key comes after a query's last key, or too far before it: [B, T, keys] for a row of keys."""
    after = key > last_key_BT[..., None]
    return after if window is None else after | (key <= last_key_BT[..., None] - window)


def score(queries_ZME: torch.Tensor, k_UZEL: torch.Tensor, out_UZML: torch.Tensor) -> None:
    """Write the queries' products with the keys of each block; few queries in one call."""
    if queries_ZME.shape[1] <= KEY_BLOCK and k_UZEL.is_contiguous():
        queries = queries_ZME.expand(len(k_UZEL), -1, -1, -1).flatten(0, 1)
        torch.bmm(queries, k_UZEL.flatten(0, 1), out=out_UZML.view(-1, *out_UZML.shape[2:]))
        return
    for k_ZEL, out_ZML in zip(k_UZEL, out_UZML, strict=True):
        torch.bmm(queries_ZME, k_ZEL, out=out_ZML)


def weigh(scores_UZML: torch.Tensor, v_UZLE: torch.Tensor, used: int):
    """Return, of the first M = used rows, (the mean of the values under softmax(scores * ln 2) [Z, M, E], the sum of
    2**(scores - peak) [Z, M, 1], the peak [Z, M, 1]). Overwrites the scores. Blocks are added in order."""
    wide, weights_UZML = scores_UZML.dtype, scores_UZML[:, :, :used]
    peak = weights_UZML.amax((0, 3)).unsqueeze_(-1)
    weights_UZML.sub_(peak)
    for part in shares(weights_UZML):
        part.exp2_()
    total = weights_UZML.sum(-1, keepdim=True).cumsum(0)[-1]
    if v_UZLE.is_contiguous():
        parts = torch.bmm(scores_UZML.flatten(0, 1), v_UZLE.to(wide).flatten(0, 1)).chunk(len(v_UZLE))
    else:
        parts = [torch.bmm(weights, v_ZLE.to(wide)) for weights, v_ZLE in zip(scores_UZML, v_UZLE, strict=True)]
    out_ZME = parts[0]
    for block_ZME in parts[1:]:
        out_ZME.add_(block_ZME)
    return out_ZME[:, :used].div_(total), total, peak


def _group(x_BHTE: torch.Tensor, K: int, at_least: int = 0) -> torch.Tensor:
    """Return [B*K, rows, E]: the queries that share a key head are the rows of one matrix product. Zero rows are added
    until QUERY_MULTIPLE divides them and torch takes the kernel of larger products, or up to `at_least` rows."""
    rows = rearrange(x_BHTE, "b (k g) t e -> (b k) (g t) e", k=K)
    Z, count, E = rows.shape
    least = at_least or max(count, SMALL_PRODUCT // (Z * E * KEY_BLOCK) + 1)
    missing = least + -least % QUERY_MULTIPLE - count
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


def _mask(scores_UZML: torch.Tensor, tile: Tile, window: int | None, G: int) -> None:
    """Set scores to minus infinity where a query does not see a key; G query heads share a key head."""
    B, T = tile.last_key_BT.shape
    keys = torch.arange(tile.mask_from * KEY_BLOCK, tile.end * KEY_BLOCK).view(-1, 1, 1, KEY_BLOCK)
    masked_UBTL = masked(keys, tile.last_key_BT, window)
    used = scores_UZML[tile.mask_from - tile.first :, :, : G * T].unflatten(1, (B, -1)).unflatten(3, (G, T))  # a view
    used.masked_fill_(masked_UBTL[:, :, None, None], float("-inf"))  # of [U, B, K, G, T, L]


def in_blocks(x_BKTE: torch.Tensor) -> torch.Tensor:
    """Return [B, K, T, E] as blocks [U, Z, KEY_BLOCK, E], the last one padded with zeros."""
    x = F.pad(x_BKTE, (0, 0, 0, -x_BKTE.shape[2] % KEY_BLOCK))
    return rearrange(x, "b k (u l) e -> u (b k) l e", l=KEY_BLOCK)
