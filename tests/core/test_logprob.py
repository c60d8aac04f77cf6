"""Token log-probabilities match the full softmax with all gradients, in chunks, and rows are independent."""

import pytest
import torch
from live_storage import LiveStorage
from torch.utils._python_dispatch import TorchDispatchMode

from models import head, logprob
from models.hooks import hooks, nothing_faster
from models.logprob import token_logprobs

PLAIN = hooks("cpu").token_logprobs is nothing_faster  # in test_without_folders.py


def problem(N: int, V: int, D: int = 12, dtype=torch.float64, seed: int = 0):
    """Return hidden_ND and weight_VD with clearly different probabilities, and targets_N."""
    g = torch.Generator().manual_seed(seed)
    hidden_ND, weight_VD = (torch.randn(n, D, generator=g, dtype=dtype) for n in (N, V))
    return hidden_ND, weight_VD, torch.randint(V, (N,), generator=g)


def textbook(hidden_ND, weight_VD, targets_N, temperature=1.0):
    """Return (logprobs_N, entropy_N) from all logits at once."""
    logp_NV = (hidden_ND @ weight_VD.T / temperature).log_softmax(-1)
    return logp_NV.gather(1, targets_N[:, None])[:, 0], -(logp_NV.exp() * logp_NV).sum(-1)


@pytest.fixture(params=["one chunk", "chunks"])
def chunks(request, monkeypatch):
    """Compute all rows and tokens at once, and 16 rows by 10 tokens at a time."""
    if request.param == "chunks":
        for module in (logprob, head):
            monkeypatch.setattr(module, "ROWS", 16)
        monkeypatch.setattr(logprob, "SLAB", 10)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("N", [1, 15, 16, 17, 50])
