"""A mixture of experts: exact on a CPU, its router frozen, its load counted."""

from statistics import fmean

import pytest
import torch
from conftest import random_model

import lora
from models.moe import balance, expert_loads
from models.trial import first_difference


def adapted(targets: str = "all-linear"):
    model = random_model("qwen3_moe", hidden_size=96, head_dim=32, moe_intermediate_size=96)
    lora.inject(model, r=16, targets=targets)
    return model


@pytest.mark.parametrize("targets", ["attention", "all-linear"])
def test_sampling_and_training_agree_bit_for_bit(targets):
    assert first_difference(adapted(targets)) is None


def test_each_row_is_the_sum_over_its_experts():
    mlp, x_ND = adapted().model.layers[0].mlp, torch.randn(48, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for row, got in zip(x_ND, mlp(x_ND), strict=True):
            shares, chosen = mlp.gate(row).softmax(-1).topk(3)
            expected = sum(p * mlp.experts[i](row[None])[0] for p, i in zip(shares, chosen.tolist(), strict=True))
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_adapters_train_and_the_router_does_not():
    model = adapted()
    for _, layer in lora.lora_layers(model):
        layer.adapters["default"].B.data.normal_(generator=torch.Generator().manual_seed(0))
    model(torch.arange(96)[None]).square().sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    assert all((grad is not None) == (".adapters." in name) for name, grad in grads.items())
    assert any("experts" in name and grad.any() for name, grad in grads.items() if grad is not None)


def test_loads_are_those_of_the_last_forward_with_gradients():
    model = adapted()
    model(torch.arange(48)[None])
    model(torch.arange(32)[None])
    with torch.no_grad():
        model(torch.arange(16)[None])
    loads = expert_loads(model.model.layers)
    assert loads.dtype == torch.int64 and loads.shape == (2, 6) and loads.sum(1).tolist() == [32 * 3] * 2
    assert expert_loads(random_model().model.layers).tolist() == []
    x_ND = model.model.embed_tokens(torch.arange(32))
    with torch.no_grad():
        chosen = model.model.layers[0].mlp.gate(x_ND).topk(3).indices.flatten().tolist()
    model.model.layers[0].mlp(x_ND)
    assert expert_loads(model.model.layers)[0].tolist() == [chosen.count(expert) for expert in range(6)]


def test_balance_is_the_mean_over_layers():
    loads = [[2, 4, 1, 1], [0, 0, 8, 0]]
    means = [fmean([max(of) / fmean(of) for of in loads]), fmean([of.count(0) / 4 for of in loads])]
    assert balance(torch.tensor(loads)) == tuple(means) == (3.0, 0.375)
