"""A mixture of experts: exact on a CPU, its router frozen, its load counted."""

import pytest
import torch
from conftest import random_model

import lora
from models.moe import SparseMLP, take_loads
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


def test_loads_are_counted_in_training_alone_and_taken_once():
    model = adapted()
    with torch.no_grad():
        model(torch.arange(32)[None])
    assert take_loads(model) is None
    model(torch.arange(32)[None])
    counts = [module.loads for module in model.modules() if isinstance(module, SparseMLP)]
    assert [int(count.sum()) for count in counts] == [32 * 3] * 2
    busiest, idle = take_loads(model)
    assert 1 <= busiest <= 6 / 3 and busiest == pytest.approx(sum(int(c.max()) / 16 for c in counts) / 2)
    assert idle == sum(int((c == 0).sum()) / 6 for c in counts) / 2 and take_loads(model) is None
