"""Linear layers: those that read the same input as one product, those that are frozen from a copy in oneDNN's layout.

torch multiplies float32 matrices on a CPU by MKL, which on some CPUs (AMD's with AVX-512) reaches half of the speed of
oneDNN, and less than that on a weight which was laid out for oneDNN beforehand; for 16 bits and a few rows that helps
too. So whatever the model computes, it computes `by_onednn`; and a frozen weight is laid out once, and once more
transposed for the gradient of its input; a gradient of its own it never gets. Both lean on parts of torch that need
not be there or might not be exact elsewhere, so they are tried out first; without them, or beyond COPIES_SHARE of the
memory, torch multiplies as it does.

Whichever it is, a row's result does not depend on how many rows go with it, in multiples of ROW_MULTIPLE.
"""

import os
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

ROW_MULTIPLE = 16  # rows are padded to this: matrix products of one to three rows take another kernel, vector tails too
COPIES_SHARE = 0.25  # of the machine's memory, for all copies of weights together

_copies = WeakTensorKeyDictionary()  # of the first of the weights: {what: (state of the weights, copy, its bytes)}


class Linear(nn.Linear):
    """nn.Linear, whose frozen weight is multiplied by `product`."""

    matmul = None  # what gives x @ weight.T + bias in torch's place: where `exact` asks, models/fast/triton/linear.py

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return side_by_side(x, self)[0]

    @staticmethod
    def product(x: torch.Tensor, layers: tuple[nn.Linear, ...]) -> torch.Tensor:
        """[N, in] -> [N, all their outputs side by side], without a gradient."""
        packed = onednn_copy([layer.weight for layer in layers])
        if packed is None:
            matmul = layers[0].matmul or F.linear
            if len(layers) > 1 and x.device.type != "cpu" and matmul is F.linear:
                return in_columns(x, layers)
            each = [matmul(x, layer.weight, layer.bias) for layer in layers]
            return each[0] if len(each) == 1 else torch.cat(each, -1)
        return multiply(x, packed, joined_bias(layers))

    @staticmethod
    def back(grad: torch.Tensor, layers: tuple[nn.Linear, ...]) -> torch.Tensor:
        """The gradient of `product`'s input from that of its output."""
        weights = [layer.weight for layer in layers]
        packed = onednn_copy(weights, transposed=True)
        if packed is not None:
            return multiply(grad, packed)
        parts = grad.split([len(weight) for weight in weights], -1)
        if grad.device.type != "cpu":
            return added_up(parts, weights)
        return sum(part @ weight for part, weight in zip(parts, weights, strict=True))


def in_columns(x_ND: torch.Tensor, layers: tuple[nn.Linear, ...]) -> torch.Tensor:
    """`Linear.product`, each layer's written where it belongs: put side by side afterwards, all would be copied."""
    widths = [layer.out_features for layer in layers]
    y = x_ND.new_empty(len(x_ND), sum(widths))
    for layer, out in zip(layers, y.split(widths, -1), strict=True):
        if layer.bias is None:
            torch.mm(x_ND, layer.weight.mT, out=out)
        else:
            torch.addmm(layer.bias, x_ND, layer.weight.mT, out=out)
    return y


def added_up(parts: tuple[torch.Tensor, ...], weights: list[torch.Tensor]) -> torch.Tensor:
    """The sum of part @ weight, in one place."""
    total = parts[0] @ weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total.addmm_(part, weight)
    return total


def side_by_side(x: torch.Tensor, *layers: nn.Module) -> tuple[torch.Tensor, ...]:
    """The outputs of layers that read the same input. Layers of another kind that know how to do this (lora/layer.py)
    do it themselves, by their `together`."""
    other = next((type(layer) for layer in layers if hasattr(type(layer), "together")), None)
    if other is not None:
        return other.together(x, *layers)
    if any(layer.weight.requires_grad for layer in layers):
        return tuple((layer.matmul or F.linear)(x, layer.weight, layer.bias) for layer in layers)
    y = _Frozen.apply(x, layers) if torch.is_grad_enabled() and x.requires_grad else Linear.product(x, layers)
    return y.split([layer.out_features for layer in layers], -1)


def parts(layer: nn.Module):
    """(weight, bias, A, B, scale) of a linear layer; one with adapters tells its own, and A is None without."""
    return layer.parts() if hasattr(layer, "parts") else (layer.weight, layer.bias, None, None, 1.0)


def joined_bias(layers) -> torch.Tensor | None:
    """The biases of layers one after the other, zeros for those without; None if all are."""
    weights, biases = zip(*(parts(layer)[:2] for layer in layers), strict=True)
    if len(layers) == 1 or all(bias is None for bias in biases):
        return biases[0]
    return torch.cat([w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)])


