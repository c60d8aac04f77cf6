"""Out of memory in an update: smaller micro-batches with the same gradient, then advice. Errors are planted."""

import pytest
import torch
from test_learning import make_state, play

from rl import update
from rl.batch import make_batch
from rl.config import algorithm_module


def gradients(monkeypatch, fits: int, **keys):
    """Return the gradient, the metrics and the sizes of the micro-batches of a step on a device that holds `fits`
    tokens at once."""
    state, cfg = make_state("grpo", episodes=16, **keys)
    batch = make_batch(play(state, cfg, 0))
    batch.advantages_N = torch.linspace(-1, 1, len(batch.episode_N))
    batch = next(update.optimizer_steps(batch, 16, None))
    found, sizes, forward = {}, [], update.forward

    def limited(micro, model, *rest):
        tokens = sum(len(e.ids_T) for e in micro.episodes)
        result = forward(micro, model, *rest)
        if tokens > fits:
            result.logprobs_N.sum().backward()  # an attempt that dies in its backward leaves gradients behind
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        sizes.append(tokens)
        return result

    monkeypatch.setattr(update, "forward", limited)
    monkeypatch.setattr(
        state.optimizer, "step", lambda: found.update({n: p.grad for n, p in state.trainable().items()})
    )
    stats = update.optimizer_step(state, batch, algorithm_module("grpo"), cfg)
    monkeypatch.undo()
    return found, stats, sizes, state


def test_smaller_micro_batches_have_the_same_gradient(monkeypatch, capsys):
    """Of 16 episodes of 6 tokens, 96 fit by configuration and 25 in memory: 48, then 24."""
    found, stats, sizes, state = gradients(monkeypatch, 25, micro_tokens=96)
    assert sizes == [24] * 4 and state.micro_tokens == 24
    assert "again with micro_tokens=24, the same gradient up to rounding" in capsys.readouterr().out
    expected, expected_stats, expected_sizes, _ = gradients(monkeypatch, 99, micro_tokens=24)
    assert sizes == expected_sizes and stats == expected_stats
    assert all(torch.equal(found[name], grad) for name, grad in expected.items()), "bit for bit"
    whole, *_ = gradients(monkeypatch, 99, micro_tokens=96)
    for name, grad in whole.items():
        torch.testing.assert_close(found[name], grad, atol=1e-6 * float(grad.abs().max()), rtol=1e-5)


def test_an_episode_longer_than_micro_tokens_still_trains(monkeypatch):
    found, _, sizes, _ = gradients(monkeypatch, 99, micro_tokens=1)
    assert sizes == [6] * 16
    whole, *_ = gradients(monkeypatch, 99, micro_tokens=96)
    for name, grad in whole.items():
        torch.testing.assert_close(found[name], grad, atol=1e-6 * float(grad.abs().max()), rtol=1e-5)


def test_advice_where_a_single_episode_does_not_fit(monkeypatch):
    with pytest.raises(ValueError, match=r"a single episode of up to 6 tokens; checkpoint=block keeps less") as error:
        gradients(monkeypatch, 5)
    assert "\n" not in str(error.value) and "plan=true" in str(error.value)
    with pytest.raises(ValueError, match=r"6 tokens; quant=nf4 .*; dtype=bfloat16 halves .*; max_len below"):
        gradients(monkeypatch, 5, checkpoint="block")
