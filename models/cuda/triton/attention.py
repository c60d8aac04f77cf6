"""Compute models/attention.py's `attend` with Triton kernels, over the blocks of models/cache.py.

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

from models.cuda.triton.common import FUSED, LOG2E, LOWEST, shared_memory

SCAN = tl.constexpr(1024)  # positions that are loaded at once
ROWS = 64  # rows of a tile; Hopper's matrix instructions take at least 64
FLOAT_ROWS = 16  # of a tile in float32, which has no such instructions: the sums of more rows would spill
FAR = 2**30  # the window where there is none: longer than every sequence
FREE = ("T", "Z", "longest", "window", "key_step", "value_step")  # arguments in which sampling and training differ


def attend(
    q_BHTE: torch.Tensor,
    k_UZEL: torch.Tensor,
    v_UZLE: torch.Tensor,
    last_key_BT: torch.Tensor,
    window: int | None = None,
) -> torch.Tensor:
    """Return the same as `attend` of models/attention.py, for bfloat16, float16 and float32 on a CUDA device.

    Position -1 marks padding. The output of padding is 0, and it costs next to nothing.
    """
    return _Attention.apply(q_BHTE, k_UZEL, v_UZLE, last_key_BT, FAR if window is None else window)


def attend_packed(
    q_NHE, k_UZEL, v_UZLE, positions_N, bounds, places_B, longest: int, K: int, window: int | None = None
):
    """Return out_NHE, without a gradient, for the queries of B sequences that lie end to end.

    bounds: int64 [B + 1], the first row of each sequence, and the end of the last one. places_B: int64, each sequence's
    row of a cache with K key heads. longest: no sequence has more rows. Position -1 marks padding, whose output is 0;
    rows that belong to no sequence get arbitrary numbers.
    """
    inputs = q_NHE.contiguous(), _dense(k_UZEL), _dense(v_UZLE), positions_N, bounds, places_B
    return _packed(*inputs, longest, K, FAR if window is None else window)[0]


def _packed(q_NHE, k_UZEL, v_UZLE, positions_N, bounds, places_B, longest: int, K: int, window: int):
    """Return (out_NHE, the scores' base-2 log-sum-exp [N, H])."""
    out_NHE, lse_NH = torch.empty_like(q_NHE), q_NHE.new_empty(q_NHE.shape[:2], dtype=torch.float32)
    options = _options("forward", q_NHE.shape[1:], K, k_UZEL)
    _forward[(len(places_B) * K * triton.cdiv(longest, options["ROWS"] // options["G"]),)](
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
    def forward(ctx, q_BHTE, k_UZEL, v_UZLE, last_key_BT, window):
        q_BTHE, k_UZEL, v_UZLE = q_BHTE.transpose(1, 2).contiguous(), _dense(k_UZEL), _dense(v_UZLE)
        last_key_BT, (B, T) = last_key_BT.contiguous(), q_BTHE.shape[:2]
        order = last_key_BT.view(-1), *_in_order(B, T, q_BTHE.device), T, k_UZEL.shape[1] // max(B, 1), window
        out_NHE, lse_NH = _packed(q_BTHE.flatten(0, 1), k_UZEL, v_UZLE, *order)
        out_BTHE, lse_BTH = out_NHE.view_as(q_BTHE), lse_NH.view(q_BTHE.shape[:3])
        ctx.window = window
        ctx.save_for_backward(q_BTHE, k_UZEL, v_UZLE, last_key_BT, out_BTHE, lse_BTH)
        return out_BTHE.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_BHTE):
        q_BTHE, k_UZEL, v_UZLE, last_key_BT, out_BTHE, lse_BTH = ctx.saved_tensors
        grad_BTHE = grad_BHTE.transpose(1, 2).contiguous()
        delta_BTH = (grad_BTHE.float() * out_BTHE).sum(-1)
        grad_q = torch.empty_like(q_BTHE)
        grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (k_UZEL, v_UZLE))
        (B, T, H, E), Z = q_BTHE.shape, k_UZEL.shape[1]
        inputs = q_BTHE, k_UZEL, v_UZLE, last_key_BT, grad_BTHE, lse_BTH, delta_BTH
        sizes = E**-0.5, T, Z, ctx.window, *_steps(k_UZEL, v_UZLE)
        for_queries, for_keys = (_options(part, (H, E), Z // max(B, 1), k_UZEL) for part in ("queries", "keys"))
        tiles = triton.cdiv(T, for_queries["ROWS"] // for_queries["G"])
        _backward_queries[(Z * tiles,)](*inputs, grad_q, *sizes, **for_queries)
        _backward_keys[(len(k_UZEL) * Z,)](*inputs, grad_k, grad_v, *sizes, **for_keys)
        return grad_q.transpose(1, 2), grad_k, grad_v, None, None


def _dense(x_UZ: torch.Tensor) -> torch.Tensor:
    """Return blocks [U, Z, ., .] that are contiguous except along U. A view of a cache's first rows is not copied."""
    size = x_UZ.shape[2] * x_UZ.shape[3]
    whole = x_UZ.stride()[1:] == (size, x_UZ.shape[3], 1) and x_UZ.stride(0) % size == 0
    return x_UZ if whole else x_UZ.contiguous()


def _options(part: str, heads: tuple[int, int], K: int, k_UZEL: torch.Tensor) -> dict:
    """Return the constants and the launch options of the kernel of a part: forward | queries | keys.

    heads: (H, E). The options keep sums in registers; tests/compile_ahead.py counts what spills.
    """
    (H, E), K = heads, max(K, 1)
    width, full = max(16, triton.next_power_of_2(E)), k_UZEL.dtype == torch.float32
    if part == "forward":
        in_shared_memory = shared_memory(k_UZEL.device) >= 200 * 1024  # sm_90 and sm_100 multiply 16 bits from there
        rows, warps = FLOAT_ROWS if full else ROWS, 4 if width <= (128 if in_shared_memory or full else 64) else 8
        stages = 1 if width > 128 else 2 if full else 3
    else:
        rows = 16 if width > 128 or full else ROWS if part == "queries" else ROWS // 2
        warps, stages = 4 if width <= 64 else 8, 2
    rows = max(rows, triton.next_power_of_2(H // K))
    constants = dict(K=K, G=H // K, E=E, WIDTH=width, L=k_UZEL.shape[3], ROWS=rows)
    return dict(**constants, num_warps=warps, num_stages=stages, **FUSED)


def _steps(k_UZEL, v_UZLE) -> tuple[int, int]:
    """Return the distances between blocks, of keys and of values, in blocks of one head."""
    size = k_UZEL.shape[2] * k_UZEL.shape[3]
    return k_UZEL.stride(0) // size, v_UZLE.stride(0) // size


@triton.jit
def _queries(tile, z, last_key_BT, T, K: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr):
    """Return (start, place, position) of a tile of queries, with G rows for each query.

    start: the index of the tile's first row in [B*T*H]. place: [ROWS], each row's index after start, or -1 for a row
    outside. position: [ROWS], -1 for padding.
    """
    row = tl.arange(0, ROWS)
    t = tile * (ROWS // G) + row // G
    real = (row // G < ROWS // G) & (t < T)
    position = tl.load(last_key_BT + z // K * T + t, mask=real, other=-1).to(tl.int32)
    start = (z // K * T + tile * (ROWS // G)) * (K * G) + z % K * G
    place = tl.where(real, row // G * (K * G) + row % G, -1)
    return start, place, position


@triton.jit
def _bounds(position):
    """Return the least and the largest position that is not padding."""
    return tl.min(tl.where(position < 0, 2**30, position), 0), tl.max(position, 0)


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
def _scores(q, keys, key, position, scale, window):
    """Return the scores of keys at positions `key` in base 2, minus infinity where a query does not see a key."""
    scores = tl.dot(q, keys, input_precision="ieee") * (scale * LOG2E)
    seen = (key[None, :] <= position[:, None]) & (key[None, :] > position[:, None] - window)
    return tl.where(seen, scores, float("-inf"))


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
    least, most = _bounds(position)
    start, place = first * (K * G) + head * G, tl.where(real, row // G * (K * G) + row % G, -1)
    z = tl.load(places_B + b) * K + head
    q = _rows(q_NHE, start, place, E, WIDTH)
    peak, total = tl.full((ROWS,), LOWEST, tl.float32), tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, WIDTH), tl.float32)
    for u in range(tl.maximum(least - window + 1, 0) // L, (most + L) // L):
        key = u * L + tl.arange(0, L)
        scores = _scores(q, _keys(k_UZEL, u, z, key_step, E, WIDTH, L), key, position, scale, window)
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        shrink, weights = tl.exp2(peak - new_peak), tl.exp2(scores - new_peak[:, None])
        values = _values(v_UZLE, u, z, value_step, E, WIDTH, L)
        total = total * shrink + tl.sum(weights, 1)
        out = tl.dot(weights.to(values.dtype), values, out * shrink[:, None], input_precision="ieee")
        peak = new_peak
    total = tl.where(total > 0, total, 1)
    _store_rows(out_NHE, start, place, out / total[:, None], E, WIDTH)
    tl.store(lse_NH + start + place, peak + tl.log2(total), mask=place >= 0)


@triton.jit(do_not_specialize=FREE)
def _backward_queries(
    q_BTHE, k_UZEL, v_UZLE, last_key_BT, grad_BTHE, lse_BTH, delta_BTH, grad_q,
    scale, T, Z, window, key_step, value_step,
    K: tl.constexpr, G: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, L: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a tile of queries."""
    tile, z = tl.cdiv(T, ROWS // G) - 1 - tl.program_id(0) // Z, (tl.program_id(0) % Z).to(tl.int64)
    start, place, position = _queries(tile, z, last_key_BT, T, K, G, ROWS)
    least, most = _bounds(position)
    q, grad = _rows(q_BTHE, start, place, E, WIDTH), _rows(grad_BTHE, start, place, E, WIDTH)
    lse = tl.load(lse_BTH + start + place, mask=place >= 0, other=0)
    delta = tl.load(delta_BTH + start + place, mask=place >= 0, other=0)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    for u in range(tl.maximum(least - window + 1, 0) // L, (most + L) // L):
        keys, values = _keys(k_UZEL, u, z, key_step, E, WIDTH, L), _values(v_UZLE, u, z, value_step, E, WIDTH, L)
        key = u * L + tl.arange(0, L)
        weights = tl.exp2(_scores(q, keys, key, position, scale, window) - lse[:, None])
        slope = weights * (tl.dot(grad, tl.trans(values), input_precision="ieee") - delta[:, None])
        sums = tl.dot(slope.to(q.dtype), tl.trans(keys), sums, input_precision="ieee")
    _store_rows(grad_q, start, place, sums * scale, E, WIDTH)


@triton.jit(do_not_specialize=FREE)
def _backward_keys(
    q_BTHE, k_UZEL, v_UZLE, last_key_BT, grad_BTHE, lse_BTH, delta_BTH, grad_k, grad_v,
    scale, T, Z, window, key_step, value_step,
    K: tl.constexpr, G: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, L: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a block of keys and values, from the first to the last tile of queries that sees it.

    Keys are the rows of every product here, so that no two warps hold the same key in their registers. The loop has no
    condition inside, which Triton 3.4 cannot compile around products for sm_100.
    """
    u, z = tl.program_id(0) // Z, (tl.program_id(0) % Z).to(tl.int64)
    first, end = T, 0
    for some in range(0, T, SCAN):
        t = some + tl.arange(0, SCAN)
        position = tl.load(last_key_BT + z // K * T + t, mask=t < T, other=-1)
        sees = (position >= u * L) & (position - window < u * L + L - 1)
        first = tl.minimum(first, tl.min(tl.where(sees, t, T), 0))
        end = tl.maximum(end, tl.max(tl.where(sees, t + 1, 0), 0))
    column, key = tl.arange(0, WIDTH)[None, :], tl.arange(0, L)[:, None]
    at_k, at_v, inside = column * L + key, key * E + column, column < E
    keys = tl.load(k_UZEL + (z + u * key_step) * (E * L) + at_k, mask=inside, other=0)
    values = tl.load(v_UZLE + (z + u * value_step) * (E * L) + at_v, mask=inside, other=0)
    sums_k, sums_v = tl.zeros((L, WIDTH), tl.float32), tl.zeros((L, WIDTH), tl.float32)
    for tile in range(first // (ROWS // G), tl.cdiv(end, ROWS // G)):
        start, place, position = _queries(tile, z, last_key_BT, T, K, G, ROWS)
        q, grad = _rows(q_BTHE, start, place, E, WIDTH), _rows(grad_BTHE, start, place, E, WIDTH)
        lse = tl.load(lse_BTH + start + place, mask=place >= 0, other=0)[None, :]
        delta = tl.load(delta_BTH + start + place, mask=place >= 0, other=0)[None, :]
        scores = tl.dot(keys, tl.trans(q), input_precision="ieee") * (scale * LOG2E)
        sees = (u * L + key <= position[None, :]) & (u * L + key > position[None, :] - window)
        weights = tl.exp2(tl.where(sees, scores, float("-inf")) - lse)
        slope = weights * (tl.dot(values, tl.trans(grad), input_precision="ieee") - delta)
        sums_v = tl.dot(weights.to(q.dtype), grad, sums_v, input_precision="ieee")
        sums_k = tl.dot(slope.to(q.dtype), q, sums_k, input_precision="ieee")
    block = (z + u * Z) * (E * L)
    tl.store(grad_k + block + at_k, (sums_k * scale).to(grad_k.dtype.element_ty), mask=inside)
    tl.store(grad_v + block + at_v, sums_v.to(grad_v.dtype.element_ty), mask=inside)
