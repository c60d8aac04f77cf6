"""Compute models/engine.py's `sample` with Triton kernels, without the [B, V] logits.

The vocabulary is cut into tiles. `_score` of logprob.py computes a tile's logits and keeps their peak and the sum of
their exponentials; `_fold` merges them, by the binaries and in the order of training. `_choose` then inverts the
cumulative distribution twice: over the tiles of a row, and within the tile that its uniform number falls into, whose
logits it computes again. So a token's log-probability has the bits that training gives it.
"""

import torch
import triton
import triton.language as tl

from models.cuda.triton.common import FUSED, LOWEST
from models.cuda.triton.logprob import SLAB, _options, _score, _tiles_on, fold, new_row_stats

LARGEST = 2**31 - 1  # elements of the head in one launch, whose kernel counts in 32 bits


def sample(hidden_BD, weight_VD, temperature: float, uniforms_B) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (ids_B int64, logprobs_B float32) as `sample` of models/engine.py does, on a CUDA device.

    Sums are float32: the distribution is right to about 1e-6, and the uniform numbers are compared in float64.
    """
    hidden_BD = hidden_BD.contiguous()
    (B, D), V, t = hidden_BD.shape, len(weight_VD), _tiles_on(hidden_BD)
    padded, blocks = triton.cdiv(B, t.rows) * t.rows, triton.cdiv(V, 2 * t.vocab) * 2
    tile_stats = hidden_BD.new_empty(3, blocks, padded, dtype=torch.float32)
    row_stats, no_targets_B = new_row_stats(hidden_BD, padded), tile_stats.new_zeros(B, dtype=torch.long)
    step, scale = 1 if hidden_BD.dtype == torch.float16 else 64, 1 / (temperature or 1.0)
    for start in range(0, V, at_once := max(LARGEST // D // SLAB, 1) * SLAB):
        part_VD, stats = weight_VD[start : start + at_once], tile_stats[:, start // t.vocab :]
        _score[(padded // t.rows * triton.cdiv(len(part_VD), 2 * t.vocab),)](
            *(hidden_BD, part_VD, no_targets_B, hidden_BD, stats, row_stats),
            *(scale, B, D, len(part_VD), padded, blocks * t.vocab, V, 0),  # `start` is V: no token is a target
            **dict(STEP=step, ROWS=t.rows, VOCAB=t.vocab, INNER=t.inner, **_options(t)),
        )
    fold(hidden_BD, tile_stats, row_stats, V, V, step, False, t)
    full = hidden_BD.dtype == torch.float32  # more and smaller tiles, and no tensor cores
    ids_B, logprobs_B = no_targets_B, hidden_BD.new_empty(B, dtype=torch.float32)
    numbers = row_stats if temperature == 0 else uniforms_B.to(hidden_BD.device)
    _choose[(B,)](
        *(hidden_BD, weight_VD, tile_stats, row_stats, numbers),
        *(ids_B, logprobs_B, tile_stats.new_empty(B, t.vocab), scale, D, V, blocks, padded),
        **dict(GREEDY=temperature == 0, BLOCKS=triton.next_power_of_2(blocks), VOCAB=t.vocab, INNER=t.inner),
        # All rows of the tile are the same; Hopper's matrix instructions, those of `_score`, take at least 64.
        **dict(ROWS=16 if full else 64, num_warps=16 if full else 4, num_stages=2, **FUSED),
    )
    return ids_B, logprobs_B


@triton.jit
def _choose(
    hidden_BD, weight_VD, tile_stats, row_stats, uniforms_B, ids_B, logprobs_B, scratch, scale, D, V, blocks, padded,
    GREEDY: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, VOCAB: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Choose one row's tile and the token within it; write the token and its log-probability."""
    row, block = tl.program_id(0), tl.arange(0, BLOCKS)
    there, tile = block < blocks, tile_stats + block * padded + row
    tile_peak = tl.load(tile, mask=there, other=LOWEST)
    row_peak, row_total = tl.load(row_stats + row), tl.load(row_stats + padded + row)
    if GREEDY:
        tile_at = tl.min(tl.where(tile_peak == row_peak, block, BLOCKS), 0)
        rest = tl.zeros((), tl.float64)
    else:
        weights = tl.load(tile + blocks * padded, mask=there, other=0) * tl.exp(tile_peak - row_peak)
        sums = tl.cumsum(weights, 0)
        target = tl.load(uniforms_B + row) * tl.max(sums, 0)
        tile_at = _first_beyond(weights, sums, block, target, BLOCKS)
        rest = target - tl.sum(tl.where(block == tile_at, sums - weights, 0), 0)
    words = tile_at * VOCAB + tl.arange(0, VOCAB)
    logits = _tile_logits(hidden_BD, weight_VD, scratch + row * VOCAB, row, words, V, D, ROWS, VOCAB, INNER)
    logits = scale * logits
    logits = tl.where((words < V) & (logits != float("-inf")), logits, LOWEST)
    if GREEDY:
        best = tl.max(logits, 0)
        word = tl.min(tl.where(logits == best, words, V - 1), 0)
    else:
        weights = tl.where(words < V, tl.exp(logits - row_peak), 0)
        word = tile_at * VOCAB + _first_beyond(weights, tl.cumsum(weights, 0), tl.arange(0, VOCAB), rest, VOCAB)
    taken = tl.sum(tl.where(words == word, logits, 0), 0)
    tl.store(ids_B + row, word.to(tl.int64))
    tl.store(logprobs_B + row, taken - row_peak - tl.log(row_total))


@triton.jit
def _first_beyond(weights, sums, index, target, SIZE: tl.constexpr):
    """Return the first index at which the running sum passes the target; if rounding leaves none, the last with a
    weight."""
    first = tl.min(tl.where((sums > target) & (weights > 0), index, SIZE), 0)
    last = tl.max(tl.where(weights > 0, index, 0), 0)
    return tl.where(first < SIZE, first, last)


@triton.jit
def _tile_logits(
    hidden_BD, weight_VD, scratch, row, words, V, D, ROWS: tl.constexpr, VOCAB: tl.constexpr, INNER: tl.constexpr
):  # fmt: skip
    """Return one row's products with the words' weights [VOCAB], summed as `_score` sums them.

    They go through memory, because Triton 3.6 and 3.7 cannot compile a reduction of the product's rows for
    sm_100.
    """
    same = tl.zeros((ROWS, 1), tl.int32)
    sums = tl.zeros((ROWS, VOCAB), tl.float32)
    for start in range(0, D, INNER):
        inner = start + tl.arange(0, INNER)
        x = tl.load(hidden_BD + row.to(tl.int64) * D + inner[None, :] + same, mask=inner[None, :] + same < D, other=0)
        at = weight_VD + words.to(tl.int64)[None, :] * D + inner[:, None]
        y = tl.load(at, mask=(inner < D)[:, None] & (words < V)[None, :], other=0)
        sums = tl.dot(x, y, sums, input_precision="ieee")
    first = (tl.arange(0, ROWS) == 0)[:, None] & (tl.arange(0, VOCAB) >= 0)[None, :]
    tl.store(scratch + same + tl.arange(0, VOCAB)[None, :], sums, mask=first)
    tl.debug_barrier()
    return tl.load(scratch + tl.arange(0, VOCAB))
