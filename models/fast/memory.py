"""Memory of the whole process: how the allocators keep it, and the most that a phase of a run held."""

import os
import re
from pathlib import Path

import torch

from models.fast import process

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the second is torch 2.10's name
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def keep_memory() -> None:
    """Implement the hook of models/kernels.py. On CUDA, memory grows in segments that can be extended, because caches
    and batches of many sizes would leave holes; a user's own setting stays. Call it before the first CUDA tensor."""
    process.keep_memory()
    if not any(name in os.environ for name in ALLOCATOR):
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"


def end_phase() -> int | None:
    """Implement the hook of models/kernels.py: return the most bytes held since the last call, on CUDA those of
    tensors, else those of the process; None where the system does not count them. Frees what CUDA's allocator holds in
    reserve, for a phase with tensors of other sizes."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return peak
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
        CLEAR.write_text("5")  # Linux: the peak begins anew
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
