"""Quantised layers: bitsandbytes' numbers bit for bit, gradients through the dequantised weight, exact sampling."""

import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import random_model, randomize, reference
from random_episodes import gaps_of, play
from safetensors.torch import load_file
from torch import nn

import lora
from models import load_model, quant, trial
from models.cpu.products import dequantise as fast_dequantise
from models.cpu.step import exact_step
from models.linear import Linear
from models.logprob import token_logprobs
from models.quant import KINDS, LEVELS, QuantLinear, block_linears, dequantise, quantise, quantise_blocks

EACH_TRIAL = True

SHAPES = [(64, 64), (3, 43), (1, 1), (5, 64), (48, 80), (300, 896), (257, 129)]


def layer_of(weight_OI: torch.Tensor, kind: str, bias: torch.Tensor | None = None) -> QuantLinear:
    """Return a quantised layer."""
    linear = Linear(*reversed(weight_OI.shape), bias=bias is not None, device="meta")
    layer = QuantLinear(linear, kind)
    tensors = {"weight": weight_OI} if kind == "none" else quantise(weight_OI, kind)
    layer.load_state_dict(tensors | ({} if bias is None else {"bias": bias}), assign=True)
    return layer.requires_grad_(False)


def weight_of(shape: tuple[int, int], dtype=torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) / 20).to(dtype)


def quantised(model, kind: str):
    """Return a copy of the model with quantised block linears, and a dense one with the same dequantised weights."""
    with_codes, dense = copy.deepcopy(model), copy.deepcopy(model)
    for name, linear in block_linears(model).items():
        layer = layer_of(linear.weight.detach(), kind, None if linear.bias is None else linear.bias.detach())
        with_codes.set_submodule(name, layer)
        dense.get_submodule(name).weight.data = layer.dense(linear.weight.dtype)
    return with_codes, dense


# ----------------------------------------------------------------------------------------------------------- formats


def test_nf4_equals_the_reference_vectors():
    """Edge cases: levels themselves, halfway points, zeros, one outlier, an odd count, a short last block, blocks of
    128."""
    vectors = load_file(reference("bnb_vectors.safetensors"))
    cases = sorted({key.rsplit(".", 1)[0] for key in vectors if ".bs" in key})
    assert len(cases) == 8
    for case in cases:
        weight, codes, absmax, dense = (vectors[f"{case}.{name}"] for name in ("w", "q", "absmax", "deq"))
        block = int(case.split(".bs")[1])
        found_codes, found_absmax = quantise_blocks(weight, block)
        assert torch.equal(found_codes, codes) and torch.equal(found_absmax, absmax), case
        assert torch.equal(quant.dequantise_blocks(codes, absmax, weight.shape, block), dense), case


def test_double_quantisation_and_int8_equal_the_reference_vectors():
    """The vectors' dense weight of the double kind is left out: its width is 160, and bitsandbytes 0.50.2 on a CPU
    gives each row whole blocks of 64, though it quantises across rows. Its plain Python code gives what we give."""
    vectors = load_file(reference("bnb_vectors.safetensors"))
    found = quantise(vectors["dq.w"], "nf4-double")
    names = {"weight": "q", "absmax": "absmax_u8", "nested_absmax": "nested_absmax", "nested_map": "nested_map"}
    assert all(torch.equal(found[name], vectors[f"dq.{key}"]) for name, key in names.items())
    assert found["offset"] == vectors["dq.offset"]
    found = quantise(vectors["dq.w"], "int8")
    assert torch.equal(found["weight"], vectors["i8.q"]) and torch.equal(found["absmax"], vectors["i8.scb"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != (1, 1)], ids=str)
