"""The GPU benchmark's parts on the emulated CUDA device: no host/device mix, and no call that a device would refuse."""

import time
from dataclasses import replace

import pytest
import stand_ins
import test_quant_cuda
import torch
from emulated_cuda import StandIn, emulated_cuda

from benchmarks import common, gpu, gpu_decode, gpu_parts, gpu_sizes, logprob, sides
from models.cuda.triton import quant

pytestmark = pytest.mark.usefixtures("frozen_heap")
SCALE = replace(
    gpu_sizes.SIZES["tiny"][1],
    rows=(2,),
    contexts=(20,),
    attention=((2, 20),),
    prefill=(5,),
    heads=(("a head", 20, 16, 300, {}),),
)


ELSEWHERE = ("tests", "text", "epoch")  # in processes of their own, or nothing without peers
LONG = (
    "head",
    "attention",
    "decode, large",
    "exact path",
    "LoRA layers",
    "mixed rollouts",
    "multi-turn",
    "GRPO step",
    "agreement",
    "group prefix sharing",
)


class Event:
    """Stands in for torch.cuda.Event: the host's clock."""

    def __init__(self, enable_timing: bool):
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other) -> float:
        return 1000 * (other.at - self.at)


class HostGenerator(torch.Generator):
    """A generator of the CPU, whatever the device: the emulated device's data lie there."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")


@pytest.fixture
def device(monkeypatch):
    with emulated_cuda(monkeypatch) as emulated:
        stand_ins.install(monkeypatch, emulated)
        quant.levels_on.cache_clear()
        for function in (test_quant_cuda.dequantise_blocks, test_quant_cuda.multiply):
            name = f"_{function.__name__}"
            monkeypatch.setattr(quant, name, StandIn(emulated, f"quant{name}", function))
        made_here = sides.random
        monkeypatch.setattr(torch, "Generator", HostGenerator)
        monkeypatch.setattr(sides, "random", lambda raw, dtype=torch.float32, at="cpu": made_here(raw, dtype).to(at))
        monkeypatch.setattr(torch.cuda, "Event", Event)
        for name, value in (("reset_peak_memory_stats", None), ("max_memory_allocated", 2**30)):
            monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 2**30)
        monkeypatch.setattr(gpu_decode, "profiled", lambda work, device, times=1: (work(), "3 kernels")[1])
        monkeypatch.setattr(gpu_decode, "bandwidth", lambda _: 1e12)
        monkeypatch.setattr(gpu_decode, "product_rate", lambda *_: 1e14)
        monkeypatch.setattr(common, "absent", lambda *packages: list(packages))
        monkeypatch.setattr(logprob, "peers", lambda *_, **__: ({"naive": logprob.naive}, []))
        yield emulated
    quant.levels_on.cache_clear()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] * (name in LONG))
        for name in gpu_parts.PARTS
        if name not in ELSEWHERE
    ],
)
def test_parts_run_on_a_device(name, device):
    options = gpu.Options(repeats=1, warmup=1, threads=1, device="cuda")
    given = gpu_sizes.Given(SCALE, options, "cuda", torch.bfloat16)
    found = list(gpu_parts.measured(name, gpu_parts.PARTS[name][0], given))
    rows = [row for row in found if isinstance(row, common.Row)]
    notes = [note for note in found if isinstance(note, str)]
    copied = "error of the gradients"  # from a deep copy of the model, which the emulated device cannot make
    assert [note for note in notes if "failed" in note and copied not in note] == []
    assert rows and all("ours" in row.values for row in rows)
