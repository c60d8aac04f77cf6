"""Layers of one input, plain, frozen and adapted: outputs and gradients match the formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lora
from models.hooks import Hooks, hooks
from models.linear import Linear, joint_linear

WIDTHS = (32, 48, 16)


@pytest.fixture(params=["plain", "fast"])
def layout(request, monkeypatch):
    """Run a test with the plain products, and with those of models/cpu if it is installed."""
    if request.param == "plain":
        for name, function in vars(Hooks()).items():
            monkeypatch.setattr(hooks("cpu"), name, function)
    elif hooks("cpu") == Hooks():
        pytest.skip("models/cpu is not installed")


def layers(dtype=torch.float32, frozen=True, inputs=32) -> list[Linear]:
    """Return three layers of different widths (multiples of 16, as in models), the second with a bias."""
    torch.manual_seed(0)
    made = [Linear(inputs, width, bias=i == 1).to(dtype) for i, width in enumerate(WIDTHS)]
    return [layer.requires_grad_(not frozen) for layer in made]


def adapted(ranks=(3, 0, 5), scale=0.7, **keys) -> list[nn.Module]:
    """Return the layers; each one with a rank has an adapter whose B is not zero."""
    model = nn.ModuleList(layers(**keys))
    for i, r in enumerate(ranks):
        if r:
            lora.inject(model, r=r, alpha=scale * r, targets=[str(i)])
            nn.init.normal_(model[i].adapter.B)
    return list(model)


def formula(x, layer):
    """Return the output of one layer in float64."""
    base, adapter = getattr(layer, "base_layer", layer), getattr(layer, "adapter", None)
    y = F.linear(x.double(), base.weight.double(), None if base.bias is None else base.bias.double())
    return y if adapter is None else y + adapter.scale * x.double() @ adapter.A.double().mT @ adapter.B.double().mT


@pytest.mark.parametrize("make", [layers, adapted, lambda **keys: layers(frozen=False, **keys)])
@pytest.mark.parametrize("count", [1, 3])
def test_outputs_and_gradients_match_the_formula(layout, make, count):
    these, dys = make()[-count:], [torch.randn(20, width) for width in WIDTHS[-count:]]
    x = torch.randn(20, 32, requires_grad=True)
    wanted = [x, *(p for layer in these for p in layer.parameters() if p.requires_grad)]
    ys, expected = joint_linear(x, *these), [formula(x, layer) for layer in these]
    for y, right in zip(ys, expected, strict=True):
        torch.testing.assert_close(y.double(), right, atol=1e-5, rtol=1e-5)
    grads = torch.autograd.grad(ys, wanted, dys)
    right = torch.autograd.grad(expected, wanted, [dy.double() for dy in dys])
    assert len(grads) == len(wanted) and all(g.any() for g in grads)
    torch.testing.assert_close(grads, right, atol=1e-4, rtol=1e-5)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(joint_linear(x, *these), ys, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [layers, adapted])
def test_a_rows_bits_depend_on_that_row_alone(layout, make, dtype):
    """In multiples of sixteen rows, with any layers side by side."""
    these = make(dtype=dtype, inputs=192)
    x = torch.randn(512, 192, dtype=dtype)
    whole = joint_linear(x, *these)
    for rows in (slice(0, 16), slice(3, 19), slice(100, 148), slice(17, 497)):
        for y, part in zip(whole, joint_linear(x[rows], *these), strict=True):
            assert torch.equal(part, y[rows])
    for layer, y in zip(these, whole, strict=True):
        assert torch.equal(layer(x), y)


def test_sixteen_bits_are_rounded_once(layout):
    these, x = layers(torch.bfloat16), torch.randn(16, 32).bfloat16()
    for y, layer in zip(joint_linear(x, *these), these, strict=True):
        assert y.dtype == torch.bfloat16
        assert ((y.double() - formula(x, layer)).abs() <= 2**-8 * formula(x, layer).abs() + 1e-5).all()
