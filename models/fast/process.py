"""Settings of the whole process that pay on a CPU."""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import geometric_mean, median

import torch
import torch.nn.functional as F
from torch import nn

from models.attention import KEY_BLOCK, QUERY_MULTIPLE
from models.fast import onednn

ONE_THREAD = 10_000_000  # parameters
FASTER = 1.1  # times the speed of plain products, from which on oneDNN is taken: its copies and switches cost too
ROWS, WIDEST, PAIRS = (16, 256), 768, 9  # of the products that are timed: sampling and training, at most 0.1 s in all
BATCHES = (16, 32, 64, 128, 256)  # of small products, as decoding multiplies queries by blocks of keys
KEPT, OLD_KEPT = 2**30, 2**25  # bytes; older releases of glibc take no more than the second
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def default_threads(model: nn.Module) -> int:
    """Return 1 for a small model and the number of this process's cores for others: steps of a small model are so short
    that waiting for a second thread costs more than it saves."""
    if sum(p.numel() for p in model.parameters()) < ONE_THREAD:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_products(kind: str = "auto", inputs: int = WIDEST, outputs: int = WIDEST) -> str:
    """Let float32 products go through oneDNN or not, as `onednn_pays` says. Return a line about the choice."""
    onednn.float32, why = onednn_pays(kind, inputs, outputs)
    name = "oneDNN, from copies of frozen weights" if onednn.float32 else "plain, from the weights as they lie"
    return f"{name} ({why})"


def onednn_pays(kind: str, inputs: int, outputs: int) -> tuple[bool, str]:
    """Return whether float32 products should go through oneDNN ("onednn") or not ("plain"), and why; "auto": as
    `onednn_speedup` finds for a layer of this size. Where oneDNN is inexact (onednn.py), products are always plain."""
    if not onednn.usable(torch.float32):
        return False, "oneDNN is missing or inexact here"
    if kind != "auto":
        return kind == "onednn", "as asked"
    faster = onednn_speedup(inputs, outputs)
    return faster >= FASTER, f"oneDNN has {faster:.1f}x the speed here"


@torch.no_grad()
def onednn_speedup(inputs: int, outputs: int) -> float:
    """Return the speed of products from oneDNN's copy of a weight [outputs, inputs], both cut to WIDEST, over that of
    plain ones: for few and for many rows the median of pairs that follow each other, and of these two the geometric
    mean. By this thread's own CPU time, so that a busy machine gives the same answer."""
    weight = torch.ones(min(outputs, WIDEST), min(inputs, WIDEST))
    packed, threads = onednn.pack_weight(weight), torch.get_num_threads()
    torch.set_num_threads(1)
    inputs = [torch.ones(rows, weight.shape[1]) for rows in ROWS]
    speedups = [speedup(partial(F.linear, x, weight), partial(onednn.multiply, x, packed)) for x in inputs]
    torch.set_num_threads(threads)
    return geometric_mean(speedups)


@torch.no_grad()
def choose_attention() -> str:
    """Choose from how many products of queries with a block of keys a decode step takes oneDNN instead of MKL. Return a
    line about it. It is where oneDNN is faster, of BATCHES; if the two differ in a bit, the step takes training's."""
    if not onednn.multiplies_float32():
        onednn.least_batch = sys.maxsize
        return "MKL"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if _attention_differs():
            onednn.least_batch = 1 if onednn.float32 else sys.maxsize
        else:
            onednn.least_batch = next((n for n in BATCHES if _attention_speedup(n) > 1), sys.maxsize)
    finally:
        torch.set_num_threads(threads)
    return f"oneDNN from {onednn.least_batch} products at once" if onednn.least_batch < sys.maxsize else "MKL"


def _attention_differs() -> bool:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(16, rows, KEY_BLOCK, generator=generator) for rows in (QUERY_MULTIPLE, KEY_BLOCK))
    return not torch.equal(torch.bmm(queries, keys), _by_onednn(queries, keys))


def _attention_speedup(count: int) -> float:
    queries, keys = (torch.ones(count, rows, KEY_BLOCK) for rows in (QUERY_MULTIPLE, KEY_BLOCK))
    return speedup(partial(torch.bmm, queries, keys), partial(_by_onednn, queries, keys))


def _by_onednn(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    with onednn.batch_matmul(1, 1):
        return torch.bmm(queries, keys)


def speedup(plain: Callable, onednn: Callable) -> float:
    """Return the CPU time of a plain product over that of one by oneDNN, the median of PAIRS pairs."""
    ratios = []
    for _ in range(PAIRS + 1):
        began = time.thread_time()
        plain()
        middle = time.thread_time()
        onednn()
        ratios.append((middle - began) / (time.thread_time() - middle))
    return median(ratios[1:])  # at the first calls libraries choose and compile kernels


def keep_memory() -> None:
    """Make glibc keep the memory of freed tensors of up to KEPT bytes for the next ones. By default it returns every
    tensor of more than 32 MiB to the system and gets the next one page by page, which takes up to half the time of a
    training step. Does nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None and (mallopt(M_MMAP_THRESHOLD, KEPT) or mallopt(M_MMAP_THRESHOLD, OLD_KEPT)):
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
