"""Memory of a benchmark's sides: of tensors, and of the whole process."""

import ctypes
import gc
import math
import re
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def free_memory() -> None:
    """Collect garbage and return torch's cached blocks to the device."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class _Alive(TorchDispatchMode):
    """Count the bytes of tensors that operations make, while they live."""

    def __init__(self):
        super().__init__()
        self.now, self.peak, self.known = 0, 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        before = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if _has_storage(x)}
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if _has_storage(x) and (storage := x.untyped_storage())._cdata not in before | self.known:
                self._add(storage)
        return result

    def _add(self, storage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def _has_storage(x) -> bool:
    return isinstance(x, torch.Tensor) and x.layout == torch.strided and x.device.type != "meta"


def scratch_of(work: Callable[[], list[torch.Tensor]], device: str = "cpu") -> float:
    """Return the peak MiB of tensors while `work` runs, without tensors from before it and those that it returns.

    On a CPU the tensors that torch's operations make are counted, on a GPU what its allocator hands out.
    """
    if device == "cpu":
        with _Alive() as alive:
            outputs = work()
        peak = alive.peak
    else:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        outputs = work()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
    return (peak - sum(x.untyped_storage().nbytes() for x in outputs)) / 2**20


def reset_peak(device: str) -> None:
    """Make the present use of memory the peak: of this process on a CPU, of torch's allocator on a GPU. On a CPU what
    the allocator holds free is returned to the system first, where that is possible."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    elif Path("/proc/self/clear_refs").exists():
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc
            trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def peak_gib(device: str) -> float:
    """Return the peak since `reset_peak` in GiB; nan on a CPU without /proc."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**30
    if not Path("/proc/self/clear_refs").exists():
        return math.nan
    return int(re.search(r"^VmHWM:\s*(\d+)", Path("/proc/self/status").read_text(), re.M)[1]) / 2**20
