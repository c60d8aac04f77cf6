"""Products with frozen weights: oneDNN's copies, its switch, and products in place on a GPU."""

import gc

import pytest
import torch
from test_linear import WIDTHS, adapted, formula, layers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from models.fast import onednn, products
from models.fast.onednn import onednn_matmul, weight_copy
from models.linear import Linear, joint_linear


def test_without_copies_the_results_are_the_same_to_rounding(monkeypatch):
    these, x = adapted(), torch.randn(32, 32)
    copied = joint_linear(x, *these)
    monkeypatch.setattr(onednn, "COPIES_SHARE", 0.0)
    onednn.budget.cache_clear()
    onednn._copies.clear()
    uncopied = joint_linear(x, *these)
    onednn.budget.cache_clear()
    onednn._copies.clear()
    torch.testing.assert_close(copied, uncopied, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("count", [2, 3])
def test_on_a_gpu_outputs_are_written_in_place(count):
    """The meta device shows that the path for GPUs is taken; the CPU checks its numbers."""
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
    """Record the names of called operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


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
    monkeypatch.setattr(onednn, "budget", lambda: room)
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
        assert (matmul.fp32_precision == "bf16") == onednn.multiplies_float32()
        torch.testing.assert_close((x @ w).double(), x.double() @ w.double(), atol=2e-4, rtol=0)
        raise KeyError
    assert matmul.fp32_precision == before


def test_onednn_matmul_does_nothing_where_it_would_round(monkeypatch):
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has no such switch")
    rounded = lambda x, w: x.bfloat16().float() @ w.bfloat16().float()  # noqa: E731
    assert onednn._accurate(48, 256, torch.matmul) and not onednn._accurate(48, 256, rounded)
    monkeypatch.setattr(onednn, "multiplies_float32", lambda: False)
    before = matmul.fp32_precision
    with onednn_matmul():
        assert matmul.fp32_precision == before