def test_random_weights_equal_bitsandbytes(shape, dtype):
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = weight_of(shape, dtype)
    for kind in ("nf4", "nf4-double"):
        layer, double = layer_of(weight, kind), kind == "nf4-double"
        codes, state = functional.quantize_4bit(weight, quant_type="nf4", blocksize=64, compress_statistics=double)
        assert torch.equal(layer.weight, codes) and torch.equal(layer.absmax, state.absmax)
        if double:
            assert torch.equal(layer.nested_absmax, state.state2.absmax) and layer.offset == state.offset
            assert torch.equal(layer.nested_map, state.state2.code)
        if shape[1] % 64 == 0:  # elsewhere its code for CPUs is wrong, see above, or compiles itself for seconds
            assert torch.equal(layer.dense(dtype), functional.dequantize_4bit(codes, state))
    layer, (codes, absmax, _) = layer_of(weight, "int8"), functional.int8_vectorwise_quant(weight.half())
    assert torch.equal(layer.weight, codes) and torch.equal(layer.absmax, absmax)
    assert torch.equal(layer.dense(torch.float32), functional.int8_vectorwise_dequant(codes, absmax))


def test_nf4_is_the_nearest_level():
    """Also where a piece of the weight ends, and in a short last block."""
    weight = weight_of((1031, 259))
    layer, levels = layer_of(weight, "nf4"), torch.tensor(LEVELS)
    scale = layer.absmax.repeat_interleave(64)[: weight.numel()].view(weight.shape)
    nearest = levels[(weight[..., None] / scale[..., None] - levels).abs().argmin(-1)] * scale
    error = (layer.dense(torch.float32) - weight).abs()
    assert (error <= (nearest - weight).abs() + 1e-8).all() and error.max() > 0.01 * weight.abs().max()


@pytest.mark.parametrize(("kind", "most"), [("nf4", 0.1), ("nf4-double", 0.1), ("int8", 0.01)])
def test_rounding_error_is_that_of_the_bits(kind, most):
    """Of normal weights NF4 keeps all but 9 % of the norm, int8 all but 1 %."""
    weight = weight_of((300, 896))
    error = (layer_of(weight, kind).dense(torch.float32) - weight).norm() / weight.norm()
    assert most / 2 < error < most


@pytest.mark.parametrize("kind", KINDS)
def test_zero_rows_stay_zero_and_infinities_are_refused(kind):
    weight = weight_of((6, 128))
    weight[2:4] = 0
    dense = layer_of(weight, kind).dense(torch.float32)
    assert torch.isfinite(dense).all() and (dense[2:4] == 0).all() and (dense[:2] != 0).any()
    for bad in (float("nan"), float("inf")):
        weight[5, 7] = bad
        with pytest.raises(ValueError, match="not finite"):
            quantise(weight, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_fast_weight_equals_the_reference(kind, dtype, monkeypatch):
    monkeypatch.setattr("models.cpu.products.BLOCKS", 7)  # many ragged pieces
    for shape in SHAPES:
        layer = layer_of(weight_of(shape), kind)
        fast, expected = fast_dequantise(layer, dtype), dequantise(layer).to(dtype)
        assert torch.equal(layer.dense(dtype), expected)
        whole = kind != "int8" and shape[0] * shape[1] % 64 == 0
        assert (fast is not None) == whole and (not whole or torch.equal(fast, expected))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_per_weight(kind):
    layer = layer_of(weight_of((512, 1024)), kind)
    size = sum(x.numel() * x.element_size() for x in [*layer.parameters(), *layer.buffers()])
    expected = {"nf4": 4.5, "nf4-double": 4 + 8 / 64 + 32 / 16384, "int8": 8 + 32 / 1024}[kind]
    assert expected <= 8 * size / (512 * 1024) < expected + 0.02  # the map of levels, once a layer


# ------------------------------------------------------------------------------------------------------------ layers


@pytest.mark.parametrize("kind", [*KINDS, "none"])
def test_gradient_of_the_input_is_that_of_the_dense_weight(kind):
    x, bias = torch.randn(5, 80), torch.randn(48)
    layer = layer_of(weight_of((48, 80)), kind, bias)
    dense = layer.dense(torch.float32)
    x.requires_grad_(True)
    y, expected = layer(x), F.linear(x, dense, bias)
    upstream = torch.randn(5, 48)
    assert torch.equal(y, expected)
    grad, expected_grad = (torch.autograd.grad(out, x, upstream)[0] for out in (y, expected))
    torch.testing.assert_close(grad, expected_grad, atol=1e-6, rtol=1e-6)
    assert grad.any() and all(p.grad is None for p in layer.parameters())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]], ids=str)
