"""Compute the log-probabilities of taken tokens with Triton kernels, as models/logprob.py does without them.

One GEMM unit is 2 N D V FLOP. There are two methods. Neither holds [N, V] logits or a frozen head's [V, D] gradient:

- A frozen head (LoRA) takes 2 units. The forward computes d logp(y) / d h, and the backward only scales it. The
  normalizer is known only after the whole row, and beyond D = 256 the float32 sums of D columns per row fill the
  registers, so one kernel with an online softmax does not fit. Instead the kernels go through the vocabulary in slabs
  of SLAB tokens. `_score` computes a slab's logits, tile by tile, and writes their exponentials to a scratch in the
  head's dtype. `_fold` merges the tiles' peaks and sums into the row's. `_gather` multiplies the scratch with the slab
  of the head and adds the product to float32 sums. The vocabulary is cut, not the rows: the second product then has
  all rows times D as its output, which is enough tiles for the whole device without splitting a sum. The scratch
  costs 4 bytes of traffic per logit (16 bits, written and read once); bfloat16 logits and a softmax pass cost 8.
- All other cases (no gradient, entropy_grad, a trainable head): the forward keeps a normalizer per row (1 unit), and
  the backward computes the logits again, slab by slab, and from them d loss / d logits (2 units; the head's own
  gradient is a third). No method with an entropy gradient takes less: in the forward it would cost a third unit too.

The exponentials are relative to 2**ref. A row's ref is an integer that only grows, in steps of STEP, so rescaling
earlier exponentials is exact, and rare. The scratch leaves the taken token out, and (1 - p) W[y] is added in float32:
where p is near 1 the gradient is small, and the rounding of p W[y] would exceed it.

A row's bits do not depend on the other rows: tiles, slabs and the order of sums are fixed, and no sum is split or
atomic (except a trainable head's gradient, which torch computes). They do not depend on the caller either: training and
sampling run the same binary, and its argument `write` switches the scratch on. Temporary memory is at most
SCRATCH_BYTES at any N: `_chunks` cuts the rows by `scratch_bytes`.

Tensors of a chunk whose names have no suffix have `padded` rows: N rounded up to whole tiles. `slab` is the number of
tokens in slab_VD.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from models.cuda.triton.common import FUSED, LOG2E, LOWEST, Tiles, pair_product, place, shared_memory
from models.refusal import Refusal

SCRATCH_BYTES = 512 * 2**20
SLAB = 16384  # tokens of the vocabulary in a slab, a multiple of every pair of tiles
FOLD_ROWS = 16  # rows per program of `_fold`


def tiles(D: int, dtype: torch.dtype, shared: int) -> Tiles:
    """Return the tile sizes for a model width, a dtype and the shared memory of a program in bytes.

    There is no autotuner, because its choice would change the last bits.
    16 bits on an H200 (790 TFLOP/s in reach): 128 x 256 reads (128 + 256) * 2 bytes for 2 * 128 * 256 FLOP, which is 85
    FLOP per byte of the L2 cache; 128 x 128 has 64 and would need 12 TB/s. The sums of 128 x 256 take 128 registers in
    each thread of 8 warps, and working on one half after the other leaves registers free. Four stages of 48 KiB fit the
    227 KiB of shared memory.
    16 bits on an A100 (163 KiB, 312 TFLOP/s): 128 x 128 is enough, and also fits the 99 KiB of newer workstation chips.
    float32 does not use TF32 but the ordinary cores, where registers limit the tile.
    """
    half = max(16, triton.next_power_of_2(D) // 2)
    if dtype == torch.float32:
        return Tiles(64, 32, min(half, 32), 16, 4, 2)
    if shared < 200 * 1024:
        return Tiles(128, 64, min(half, 64), 64, 8, 3)
    return Tiles(128, 128, min(half, 128), 64, 8, 4)


def scratch_bytes(rows: int, D: int, V: int, dtype: torch.dtype, t: Tiles) -> int:
    """Return the temporary memory of a chunk of `rows` rows, rounded up to whole tiles.

    In the head's dtype: exponentials [rows, slab] and the taken tokens' weights [rows, D]. In float32: sums [rows, D],
    3 numbers per row and tile, and at most 32 per row.
    """
    padded, width = triton.cdiv(rows, t.rows) * t.rows, _slab_width(V, t)
    return padded * (width * dtype.itemsize + D * (4 + dtype.itemsize) + 12 * (width // t.vocab) + 128)


def token_logprobs(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    targets_N: torch.Tensor,
    temperature: float = 1.0,
    entropy_grad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (logprobs_N, entropy_N), float32, of softmax(hidden @ weight.T / temperature).

    logprobs carry a gradient to hidden, and to weight if it requires one; entropy does only with entropy_grad=True.
    hidden and weight have one dtype (bfloat16, float16 or float32) and are on a CUDA device, as models/cuda/paths.py
    sees to. Raise ValueError for shapes and dtypes that do not agree. A target outside the vocabulary has
    log-probability NaN.
    """
    (N, D), dtype = hidden_ND.shape, hidden_ND.dtype
    if weight_VD.dtype != dtype or weight_VD.shape[1:] != (D,) or targets_N.shape != (N,):
        raise Refusal(
            f"hidden is {dtype} {[N, D]}, weight {weight_VD.dtype} {list(weight_VD.shape)}, targets "
            f"{list(targets_N.shape)}: they must agree in dtype, width and number"
        )
    if not weight_VD.is_contiguous():
        raise Refusal("weight [V, D] must be contiguous; a copy of a head made here in every call would be large")
    return _TokenLogprobs.apply(hidden_ND, weight_VD, targets_N.contiguous(), temperature, entropy_grad)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
        hidden_ND = hidden_ND.contiguous()
        in_forward = hidden_ND.requires_grad and not (weight_VD.requires_grad or entropy_grad)
        slope_ND = torch.empty_like(hidden_ND) if in_forward else None  # d logp / d h
        N = len(hidden_ND)
        logprobs_N, entropy_N, peak_N, log_N = (hidden_ND.new_empty(N, dtype=torch.float32) for _ in range(4))
        for rows in _chunks(hidden_ND, weight_VD):
            slope = slope_ND[rows] if in_forward else None
            results = _forward(hidden_ND[rows], weight_VD, targets_N[rows], 1 / temperature, slope)
            logprobs_N[rows], entropy_N[rows], peak_N[rows], log_N[rows] = results
        ctx.scale, ctx.in_forward = 1 / temperature, in_forward
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy_N)
        others = hidden_ND, weight_VD, targets_N, peak_N, log_N, entropy_N
        ctx.save_for_backward(*((slope_ND,) if in_forward else others))
        return logprobs_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_logprobs_N, grad_entropy_N):
        if ctx.in_forward:
            (slope_ND,) = ctx.saved_tensors
            grad_ND = torch.mul(slope_ND, grad_logprobs_N[:, None], out=torch.empty_like(slope_ND))
            return grad_ND, None, None, None, None
        hidden_ND, weight_VD, targets_N, *row_N = ctx.saved_tensors
        row_N += grad_logprobs_N, grad_entropy_N
        grad_hidden_ND = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        grad_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        for rows in _chunks(hidden_ND, weight_VD):
            figures_N = torch.stack([x[rows] for x in row_N])
            grad_hidden = None if grad_hidden_ND is None else grad_hidden_ND[rows]
            _backward(hidden_ND[rows], weight_VD, targets_N[rows], figures_N, ctx.scale, grad_hidden, grad_weight_VD)
        return grad_hidden_ND, grad_weight_VD, None, None, None


