"""Memory of the whole process: how allocators keep it, the most that a phase of a run held, what plan= counts."""

import ctypes
import os
import re
from pathlib import Path
from typing import NamedTuple

import torch

from models.refusal import Refusal

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the second is torch 2.10's name
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# torch's cache of oneDNN's products, and oneDNN's own
KERNEL_CACHES = "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
KEPT_KERNELS = 64  # shapes in each of them; by default 1,024
KEPT, OLD_KEPT = 2**30, 2**25  # bytes; older releases of glibc take no more than the second
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
C = ctypes.CDLL(None) if os.name == "posix" else None


class Footprint(NamedTuple):
    """What models/cpu or models/cuda takes beside a model's weights: bytes, but for the first."""

    products: str  # on a CPU: the library of products, "onednn" | "mkl" | "plain"
    copies: int  # frozen weights in a library's own layout, for forward and backward
    stacks: int  # the decode step's copies of the blocks' weights and adapters
    dequantised: int  # what the product with a block's largest quantised layer makes beside its output
    head: int  # what the log-probabilities of some rows make beside their hidden states and gradients
    small: int  # up to so many bytes a rollout's cache and stacks stay for the next one (models/cuda/memory.py)


def keep_memory() -> None:
    """Set what the process keeps in memory. Call it before the first product and the first CUDA tensor.

    Freed memory stays for the next tensors. On a CPU few kernels stay: batches have many numbers of rows, and beside a
    small model old kernels and their workspaces took more memory than all else. On CUDA memory grows in segments that
    can be extended, because caches and batches of many sizes would leave holes. A user's own settings stay; a number of
    kernels at which torch crashes is a Refusal.
    """
    keep_host_memory()
    for name in KERNEL_CACHES:
        os.environ.setdefault(name, str(KEPT_KERNELS))
    name = KERNEL_CACHES[0]  # oneDNN reads any text
    kept = os.environ[name]
    if not (kept.isascii() and kept.isdecimal() and int(kept)):
        raise Refusal(f"{name}={kept} must be a positive whole number, or be unset: torch crashes at others")
    if not any(name in os.environ for name in ALLOCATOR):
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"


def keep_host_memory() -> None:
    """Make glibc keep the memory of freed tensors of up to KEPT bytes for the next ones. By default it returns every
    tensor of more than 32 MiB to the system and gets the next one page by page, which takes up to half the time of a
    training step. Does nothing without glibc."""
    mallopt = getattr(C, "mallopt", None)
    if mallopt is not None and (mallopt(M_MMAP_THRESHOLD, KEPT) or mallopt(M_MMAP_THRESHOLD, OLD_KEPT)):
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def return_host_memory() -> None:
    """Return the memory of freed tensors to the system, after work whose tensors have sizes of their own. Does nothing
    without glibc."""
    getattr(C, "malloc_trim", lambda _: None)(0)


def end_phase() -> int | None:
    """Return the most bytes held since the last call, on CUDA those of tensors, else those of the process; None where
    the system does not count them. Frees what CUDA's allocator holds in reserve, for a phase with tensors of other
    sizes."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return peak
    try:
        peak = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
        CLEAR.write_text("5")  # Linux: the peak begins anew
    except OSError:
        return None
    return int(peak[1]) * 1024 if peak else None