def test_adapter_gradients_equal_those_over_the_dense_weights(kind, targets, dropout):
    gradients = []
    for model in quantised(random_model("qwen3", attention_bias=True), kind):
        torch.manual_seed(0)
        lora.inject(model, r=4, alpha=8, targets=targets, dropout=dropout)
        randomize(nn.ModuleList(layer.adapters for _, layer in lora.lora_layers(model)))
        ids = torch.arange(40)[None] % 97
        torch.manual_seed(0)
        hidden = model.train()(ids, wanted=torch.arange(39))
        logprobs, _ = token_logprobs(hidden, model.lm_head.weight, ids[0, 1:])
        logprobs.sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    found, expected = gradients
    assert found.keys() == expected.keys() and len(found) == 2 * len(lora.lora_layers(model))
    for name, grad in found.items():
        assert grad.any() and (grad - expected[name]).norm() <= 1e-5 * expected[name].norm(), name


def test_layers_of_one_input_may_be_stored_differently():
    """As in checkpoints that leave some layers out. With and without an adapter on some of them."""
    model = random_model()
    expected = copy.deepcopy(model)
    for name, kind in (("q_proj", "none"), ("k_proj", "nf4"), ("v_proj", "int8")):
        path = f"model.layers.0.self_attn.{name}"
        linear = model.get_submodule(path)
        layer = layer_of(linear.weight.detach(), kind, linear.bias.detach())
        model.set_submodule(path, layer)
        expected.get_submodule(path).weight.data = layer.dense(torch.float32)
    for name in ("o_proj", "k_proj"):
        path = f"model.layers.1.self_attn.{name}"
        linear = model.get_submodule(path)
        model.set_submodule(path, layer_of(linear.weight.detach(), "none", getattr(linear, "bias", None)))
    ids = torch.arange(30)[None]
    assert (model(ids) - expected(ids)).norm() < 1e-5 * expected(ids).norm()


def test_only_block_linears_are_quantised():
    """Casting the model leaves the codes and their scales as they are."""
    model = load_model("tiny", torch.bfloat16, quant="nf4-double")
    layers = block_linears(model)
    assert len(layers) == 7 * model.config.num_hidden_layers and all(type(x) is QuantLinear for x in layers.values())
    plain = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
    assert all("norm" in name or "embed" in name or "bias" in name or "lm_head" in name for name in plain)
    assert type(model.lm_head) is Linear and model.config.quant == "nf4-double"
    layer = layers["model.layers.0.mlp.up_proj"]
    before = layer.dense(torch.float32)
    model.float().half()
    assert torch.equal(layer.dense(torch.float32), before) and layer.offset.dtype == torch.float32


# ------------------------------------------------------------------------------------------------- exact on a CPU


@pytest.mark.parametrize(
    ("kind", "r", "number", "dtype"),
    [
        ("nf4-double", 3, 3, torch.float32), ("int8", 0, 1, torch.bfloat16),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (
                ("nf4", 16, 1, torch.float32), ("nf4", 1, 3, torch.bfloat16), ("nf4", 0, 2, torch.float32),
                ("int8", 16, 3, torch.float32),
            )
        ),
    ],
)  # fmt: skip
@torch.no_grad()
def test_sampling_and_training_agree_bitwise(kind, r, number, dtype):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        model = load_model("tiny", dtype, quant=kind)
        if r:
            lora.inject(model, r, 2 * r)
            generator = torch.Generator().manual_seed(0)
            for _, layer in lora.lora_layers(model):
                B = layer.adapters["default"].B
                B.data = torch.randn(B.shape, generator=generator) / 10
        assert trial.first_difference(model) is None
        assert exact_step(model) is None, "its stacks would be dense"
        assert gaps_of(model, play(model, 12, 5, 2, 4, 90)).max() == 0.0
    finally:
        torch.set_num_threads(before)
