"""RMSNorm's fast code: the bits of F.rms_norm, and the gradient of its formula."""

import pytest
import torch
import torch.nn.functional as F

from models.cpu import block
from models.decoder import RMSNorm
from models.hooks import hooks

SHAPES = [(1, 1), (1, 192), (3, 31), (16, 192), (33, 4, 32), (257, 896), (2, 3, 5, 17)]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("eps", [1e-6, 1e-5])
def test_bits_are_those_of_torch(shape, number, eps, threads):
    threads(number)
    x, weight = drawn(*shape) * 3, drawn(shape[-1])
    for trains in (False, True):
        found = block.rms_norm(x.clone().requires_grad_(trains), weight, eps)
        assert torch.equal(found, F.rms_norm(x, shape[-1:], weight, eps))


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_is_that_of_the_formula_in_float64(shape):
    x, weight, grad = drawn(*shape), drawn(shape[-1]), drawn(*shape).flip(0)
    ours, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    block.rms_norm(ours, weight, 1e-6).backward(grad)
    F.rms_norm(exact, shape[-1:], weight.double(), 1e-6).backward(grad.double())
    terms = (weight * grad * block.normalize(x, weight, 1e-6)[1]).abs().max()  # they cancel where a row is one number
    torch.testing.assert_close(ours.grad.double(), exact.grad, atol=1e-6 * float(terms), rtol=1e-5)


def test_weights_of_several_heads_are_taken_as_they_lie():
    x, weights = drawn(5, 3, 8), drawn(3, 8)
    found, inverse = block.normalize(x, weights, 1e-6)
    expected = torch.stack([F.rms_norm(x[:, i], (8,), weights[i], 1e-6) for i in range(3)], 1)
    assert torch.equal(found, expected) and inverse.shape == (5, 3, 1)


def test_norms_that_train_other_dtypes_and_devices_are_left_to_torch():
    assert block.rms_norm(drawn(2, 8), drawn(8).requires_grad_(), 1e-6) is None
    assert block.rms_norm(drawn(2, 8).double(), drawn(8).double(), 1e-6) is None
    meta = drawn(2, 8).to("meta")
    assert hooks(meta).rms_norm(meta, drawn(8).to("meta"), 1e-6) is None


def test_the_decoder_takes_it(monkeypatch):
    asked, module = [], RMSNorm(8, 1e-6).requires_grad_(False)
    monkeypatch.setattr(hooks("cpu"), "rms_norm", lambda *words: asked.append(words) or block.rms_norm(*words))
    assert torch.equal(module(drawn(2, 8)), F.rms_norm(drawn(2, 8), (8,), module.weight, 1e-6)) and len(asked) == 1
