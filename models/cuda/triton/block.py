"""models/decoder.py's block between its products, for training: RMSNorm with a residual, rotary embedding, SwiGLU.

Each function keeps its 16-bit inputs alone for the backward. Its forward rounds where models/decoder.py does; its
backward computes in float32 and rounds once. Each result is written by one program: nothing is added atomically.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from models.cuda.triton.common import FUSED, inverse_rms, normed, silu_times

HEADS = 8  # heads that a program rotates
COLUMNS = 1024  # columns of the MLP that a program computes


class AddNorm(torch.autograd.Function):
    """Return (x + added, its RMSNorm), [N, D] each; added may be None. Saves the sum and 1 / rms of each row."""

    @staticmethod
    def forward(ctx, x_ND, added_ND, weight_D, eps):
        sum_ND = x_ND if added_ND is None else torch.empty_like(x_ND)
        normed_ND, scale_N = _launch_norm(x_ND, added_ND, sum_ND, weight_D, eps)
        ctx.added = added_ND is not None
        ctx.save_for_backward(sum_ND, scale_N, weight_D)
        return sum_ND, normed_ND

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_sum_ND, grad_ND):
        sum_ND, scale_N, weight_D = ctx.saved_tensors
        (N, D), grad_x_ND = sum_ND.shape, torch.empty_like(sum_ND)
        tensors = sum_ND, scale_N, weight_D, grad_sum_ND.contiguous(), grad_ND.contiguous(), grad_x_ND
        _norm_back[(N,)](*tensors, D, **_row(D))
        return grad_x_ND, grad_x_ND if ctx.added else None, None, None


def normalize(x_ND: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the RMSNorm of rows."""
    return _launch_norm(x_ND, None, x_ND, weight_D, eps)[0]


def _launch_norm(x_ND, added_ND, sum_ND, weight_D, eps) -> tuple[torch.Tensor, torch.Tensor]:
    (N, D), x_ND = x_ND.shape, x_ND.contiguous()
    normed_ND, scale_N = torch.empty_like(x_ND), x_ND.new_empty(N, dtype=torch.float32)
    _norm[(N,)](x_ND, added_ND, weight_D, sum_ND, normed_ND, scale_N, D, eps, **_row(D))
    return normed_ND, scale_N


