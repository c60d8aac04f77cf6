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


def attend(q_BHTE: torch.Tensor, k_BKLE: torch.Tensor, v_BKLE: torch.Tensor, positions_BT: torch.Tensor):
    """Attention of T queries over L keys, where query t of row b sees the keys 0..positions_BT[b, t].

    K divides H (grouped queries: head h reads key head h // (H / K)). Softmax in float32 at least, scale 1/sqrt(E).
    Returns out_BHTE in the dtype of q.
    """
    if q_BHTE.device.type == "cpu" and q_BHTE.dtype in (torch.float32, torch.float64):
        if torch.is_grad_enabled():
            return ExactAttention.apply(q_BHTE, k_BKLE, v_BKLE, positions_BT)
        return exact_attention(q_BHTE, _whole_blocks(k_BKLE), _whole_blocks(v_BKLE), positions_BT)
    mask_BTL = torch.arange(k_BKLE.shape[2], device=q_BHTE.device) <= positions_BT[..., None]
    return F.scaled_dot_product_attention(q_BHTE, k_BKLE, v_BKLE, attn_mask=mask_BTL[:, None], enable_gqa=True)


def exact_attention(q_BHTE, k_BKLE, v_BKLE, positions_BT, lse_BHT=None) -> torch.Tensor:
    """As `attend`, with keys in whole blocks. Writes the log-sum-exp of the scores into lse_BHT if that is given."""
    (B, H, _, E), K = q_BHTE.shape, k_BKLE.shape[1]
    out_BHTE = torch.empty_like(q_BHTE)
    for tile, last in _tiles(positions_BT):
        blocks = [slice(start, start + KEY_BLOCK) for start in range(0, last, KEY_BLOCK)]
        queries = _group(q_BHTE[:, :, tile] * E**-0.5, K)
        keys, values = k_BKLE.flatten(0, 1), v_BKLE.flatten(0, 1)
        scores = queries.new_empty(len(blocks), *queries.shape[:2], KEY_BLOCK)  # [blocks, B*K, rows, KEY_BLOCK]
        for weighed, block in zip(scores, blocks, strict=True):
            torch.bmm(queries, keys[:, block].mT, out=weighed)
        _hide(scores, positions_BT[:, tile], K, H // K)
        peak = scores.amax((0, 3)).unsqueeze_(-1)
        weights = scores.sub_(peak).exp_()
        total = weights.sum(-1, keepdim=True).cumsum(0)[-1]  # block sums, added in order
        out = torch.bmm(weights[0], values[:, blocks[0]])
        for weighed, block in zip(weights[1:], blocks[1:], strict=True):
            out.baddbmm_(weighed, values[:, block])
        _ungroup_into(out_BHTE[:, :, tile], out.div_(total))
        if lse_BHT is not None:
            _ungroup_into(lse_BHT[:, :, tile, None], total.log_().add_(peak))
    return out_BHTE


class ExactAttention(torch.autograd.Function):
    """Blocked softmax attention; keeps q, k, v and the log-sum-exp, and recomputes the weights in the backward."""

    @staticmethod
    def forward(ctx, q_BHTE, k_BKLE, v_BKLE, positions_BT):
        ctx.keys = k_BKLE.shape[2]
        k_BKLE, v_BKLE = _whole_blocks(k_BKLE), _whole_blocks(v_BKLE)
        lse_BHT = q_BHTE.new_empty(q_BHTE.shape[:3])
        out_BHTE = exact_attention(q_BHTE, k_BKLE, v_BKLE, positions_BT, lse_BHT)
        ctx.save_for_backward(q_BHTE, k_BKLE, v_BKLE, positions_BT, out_BHTE, lse_BHT)
        return out_BHTE

    @staticmethod
    def backward(ctx, grad_BHTE):
        q_BHTE, k_BKLE, v_BKLE, positions_BT, out_BHTE, lse_BHT = ctx.saved_tensors
        E, K = q_BHTE.shape[-1], k_BKLE.shape[1]
        grad_q, grad_k, grad_v = torch.empty_like(q_BHTE), torch.zeros_like(k_BKLE), torch.zeros_like(v_BKLE)
        for tile, last in _tiles(positions_BT):
            keys, values = k_BKLE[:, :, :last].flatten(0, 1), v_BKLE[:, :, :last].flatten(0, 1)
            queries = _group(q_BHTE[:, :, tile] * E**-0.5, K)
            scores = torch.bmm(queries, keys.mT)
            _hide(scores.unflatten(-1, (-1, KEY_BLOCK)).movedim(-2, 0), positions_BT[:, tile], K, q_BHTE.shape[1] // K)
            weights = scores.sub_(_group(lse_BHT[:, :, tile, None], K)).exp_()
            grad = _group(grad_BHTE[:, :, tile], K)
            delta = (grad * _group(out_BHTE[:, :, tile], K)).sum(-1, keepdim=True)
            grad_scores = torch.bmm(grad, values.mT).sub_(delta).mul_(weights)
            _ungroup_into(grad_q[:, :, tile], torch.bmm(grad_scores, keys).mul_(E**-0.5))
            grad_k[:, :, :last] += torch.bmm(grad_scores.mT, queries).unflatten(0, (-1, K))
            grad_v[:, :, :last] += torch.bmm(weights.mT, grad).unflatten(0, (-1, K))
        return grad_q, grad_k[:, :, : ctx.keys], grad_v[:, :, : ctx.keys], None


def _tiles(positions_BT: torch.Tensor):
    """Query tiles and how many keys (whole blocks) each one needs."""
    T = positions_BT.shape[1]
    for start in range(0, T, QUERY_TILE):
        tile = slice(start, min(start + QUERY_TILE, T))
        last = int(positions_BT[:, tile].max()) + 1
        yield tile, -(-last // KEY_BLOCK) * KEY_BLOCK


def _whole_blocks(x_BKLE: torch.Tensor) -> torch.Tensor:
    """Pads the keys with zeros to a multiple of KEY_BLOCK; a cache that already is one is passed through, not
    copied.
    """
    missing = -x_BKLE.shape[2] % KEY_BLOCK
    return F.pad(x_BKLE, (0, 0, 0, missing)) if missing else x_BKLE


def _group(x_BHTE: torch.Tensor, K: int) -> torch.Tensor:
    """[B, H, T, E] -> [B*K, rows, E]: the queries that share a key head become the rows of one matrix product."""
    B, H, T, E = x_BHTE.shape
    rows = x_BHTE.reshape(B * K, H // K * T, E)
    missing = MIN_QUERIES - rows.shape[1]
    return F.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows


def _ungroup_into(out_BHTE: torch.Tensor, rows: torch.Tensor) -> None:
    B, H, T, E = out_BHTE.shape
    out_BHTE.copy_(rows[:, : B * H * T // rows.shape[0]].reshape(B, H, T, E))


def _hide(scores: torch.Tensor, positions_BT: torch.Tensor, K: int, G: int) -> None:
    """Minus infinity where a key lies after the query's position; scores are [blocks, B*K, rows, KEY_BLOCK]."""
    B, T = positions_BT.shape
    key_UL = torch.arange(scores.shape[0] * KEY_BLOCK).view(-1, KEY_BLOCK)
    hidden_UBTL = key_UL[:, None, None] > positions_BT[..., None]
    used = scores[:, :, : G * T].unflatten(1, (B, K)).unflatten(3, (G, T))  # [blocks, B, K, G, T, KEY_BLOCK], a view
    used.masked_fill_(hidden_UBTL[:, :, None, None], float("-inf"))