def adapter_factors(layers) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    """(down [R, in], up [R, all outputs]) of the adapters of layers side by side: x @ down.T @ up is what they add.

    The A factors times their scales one above the other, the B factors block by block on a diagonal; zeros fill R up to
    ROW_MULTIPLE.
    """
    weights, _, As, Bs, scales = zip(*map(parts, layers), strict=True)
    if all(A is None for A in As):
        return None, None
    down = torch.cat([A * scale for A, scale in zip(As, scales, strict=True) if A is not None])
    blocks = [w.new_zeros(len(w), 0) if B is None else B for w, B in zip(weights, Bs, strict=True)]
    more = (0, 0, 0, -len(down) % ROW_MULTIPLE)
    return F.pad(down, more), F.pad(torch.block_diag(*blocks).mT, more).contiguous()


class _Frozen(torch.autograd.Function):
    """Keeps nothing for the backward."""

    @staticmethod
    def forward(ctx, x, layers):
        ctx.layers = layers
        return Linear.product(x, layers)

    @staticmethod
    def backward(ctx, grad):
        return Linear.back(grad.contiguous(), ctx.layers), None


def multiply(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias, for what `onednn_copy` made of the weight."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def onednn_copy(weights: list[torch.Tensor], transposed: bool = False) -> torch.Tensor | None:
    """The weights [O, D], one above the other, or transposed, [D, sum O], in oneDNN's layout. None where they must be
    multiplied as they lie."""
    whole = _kept(weights, (transposed, len(weights)), lambda weight: [weight.mT if transposed else weight])
    return whole and whole[0]


def onednn_slabs(weight: torch.Tensor, size: int, dtype: torch.dtype, transposed: bool = False):
    """As `onednn_copy`, of each `size` rows of the weight cast to dtype: a list."""
    pieces = lambda w: (piece.mT if transposed else piece for piece in w.split(size))  # noqa: E731
    return _kept([weight], (transposed, size, dtype), pieces, dtype)


def _kept(weights, what, pieces, dtype=None) -> list[torch.Tensor] | None:
    """What `pieces` cuts the weights into, packed and in dtype: made when first asked for, kept while the first of them
    lives and none has changed. None where that cannot be."""
    first, dtype = weights[0], dtype or weights[0].dtype
    if first.device.type != "cpu" or first.requires_grad or not usable(dtype):
        return None
    state = [(weight.data_ptr(), weight._version, weight.dtype) for weight in weights]
    kept = _copies.get(first)
    if kept is None:
        kept = _copies[first] = {}
    if what not in kept or kept[what][0] != state:
        kept.pop(what, None)
        size = sum(weight.numel() for weight in weights) * dtype.itemsize
        packed = None
        if size + sum(entry[2] for copies in _copies.values() for entry in copies.values()) <= _budget():
            weight = torch.cat(weights) if len(weights) > 1 else first
            packed = [to_onednn(piece.to(dtype)) for piece in pieces(weight.detach())]
        kept[what] = (state, packed, size if packed else 0)
    return kept[what][1]


@torch.no_grad()
def to_onednn(weight: torch.Tensor) -> torch.Tensor:
    """A weight [O, D] in oneDNN's layout, which nobody keeps, for `multiply`."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 512)


@cache
def _budget() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return int(COPIES_SHARE * memory)


@contextmanager
def by_onednn():
    """Within, torch multiplies float32 matrices on a CPU by oneDNN, in float32. The switch is the whole process's."""
    if not _exact_float32():
        yield
        return
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


@cache
@torch.no_grad()
def _exact_float32() -> bool:
    """Whether oneDNN keeps to float32 when told that it need not, which is what makes torch choose it: it does where
    the CPU has no instructions to multiply matrices of bfloat16 (Intel's AMX)."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if not hasattr(matmul, "fp32_precision") or not torch.backends.mkldnn.is_available():
        return False
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        return all(_right(rows, inner, torch.matmul) for rows, inner in ((48, 256), (512, 896)))
    finally:
        matmul.fp32_precision = before


@cache
@torch.no_grad()
def usable(dtype: torch.dtype) -> bool:
    """Whether oneDNN's products from a copy in its own layout are here for this dtype, and right."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    try:
        return _right(48, 256, lambda x, w: multiply(x, to_onednn(w.mT)), dtype)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


def _right(rows: int, inner: int, product, dtype=torch.float32) -> bool:
    """Whether it multiplies to within rounding, and each row the same whatever goes with it."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((rows, inner), (inner, 96)))
    y, expected = product(x, w), x.double() @ w.double()
    close = (y - expected).norm() <= 8 * torch.finfo(dtype).eps * expected.norm()
    return bool(close) and torch.equal(product(x[16:32], w), y[16:32])
