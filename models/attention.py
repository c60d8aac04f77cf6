"""Causal attention whose result for a query does not depend on anything else in the batch.

Two ways to compute the same thing:

- `ExactAttention`, on a CPU in float32 (and float64): the only path there. Bitwise, a query's output depends only
  on that query and the keys it may see, not on batch size, padding, or how many later keys the tensors hold. So the
  log-probability recorded while sampling, one token at a time from a cache, *is* the one that training recomputes.
  Three rules buy this: matrix products have at least `MIN_QUERIES` rows (smaller ones take another kernel); keys come
  in blocks of `KEY_BLOCK`, whose sums are added in order, so that trailing masked blocks add exact zeros; queries go
  in tiles, each of which reads only the keys up to its last position.
- torch's `scaled_dot_product_attention` elsewhere: fast, equal up to rounding.
"""

import torch
import torch.nn.functional as F

KEY_BLOCK = 64
MIN_QUERIES = 4
QUERY_TILE = 64


def attend(
    q_BHTE: torch.Tensor,
    k_UZEL: torch.Tensor,
    v_UZLE: torch.Tensor,
    positions_BT: torch.Tensor,
    window: int | None = None,
) -> torch.Tensor:
    """Attention of T queries over U blocks of L = KEY_BLOCK keys, where query t of row b sees the keys
    0..positions_BT[b, t], or the last `window` of them. Z = B*K, the K key heads of row 0, then those of row 1.

    K divides H (grouped queries: head h reads key head h // (H / K)). Softmax in float32 at least, scale 1/sqrt(E).
    Returns out_BHTE in the dtype of q.
    """
    B, _, _, E = q_BHTE.shape
    if q_BHTE.device.type == "cpu" and q_BHTE.dtype in (torch.float32, torch.float64):
        exact = ExactAttention.apply if torch.is_grad_enabled() else exact_attention
        return exact(q_BHTE, k_UZEL, v_UZLE, positions_BT, window)
    k, v = (x.transpose(0, 1).reshape(B, x.shape[1] // B, -1, E) for x in (k_UZEL.mT, v_UZLE))  # [B, K, U*L, E]
    mask_BTL = ~hidden(torch.arange(k.shape[2], device=q_BHTE.device), positions_BT, window)
    return F.scaled_dot_product_attention(q_BHTE, k, v, attn_mask=mask_BTL[:, None], enable_gqa=True)


def in_blocks(x_BKTE: torch.Tensor) -> torch.Tensor:
    """[B, K, T, E] -> [U, Z, KEY_BLOCK, E], the last block filled up with zeros."""
    x_BKULE = F.pad(x_BKTE, (0, 0, 0, -x_BKTE.shape[2] % KEY_BLOCK)).unflatten(2, (-1, KEY_BLOCK))
    return x_BKULE.movedim(2, 0).flatten(1, 2)


def exact_attention(q_BHTE, k_UZEL, v_UZLE, positions_BT, window=None, lse_BHT=None) -> torch.Tensor:
    """As `attend`; writes the log-sum-exp of the scores into lse_BHT if that is given."""
    (B, H, _, E), Z = q_BHTE.shape, k_UZEL.shape[1]
    out_BHTE = torch.empty_like(q_BHTE)
    for tile, first, seen, end in tiles(positions_BT, window):
        queries_ZME = _group(q_BHTE[:, :, tile] * E**-0.5, Z // B)
        scores_UZML = queries_ZME.new_empty(end - first, *queries_ZME.shape[:2], KEY_BLOCK)
        for u in range(first, end):
            torch.bmm(queries_ZME, k_UZEL[u], out=scores_UZML[u - first])
        _hide(scores_UZML[seen - first :], positions_BT[:, tile] - seen * KEY_BLOCK, window, H * B // Z)
        out, total, peak = weigh(scores_UZML, v_UZLE[first:], used=H * B // Z * positions_BT[:, tile].shape[1])
        _ungroup_into(out_BHTE[:, :, tile], out)
        if lse_BHT is not None:
            _ungroup_into(lse_BHT[:, :, tile, None], total.log_().add_(peak))
    return out_BHTE


def weigh(scores_UZML: torch.Tensor, v_UZLE: torch.Tensor, used: int):
    """(the values' mean weighted by softmax(scores) [Z, M, E], the sum of exp(scores - peak) [Z, M, 1], the peak), of
    the first M = used rows.

    Overwrites the scores. Blocks are summed one after the other, so that those which are hidden add exact zeros.
    """
    weights_UZML = scores_UZML[:, :, :used]
    peak_ZM1 = weights_UZML.amax((0, 3)).unsqueeze_(-1)
    total_ZM1 = weights_UZML.sub_(peak_ZM1).exp_().sum(-1, keepdim=True).cumsum(0)[-1]
    out_ZME = torch.bmm(scores_UZML[0], v_UZLE[0])
    for u in range(1, len(scores_UZML)):
        out_ZME.baddbmm_(scores_UZML[u], v_UZLE[u])
    return out_ZME[:, :used].div_(total_ZM1), total_ZM1, peak_ZM1


class ExactAttention(torch.autograd.Function):
    """Blocked softmax attention; keeps q, k, v and the log-sum-exp, and recomputes the weights in the backward."""

    @staticmethod
    def forward(ctx, q_BHTE, k_UZEL, v_UZLE, positions_BT, window=None):
        lse_BHT = q_BHTE.new_empty(q_BHTE.shape[:3])
        out_BHTE = exact_attention(q_BHTE, k_UZEL, v_UZLE, positions_BT, window, lse_BHT)
        ctx.window = window
        ctx.save_for_backward(q_BHTE, k_UZEL, v_UZLE, positions_BT, out_BHTE, lse_BHT)
        return out_BHTE

    @staticmethod
    def backward(ctx, grad_BHTE):
        q_BHTE, k_UZEL, v_UZLE, positions_BT, out_BHTE, lse_BHT = ctx.saved_tensors
        (B, H, _, E), (U, Z) = q_BHTE.shape, k_UZEL.shape[:2]
        grad_q = torch.empty_like(q_BHTE)
        grad_k, grad_v = q_BHTE.new_zeros(2, Z, U * KEY_BLOCK, E)
        for tile, first, seen, end in tiles(positions_BT, ctx.window):
            keys, values = (x[first:end].transpose(0, 1).flatten(1, 2) for x in (k_UZEL.mT, v_UZLE))  # [Z, keys, E]
            queries = _group(q_BHTE[:, :, tile] * E**-0.5, Z // B)
            scores = torch.bmm(queries, keys.mT)
            blocks = scores.unflatten(-1, (-1, KEY_BLOCK)).movedim(-2, 0)
            _hide(blocks[seen - first :], positions_BT[:, tile] - seen * KEY_BLOCK, ctx.window, H * B // Z)
            weights = scores.sub_(_group(lse_BHT[:, :, tile, None], Z // B)).exp_()
            grad = _group(grad_BHTE[:, :, tile], Z // B)
            delta = (grad * _group(out_BHTE[:, :, tile], Z // B)).sum(-1, keepdim=True)
            grad_scores = torch.bmm(grad, values.mT).sub_(delta).mul_(weights)
            used = slice(H * B // Z * positions_BT[:, tile].shape[1])
            _ungroup_into(grad_q[:, :, tile], torch.bmm(grad_scores, keys)[:, used].mul_(E**-0.5))
            read = slice(first * KEY_BLOCK, end * KEY_BLOCK)
            grad_k[:, read] += torch.bmm(grad_scores.mT, queries)
            grad_v[:, read] += torch.bmm(weights.mT, grad)
        grad_k, grad_v = (x.unflatten(1, (U, KEY_BLOCK)).transpose(0, 1) for x in (grad_k, grad_v))
        return grad_q, grad_k.mT, grad_v, None, None


def tiles(positions_BT: torch.Tensor, window: int | None):
    """Query tiles; of each the first block of keys that any of its queries sees, the first that not all of them may see
    whole (where a window begins, simply the first), and the end of those that any sees."""
    T = positions_BT.shape[1]
    for start in range(0, T, QUERY_TILE):
        tile = slice(start, min(start + QUERY_TILE, T))
        least, most = map(int, positions_BT[:, tile].aminmax())
        first, seen = 0, (least + 1) // KEY_BLOCK
        if window is not None and most >= window:
            first = seen = max(least + 1 - window, 0) // KEY_BLOCK
        yield tile, first, seen, most // KEY_BLOCK + 1


def _group(x_BHTE: torch.Tensor, K: int) -> torch.Tensor:
    """[B, H, T, E] -> [B*K, rows, E]: the queries that share a key head become the rows of one matrix product."""
    B, H, T, E = x_BHTE.shape
    rows = x_BHTE.reshape(B * K, H // K * T, E)
    missing = MIN_QUERIES - rows.shape[1]
    return F.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows


def _ungroup_into(out_BHTE: torch.Tensor, rows: torch.Tensor) -> None:
    B, H, T, E = out_BHTE.shape
    out_BHTE.copy_(rows.reshape(B, H, T, E))


def _hide(scores_UZML: torch.Tensor, positions_BT: torch.Tensor, window: int | None, G: int) -> None:
    """Minus infinity where a query does not see a key; G query heads share a key head."""
    B, T = positions_BT.shape
    key_U11L = torch.arange(scores_UZML.shape[0] * KEY_BLOCK).view(-1, 1, 1, KEY_BLOCK)
    hidden_UBTL = hidden(key_U11L, positions_BT, window)
    used = scores_UZML[:, :, : G * T].unflatten(1, (B, -1)).unflatten(3, (G, T))  # [U, B, K, G, T, L], a view
    used.masked_fill_(hidden_UBTL[:, :, None, None], float("-inf"))


def hidden(key: torch.Tensor, positions_BT: torch.Tensor, window: int | None) -> torch.Tensor:
    """Whether a key lies after a query's position, or too far before it."""
    after = key > positions_BT[..., None]
    return after if window is None else after | (key <= positions_BT[..., None] - window)
