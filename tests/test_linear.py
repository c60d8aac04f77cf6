"""Layers side by side, plain, frozen and adapted: each gives and passes back what its formula says."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lora
from models.fast import onednn, products
from models.fast.onednn import onednn_matmul, weight_copy
from models.linear import Linear, joint_linear

WIDTHS = (32, 48, 16)


@pytest.fixture(params=["packed", "as they lie"])
def layout(request, monkeypatch):
    """With oneDNN's copies, where this machine has them, and without."""
    if request.param == "as they lie":
        monkeypatch.setattr(onednn, "COPIES_SHARE", 0.0)
        onednn._budget.cache_clear()
    elif not onednn.usable(torch.float32):
        pytest.skip("oneDNN's products are not usable here")
    yield request.param
    onednn._budget.cache_clear()


def layers(dtype=torch.float32, frozen=True, inputs=32) -> list[Linear]:
    """Three of different widths, multiples of 16 as those of models are, the second with a bias."""
    torch.manual_seed(0)
    made = [Linear(inputs, width, bias=i == 1).to(dtype) for i, width in enumerate(WIDTHS)]
    return [layer.requires_grad_(not frozen) for layer in made]


def adapted(ranks=(3, 0, 5), scale=0.7, **keys) -> list[nn.Module]:
    """The same, those with a rank under an adapter whose B is not zero."""
    model = nn.ModuleList(layers(**keys))
    for i, r in enumerate(ranks):
        if r:
            lora.inject(model, r=r, alpha=scale * r, targets=[str(i)])
            nn.init.normal_(model[i].adapter.B)
    return list(model)


def formula(x, layer):
    """Of a layer alone, in float64."""
    base, adapter = getattr(layer, "base_layer", layer), getattr(layer, "adapter", None)
    y = F.linear(x.double(), base.weight.double(), None if base.bias is None else base.bias.double())
    return y if adapter is None else y + adapter.scale * x.double() @ adapter.A.double().mT @ adapter.B.double().mT


@pytest.mark.parametrize("make", [layers, adapted, lambda **keys: layers(frozen=False, **keys)])
@pytest.mark.parametrize("count", [1, 3])
def test_outputs_and_gradients_are_those_of_the_formula(layout, make, count):
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
    """In multiples of sixteen rows, whichever layers are side by side."""
    these = make(dtype=dtype, inputs=192)
    x = torch.randn(512, 192, dtype=dtype)
    whole = joint_linear(x, *these)
    for rows in (slice(0, 16), slice(3, 19), slice(100, 148), slice(17, 497)):
        for y, part in zip(whole, joint_linear(x[rows], *these), strict=True):
            assert torch.equal(part, y[rows])
    for layer, y in zip(these, whole, strict=True):
        assert torch.equal(layer(x), y)


@pytest.mark.parametrize("count", [2, 3])
def test_on_a_gpu_outputs_are_written_in_place(count):
    """The numbers of what other devices than a CPU take; and that they take it, here one without memory."""
    these, x, dy = layers()[-count:], torch.randn(20, 32), torch.randn(20, sum(WIDTHS[-count:]))
    y = torch.cat([formula(x, layer) for layer in these], -1)
    weights, biases = [layer.weight for layer in these], [layer.bias for layer in these]
    torch.testing.assert_close(products.columns(x, weights, biases).double(), y, atol=1e-5, rtol=1e-5)
    back = dy.double() @ torch.cat(weights).double()
    torch.testing.assert_close(products.sum_of_products(dy, weights).double(), back, atol=1e-5, rtol=1e-5)

    these = [layer.to("meta", torch.bfloat16) for layer in these]
    with Called() as called:
        y = Linear.product(x.to("meta", torch.bfloat16), these)
        assert y.shape == dy.shape and Linear.product_back(y, these).shape == x.shape
    assert called.names.count("aten::mm.out") == called.names.count("aten::addmm_") == count - 1
    assert called.names.count("aten::addmm.out") == called.names.count("aten::mm") == 1
    assert not {"aten::cat", "aten::add.Tensor"} & set(called.names)


class Called(TorchDispatchMode):
    """Keeps the names of what is called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


def test_sixteen_bits_are_rounded_once(layout):
    these, x = layers(torch.bfloat16), torch.randn(16, 32).bfloat16()
    for y, layer in zip(joint_linear(x, *these), these, strict=True):
        assert y.dtype == torch.bfloat16
        assert ((y.double() - formula(x, layer)).abs() <= 2**-8 * formula(x, layer).abs() + 1e-5).all()


@pytest.mark.skipif(not onednn.usable(torch.float32), reason="oneDNN's products are not usable here")
def test_copies_are_made_once_and_follow_their_weight():
    (layer, *_), x = layers(), torch.randn(16, 32)
    before, first = layer(x), weight_copy([layer.weight])
    assert first is not None and weight_copy([layer.weight]) is first
    with torch.no_grad():
        layer.weight.mul_(2)
    assert weight_copy([layer.weight]) is not first
    torch.testing.assert_close(layer(x), 2 * before)
    layer.weight = nn.Parameter(-layer.weight.detach(), requires_grad=False)
    torch.testing.assert_close(layer(x), -2 * before)
    gc.collect()
    kept = len(onednn._copies)
    del layer, first, _
    gc.collect()
    assert len(onednn._copies) < kept


@pytest.mark.skipif(not onednn.usable(torch.float32), reason="oneDNN's products are not usable here")
def test_copies_stay_within_their_share_of_memory(monkeypatch):
    first, second, _ = layers()
    room = onednn.bytes_of_copies() + 4 * first.weight.numel()
    monkeypatch.setattr(onednn, "_budget", lambda: room)
    assert weight_copy([first.weight]) is not None and weight_copy([second.weight]) is None
    assert weight_copy([first.weight], transposed=True) is None


def test_trainable_weights_are_never_copied():
    trains = layers(frozen=False)
    assert weight_copy([layer.weight for layer in trains]) is None and trains[0].weight not in onednn._copies


def test_onednn_matmul_is_float32_and_restores_the_switch():
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has no such switch")
    before, (x, w) = matmul.fp32_precision, torch.randn(2, 300, 300)
    with pytest.raises(KeyError), onednn_matmul():
        assert (matmul.fp32_precision == "bf16") == onednn._exact_float32()
        torch.testing.assert_close((x @ w).double(), x.double() @ w.double(), atol=2e-4, rtol=0)
        raise KeyError
    assert matmul.fp32_precision == before


def test_onednn_matmul_does_nothing_where_it_would_round(monkeypatch):
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has no such switch")
    rounded = lambda x, w: x.bfloat16().float() @ w.bfloat16().float()  # noqa: E731
    assert onednn._accurate(48, 256, torch.matmul) and not onednn._accurate(48, 256, rounded)
    monkeypatch.setattr(onednn, "_exact_float32", lambda: False)
    before = matmul.fp32_precision
    with onednn_matmul():
        assert matmul.fp32_precision == before