def _row(D: int) -> dict:
    """Return the options of a kernel whose program has a row of D columns."""
    width = triton.next_power_of_2(D)
    return dict(WIDTH=width, num_warps=min(max(width // 512, 1), 16), **FUSED)


class Rotate(torch.autograd.Function):
    """Return (q_NHE, k_NKE, v_NKE) from qkv [N, (H + 2K) * E]: queries and keys normed, if given the weights, and
    rotated. All three lie in one new tensor. Saves qkv only where there is a norm."""

    @staticmethod
    def forward(ctx, qkv, cos_NE, sin_NE, heads, q_weight_E, k_weight_E, eps):
        (H, K, E), N = heads, len(qkv)
        out = torch.empty_like(qkv)
        ctx.heads, ctx.eps, ctx.normed = heads, eps, q_weight_E is not None
        saved = (qkv, q_weight_E, k_weight_E) if ctx.normed else ()
        ctx.save_for_backward(cos_NE, sin_NE, *saved)
        tensors = qkv.contiguous(), cos_NE, sin_NE, q_weight_E, k_weight_E, out
        _rotate[(N * triton.cdiv(H + 2 * K, HEADS),)](*tensors, eps, **_heads(H, K, E))
        return out.view(N, H + 2 * K, E).split([H, K, K], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        (H, K, E), N = ctx.heads, len(grads[0])
        cos_NE, sin_NE, qkv, q_weight_E, k_weight_E = (*ctx.saved_tensors, None, None, None)[:5]
        grad = grads[0].new_empty(N, (H + 2 * K) * E)
        tensors = *(part.contiguous() for part in grads), qkv, cos_NE, sin_NE, q_weight_E, k_weight_E, grad
        _rotate_back[(N * triton.cdiv(H + 2 * K, HEADS),)](*tensors, ctx.eps, **_heads(H, K, E))
        return grad, None, None, None, None, None, None


def _heads(H: int, K: int, E: int) -> dict:
    half = triton.next_power_of_2(E // 2)
    return dict(H=H, K=K, E=E, HALF=half, ROWS=HEADS, num_warps=4 if half > 32 else 2, **FUSED)


class SwiGLU(torch.autograd.Function):
    """Return silu(gate) * up, [N, I], from both side by side, [N, 2I]. Saves its input."""

    @staticmethod
    def forward(ctx, gate_up):
        ctx.save_for_backward(gate_up)
        return swiglu(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (gate_up,) = ctx.saved_tensors
        (N, both), grad_gate_up = gate_up.shape, torch.empty_like(gate_up)
        _swiglu_back[(N * triton.cdiv(both // 2, COLUMNS),)](
            gate_up, grad.contiguous(), grad_gate_up, both // 2, COLUMNS=COLUMNS, **FUSED
        )
        return grad_gate_up


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up."""
    N, both = gate_up.shape
    y = gate_up.new_empty(N, both // 2)
    _swiglu[(N * triton.cdiv(both // 2, COLUMNS),)](gate_up.contiguous(), y, both // 2, COLUMNS=COLUMNS, **FUSED)
    return y


@triton.jit
def _norm(x_ND, added_ND, weight_D, sum_ND, normed_ND, scale_N, D, eps, WIDTH: tl.constexpr):
    """Add and norm one row."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    at, inside = row * D + column, column < D
    x = tl.load(x_ND + at, mask=inside, other=0)
    if added_ND is not None:
        x = (x.to(tl.float32) + tl.load(added_ND + at, mask=inside, other=0).to(tl.float32)).to(x.dtype)
        tl.store(sum_ND + at, x, mask=inside)
    wide = x.to(tl.float32)
    scale = inverse_rms(tl.sum(wide * wide, 0), D, eps)
    weight = tl.load(weight_D + column, mask=inside, other=0).to(tl.float32)
    tl.store(normed_ND + at, normed(wide, scale, weight, x.dtype), mask=inside)
    tl.store(scale_N + row, scale)


@triton.jit
def _norm_back(sum_ND, scale_N, weight_D, grad_sum_ND, grad_ND, grad_x_ND, D, WIDTH: tl.constexpr):
    """Write the gradient of one row: through the norm, and through the sum itself."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    at, inside = row * D + column, column < D
    scale, weight = tl.load(scale_N + row), tl.load(weight_D + column, mask=inside, other=0).to(tl.float32)
    direction = tl.load(sum_ND + at, mask=inside, other=0).to(tl.float32) * scale
    grad = tl.load(grad_ND + at, mask=inside, other=0).to(tl.float32) * weight
    grad_x = scale * (grad - direction * (tl.sum(grad * direction, 0) / D))
    grad_x += tl.load(grad_sum_ND + at, mask=inside, other=0).to(tl.float32)
    tl.store(grad_x_ND + at, grad_x.to(grad_x_ND.dtype.element_ty), mask=inside)


@triton.jit
def _some_heads(H: tl.constexpr, K: tl.constexpr, E: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr):
    """Return this program's row, its heads [ROWS, 1], columns of a half [1, HALF], and where both are inside."""
    tiles: tl.constexpr = (H + 2 * K + ROWS - 1) // ROWS
    row = (tl.program_id(0) // tiles).to(tl.int64)
    head = (tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, HALF)[None, :]
    return row, head, column, (head < H + 2 * K) & (column < E // 2)


@triton.jit
def _halves(x, at, inside, E: tl.constexpr):
    """Load both halves of some heads, float32."""
    first = tl.load(x + at, mask=inside, other=0).to(tl.float32)
    return first, tl.load(x + at + E // 2, mask=inside, other=0).to(tl.float32)


@triton.jit
def _head_weights(q_weight_E, k_weight_E, head, column, inside, H: tl.constexpr, E: tl.constexpr):
    """Load both halves of the norm's weight for each head, [ROWS, HALF] each."""
    q1, q2 = _halves(q_weight_E, column + head * 0, inside & (head < H), E)
    k1, k2 = _halves(k_weight_E, column + head * 0, inside & (head >= H), E)
    return q1 + k1, q2 + k2


@triton.jit
def _rotate(
    qkv, cos_NE, sin_NE, q_weight_E, k_weight_E, out, eps,
    H: tl.constexpr, K: tl.constexpr, E: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Norm and rotate some heads of one row; values are copied."""
    row, head, column, inside = _some_heads(H, K, E, HALF, ROWS)
    dtype: tl.constexpr = out.dtype.element_ty
    at = row * ((H + 2 * K) * E) + head * E + column
    x1, x2 = _halves(qkv, at, inside, E)
    n1, n2 = x1, x2
    if q_weight_E is not None:
        scale = inverse_rms(tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1), E, eps)[:, None]
        w1, w2 = _head_weights(q_weight_E, k_weight_E, head, column, inside, H, E)
        n1, n2 = normed(x1, scale, w1, dtype).to(tl.float32), normed(x2, scale, w2, dtype).to(tl.float32)
    cos1, cos2 = _halves(cos_NE, row * E + column, column < E // 2, E)
    sin1, sin2 = _halves(sin_NE, row * E + column, column < E // 2, E)
    y1 = (n1 * cos1).to(dtype).to(tl.float32) + n2 * sin1
    y2 = (n2 * cos2).to(dtype).to(tl.float32) + n1 * sin2
    rotated = head < H + K
    tl.store(out + at, tl.where(rotated, y1, x1).to(dtype), mask=inside)
    tl.store(out + at + E // 2, tl.where(rotated, y2, x2).to(dtype), mask=inside)


@triton.jit
def _rotate_back(
    grad_q, grad_k, grad_v, qkv, cos_NE, sin_NE, q_weight_E, k_weight_E, grad, eps,
    H: tl.constexpr, K: tl.constexpr, E: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of some heads of one row of qkv."""
    row, head, column, inside = _some_heads(H, K, E, HALF, ROWS)
    q1, q2 = _halves(grad_q, (row * H + head) * E + column, inside & (head < H), E)
    k1, k2 = _halves(grad_k, (row * K + head - H) * E + column, inside & (head >= H) & (head < H + K), E)
    v1, v2 = _halves(grad_v, (row * K + head - H - K) * E + column, inside & (head >= H + K), E)
    cos1, cos2 = _halves(cos_NE, row * E + column, column < E // 2, E)
    sin1, sin2 = _halves(sin_NE, row * E + column, column < E // 2, E)
    g1, g2 = q1 + k1, q2 + k2
    x1, x2 = g1 * cos1 + g2 * sin2, g2 * cos2 + g1 * sin1
    at = row * ((H + 2 * K) * E) + head * E + column
    if q_weight_E is not None:
        n1, n2 = _halves(qkv, at, inside, E)
        scale = inverse_rms(tl.sum(n1 * n1, 1) + tl.sum(n2 * n2, 1), E, eps)[:, None]
        w1, w2 = _head_weights(q_weight_E, k_weight_E, head, column, inside, H, E)
        n1, n2, x1, x2 = n1 * scale, n2 * scale, x1 * w1, x2 * w2
        along = ((tl.sum(x1 * n1, 1) + tl.sum(x2 * n2, 1)) / E)[:, None]
        x1, x2 = scale * (x1 - n1 * along), scale * (x2 - n2 * along)
    rotated = head < H + K
    tl.store(grad + at, tl.where(rotated, x1, v1).to(grad.dtype.element_ty), mask=inside)
    tl.store(grad + at + E // 2, tl.where(rotated, x2, v2).to(grad.dtype.element_ty), mask=inside)


@triton.jit
def _gate_up(gate_up, width, COLUMNS: tl.constexpr):
    """Return (row, columns, where these are inside, gate, up) of this program; both float32."""
    tiles = tl.cdiv(width, COLUMNS)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    at, inside = gate_up + row * (2 * width) + column, column < width
    gate, up = tl.load(at, mask=inside, other=0), tl.load(at + width, mask=inside, other=0)
    return row, column, inside, gate.to(tl.float32), up.to(tl.float32)


@triton.jit
def _swiglu(gate_up, y, width, COLUMNS: tl.constexpr):
    """Write silu(gate) * up of some columns of one row."""
    row, column, inside, gate, up = _gate_up(gate_up, width, COLUMNS)
    tl.store(y + row * width + column, silu_times(gate, up, y.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_back(gate_up, grad_y, grad_gate_up, width, COLUMNS: tl.constexpr):
    """Write the gradients of gate and up for some columns of one row."""
    row, column, inside, gate, up = _gate_up(gate_up, width, COLUMNS)
    grad = tl.load(grad_y + row * width + column, mask=inside, other=0).to(tl.float32)
    share = 1 / (1 + tl.exp(-gate))
    at = grad_gate_up + row * (2 * width) + column
    dtype: tl.constexpr = grad_gate_up.dtype.element_ty
    tl.store(at, (grad * up * share * (1 + gate * (1 - share))).to(dtype), mask=inside)
    tl.store(at + width, (grad * gate * share).to(dtype), mask=inside)
