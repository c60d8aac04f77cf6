"""Quantised bases on the emulated device: no mix of host and device, no waits in a step, kernels counted."""

import pytest
import stand_ins
import torch
import torch.nn.functional as F
from emulated_cuda import StandIn, emulated_cuda
from test_emulated_cuda import LAYERS, TEXTCRAFT, differences_to_training, epoch, most, two_turns

import lora
from models import load_model, quant, trial
from models.cuda import graph as cuda_graph
from models.cuda import paths, prefill
from models.cuda.exact import make_exact
from models.cuda.triton import linear
from models.cuda.triton import quant as kernels
from models.engine import Engine

EACH_TRIAL = True


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


def uploads(device) -> int:
    """Return how often the levels were copied to the device so far."""
    return sum("models/cuda/triton/quant.py" in at for _, at in device.total.waits)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        pytest.param("nf4", ("algo=ppo",), marks=pytest.mark.full),
        ("nf4-double", ("algo=grpo", "grpo.kl_coef=0.01", "grpo.group_size=4")),
        pytest.param("int8", ("algo=ppo",), marks=pytest.mark.full),
    ],
)
def test_an_epoch_stays_on_the_device(kind, words, device, monkeypatch, tmp_path):
    """A captured step multiplies by the codes, seven times a layer; int8 has a dense weight for each product."""
    monkeypatch.setattr(trial, "first_difference", lambda model: None)
    enqueued = device.watch(monkeypatch, cuda_graph.Steps, "enqueue")
    prefills = device.watch(monkeypatch, Engine, "_prefill")
    metrics = epoch(tmp_path, f"quant={kind}", *words, *TEXTCRAFT)
    assert metrics["optimizer_steps"] == 1 and metrics["sampler_gap"] < 0.1
    (step,) = (counts for counts in device.captures if counts.by_kernel["_choose"])
    assert len(device.captures) <= 1 + len(prefill.SIZES)
    assert device.replays == cuda_graph.CHUNK * len(enqueued) + len(prefills) > cuda_graph.CHUNK
    dense = step.by_kernel["quant_dequantise_blocks"] + step.by_kernel["quant_dequantise_rows"]
    assert (step.by_kernel["quant_multiply"], dense) == ((0, 7 * LAYERS) if kind == "int8" else (7 * LAYERS, 0))
    assert most(enqueued, "waits") == most(prefills, "waits") == 0
    assert uploads(device) == (kind != "int8"), "before the first rollout, by the forward of rl/run/health.py"
    assert step.kernels == (25 if kind == "int8" else 18) * LAYERS + 48


@pytest.mark.parametrize(
    ("kind", "exact"),
    [
        pytest.param("nf4", False, marks=pytest.mark.full),
        ("nf4-double", True),
        pytest.param("int8", False, marks=pytest.mark.full),
    ],
)
@torch.no_grad()
def test_sampled_logprobs_are_those_of_training(kind, exact, device, monkeypatch):
    """With adapters that are not zero. Prompts of 215 tokens are more rows than the product by codes takes."""
    monkeypatch.setattr(linear, "narrow_tiles_agree", lambda *_: True)  # its trial of a chip reads the results
    models = []
    for where in ("cuda", "cpu"):
        model = load_model("tiny", torch.bfloat16, where, quant=kind)
        lora.inject(model, r=8, alpha=16)
        generator = torch.Generator().manual_seed(0)
        for _, layer in lora.lora_layers(model):
            for factor in (layer.adapter.A, layer.adapter.B):
                factor.data.copy_(torch.randn(factor.shape, generator=generator) / 24)
        models.append(model.eval())
    if exact:
        make_exact(models[0])
    said = paths.products(models[0])
    engine = Engine(models[0], 3, 300)
    prefills = device.watch(monkeypatch, Engine, "_prefill")
    differences = differences_to_training(two_turns(engine), models[1])
    assert sum(len(counts.waits) for counts in prefills) == uploads(device) == (kind != "int8")
    by_codes = device.total.by_kernel["quant_multiply"] > 0
    assert said == f"{kind}, {'by its codes up to 128 rows, else ' * by_codes}dequantised by Triton"
    assert by_codes == (kind != "int8" and not exact)
    assert differences.abs().max() < 0.1 and differences.abs().mean() < 0.03


@pytest.mark.full
def test_an_exact_epoch_uses_one_product_for_any_number_of_rows(device, monkeypatch, tmp_path):
    monkeypatch.setattr(trial, "SEQUENCES", 5)
    metrics = epoch(tmp_path, "algo=ppo", "exact=true", "quant=nf4", *TEXTCRAFT)
    assert metrics["exact"] == "yes" and metrics["sampler_gap"] == 0
    assert device.total.by_kernel["quant_multiply"] == 0


@pytest.mark.parametrize("kind", quant.KINDS)
def test_loading_quantises_on_the_device(kind, device):
    """The codes are those of a CPU."""
    on_device, on_host = load_model("tiny", torch.bfloat16, "cuda", quant=kind), load_model("tiny", quant=kind)
    for one, other in zip(*(quant.block_linears(model).values() for model in (on_device, on_host)), strict=True):
        assert one.weight.is_cuda and torch.equal(one.weight.cpu(), other.weight)
        assert all(torch.equal(x.cpu(), y) for x, y in zip(one.buffers(), other.buffers(), strict=True))
