"""Quantised bases on the emulated device: no mix of host and device, no waits in a step, kernels counted."""

import pytest
import stand_ins
import torch
import torch.nn.functional as F
from emulated_cuda import StandIn, emulated_cuda
from test_emulated_cuda import LAYERS, TEXTCRAFT, epoch, most

from models import load_model, quant
from models.fast import cuda_graph, trial
from models.fast.triton import quant as kernels


def scales(absmax, nested_absmax, nested_map, offset):
    if nested_absmax is None:
        return absmax
    return nested_map[absmax.int()] * nested_absmax.repeat_interleave(quant.NESTED_BLOCK)[: len(absmax)] + offset


def dequantise_blocks(codes, absmax, nested_absmax, nested_map, offset, levels, out, *_, **__):
    found = scales(absmax, nested_absmax, nested_map, offset)
    out.copy_(quant.dequantise_blocks(codes, found, tuple(out.shape)))


def dequantise_rows(codes, absmax, out, *_, **__):
    out.copy_(codes.float() * absmax[:, None] / 127)


def multiply(pairs, codes, absmax, nested_absmax, nested_map, offset, levels, bias, out, N, inputs, outputs, *_, **__):
    found = scales(absmax, nested_absmax, nested_map, offset)
    weight = quant.dequantise_blocks(codes, found, (outputs, inputs)).to(out.dtype)
    out.copy_(F.linear(pairs.view(out.dtype).float(), weight.float(), None if bias is None else bias.float()))


@pytest.fixture
def device(monkeypatch):
    kernels.levels_on.cache_clear()
    with emulated_cuda(monkeypatch) as emulated:
        stand_ins.install(monkeypatch, emulated)
        for function in (dequantise_blocks, dequantise_rows, multiply):
            name = f"_{function.__name__}"
            monkeypatch.setattr(kernels, name, StandIn(emulated, f"quant{name}", function))
        yield emulated
    kernels.levels_on.cache_clear()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nf4", ("algo=ppo",)),
        ("nf4-double", ("algo=grpo", "grpo.kl_coef=0.01", "grpo.group_size=4")),
        ("int8", ("algo=ppo",)),
    ],
)
def test_an_epoch_stays_on_the_device(kind, words, device, monkeypatch, tmp_path):
    """A captured step multiplies by the codes, seven times a layer; int8 has a dense weight for each product."""
    monkeypatch.setattr(trial, "first_difference", lambda model: None)
    enqueued = device.watch(monkeypatch, cuda_graph.Steps, "enqueue")
    metrics = epoch(tmp_path, f"quant={kind}", *words, *TEXTCRAFT)
    assert metrics["optimizer_steps"] == 1 and metrics["sampler_gap"] < 0.1
    assert len(device.captures) == 1 and device.replays == cuda_graph.CHUNK * len(enqueued) > 0
    step = device.captures[0].by_kernel
    dense = step["quant_dequantise_blocks"] + step["quant_dequantise_rows"]
    assert (step["quant_multiply"], dense) == ((0, 7 * LAYERS) if kind == "int8" else (7 * LAYERS, 0))
    assert most(enqueued, "waits") == 0
    waits = [at for _, at in device.total.waits if "models/fast/triton/quant.py" in at]
    assert len(waits) == (kind != "int8"), "the levels are uploaded once"
    assert device.captures[0].kernels <= 75 * LAYERS + 90


def test_an_exact_epoch_uses_one_product_for_any_number_of_rows(device, monkeypatch, tmp_path):
    monkeypatch.setattr(trial, "ROWS", 5)
    metrics = epoch(tmp_path, "algo=ppo", "exact=true", "quant=nf4", *TEXTCRAFT)
    assert metrics["exact"] == "yes" and metrics["sampler_gap"] < 1e-6, "the head's stand-in rounds in float32"
    assert device.total.by_kernel["quant_multiply"] == 0


@pytest.mark.parametrize("kind", quant.KINDS)
def test_loading_quantises_on_the_device(kind, device):
    """The codes are those of a CPU."""
    on_device, on_host = load_model("tiny", torch.bfloat16, "cuda", quant=kind), load_model("tiny", quant=kind)
    for one, other in zip(*(quant.block_linears(model).values() for model in (on_device, on_host)), strict=True):
        assert one.weight.is_cuda and torch.equal(one.weight.cpu(), other.weight)
        assert all(torch.equal(x.cpu(), y) for x, y in zip(one.buffers(), other.buffers(), strict=True))
