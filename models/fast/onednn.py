"""oneDNN on a CPU: frozen weights copied into its own layout, and its products in place of MKL's.

torch multiplies float32 matrices by MKL, which on some CPUs (AMD's with AVX-512) reaches half of oneDNN's speed, and
less than that on a weight that was laid out for oneDNN beforehand; 16 bits and few rows gain as well. A frozen weight
is copied once, and once more transposed for the gradient of its input. Both features use parts of torch that may be
missing or inexact elsewhere, so a trial run decides; without them, or beyond COPIES_SHARE of the memory, the plain code
runs. So it does for float32 where process.py finds plain products faster.
"""

import os
from contextlib import contextmanager, nullcontext
from functools import cache

import torch
from torch.utils.weak import WeakTensorKeyDictionary

COPIES_SHARE = 0.25  # of the machine's memory, for all copies of weights together

float32 = True  # whether products of float32 may go through oneDNN; process.py sets it,
least_batch = 64  # and from how many small products at once oneDNN is faster than MKL
keep_layers = True  # False: a layer's copy lives for one product, because its weight does not stay; see `keep_copies`
_copies = WeakTensorKeyDictionary()  # {first weight: {kind of copy: (state of the weights, copy, bytes)}}


def multiply(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x @ weight.T + bias for a weight that `copy`, `slab_copies` or `pack_weight` packed."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


@torch.no_grad()
def pack_weight(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight [O, D] in oneDNN's layout; the caller keeps it."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 512)


def weight_copy(weights: list[torch.Tensor], transposed: bool = False) -> torch.Tensor | None:
    """Return oneDNN's copy of the stacked weights [O, D], transposed if asked; None for the plain product."""
    piece = lambda weight: [weight.mT if transposed else weight]  # noqa: E731
    copies = _cached(weights, (transposed, len(weights)), piece, keep=keep_layers)
    return copies and copies[0]


def slab_copies(weight: torch.Tensor, size: int, dtype: torch.dtype, transposed: bool = False):
    """Return a list of the copies of every `size` rows of the weight, in dtype, or None."""
    slabs = lambda w: (slab.mT if transposed else slab for slab in w.split(size))  # noqa: E731
    return _cached([weight], (transposed, size, dtype), slabs, dtype)


def _cached(weights, kind, pieces, dtype=None, keep: bool = True) -> list[torch.Tensor] | None:
    """Return packed copies of the pieces of the stacked weights. They are made at the first request and kept until a
    weight changes, the first weight is freed or `keep_copies` drops them; without `keep` they are made each time. None
    if a copy is impossible or over budget, which counts copies that are not kept as well: so the same weights have one.
    """
    first, dtype = weights[0], dtype or weights[0].dtype
    if first.device.type != "cpu" or first.requires_grad or not usable(dtype):
        return None
    if dtype == torch.float32 and not float32:
        return None
    state = [(weight.data_ptr(), weight._version, weight.dtype) for weight in weights]
    cached = _copies.get(first)
    if cached is None:
        cached = _copies[first] = {}
    if kind not in cached or cached[kind][0] != state:
        cached.pop(kind, None)
        size = sum(weight.numel() for weight in weights) * dtype.itemsize
        cached[kind] = (state, None, size if size + bytes_of_copies() <= budget() else 0)
    _, packed, size = cached[kind]
    if packed is None and size:
        weight = torch.cat(weights) if len(weights) > 1 else first
        packed = [pack_weight(piece.to(dtype)) for piece in pieces(weight.detach())]
        cached[kind] = (state, packed if keep else None, size)
    return packed


def keep_copies(layers: bool) -> None:
    """Implement the hook of models/kernels.py."""
    global keep_layers
    keep_layers = layers
    for copies in _copies.values():
        for kind, (state, _, size) in copies.items():
            copies[kind] = (state, None, size)


def bytes_of_copies() -> int:
    return sum(size for copies in _copies.values() for _, _, size in copies.values())


@cache
def budget() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return int(COPIES_SHARE * memory)


@contextmanager
def onednn_matmul():
    """Context: torch multiplies float32 matrices by oneDNN, in float32, if products of float32 may go through it."""
    with _switch() if float32 and multiplies_float32() else nullcontext():
        yield


def batch_matmul(count: int, blocks: int):
    """Return the context for `count` small products in each of some blocks: oneDNN for many, MKL for few. A single one
    goes through oneDNN in any case, if it can, because MKL shares it among threads by cutting its sums."""
    many = count == 1 or count * blocks >= least_batch
    return _switch() if many and multiplies_float32() else nullcontext()


@contextmanager
def _switch():
    """Within this context torch multiplies float32 matrices by oneDNN. Switches the whole process."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


@cache
@torch.no_grad()
def multiplies_float32() -> bool:
    """Return whether torch gives products of float32 to oneDNN when it is allowed bfloat16, and oneDNN computes them in
    float32. torch does so only on CPUs with AVX-512; a CPU with instructions for bfloat16 (Intel's AMX) would round."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if not hasattr(matmul, "fp32_precision") or not torch.backends.mkldnn.is_available():
        return False
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        return all(_accurate(rows, inner, torch.matmul) for rows, inner in ((48, 256), (512, 896)))
    finally:
        matmul.fp32_precision = before


@cache
@torch.no_grad()
def usable(dtype: torch.dtype) -> bool:
    """Return whether this torch multiplies packed weights of dtype, and accurately."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    try:
        return _accurate(48, 256, lambda x, w: multiply(x, pack_weight(w.mT)), dtype)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


def _accurate(rows: int, inner: int, product, dtype=torch.float32) -> bool:
    """Return whether a product is right to rounding, and each row independent of the number of rows."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((rows, inner), (inner, 96)))
    y, expected = product(x, w), x.double() @ w.double()
    close = (y - expected).norm() <= 8 * torch.finfo(dtype).eps * expected.norm()
    return bool(close) and torch.equal(product(x[16:32], w), y[16:32])
