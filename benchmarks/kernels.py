"""The kernels that a piece of work runs on a GPU, by family: matrix products, attention, reductions, copies, ..."""

import re
from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import one_line

FAMILIES = (  # the first pattern that is found in a kernel's name, in lower case, decides
    ("attention", r"flash|fmha|attend|attention|^_forward$|_backward_(queries|keys)"),
    ("sort and scan", r"scan|cumsum|sort|radix|searchsorted|topk|argmax"),
    ("quantised weights", r"dequantise"),
    ("matrix product", r"gemm|gemv|nvjet|cutlass|cublas|xmma|splitk|matmul|_multiply|_mm_|dot_kernel|wgmma"),
    ("head and sampling", r"_score|_fold|_gather\b|_slope|logprob|_dlogits|_choose"),
    ("norm, rotary and SwiGLU", r"norm|rotary|rope|_rotate|_swiglu|silu"),
    ("copy and index", r"memcpy|memset|copy|index|gather|scatter|\bcat|fill|embedding|arange|pad"),
    ("reduction", r"reduce|softmax|sum|amax|mean|logsumexp"),
    ("elementwise", r"elementwise|vectorized|unrolled|triton_poi|foreach|multi_tensor|adam"),
)


def family(kernel: str) -> str:
    """Return the family of a kernel, "other" for an unknown name."""
    return next((name for name, pattern in FAMILIES if re.search(pattern, kernel.lower())), "other")


def ran(work: Callable[[], object], device: str) -> list[tuple[str, float]]:
    """Run the work and return (name, seconds) of everything that ran on the device: kernels, copies and fills, those of
    a replayed graph too. On a CPU: torch's operations, each without those that it calls."""
    on_cpu = device == "cpu"
    activity = ProfilerActivity.CPU if on_cpu else ProfilerActivity.CUDA
    with profile(activities=[activity]) as profiler:
        work()
        if not on_cpu:
            torch.cuda.synchronize()
    events = profiler.events()
    if on_cpu:
        return [(e.name, e.self_cpu_time_total / 1e6) for e in events]
    on_device = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    return [(e.name, (e.time_range.end - e.time_range.start) / 1e6) for e in on_device]


def by_family(found: list[tuple[str, float]], times: int = 1) -> dict[str, dict[str, float]]:
    """Return {family: {"kernels": count, "seconds": sum}} of one of `times` equal pieces of work, the longest first."""
    totals: dict[str, list[float]] = {}
    for name, seconds in found:
        total = totals.setdefault(family(name), [0, 0.0])
        total[0], total[1] = total[0] + 1, total[1] + seconds
    order = sorted(totals.items(), key=lambda item: -item[1][1])
    return {name: {"kernels": count / times, "seconds": seconds / times} for name, (count, seconds) in order}


def summary(families: dict[str, dict[str, float]]) -> str:
    """Return the families as one line: the number of kernels and the share of each family in their time."""
    if not families:
        return "no kernel was seen"
    kernels = sum(f["kernels"] for f in families.values())
    seconds = sum(f["seconds"] for f in families.values()) or 1.0
    parts = [f"{name} {f['seconds'] / seconds:.0%} ({f['kernels']:.0f})" for name, f in families.items()]
    return f"{kernels:.0f} kernels, {1e3 * seconds:.3g} ms on the device: {', '.join(parts)}"


def profiled(work: Callable[[], object], device: str, times: int = 1) -> tuple[str, dict]:
    """Run the work and return (`summary`, `by_family`) of one of its `times` equal pieces. If profiling fails, the
    line says why."""
    try:
        families = by_family(ran(work, device), times)
    except Exception as error:  # the times were measured before, and must not be lost
        return f"not profiled: {one_line(error)}", {}
    return summary(families), families
