"""Settings of the whole process that pay on a CPU."""

import ctypes
import os

from torch import nn

ONE_THREAD = 10_000_000  # parameters
KEPT, OLD_KEPT = 2**30, 2**25  # bytes; older releases of glibc take no more than the second
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def default_threads(model: nn.Module) -> int:
    """Return 1 for a small model and the number of this process's cores for others: steps of a small model are so short
    that waiting for a second thread costs more than it saves."""
    if sum(p.numel() for p in model.parameters()) < ONE_THREAD:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_memory() -> None:
    """Make glibc keep the memory of freed tensors of up to KEPT bytes for the next ones. By default it returns every
    tensor of more than 32 MiB to the system and gets the next one page by page, which takes up to half the time of a
    training step. Does nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None and (mallopt(M_MMAP_THRESHOLD, KEPT) or mallopt(M_MMAP_THRESHOLD, OLD_KEPT)):
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
