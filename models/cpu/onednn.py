"""torch's switch that sends float32 products to oneDNN instead of MKL: models/hooks.py's `fast_matmul` on a CPU.

It is for products with training weights, with adapters and of attention. Frozen weights have copies in a library's own
layout instead (packed.py). torch has one switch for the whole process, so there is one state of `_switch` too.
"""

from contextlib import contextmanager, nullcontext
from functools import cache
from threading import Lock
from typing import Any

import torch

from models.attention import KEY_BLOCK, QUERY_MULTIPLE
from models.cpu import packed

LEAST_BATCH = 64  # small products at once, as decoding multiplies queries by keys; MKL is faster at fewer (Zen 5)
_lock = Lock()  # of torch's setting
_within, _before = 0, ""  # of `_switch`: how many contexts are open, in all threads; torch's own setting


@contextmanager
def onednn_matmul():
    """Context: torch multiplies float32 matrices by oneDNN, in float32, if that is the library of this process."""
    with _switch() if packed.library == "onednn" and multiplies_float32() else nullcontext():
        yield


def batch_matmul(count: int, blocks: int):
    """Return the context for `count` small products in each of some blocks, as training's attention multiplies them. If
    that is oneDNN, MKL takes few of them where it gives the same bits. A single one goes through oneDNN in any case, if
    it can, because MKL shares it among threads by cutting its sums."""
    if not multiplies_float32():
        return nullcontext()
    many = packed.library == "onednn" and (count * blocks >= LEAST_BATCH or not agrees_with_mkl())
    return _switch() if many or count == 1 else nullcontext()


@cache
@torch.no_grad()
def agrees_with_mkl() -> bool:
    """Return whether oneDNN and MKL give small products of queries and keys the same bits."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(16, rows, KEY_BLOCK, generator=generator) for rows in (QUERY_MULTIPLE, KEY_BLOCK))
    by_mkl = torch.bmm(queries, keys)
    with _switch():
        return torch.equal(torch.bmm(queries, keys), by_mkl)


def _settings() -> Any:
    """Return torch's settings of oneDNN's matrix products; None if it has none."""
    return getattr(torch.backends.mkldnn, "matmul", None)


@contextmanager
def _switch():
    """Within this context torch multiplies float32 matrices by oneDNN. Switches the whole process: the last context to
    end, of any thread, restores what was before the first."""
    global _within, _before
    matmul = _settings()
    with _lock:
        _within += 1
        if _within == 1:
            _before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if not _within:
                matmul.fp32_precision = _before


@cache
@torch.no_grad()
def multiplies_float32() -> bool:
    """Return whether torch gives products of float32 to oneDNN when it is allowed bfloat16, and oneDNN computes them in
    float32. torch does so only on CPUs with AVX-512; a CPU with instructions for bfloat16 (Intel's AMX) would round."""
    matmul = _settings()
    if not hasattr(matmul, "fp32_precision") or not torch.backends.mkldnn.is_available():
        return False
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    with _lock:
        before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
        try:
            return all(packed.accurate(rows, inner, torch.matmul) for rows, inner in ((48, 256), (512, 896)))
        finally:
            matmul.fp32_precision = before
