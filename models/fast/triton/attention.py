"""Compute causal attention with Triton kernels over the blocks of keys and values of models/cache.py.

A query's bits do not depend on the rest of the batch. They are the same for a single query of the engine and for a
whole sequence in training. Every tile has ROWS rows: as many queries as fit, each with the query heads that share a key
head. A tile reads its blocks of keys in order; no sum is split or atomic. A block that a row does not see changes
nothing in that row: its weights are exact zeros and the row's peak stays. Sampling and training run the same compiled
kernel: Triton does not specialize it on the arguments in which they differ (FREE).

In the forward the queries of all sequences lie end to end, and each sequence names the row of the cache with its keys.
So the engine's prompts need neither padding nor a copy of their keys. Bounds and positions are read on the device, and
the grid depends on shapes only, so a CUDA graph can replay a launch. The cost: few sequences give few programs, and
each program reads all of its keys.

The softmax follows Milakov and Gimelshein 2018. The backward follows Dao et al. 2022, appendix B.4: it computes the
weights again from the log-sum-exp. The gradient's sums have a fixed order too.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from models.fast.triton.common import FUSED, LOG2E, LOWEST, shared_memory

ROWS = 64  # rows of a tile; Hopper's matrix instructions take at least 64
FAR = 2**30  # the window where there is none: longer than every sequence
FREE = ("T", "Z", "longest", "window", "key_step", "value_step")  # arguments in which sampling and training differ


def attend(
    q_BHTE: torch.Tensor,
    k_UZEL: torch.Tensor,
    v_UZLE: torch.Tensor,
    positions_BT: torch.Tensor,
    window: int | None = None,
) -> torch.Tensor:
    """Return the same as `attend` of models/attention.py, for bfloat16, float16 and float32 on a CUDA device.

    Position -1 marks padding. The output of padding is 0, and it costs next to nothing.
    """
    return _Attention.apply(q_BHTE, k_UZEL, v_UZLE, positions_BT, FAR if window is None else window)


def attend_packed(
    q_NHE, k_UZEL, v_UZLE, positions_N, bounds, places_B, longest: int, K: int, window: int | None = None
):
    """Return out_NHE, without a gradient, for the queries of B sequences that lie end to end.

    bounds: int64 [B + 1], the first row of each sequence, and the end of the last one. places_B: int64, each sequence's
    row of a cache with K key heads. longest: no sequence has more rows. Position -1 marks padding, whose output is 0;
    that of rows in no sequence is arbitrary.
    """
    inputs = q_NHE.contiguous(), _dense(k_UZEL), _dense(v_UZLE), positions_N, bounds, places_B
    return _packed(*inputs, longest, K, FAR if window is None else window)[0]


def _packed(q_NHE, k_UZEL, v_UZLE, positions_N, bounds, places_B, longest: int, K: int, window: int):
    """Return (out_NHE, the scores' base-2 log-sum-exp [N, H])."""
    out_NHE, lse_NH = torch.empty_like(q_NHE), q_NHE.new_empty(q_NHE.shape[:2], dtype=torch.float32)
    options = _options(q_NHE.shape[1], q_NHE.shape[2], K, k_UZEL.shape[3])
    programs = len(places_B) * K * triton.cdiv(longest, options["ROWS"] // options["G"])
    if programs:
        _forward[(programs,)](
            *(q_NHE, k_UZEL, v_UZLE, positions_N, bounds, places_B, out_NHE, lse_NH),
            *(q_NHE.shape[2] ** -0.5, longest, len(places_B) * K, window, *_steps(k_UZEL, v_UZLE)),
            **options,
        )
    return out_NHE, lse_NH


@lru_cache(64)
def _in_order(B: int, T: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (bounds, places_B) of sequences of T rows whose keys lie in the same order."""
    return torch.arange(B + 1, device=device) * T, torch.arange(B, device=device)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q_BHTE, k_UZEL, v_UZLE, positions_BT, window):
        q_BTHE, k_UZEL, v_UZLE = q_BHTE.transpose(1, 2).contiguous(), _dense(k_UZEL), _dense(v_UZLE)
        positions_BT, (B, T) = positions_BT.contiguous(), q_BTHE.shape[:2]
        order = positions_BT.view(-1), *_in_order(B, T, q_BTHE.device), T, k_UZEL.shape[1] // max(B, 1), window
        out_NHE, lse_NH = _packed(q_BTHE.flatten(0, 1), k_UZEL, v_UZLE, *order)
        out_BTHE, lse_BTH = out_NHE.view_as(q_BTHE), lse_NH.view(q_BTHE.shape[:3])
        ctx.window = window
        ctx.save_for_backward(q_BTHE, k_UZEL, v_UZLE, positions_BT, out_BTHE, lse_BTH)
        return out_BTHE.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_BHTE):
        q_BTHE, k_UZEL, v_UZLE, positions_BT, out_BTHE, lse_BTH = ctx.saved_tensors
        grad_BTHE = grad_BHTE.transpose(1, 2).contiguous()
        delta_BTH = (grad_BTHE.float() * out_BTHE).sum(-1)
        grad_q = torch.empty_like(q_BTHE)
        grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (k_UZEL, v_UZLE))
        sizes, options, programs = _sizes(q_BTHE, k_UZEL, v_UZLE, ctx.window)
        options["num_warps"] *= 2 if q_BTHE.shape[3] > 64 else 1  # it holds twice the sums of the forward
        if shared_memory(q_BTHE.device) < 128 * 1024:
            options["num_stages"] = min(options["num_stages"], 2)
        if programs:
            inputs = q_BTHE, k_UZEL, v_UZLE, positions_BT, grad_BTHE, lse_BTH, delta_BTH
            _backward_queries[(programs,)](*inputs, grad_q, *sizes, **options)
            _backward_keys[(k_UZEL.shape[0] * k_UZEL.shape[1],)](*inputs, grad_k, grad_v, *sizes, **options)
        return grad_q.transpose(1, 2), grad_k, grad_v, None, None


def _dense(x_UZ: torch.Tensor) -> torch.Tensor:
    """Return blocks [U, Z, ., .] that are contiguous except along U. A view of a cache's first rows is not copied."""
    size = x_UZ.shape[2] * x_UZ.shape[3]
    whole = x_UZ.stride()[1:] == (size, x_UZ.shape[3], 1) and x_UZ.stride(0) % size == 0
    return x_UZ if whole else x_UZ.contiguous()


def _sizes(q_BTHE, k_UZEL, v_UZLE, window: int):
    """Return (the numbers of the backward's kernels, their constants and options, the number of tiles of queries)."""
    (B, T, H, E), Z = q_BTHE.shape, k_UZEL.shape[1]
    options = _options(H, E, Z // max(B, 1), k_UZEL.shape[3])
    sizes = E**-0.5, T, Z, window, *_steps(k_UZEL, v_UZLE)
    return sizes, options, Z * triton.cdiv(T, options["ROWS"] // options["G"])


def _options(H: int, E: int, K: int, L: int) -> dict:
    """Return the constants and the launch options of a kernel."""
    K = max(K, 1)
    rows = max(ROWS, triton.next_power_of_2(H // K))
    constants = dict(K=K, G=H // K, E=E, WIDTH=max(16, triton.next_power_of_2(E)), L=L, ROWS=rows)
    return dict(**constants, num_warps=4 if E <= 128 else 8, num_stages=3 if E <= 128 else 1, **FUSED)


def _steps(k_UZEL, v_UZLE) -> tuple[int, int]:
    """Return the distances between blocks, of keys and of values, in blocks of one head."""
    size = k_UZEL.shape[2] * k_UZEL.shape[3]
    return k_UZEL.stride(0) // size, v_UZLE.stride(0) // size


@triton.jit
def _queries(tile, z, positions_BT, T, K: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr):
    """Return (start, place, position, least, most) of a tile of queries, with G rows for each query.

    start: the index of the tile's first row in [B*T*H]. place: [ROWS], each row's index after start, or -1 for a row
    outside. position: [ROWS], -1 for padding. least, most: the bounds of the positions that are not padding.
    """
    row = tl.arange(0, ROWS)
    t = tile * (ROWS // G) + row // G
    real = (row // G < ROWS // G) & (t < T)
    position = tl.load(positions_BT + z // K * T + t, mask=real, other=-1).to(tl.int32)
    start = (z // K * T + tile * (ROWS // G)) * (K * G) + z % K * G
    place = tl.where(real, row // G * (K * G) + row % G, -1)
    return start, place, position, tl.min(tl.where(position < 0, 2**30, position), 0), tl.max(position, 0)


@triton.jit
def _rows(x, start, place, E: tl.constexpr, WIDTH: tl.constexpr):
    """Load a tile's rows [ROWS, WIDTH] of x [B*T*H, E], with 0 outside."""
    column = tl.arange(0, WIDTH)
    inside = (place >= 0)[:, None] & (column < E)[None, :]
    return tl.load(x + start * E + (place[:, None] * E + column[None, :]), mask=inside, other=0)


@triton.jit
def _store_rows(x, start, place, values, E: tl.constexpr, WIDTH: tl.constexpr):
    """Write a tile's rows [ROWS, WIDTH] into x [B*T*H, E]."""
    column = tl.arange(0, WIDTH)
    inside = (place >= 0)[:, None] & (column < E)[None, :]
    tl.store(x + start * E + (place[:, None] * E + column[None, :]), values.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _keys(k, u, z, step, E: tl.constexpr, WIDTH: tl.constexpr, L: tl.constexpr):
    """Load a block of keys [WIDTH, L], with 0 outside."""
    column = tl.arange(0, WIDTH)[:, None]
    at = k + (z + u * step) * (E * L) + (column * L + tl.arange(0, L)[None, :])
    return tl.load(at, mask=column < E, other=0)


@triton.jit
def _values(v, u, z, step, E: tl.constexpr, WIDTH: tl.constexpr, L: tl.constexpr):
    """Load a block of values [L, WIDTH], with 0 outside."""
    column = tl.arange(0, WIDTH)[None, :]
    at = v + (z + u * step) * (E * L) + (tl.arange(0, L)[:, None] * E + column)
    return tl.load(at, mask=column < E, other=0)


@triton.jit
def _scores(q, keys, u, position, scale, window, L: tl.constexpr):
    """Return the scores [ROWS, L] of a block of keys in base 2, minus infinity where a query does not see a key."""
    scores = tl.dot(q, keys, input_precision="ieee") * (scale * LOG2E)
    key = u * L + tl.arange(0, L)[None, :]
    return tl.where((key <= position[:, None]) & (key > position[:, None] - window), scores, float("-inf"))


@triton.jit(do_not_specialize=FREE)
def _forward(
    q_NHE, k_UZEL, v_UZLE, positions_N, bounds, places_B, out_NHE, lse_NH,
    scale, longest, Z, window, key_step, value_step,
    K: tl.constexpr, G: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, L: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write one tile's outputs and log-sum-exps (in base 2). The last tiles read most keys, so they start first.

    Z: key heads of all sequences that have queries here.
    """
    tile, b = tl.cdiv(longest, ROWS // G) - 1 - tl.program_id(0) // Z, tl.program_id(0) % Z // K
    head = tl.program_id(0) % K  # K divides Z
    first = tl.load(bounds + b) + tile * (ROWS // G)
    row = tl.arange(0, ROWS)
    real = (row // G < ROWS // G) & (first + row // G < tl.load(bounds + b + 1))
    position = tl.load(positions_N + first + row // G, mask=real, other=-1).to(tl.int32)
    least, most = tl.min(tl.where(position < 0, 2**30, position), 0), tl.max(position, 0)
    start, place = first * (K * G) + head * G, tl.where(real, row // G * (K * G) + row % G, -1)
    z = tl.load(places_B + b) * K + head
    q = _rows(q_NHE, start, place, E, WIDTH)
    peak, total = tl.full((ROWS,), LOWEST, tl.float32), tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, WIDTH), tl.float32)
    for u in range(tl.maximum(least - window + 1, 0) // L, (most + L) // L):
        scores = _scores(q, _keys(k_UZEL, u, z, key_step, E, WIDTH, L), u, position, scale, window, L)
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        shrink, weights = tl.exp2(peak - new_peak), tl.exp2(scores - new_peak[:, None])
        values = _values(v_UZLE, u, z, value_step, E, WIDTH, L)
        total = total * shrink + tl.sum(weights, 1)
        out = tl.dot(weights.to(values.dtype), values, out * shrink[:, None], input_precision="ieee")
        peak = new_peak
    total = tl.where(total > 0, total, 1)
    _store_rows(out_NHE, start, place, out / total[:, None], E, WIDTH)
    tl.store(lse_NH + start + place, peak + tl.log2(total), mask=place >= 0)


@triton.jit
def _grad_scores(q, grad, keys, values, lse, delta, u, position, scale, window, L: tl.constexpr):
    """Return (weights, gradient of the scores) of a block, [ROWS, L] each, float32."""
    weights = tl.exp2(_scores(q, keys, u, position, scale, window, L) - lse[:, None])
    return weights, weights * (tl.dot(grad, tl.trans(values), input_precision="ieee") - delta[:, None])


@triton.jit(do_not_specialize=FREE)
def _backward_queries(
    q_BTHE, k_UZEL, v_UZLE, positions_BT, grad_BTHE, lse_BTH, delta_BTH, grad_q,
    scale, T, Z, window, key_step, value_step,
    K: tl.constexpr, G: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, L: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a tile of queries."""
    tile, z = tl.cdiv(T, ROWS // G) - 1 - tl.program_id(0) // Z, (tl.program_id(0) % Z).to(tl.int64)
    start, place, position, least, most = _queries(tile, z, positions_BT, T, K, G, ROWS)
    q, grad = _rows(q_BTHE, start, place, E, WIDTH), _rows(grad_BTHE, start, place, E, WIDTH)
    lse = tl.load(lse_BTH + start + place, mask=place >= 0, other=0)
    delta = tl.load(delta_BTH + start + place, mask=place >= 0, other=0)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    for u in range(tl.maximum(least - window + 1, 0) // L, (most + L) // L):
        keys, values = _keys(k_UZEL, u, z, key_step, E, WIDTH, L), _values(v_UZLE, u, z, value_step, E, WIDTH, L)
        _, slope = _grad_scores(q, grad, keys, values, lse, delta, u, position, scale, window, L)
        sums = tl.dot(slope.to(q.dtype), tl.trans(keys), sums, input_precision="ieee")
    _store_rows(grad_q, start, place, sums * scale, E, WIDTH)


@triton.jit(do_not_specialize=FREE)
def _backward_keys(
    q_BTHE, k_UZEL, v_UZLE, positions_BT, grad_BTHE, lse_BTH, delta_BTH, grad_k, grad_v,
    scale, T, Z, window, key_step, value_step,
    K: tl.constexpr, G: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, L: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a block of keys and values, from every tile of queries that sees any of them."""
    u, z = tl.program_id(0) // Z, (tl.program_id(0) % Z).to(tl.int64)
    keys, values = _keys(k_UZEL, u, z, key_step, E, WIDTH, L), _values(v_UZLE, u, z, value_step, E, WIDTH, L)
    sums_k, sums_v = tl.zeros((WIDTH, L), tl.float32), tl.zeros((L, WIDTH), tl.float32)
    for tile in range(tl.cdiv(T, ROWS // G)):
        start, place, position, least, most = _queries(tile, z, positions_BT, T, K, G, ROWS)
        if (most >= u * L) & (least - window < u * L + L - 1):
            q, grad = _rows(q_BTHE, start, place, E, WIDTH), _rows(grad_BTHE, start, place, E, WIDTH)
            lse = tl.load(lse_BTH + start + place, mask=place >= 0, other=0)
            delta = tl.load(delta_BTH + start + place, mask=place >= 0, other=0)
            weights, slope = _grad_scores(q, grad, keys, values, lse, delta, u, position, scale, window, L)
            sums_v = tl.dot(tl.trans(weights.to(q.dtype)), grad, sums_v, input_precision="ieee")
            sums_k = tl.dot(tl.trans(q), slope.to(q.dtype), sums_k, input_precision="ieee")
    column, key = tl.arange(0, WIDTH), tl.arange(0, L)
    block = (z + u * Z) * (E * L)
    at_k, at_v = block + column[:, None] * L + key[None, :], block + key[:, None] * E + column[None, :]
    tl.store(grad_k + at_k, (sums_k * scale).to(grad_k.dtype.element_ty), mask=(column < E)[:, None])
    tl.store(grad_v + at_v, sums_v.to(grad_v.dtype.element_ty), mask=(column < E)[None, :])
