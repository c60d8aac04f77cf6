"""Settings of the whole process that pay on a CPU."""

import ctypes
import os
import time
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn

from models.fast import onednn

ONE_THREAD = 10_000_000  # parameters
FASTER = (
    1.3  # times the speed of plain products, from which on oneDNN is taken: its copies and switches have a cost too
)
ROWS, WIDTH, PAIRS = 128, 896, 9  # of the products that are timed
KEPT, OLD_KEPT = 2**30, 2**25  # bytes; older releases of glibc take no more than the second
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def default_threads(model: nn.Module) -> int:
    """Return 1 for a small model and the number of this process's cores for others: steps of a small model are so short
    that waiting for a second thread costs more than it saves."""
    if sum(p.numel() for p in model.parameters()) < ONE_THREAD:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_products(kind: str = "auto") -> str:
    """Let float32 products go through oneDNN or not ("onednn", "plain"); "auto": as `onednn_speedup` finds. Return a
    line about the choice. Where oneDNN is inexact (onednn.py), products are plain in any case."""
    there = onednn.usable(torch.float32)
    speedup = onednn_speedup() if there and kind == "auto" else None
    onednn.float32 = there and (kind == "onednn" if speedup is None else speedup >= FASTER)
    name = "oneDNN, from copies of frozen weights" if onednn.float32 else "plain, from the weights as they lie"
    why = "as asked" if there else "oneDNN is missing or inexact here"
    return f"{name} ({why if speedup is None else f'oneDNN has {speedup:.1f}x the speed here'})"


@torch.no_grad()
def onednn_speedup() -> float:
    """Return the speed of a product of ROWS x WIDTH by WIDTH x WIDTH from oneDNN's copy, over that of a plain one: the
    median of pairs that follow each other, by this thread's own CPU time. So a busy machine gives the same answer."""
    x, weight = torch.ones(ROWS, WIDTH), torch.ones(WIDTH, WIDTH)
    packed, threads, ratios = onednn.pack_weight(weight), torch.get_num_threads(), []
    torch.set_num_threads(1)
    for _ in range(PAIRS + 1):
        began = time.thread_time()
        F.linear(x, weight)
        middle = time.thread_time()
        onednn.multiply(x, packed)
        ratios.append((middle - began) / (time.thread_time() - middle))
    torch.set_num_threads(threads)
    return median(ratios[1:])  # at the first calls libraries choose and compile kernels


def keep_memory() -> None:
    """Make glibc keep the memory of freed tensors of up to KEPT bytes for the next ones. By default it returns every
    tensor of more than 32 MiB to the system and gets the next one page by page, which takes up to half the time of a
    training step. Does nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None and (mallopt(M_MMAP_THRESHOLD, KEPT) or mallopt(M_MMAP_THRESHOLD, OLD_KEPT)):
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