@pytest.mark.parametrize("trainable", ["hidden", "weight", "both"])
def test_values_and_gradients_match_the_full_softmax(chunks, N, temperature, trainable):
    hidden, weight, targets = problem(N, 41)
    wanted = [x.requires_grad_() for name, x in (("hidden", hidden), ("weight", weight)) if trainable in (name, "both")]
    probe, entropy_probe = torch.rand(2, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    expected, expected_entropy = textbook(hidden, weight, targets, temperature)
    got, entropy = token_logprobs(hidden, weight, targets, temperature)
    torch.testing.assert_close((got, entropy), (expected, expected_entropy), atol=1e-12, rtol=1e-12)
    assert not entropy.requires_grad
    expected_grads = torch.autograd.grad((expected * probe).sum(), wanted, retain_graph=True)
    grads = torch.autograd.grad((got * probe).sum(), wanted)
    torch.testing.assert_close(grads, expected_grads, atol=1e-12, rtol=1e-12)

    got, entropy = token_logprobs(hidden, weight, targets, temperature, entropy_grad=True)
    expected_grads = torch.autograd.grad((expected * probe + expected_entropy * entropy_probe).sum(), wanted)
    grads = torch.autograd.grad((got * probe + entropy * entropy_probe).sum(), wanted)
    torch.testing.assert_close(grads, expected_grads, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("trainable_head", [False, True])
def test_gradcheck(trainable_head):
    hidden, weight, targets = problem(5, 7, D=3)
    weight.requires_grad_(trainable_head)
    inputs = (hidden.requires_grad_(), weight, targets, 0.8, True)
    assert torch.autograd.gradcheck(token_logprobs, inputs)
    only_entropy = torch.autograd.grad(token_logprobs(*inputs)[1].sum(), hidden)
    expected = torch.autograd.grad(textbook(*inputs[:4])[1].sum(), hidden)
    torch.testing.assert_close(only_entropy, expected, atol=1e-12, rtol=1e-12)


def test_a_hand_worked_value():
    """Logits (0, ln 3) have probabilities 1/4 and 3/4; at temperature 1/2 they are squared: 1/10 and 9/10."""
    hidden, weight = torch.ones(2, 1), torch.tensor([[1.0], [3.0]]).log()
    logprobs, entropy = token_logprobs(hidden, weight, torch.tensor([0, 1]))
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(entropy, torch.full((2,), 0.5623351446188083))
    torch.testing.assert_close(
        token_logprobs(hidden, weight, torch.tensor([0, 1]), 0.5)[0].exp(), torch.tensor([0.1, 0.9])
    )


@pytest.mark.parametrize("trainable_head", [False, True])
def test_bfloat16_is_computed_in_float32_after_the_product(trainable_head):
    """Results are float32, near float64's for the rounded inputs; gradients are bfloat16, within its rounding."""
    hidden, weight, targets = problem(40, 300, D=32)
    hidden, weight = (hidden / 4).bfloat16().requires_grad_(), weight.bfloat16().requires_grad_(trainable_head)
    wide = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    expected, expected_entropy = textbook(*wide, targets)
    got, entropy = token_logprobs(hidden, weight, targets)
    assert got.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, atol=0.03, rtol=0)
    torch.testing.assert_close(entropy.double(), expected_entropy, atol=0.03, rtol=0)
    got.sum().backward(), expected.sum().backward()
    for x, truth in zip((hidden, weight)[: 1 + trainable_head], wide, strict=False):
        assert x.grad.dtype == torch.bfloat16
        assert (x.grad - truth.grad).norm() < 0.02 * truth.grad.norm()


def test_large_logits_do_not_overflow():
    hidden, weight, _ = problem(20, 30, dtype=torch.float32)
    best_first = (hidden @ weight.T).argsort(descending=True)
    for rank, expected in ((0, True), (1, False)):
        logprobs, entropy = token_logprobs(hidden * 1e30, weight, best_first[:, rank])
        assert logprobs.isfinite().all() and (entropy == 0).all() and ((logprobs == 0) == expected).all()


@pytest.mark.parametrize("V", [640, 97, 4099])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_result_is_bitwise_independent_of_the_other_rows(chunks, V, dtype, monkeypatch):
    """So is the gradient of its hidden state."""
    if logprob.SLAB < V // 100:
        monkeypatch.setattr(logprob, "SLAB", 100)  # hundreds of chunks take seconds
    hidden, weight, targets = problem(100, V, D=64, dtype=torch.float32)
    hidden, weight = hidden.to(dtype).requires_grad_(), weight.to(dtype)
    full = torch.stack(token_logprobs(hidden, weight, targets, 0.8))
    (full_grad,) = torch.autograd.grad(full[0].sum(), hidden)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    for rows in (order, order[:1], order[:2], order[:17], order[:33], slice(99, 100), slice(31, 50)):
        some = torch.stack(token_logprobs(hidden[rows], weight, targets[rows], 0.8))
        (grad,) = torch.autograd.grad(some[0].sum(), hidden)
        assert torch.equal(some, full[:, rows]) and torch.equal(grad[rows], full_grad[rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_heads_log_probabilities_are_exact_to_1e4(chunks, dtype):
    """Compared with float64 on the same inputs, with logits up to 60 and probabilities from nearly 1 to nearly 0."""
    hidden, weight, targets = (x.to(dtype) if x.is_floating_point() else x for x in problem(48, 5000, D=64))
    hidden *= 2
    targets[:24] = (hidden @ weight.mT)[:24].argmax(-1)
    expected, expected_entropy = textbook(hidden.double(), weight.double(), targets)
    assert expected.max() > -1e-3 and expected.min() < -40
    got, entropy = token_logprobs(hidden, weight, targets)
    assert (got - expected).abs().max() <= 1e-4 and (entropy - expected_entropy).abs().max() <= 1e-4


@pytest.mark.parametrize("trainable_head", [False, True])
def test_slabs_add_up_in_float32(monkeypatch, trainable_head):
    """A 16-bit gradient is rounded once, not once per slab."""
    monkeypatch.setattr(logprob, "SLAB", 50)
    hidden, weight, targets = problem(32, 3000, D=64)
    errors = []
    for function in (token_logprobs, textbook):
        h, w = hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_(trainable_head)
        extra = {"entropy_grad": True} if function is token_logprobs else {}
        wide = (h, w) if function is token_logprobs else (h.double(), w.double())
        logprobs, entropy = function(*wide, targets, **extra)
        errors.append(torch.autograd.grad((logprobs + entropy).sum(), h)[0].double())
    assert (errors[0] - errors[1]).norm() <= 4e-3 * errors[1].norm()


def test_gradients_of_nearly_certain_tokens_keep_their_digits():
    """The gradient is the small difference of two similar weights, and not their rounding."""
    hidden, weight, targets = problem(32, 500, D=64)
    hidden *= 3
    targets = (hidden @ weight.mT).argmax(-1)
    found = []
    for dtype in (torch.bfloat16, torch.float64):
        h = hidden.bfloat16().to(dtype).requires_grad_()
        logprobs, _ = token_logprobs(h, weight.bfloat16().to(dtype), targets)
        found.append(torch.autograd.grad(logprobs.sum(), h)[0].double())
    sizes = found[1].norm(dim=-1)
    assert sizes.min() < 1e-3 < sizes.max() and ((found[0] - found[1]).norm(dim=-1) <= 0.02 * sizes + 1e-4).all()


class Largest(TorchDispatchMode):
    """Record the number of elements of the largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.elements = max(self.elements, *(x.numel() for x in tensors), 0)
        return out


@pytest.mark.parametrize("trainable_head", [False, True])
def test_all_logits_are_never_in_memory(monkeypatch, trainable_head):
    N, V = 2000, 500
    for module in (logprob, head):
        monkeypatch.setattr(module, "ROWS", 400)
    monkeypatch.setattr(logprob, "SLAB", 100)
    hidden, weight, targets = problem(N, V, dtype=torch.float32)
    hidden.requires_grad_(), weight.requires_grad_(trainable_head)
    with Largest() as largest:
        logprobs, entropy = token_logprobs(hidden, weight, targets, entropy_grad=True)
        (logprobs + entropy).sum().backward()
    assert largest.elements == 400 * (V if PLAIN else 100) < N * V


@pytest.mark.skipif(PLAIN, reason="models/head.py makes a slab at a time")
@pytest.mark.parametrize("entropy_grad", [False, True])
def test_a_slabs_logits_go_before_the_next_ones_come(entropy_grad, monkeypatch):
    monkeypatch.setattr(logprob, "SLAB", 1024)
    peaks = []
    for V in (1024, 4096):
        hidden, weight, targets = problem(256, V, D=8, dtype=torch.float32)
        hidden.requires_grad_()
        with LiveStorage() as live:
            logprobs, entropy = token_logprobs(hidden, weight, targets, entropy_grad=entropy_grad)
            (logprobs + entropy.detach()).sum().backward()
        peaks.append(live.peak)
    assert peaks[1] < 1.2 * peaks[0] and peaks[0] > 2 * 4 * 256 * 1024, "copies of the weights count too"


def test_nothing_is_written_into_the_arguments():
    arguments = problem(20, 30)
    before = [x.clone() for x in arguments]
    arguments[0].requires_grad_()
    token_logprobs(*arguments, 0.5)[0].sum().backward()
    assert all(torch.equal(x, y) for x, y in zip(arguments, before, strict=True))


@pytest.mark.parametrize("temperature", [0, 0.0, -1, float("nan")])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature must be positive"):
        token_logprobs(*problem(2, 5), temperature)
