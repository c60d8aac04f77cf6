"""models/decoder.py's block between its large products, for few rows, in three kernels.

Each also adds the adapters' part of the product before it: such a product gives base outputs and the adapters' low-rank
inputs side by side (`Joined` in models/cuda/step.py). Values are rounded to the model's dtype where the plain
decoder rounds them, so the results differ from it in the order of sums alone.
"""

import torch
import triton
import triton.language as tl

from models.cuda.triton.common import FUSED, inverse_rms, normed, silu_times

ROWS = 16  # rows of a program in `rotary_write` and `swiglu`, the fewest that tensor cores multiply


def add_norm(x_ND, more_ND, weight_D, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (x + more, or x if that is None; RMSNorm of the sum). The rows of `more` may be parts of longer rows."""
    x_ND, (N, D) = x_ND.contiguous(), x_ND.shape
    normed_ND, sum_ND = torch.empty_like(x_ND), x_ND if more_ND is None else torch.empty_like(x_ND)
    stride = D if more_ND is None else more_ND.stride(0)
    _add_norm[(N,)](
        *(x_ND, more_ND, weight_D, sum_ND, normed_ND, eps, D, stride),
        **dict(WIDTH=triton.next_power_of_2(D), num_warps=4 if D <= 2048 else 8, **FUSED),
    )
    return sum_ND, normed_ND


def rotary_write(qkv, up, rank: int, norms, eps, tables, positions_N, places_N, k_UZEL, v_UZLE, H: int, K: int):
    """Return the rotated queries [N, H, E]; write the rotated keys and the values of the rows to the cache.

    qkv: [N, width], the heads' base outputs, then the low-rank inputs of q, k and v, `rank` each. up: their B factors
    [(H + 2K) E, rank], or None. norms: the weights of the heads' norms [H + K, E], or None. tables: cos and sin
    [length, E]. places_N: rows of the cache. A row with position or place -1 writes nothing.
    """
    (N, width), E, L = qkv.shape, k_UZEL.shape[2], k_UZEL.shape[3]
    q_NHE = qkv.new_empty(N, H, E)
    _rotary_write[(triton.cdiv(N, ROWS), H + 2 * K)](
        *(qkv, up, norms, *tables, positions_N, places_N, q_NHE, k_UZEL, v_UZLE),
        *(eps, N, width, k_UZEL.stride(0), v_UZLE.stride(0)),
        **dict(H=H, K=K, E=E, L=L, HALF=max(16, triton.next_power_of_2(E // 2)), RANK=rank, **_options(qkv.dtype)),
    )
    return q_NHE


def swiglu(gate_up, up, rank: int, width: int) -> torch.Tensor:
    """Return silu(gate) * up, [N, width]. gate_up: the base outputs of both, then their low-rank inputs. up: the B
    factors [2 width, rank], or None."""
    N = len(gate_up)
    out = gate_up.new_empty(N, width)
    _swiglu[(triton.cdiv(N, ROWS), triton.cdiv(width, 64))](
        gate_up, up, out, N, width, gate_up.shape[1], **dict(RANK=rank, COLUMNS=64, **_options(out.dtype))
    )
    return out


def _options(dtype: torch.dtype) -> dict:
    return dict(ROWS=ROWS, num_warps=8 if dtype == torch.float32 else 4, **FUSED)


@triton.jit
def _add_norm(x_ND, more_ND, weight_D, sum_ND, normed_ND, eps, D, stride, WIDTH: tl.constexpr):
    """Compute one row."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = column < D
    dtype: tl.constexpr = x_ND.dtype.element_ty
    x = tl.load(x_ND + row * D + column, mask=inside, other=0)
    if more_ND is not None:
        more = tl.load(more_ND + row * stride + column, mask=inside, other=0)
        x = (x.to(tl.float32) + more.to(tl.float32)).to(dtype)
        tl.store(sum_ND + row * D + column, x, mask=inside)
    x = x.to(tl.float32)
    weight = tl.load(weight_D + column, mask=inside, other=0).to(tl.float32)
    result = normed(x, inverse_rms(tl.sum(x * x, 0), D, eps), weight, dtype)
    tl.store(normed_ND + row * D + column, result, mask=inside)


@triton.jit
def _with_adapter(base, low_at, up, rows, columns, inside, there, RANK: tl.constexpr):
    """Return base + low @ up.T for columns of a layer's output, rounded as `base` is; low_at points at each row's
    low-rank input."""
    if up is not None:
        MOST: tl.constexpr = 1024 // base.dtype.primitive_bitwidth  # so that the factors stay in registers
        INNER: tl.constexpr = RANK if RANK < MOST else MOST
        sums = base.to(tl.float32)
        for start in range(0, RANK, INNER):
            rank = start + tl.arange(0, INNER)
            low = tl.load(low_at[:, None] + rank[None, :], mask=there[:, None], other=0)
            factors = tl.load(up + columns[None, :] * RANK + rank[:, None], mask=inside[None, :], other=0)
            sums = tl.dot(low, factors, sums, input_precision="ieee")
        return sums.to(base.dtype)
    return base


@triton.jit(do_not_specialize=["N"])
def _rotary_write(
    qkv, up, norms, cos, sin, positions_N, places_N, q_NHE, k_UZEL, v_UZLE, eps, N, width, key_step, value_step,
    H: tl.constexpr, K: tl.constexpr, E: tl.constexpr, L: tl.constexpr, HALF: tl.constexpr, RANK: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Compute one head of some rows, its two halves apart: the rotary embedding pairs column c with E / 2 + c."""
    rows, head, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1), tl.arange(0, HALF)
    there, inside = rows < N, column < E // 2
    dtype: tl.constexpr = qkv.dtype.element_ty
    both = there[:, None] & inside[None, :]
    kind = (head >= H).to(tl.int32) + (head >= H + K).to(tl.int32)  # 0 q, 1 k, 2 v
    at = qkv + rows.to(tl.int64) * width
    low = at + (H + 2 * K) * E + kind * RANK
    first, second = head * E + column, head * E + E // 2 + column
    one = tl.load(at[:, None] + first[None, :], mask=both, other=0)
    two = tl.load(at[:, None] + second[None, :], mask=both, other=0)
    one = _with_adapter(one, low, up, rows, first, inside, there, RANK)
    two = _with_adapter(two, low, up, rows, second, inside, there, RANK)
    position = tl.load(positions_N + rows, mask=there, other=-1)
    place = tl.load(places_N + rows, mask=there, other=-1)
    written = both & (position >= 0)[:, None] & (place >= 0)[:, None]
    position = tl.maximum(position, 0)
    if kind == 2:
        z = place * K + head - H - K
        to = v_UZLE + position // L * value_step + z * (L * E) + position % L * E
        tl.store(to[:, None] + column[None, :], one, mask=written)
        tl.store(to[:, None] + E // 2 + column[None, :], two, mask=written)
    else:
        if norms is not None:
            wide_one, wide_two = one.to(tl.float32), two.to(tl.float32)
            scale = inverse_rms(tl.sum(wide_one * wide_one, 1) + tl.sum(wide_two * wide_two, 1), E, eps)[:, None]
            weight_one = tl.load(norms + first, mask=inside, other=0).to(tl.float32)[None, :]
            weight_two = tl.load(norms + second, mask=inside, other=0).to(tl.float32)[None, :]
            one, two = normed(wide_one, scale, weight_one, dtype), normed(wide_two, scale, weight_two, dtype)
        angle = position[:, None] * E + column[None, :]
        turned_one = _turned(one, two, cos + angle, sin + angle, both)
        turned_two = _turned(two, one, cos + angle + E // 2, sin + angle + E // 2, both)
        if kind == 0:
            to = q_NHE + (rows.to(tl.int64) * H + head) * E
            tl.store(to[:, None] + column[None, :], turned_one, mask=both)
            tl.store(to[:, None] + E // 2 + column[None, :], turned_two, mask=both)
        else:
            z = place * K + head - H
            to = k_UZEL + position // L * key_step + z * (E * L) + position % L
            tl.store(to[:, None] + column[None, :] * L, turned_one, mask=written)
            tl.store(to[:, None] + (E // 2 + column[None, :]) * L, turned_two, mask=written)


@triton.jit
def _turned(x, other, cos, sin, mask):
    """Return x cos + other sin; the table of sines is negated for the first half."""
    cos = tl.load(cos, mask=mask, other=0).to(tl.float32)
    sin = tl.load(sin, mask=mask, other=0).to(tl.float32)
    return ((x.to(tl.float32) * cos).to(x.dtype).to(tl.float32) + other.to(tl.float32) * sin).to(x.dtype)


@triton.jit(do_not_specialize=["N"])
def _swiglu(
    gate_up, up, out, N, width, stride, RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Compute a tile of silu(gate) * up."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there, inside = rows < N, column < width
    both, at = there[:, None] & inside[None, :], gate_up + rows.to(tl.int64) * stride
    gate = tl.load(at[:, None] + column[None, :], mask=both, other=0)
    value = tl.load(at[:, None] + width + column[None, :], mask=both, other=0)
    gate = _with_adapter(gate, at + 2 * width, up, rows, column, inside, there, RANK)
    value = _with_adapter(value, at + 2 * width + RANK, up, rows, width + column, inside, there, RANK)
    result = silu_times(gate.to(tl.float32), value.to(tl.float32), gate.dtype)
    tl.store(out + rows.to(tl.int64)[:, None] * width + column[None, :], result, mask=both)
