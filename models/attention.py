"""Causal attention whose result for a query does not depend on anything else in the batch.

Four ways to compute the same thing:

- `ExactAttention`, on a CPU: the only path there. Bitwise, a query's output depends only on that query and the keys it
  may see, not on batch size, padding, or how many later keys the tensors hold. So the log-probability recorded while
  sampling, one token at a time from a cache, *is* the one that training recomputes.
  Three rules buy this: matrix products have at least `MIN_QUERIES` rows (smaller ones take another kernel); keys come
  in blocks of `KEY_BLOCK`, whose sums are added in order, so that trailing masked blocks add exact zeros; queries go
  in tiles, each of which reads only the keys up to its last position. 16-bit inputs are made float32 block by block:
  products of theirs would come back rounded to 16 bits.
- fast/triton/attention.py, on CUDA, from a cache's blocks, and for everything where sampling and training shall agree
  in every bit (`exact`): it has that property too.
- torch's `varlen_attn` (`attend_packed`), on CUDA in training otherwise: without padding or a mask, fastest, and equal
  up to rounding.
- torch's `scaled_dot_product_attention` where those two do not go: float32 on CUDA, or no Triton.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

KEY_BLOCK = 64
MIN_QUERIES = 4
TINY = 4096  # multiplications that torch never gives to oneDNN, whatever models/linear.py says
QUERY_TILE = 64
LOG2E = math.log2(math.e)  # scores are in base 2: torch's exp2 takes a third of the time of its exp


def attend(
    q_BHTE: torch.Tensor,
    k_UZEL: torch.Tensor,
    v_UZLE: torch.Tensor,
    positions_BT: torch.Tensor,
    window: int | None = None,
    exact: bool = False,
) -> torch.Tensor:
    """Attention of T queries over U blocks of L = KEY_BLOCK keys, where query t of row b sees the keys
    0..positions_BT[b, t], or the last `window` of them. Z = B*K, the K key heads of row 0, then those of row 1.

    K divides H (grouped queries: head h reads key head h // (H / K)). Softmax in float32 at least, scale 1/sqrt(E).
    exact: on CUDA, so that a query's bits depend on nothing but what it sees; on a CPU they do not anyway.
    Returns out_BHTE in the dtype of q. At position -1 is a query that nobody asks, whose output is finite and
    meaningless; in blocked attention it costs nothing where a tile has no others.
    """
    if q_BHTE.device.type == "cpu":
        blocked = ExactAttention.apply if torch.is_grad_enabled() else exact_attention
        return blocked(q_BHTE, k_UZEL, v_UZLE, positions_BT, window)
    kernel = triton_attend() if exact or q_BHTE.dtype in (torch.bfloat16, torch.float16) else None
    return (kernel or masked_attention)(q_BHTE, k_UZEL, v_UZLE, positions_BT, window)


@cache
def triton_attend():
    """models/fast/triton/attention.py's function, if Triton is installed."""
    try:
        from models.fast.triton.attention import attend
    except ImportError:
        return None
    return attend


def masked_attention(q_BHTE, k_UZEL, v_UZLE, positions_BT, window=None) -> torch.Tensor:
    """As `attend`, by torch."""
    B, E = q_BHTE.shape[0], q_BHTE.shape[3]
    k, v = (x.transpose(0, 1).reshape(B, x.shape[1] // B, -1, E) for x in (k_UZEL.mT, v_UZLE))  # [B, K, U*L, E]
    positions_BT = positions_BT.clamp(min=0)  # a query that sees nothing would have a gradient that is no number
    mask_BTL = ~hidden(torch.arange(k.shape[2], device=q_BHTE.device), positions_BT, window)
    return F.scaled_dot_product_attention(q_BHTE, k, v, attn_mask=mask_BTL[:, None], enable_gqa=True)


@dataclass
class Packed:
    """Sequences one after the other, as varlen_attn takes them. Each row is a query once, in the sequence that owns it,
    and a key in all the sequences that have it; a sequence's own rows are its last."""

    queries: torch.Tensor | slice  # of rows, int64
    keys: torch.Tensor | slice
    query_starts_S: torch.Tensor  # int32 [S + 1]: where in `queries` each sequence begins, and where the last one ends
    key_starts_S: torch.Tensor
    most_queries: int  # of a sequence
    most_keys: int


def pack(sequences_ST: torch.Tensor, own_ST: torch.Tensor) -> Packed | None:
    """Of sequences of rows, -1 past their ends, each row of which one owns; None where its own are not its last."""
    real_ST = sequences_ST >= 0
    if bool((own_ST[:, :-1] & real_ST[:, 1:] & ~own_ST[:, 1:]).any()):
        return None
    counts = own_ST.sum(1), real_ST.sum(1)
    rows = (_run(sequences_ST[mask_ST]) for mask_ST in (own_ST, real_ST))
    starts = (F.pad(count_S.cumsum(0), (1, 0)).int() for count_S in counts)
    return Packed(*rows, *starts, *(int(count_S.max()) for count_S in counts))


def _run(rows: torch.Tensor) -> torch.Tensor | slice:
    """As a slice, if they are 0, 1, ..., in order."""
    return slice(len(rows)) if torch.equal(rows, torch.arange(len(rows), device=rows.device)) else rows


def attend_packed(q_NHE, k_NKE, v_NKE, packed: Packed, window: int | None = None) -> torch.Tensor:
    """out_NHE of rows: those of `packed` see the rows before them in their sequence, or the last `window` of them,
    themselves included. The others get 0."""
    pick = lambda x, rows: x[rows] if isinstance(rows, slice) else x.index_select(0, rows)  # noqa: E731
    out_QHE = load_varlen()(
        *(pick(q_NHE, packed.queries), pick(k_NKE, packed.keys), pick(v_NKE, packed.keys)),
        *(packed.query_starts_S, packed.key_starts_S, packed.most_queries, packed.most_keys),
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
    )
    if isinstance(packed.queries, slice):
        return F.pad(out_QHE, (0, 0, 0, 0, 0, len(q_NHE) - len(out_QHE)))
    return torch.zeros_like(q_NHE).index_copy(0, packed.queries, out_QHE)


def load_varlen() -> Callable | None:
    """torch's varlen_attn, None before torch 2.10. Importing it takes seconds, which only its users shall wait for."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


def packs(device: torch.device, dtype: torch.dtype, E: int) -> bool:
    """Whether `attend_packed` is there for this."""
    if device.type != "cuda" or load_varlen() is None:
        return False
    takes = {"window_size", "enable_gqa"} <= inspect.signature(load_varlen()).parameters.keys()
    half, fits = dtype in (torch.bfloat16, torch.float16), E % 8 == 0 and E <= 256
    return takes and half and fits and torch.cuda.get_device_capability(device) >= (8, 0)


def in_blocks(x_BKTE: torch.Tensor) -> torch.Tensor:
    """[B, K, T, E] -> [U, Z, KEY_BLOCK, E], the last block filled up with zeros."""
    x_BKULE = F.pad(x_BKTE, (0, 0, 0, -x_BKTE.shape[2] % KEY_BLOCK)).unflatten(2, (-1, KEY_BLOCK))
    return x_BKULE.movedim(2, 0).flatten(1, 2)


@dataclass
class Tile:
    """Queries side by side of some rows of the batch, and the blocks of keys that they see."""

    rows: slice | torch.Tensor  # of B, those with a query here,
    heads: slice | torch.Tensor  # of Z, their key heads,
    queries: slice  # of T
    positions_BT: torch.Tensor  # of all that
    first: int  # the first block that any of them sees,
    seen: int  # the first that not all may see whole (where a window begins, simply the first),
    end: int  # the end of those that any sees

    def blocks(self, x_UZ: torch.Tensor) -> torch.Tensor:
        """Of keys or values those which are seen."""
        return x_UZ[self.first : self.end, self.heads]


def tiles(positions_BT: torch.Tensor, K: int, window: int | None):
    """The Tiles of at most QUERY_TILE queries a row whose position is not -1."""
    for start in range(0, positions_BT.shape[1], QUERY_TILE):
        queries = slice(start, min(start + QUERY_TILE, positions_BT.shape[1]))
        rows_W = (positions_BT[:, queries].amax(1) >= 0).nonzero()[:, 0]
        if len(rows_W) == 0:
            continue
        rows, heads = rows_W, (rows_W[:, None] * K + torch.arange(K)).flatten()
        first, last = int(rows_W[0]), int(rows_W[-1])
        if last - first + 1 == len(rows_W):  # then without copies
            rows, heads = slice(first, last + 1), slice(first * K, (last + 1) * K)
        here_BT = positions_BT[rows, queries]
        here_BT = here_BT.where(here_BT >= 0, here_BT.max())
        yield Tile(rows, heads, queries, here_BT, *span(here_BT, window))


def span(positions_BT: torch.Tensor, window: int | None) -> tuple[int, int, int]:
    """(first, seen, end) of a Tile's blocks."""
    least, most = map(int, positions_BT.aminmax())
    first, seen = 0, (least + 1) // KEY_BLOCK
    if window is not None and most >= window:
        first = seen = max(least + 1 - window, 0) // KEY_BLOCK
    return first, seen, most // KEY_BLOCK + 1


def exact_attention(q_BHTE, k_UZEL, v_UZLE, positions_BT, window=None, lse_BHT=None) -> torch.Tensor:
    """As `attend`; writes the base-2 log-sum-exp of the scores into lse_BHT if that is given."""
    (B, H, _, E), Z, wide = q_BHTE.shape, k_UZEL.shape[1], _wide(q_BHTE)
    out_BHTE = torch.zeros_like(q_BHTE)
    for tile in tiles(positions_BT, Z // B, window):
        here = tile.rows, slice(None), tile.queries
        queries_ZME = _group(q_BHTE[here].to(wide) * (LOG2E * E**-0.5), Z // B)
        scores_UZML = queries_ZME.new_empty(tile.end - tile.first, *queries_ZME.shape[:2], KEY_BLOCK)
        score(queries_ZME, tile.blocks(k_UZEL).to(wide), scores_UZML)
        _hide(scores_UZML, tile, window, H * B // Z)
        T = tile.positions_BT.shape[1]
        out, total, peak = weigh(scores_UZML, tile.blocks(v_UZLE), used=H * B // Z * T)
        out_BHTE[here] = out.to(q_BHTE.dtype).reshape(-1, H, T, E)
        if lse_BHT is not None:
            lse_BHT[here] = total.log2_().add_(peak).view(-1, H, T)
    return out_BHTE


def score(queries_ZME: torch.Tensor, k_UZEL: torch.Tensor, out_UZML: torch.Tensor) -> None:
    """The queries' products with the keys of each block: in one call if the keys lie so and the queries are few."""
    (U, Z, E, L), M = k_UZEL.shape, queries_ZME.shape[1]
    if M <= L and k_UZEL.is_contiguous():
        queries = queries_ZME.expand(U, -1, -1, -1).reshape(U * Z, M, E)
        torch.bmm(queries, k_UZEL.view(U * Z, E, L), out=out_UZML.view(U * Z, M, L))
        return
    for u in range(U):
        torch.bmm(queries_ZME, k_UZEL[u], out=out_UZML[u])


def weigh(scores_UZML: torch.Tensor, v_UZLE: torch.Tensor, used: int):
    """(the values' mean weighted by softmax(scores * ln 2) [Z, M, E], the sum of 2**(scores - peak) [Z, M, 1], the
    peak), of the first M = used rows.

    Overwrites the scores. Blocks are summed one after the other, so that those which are hidden add exact zeros.
    """
    wide = scores_UZML.dtype
    weights_UZML = scores_UZML[:, :, :used]
    peak_ZM1 = weights_UZML.amax((0, 3)).unsqueeze_(-1)
    total_ZM1 = weights_UZML.sub_(peak_ZM1).exp2_().sum(-1, keepdim=True).cumsum(0)[-1]
    if v_UZLE.is_contiguous():
        out_ZME, *more = torch.bmm(scores_UZML.flatten(0, 1), v_UZLE.to(wide).flatten(0, 1)).chunk(len(v_UZLE))
    else:
        out_ZME, *more = (
            torch.bmm(weights, v_ZLE.to(wide)) for weights, v_ZLE in zip(scores_UZML, v_UZLE, strict=True)
        )
    for block_ZME in more:
        out_ZME.add_(block_ZME)
    return out_ZME[:, :used].div_(total_ZM1), total_ZM1, peak_ZM1


class ExactAttention(torch.autograd.Function):
    """Blocked softmax attention; keeps q, k, v and the log-sum-exp, and recomputes the weights in the backward."""

    @staticmethod
    def forward(ctx, q_BHTE, k_UZEL, v_UZLE, positions_BT, window=None):
        lse_BHT = q_BHTE.new_empty(q_BHTE.shape[:3], dtype=_wide(q_BHTE))
        out_BHTE = exact_attention(q_BHTE, k_UZEL, v_UZLE, positions_BT, window, lse_BHT)
        ctx.window = window
        ctx.save_for_backward(q_BHTE, k_UZEL, v_UZLE, positions_BT, out_BHTE, lse_BHT)
        return out_BHTE

    @staticmethod
    def backward(ctx, grad_BHTE):
        q_BHTE, k_UZEL, v_UZLE, positions_BT, out_BHTE, lse_BHT = ctx.saved_tensors
        (B, H, _, E), (U, Z), wide = q_BHTE.shape, k_UZEL.shape[:2], lse_BHT.dtype
        K, G = Z // B, H * B // Z
        grad_q = torch.zeros_like(q_BHTE)
        grad_k, grad_v = lse_BHT.new_zeros(2, Z, U * KEY_BLOCK, E)
        for tile in tiles(positions_BT, K, ctx.window):
            here = tile.rows, slice(None), tile.queries
            blocks = (tile.blocks(x).to(wide) for x in (k_UZEL.mT, v_UZLE))
            keys, values = (x.transpose(0, 1).flatten(1, 2) for x in blocks)  # [Z, keys, E]
            queries = _group(q_BHTE[here].to(wide) * (LOG2E * E**-0.5), K)
            scores = torch.bmm(queries, keys.mT)
            _hide(scores.unflatten(-1, (-1, KEY_BLOCK)).movedim(-2, 0), tile, ctx.window, G)
            weights = scores.sub_(_group(lse_BHT[here][..., None], K, len(queries[0]))).exp2_()
            grad_out = _group(grad_BHTE[here].to(wide), K)
            delta = (grad_out * _group(out_BHTE[here], K)).sum(-1, keepdim=True)
            grad_scores = torch.bmm(grad_out, values.mT).sub_(delta).mul_(weights)
            used = slice(G * tile.positions_BT.shape[1])
            grad = torch.bmm(grad_scores, keys)[:, used].mul_(E**-0.5)
            grad_q[here] = grad.to(q_BHTE.dtype).reshape_as(q_BHTE[here])
            read = tile.heads, slice(tile.first * KEY_BLOCK, tile.end * KEY_BLOCK)
            grad_k[read] += torch.bmm(grad_scores.mT, queries).div_(LOG2E)
            grad_v[read] += torch.bmm(weights.mT, grad_out)
        grad_k, grad_v = (x.unflatten(1, (U, KEY_BLOCK)).transpose(0, 1).to(q_BHTE.dtype) for x in (grad_k, grad_v))
        return grad_q, grad_k.mT, grad_v, None, None


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _group(x_BHTE: torch.Tensor, K: int, at_least: int = 0) -> torch.Tensor:
    """[B, H, T, E] -> [B*K, rows, E]: the queries that share a key head become the rows of one matrix product, of which
    there are enough for one kernel always."""
    B, H, T, E = x_BHTE.shape
    rows = x_BHTE.reshape(B * K, H // K * T, E)
    missing = (at_least or max(MIN_QUERIES, TINY // (B * K * E * KEY_BLOCK) + 1)) - rows.shape[1]
    return F.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows


def _hide(scores_UZML: torch.Tensor, tile: Tile, window: int | None, G: int) -> None:
    """Minus infinity where a query does not see a key; G query heads share a key head."""
    B, T = tile.positions_BT.shape
    key_U11L = torch.arange(tile.seen * KEY_BLOCK, tile.end * KEY_BLOCK).view(-1, 1, 1, KEY_BLOCK)
    hidden_UBTL = hidden(key_U11L, tile.positions_BT, window)
    used = scores_UZML[tile.seen - tile.first :, :, : G * T].unflatten(1, (B, -1)).unflatten(3, (G, T))  # a view
    used.masked_fill_(hidden_UBTL[:, :, None, None], float("-inf"))  # of [U, B, K, G, T, L]


def hidden(key: torch.Tensor, positions_BT: torch.Tensor, window: int | None) -> torch.Tensor:
    """Whether a key lies after a query's position, or too far before it."""
    after = key > positions_BT[..., None]
    return after if window is None else after | (key <= positions_BT[..., None] - window)
