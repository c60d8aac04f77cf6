"""The kernels that a piece of work runs on a GPU: their number and their time."""

from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import one_line


def ran(work: Callable[[], object], device: str) -> list[float]:
    """Run the work and return the seconds of everything that ran on the device: kernels, copies and fills, those of
    a replayed graph too. On a CPU: of torch's operations, each without those that it calls."""
    on_cpu = device == "cpu"
    with profile(activities=[ProfilerActivity.CPU if on_cpu else ProfilerActivity.CUDA]) as profiler:
        work()
        if not on_cpu:
            torch.cuda.synchronize()
    events = profiler.events()
    if on_cpu:
        return [e.self_cpu_time_total / 1e6 for e in events]
    on_device = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    return [(e.time_range.end - e.time_range.start) / 1e6 for e in on_device]


def profiled(work: Callable[[], object], device: str, times: int = 1) -> str:
    """Run the work and return the kernels and their time in one of its `times` equal pieces, as a line. If profiling
    fails, the line says why."""
    try:
        seconds = ran(work, device)
    except Exception as error:  # the times were measured before, and must not be lost
        return f"not profiled: {one_line(error)}"
    return f"{len(seconds) / times:.0f} kernels, {1e3 * sum(seconds) / times:.3g} ms on the device"