def _forward(hidden_ND, weight_VD, targets_N, scale, slope_ND):
    """Return (logprobs_N, entropy_N, peak_N, log_N) of a chunk of rows; peak + log is the log of the normalizer.

    Write d logp / d h into slope_ND unless that is None.
    """
    (N, D), V, t = hidden_ND.shape, len(weight_VD), _tiles_on(hidden_ND)
    padded, width = triton.cdiv(N, t.rows) * t.rows, _slab_width(V, t)
    row_stats = new_row_stats(hidden_ND, padded)
    peak, _, _, _, _, logprobs, entropy, log, own, others, rescale = row_stats
    tile_stats = row_stats.new_empty(3, width // t.vocab, padded)
    write, scratch = slope_ND is not None, hidden_ND  # never None: Triton would compile another binary
    if write:
        scratch, sums = hidden_ND.new_empty(padded, width), row_stats.new_zeros(padded, D)
    step = 1 if hidden_ND.dtype == torch.float16 else 64  # float16 has few exponents
    for start, slab_VD in _slabs(weight_VD):
        _score[_grid(padded, slab_VD, t)](
            *(hidden_ND, slab_VD, targets_N, scratch, tile_stats, row_stats),
            *(scale, N, D, len(slab_VD), padded, width, start, int(write)),
            **dict(STEP=step, ROWS=t.rows, VOCAB=t.vocab, INNER=t.inner, **_options(t)),
        )
        fold(scratch, tile_stats, row_stats, len(slab_VD), V, step, write, t)
        if write:
            _gather_slab(scratch, slab_VD, sums, rescale, t)
    if write:
        taken_ND = weight_VD[targets_N.clamp(0, V - 1)]  # a clamped target gets NaN from `own`
        mean_ND = sums[:N].mul_(others[:N, None]).addcmul_(taken_ND, own[:N, None])
        slope_ND.copy_(mean_ND.mul_(scale))
    return logprobs[:N], entropy[:N], peak[:N], log[:N]


def new_row_stats(hidden_ND, padded: int) -> torch.Tensor:
    """Return the statistics of rows that have seen no token yet, as `_fold` describes them."""
    row_stats = hidden_ND.new_full((11, padded), LOWEST.value, dtype=torch.float32)
    row_stats[1:3], row_stats[3] = 0, torch.nan
    return row_stats


def fold(scratch, tile_stats, row_stats, words: int, V: int, step: int, write: bool, t: Tiles) -> None:
    """Merge the statistics of the tiles of `words` tokens, at most a slab of them if `write`, into the rows'."""
    width = _slab_width(V, t)
    _fold[(row_stats.shape[1] // FOLD_ROWS,)](
        *(scratch, tile_stats, row_stats, triton.cdiv(words, t.vocab), tile_stats.shape[1], row_stats.shape[1]),
        *(width, int(write)),
        **dict(STEP=step, SLAB_TILES=width // t.vocab, BLOCKS=triton.next_power_of_2(width // t.vocab)),
        **dict(ROWS=FOLD_ROWS, VOCAB=t.vocab, **FUSED),
    )


def _backward(hidden_ND, weight_VD, targets_N, figures_N, scale, grad_hidden_ND, grad_weight_VD):
    """Write a chunk's gradient into grad_hidden_ND and add to grad_weight_VD, each unless it is None."""
    (N, D), V, t = hidden_ND.shape, len(weight_VD), _tiles_on(hidden_ND)
    padded, width = triton.cdiv(N, t.rows) * t.rows, _slab_width(V, t)
    dlogits, sums = hidden_ND.new_empty(padded, width), figures_N.new_zeros(padded, D)
    rescale = figures_N.new_ones(padded)
    for start, slab_VD in _slabs(weight_VD):
        _dlogits[_grid(padded, slab_VD, t)](
            *(hidden_ND, slab_VD, targets_N, dlogits, figures_N, scale, N, D, len(slab_VD), width, start),
            **dict(ROWS=t.rows, VOCAB=t.vocab, INNER=t.inner, **_options(t)),
        )
        if grad_hidden_ND is not None:
            _gather_slab(dlogits, slab_VD, sums, rescale, t)
        if grad_weight_VD is not None:
            grad_weight_VD[start : start + SLAB].addmm_(dlogits[:N, : len(slab_VD)].mT, hidden_ND)
    if grad_hidden_ND is not None:
        grad_hidden_ND.copy_(sums[:N])


def _gather_slab(x, slab_VD, sums, rescale, t):
    """Set sums to rescale * sums + x @ slab."""
    (padded, D), width = sums.shape, x.shape[1]
    _gather[(padded // t.rows * triton.cdiv(D, 2 * t.width),)](
        *(x, slab_VD, sums, rescale, D, len(slab_VD), padded, width),
        **dict(ROWS=t.rows, WIDTH=t.width, INNER=t.inner, **_options(t)),
    )


def _options(t: Tiles) -> dict:
    return dict(num_warps=t.warps, num_stages=t.stages, **FUSED)


def _tiles_on(hidden_ND) -> Tiles:
    return tiles(hidden_ND.shape[1], hidden_ND.dtype, shared_memory(hidden_ND.device))


def _chunks(hidden_ND, weight_VD):
    """Return slices of rows with a scratch of at most SCRATCH_BYTES, or of one tile of rows."""
    (N, D), V, t = hidden_ND.shape, len(weight_VD), _tiles_on(hidden_ND)
    size = max(SCRATCH_BYTES // scratch_bytes(t.rows, D, V, hidden_ND.dtype, t), 1) * t.rows
    return (slice(start, min(start + size, N)) for start in range(0, N, size))


def _slabs(weight_VD):
    return ((start, weight_VD[start : start + SLAB]) for start in range(0, len(weight_VD), SLAB))


def _slab_width(V: int, t: Tiles) -> int:
    """Return the columns of the scratch: a slab's, rounded up to whole pairs of tiles."""
    return triton.cdiv(min(SLAB, V), 2 * t.vocab) * 2 * t.vocab


def _grid(padded: int, slab_VD, t: Tiles) -> tuple[int]:
    return (padded // t.rows * triton.cdiv(len(slab_VD), 2 * t.vocab),)


@triton.jit
def _reference(peak, STEP: tl.constexpr):
    """Return a tile's ref from its peak: the exponent of the peak in base 2, rounded up to a multiple of STEP."""
    return tl.ceil(peak * (LOG2E / STEP)) * STEP


@triton.jit(do_not_specialize=["N", "start", "write"])
def _score(
    hidden_ND, slab_VD, targets_N, scratch, tile_stats, row_stats, scale, N, D, slab, padded, width, start, write,
    STEP: tl.constexpr, ROWS: tl.constexpr, VOCAB: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Compute the logits of two tiles side by side and pass each to `_score_tile`."""
    row_tile, pair = place(tl.cdiv(N, ROWS), tl.cdiv(slab, 2 * VOCAB))
    rows, words = row_tile * ROWS + tl.arange(0, ROWS), 2 * pair * VOCAB + tl.arange(0, VOCAB)
    row = tl.minimum(rows, N - 1)
    left, right = pair_product(hidden_ND, slab_VD, row, words, slab, D, D, 1, D, INNER)
    target = (tl.load(targets_N + row) - start).to(tl.int32)
    tile_at, row_at = tile_stats + 2 * pair * padded + rows, row_stats + rows
    _score_tile(scale * left, rows, words, target, scratch, tile_at, row_at, slab, padded, width, write, STEP, VOCAB)
    words, tile_at = words + VOCAB, tile_at + padded
    _score_tile(scale * right, rows, words, target, scratch, tile_at, row_at, slab, padded, width, write, STEP, VOCAB)


@triton.jit
def _score_tile(
    logits, rows, words, target, scratch, tile_at, row_at, slab, padded, width, write,
    STEP: tl.constexpr, VOCAB: tl.constexpr,
):  # fmt: skip
    """Write the statistics of a tile's rows and, if `write`, exp(logit) / 2**ref into the scratch.

    The statistics are the peak, the sum of exp(logit - peak), the sum of exp(logit - peak) (logit - peak), and the
    taken token's logit if the tile has it.
    """
    taken = words[None, :] == target[:, None]
    here = (target >= tl.min(words, 0)) & (target <= tl.max(words, 0)) & (target < slab)
    tl.store(row_at + 3 * padded, tl.sum(tl.where(taken, logits, 0), 1), mask=here)
    logits = tl.where((words < slab)[None, :] & (logits != float("-inf")), logits, LOWEST)
    peak = tl.max(logits, 1)
    shift = logits - peak[:, None]
    exps = tl.exp(shift)
    tl.store(tile_at, peak)
    tl.store(tile_at + width // VOCAB * padded, tl.sum(exps, 1))
    tl.store(tile_at + width // VOCAB * 2 * padded, tl.sum(exps * shift, 1))
    if write:
        ref = tl.maximum(tl.load(row_at + 4 * padded), _reference(peak, STEP))
        scaled = tl.where(taken, 0, exps) * tl.exp2(peak * LOG2E - ref)[:, None]
        tl.store(scratch + rows[:, None] * width + words[None, :], scaled.to(scratch.dtype.element_ty))


@triton.jit(do_not_specialize=["blocks", "most_blocks", "write"])
def _fold(
    scratch, tile_stats, row_stats, blocks, most_blocks, padded, width, write,
    STEP: tl.constexpr, SLAB_TILES: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, VOCAB: tl.constexpr,
):  # fmt: skip
    """Merge the statistics of tiles into each row's, slab by slab. With `write` there is one slab; rescale those of its
    exponentials that have a smaller ref to the row's.

    tile_stats: [3, most_blocks, padded], of which the first `blocks` tiles are there.
    row_stats has 11 entries per row: 0 peak, 1 sum of exp(logit - peak), 2 sum of exp(logit - peak) (logit - peak), 3
    the taken token's logit, 4 ref. After the last slab: 5 log-probability, 6 entropy, 7 log of entry 1; and the factors
    of d logp / d h, 8 for the taken token's weights and 9 for the sums over the other tokens. 10 is the factor that
    rescales earlier sums to the new ref.
    """
    rows, block = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCKS)
    row, span = row_stats + rows, most_blocks * padded
    row_peak, row_total, row_spread = tl.load(row), tl.load(row + padded), tl.load(row + 2 * padded)
    for first in range(0, blocks, SLAB_TILES):
        tile = tile_stats + (first + block)[:, None] * padded + rows[None, :]
        there = ((block < SLAB_TILES) & (first + block < blocks))[:, None]
        peak = tl.load(tile, mask=there, other=LOWEST)  # [BLOCKS, ROWS]
        total = tl.load(tile + span, mask=there, other=0)
        spread = tl.load(tile + 2 * span, mask=there, other=0)
        new_peak = tl.maximum(row_peak, tl.max(peak, 0))
        total, spread = _moved(total, spread, peak - new_peak[None, :])
        old_total, old_spread = _moved(row_total, row_spread, row_peak - new_peak)
        row_peak, row_total = new_peak, old_total + tl.sum(total, 0)
        row_spread = old_spread + tl.sum(spread, 0)
    logp = tl.load(row + 3 * padded) - row_peak - tl.log(row_total)
    tl.store(row, row_peak)
    tl.store(row + padded, row_total)
    tl.store(row + 2 * padded, row_spread)
    tl.store(row + 5 * padded, logp)
    tl.store(row + 6 * padded, tl.log(row_total) - row_spread / row_total)
    tl.store(row + 7 * padded, tl.log(row_total))
    if write:
        old_ref = tl.load(row + 4 * padded)
        ref = tl.maximum(old_ref, _reference(row_peak, STEP))
        tl.store(row + 4 * padded, ref)
        tl.store(row + 8 * padded, 1 - tl.exp(logp))
        tl.store(row + 9 * padded, -tl.exp2(ref - row_peak * LOG2E) / row_total)
        tl.store(row + 10 * padded, tl.exp2(old_ref - ref))
        for b in range(blocks):
            factor = tl.exp2(tl.maximum(old_ref, _reference(tl.load(tile_stats + b * padded + rows), STEP)) - ref)
            if tl.min(factor, 0) < 1:
                at = scratch + rows[:, None] * width + b * VOCAB + tl.arange(0, VOCAB)[None, :]
                tl.store(at, (tl.load(at) * factor[:, None]).to(scratch.dtype.element_ty))


@triton.jit
def _gather(
    x, slab_VD, sums, rescale, D, slab, padded, width, ROWS: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr
):
    """Set two tiles of sums, side by side, to rescale * sums + x @ slab."""
    row_tile, pair = place(padded // ROWS, tl.cdiv(D, 2 * WIDTH))
    rows, columns = row_tile * ROWS + tl.arange(0, ROWS), 2 * pair * WIDTH + tl.arange(0, WIDTH)
    left, right = pair_product(x, slab_VD, rows, columns, D, slab, width, D, 1, INNER)
    _add_tile(sums, rescale, rows, columns, left, D)
    _add_tile(sums, rescale, rows, columns + WIDTH, right, D)


@triton.jit
def _add_tile(sums, rescale, rows, columns, more, D):
    """Set a tile of sums to rescale * sums + more."""
    at, inside = sums + (rows[:, None] * D + columns[None, :]), (columns < D)[None, :]
    earlier = tl.load(at, mask=inside, other=0) * tl.load(rescale + rows)[:, None]
    tl.store(at, earlier + more, mask=inside)


@triton.jit(do_not_specialize=["N", "start"])
def _dlogits(
    hidden_ND, slab_VD, targets_N, dlogits, figures_N, scale, N, D, slab, width, start,
    ROWS: tl.constexpr, VOCAB: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Write two tiles of d loss / d (hidden @ slab.T) side by side; figures_N is described at `_slope`."""
    row_tile, pair = place(tl.cdiv(N, ROWS), tl.cdiv(slab, 2 * VOCAB))
    rows, words = row_tile * ROWS + tl.arange(0, ROWS), 2 * pair * VOCAB + tl.arange(0, VOCAB)
    row = tl.minimum(rows, N - 1)
    left, right = pair_product(hidden_ND, slab_VD, row, words, slab, D, D, 1, D, INNER)
    target, figures = (tl.load(targets_N + row) - start).to(tl.int32)[:, None], figures_N + row[:, None]
    out = dlogits + rows[:, None] * width + words[None, :]
    dtype = dlogits.dtype.element_ty
    slope = scale * _slope(scale * left, words[None, :] == target, figures, N)
    tl.store(out, slope.to(dtype))
    slope = scale * _slope(scale * right, words[None, :] + VOCAB == target, figures, N)
    tl.store(out + VOCAB, slope.to(dtype))


@triton.jit
def _slope(logits, taken, figures, N):
    """Return d loss / d logits.

    figures points at a row's first of five numbers, N apart: peak, log of the sum of exp(logit - peak), entropy, d loss
    / d logp and d loss / d entropy.
    """
    logp = logits - tl.load(figures) - tl.load(figures + N)
    p = tl.exp(logp)
    of_logp = tl.where(taken, 1 - p, -p) * tl.load(figures + 3 * N)
    return of_logp - p * (logp + tl.load(figures + 2 * N)) * tl.load(figures + 4 * N)


@triton.jit
def _moved(total, spread, shift):
    """Return the sums of exp(x) and exp(x) x, given as total and spread, for x + shift in place of x."""
    shift = tl.maximum(shift, -200)  # below it exp is 0 already, and 0 times an overflow would not be a number
    return total * tl.exp(shift), (spread + total * shift) * tl.exp(shift)
