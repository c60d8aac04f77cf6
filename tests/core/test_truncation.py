"""Top-k and top-p: which tokens are sampled, in which proportions, and only within the context."""

import pytest
import torch
from conftest import random_model, run_program

from models.engine import Engine
from models.hooks import hooks
from models.truncation import choose, truncate, truncated

PROBS = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2])


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (0, 1.0, {0, 1, 2, 3, 4}),
        (2, 1.0, {1, 3}),
        (9, 1.0, {0, 1, 2, 3, 4}),
        (0, 0.39, {1}),
        (0, 0.5, {1, 3}),
        (0, 0.86, {0, 1, 3, 4}),
        (3, 0.7, {1, 3}),  # of the three, the first two have 0.65 / 0.85
    ],
)
def test_the_set_is_the_smallest_of_that_probability(top_k, top_p, kept):
    logits_BV = truncate(torch.stack((PROBS, PROBS.flip(0))).log(), top_k, top_p)
    assert {i for i in range(5) if logits_BV[0, i].isfinite()} == kept
    assert {4 - i for i in range(5) if logits_BV[1, i].isfinite()} == kept


def test_ties_with_the_last_token_belong_to_the_set():
    assert truncate(torch.tensor([[0.0, 1.0, 0.0]]), 2, 1.0).isfinite().all()


def test_tokens_come_in_proportion_to_the_renormalised_probabilities():
    count = 1000
    logits_BV = truncate(PROBS.log().expand(count, -1), 0, 0.6)  # 0.4 and 0.25
    uniforms_B = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    ids_B, logprobs_B = choose(logits_BV, uniforms_B)
    assert set(ids_B.tolist()) == {1, 3} and abs(int((ids_B == 1).sum()) - count * 0.4 / 0.65) <= 1
    expected = torch.where(ids_B == 1, 0.4 / 0.65, 0.25 / 0.65).log()
    torch.testing.assert_close(logprobs_B, expected)


def test_engines_sample_truncated_only_within_the_context():
    """With top_k=1 sampling is greedy; without truncation the context changes nothing."""
    model = random_model()

    def ids(temperature):
        sampler = Engine(model, 1, 100)
        sampler.feed(sampler.open((0, 0)), [1, 2, 3])
        (row,) = sampler.run(20, temperature, frozenset())
        return row.ids

    sampled, greedy, before = ids(1.0), ids(0.0), hooks("cpu").sample
    with truncated("cpu", top_k=1):
        assert ids(1.0) == greedy == ids(0.0) != sampled
    with truncated("cpu"):
        assert ids(1.0) == sampled and hooks("cpu").sample is before
    assert ids(1.0) == sampled and hooks("cpu").sample is before


def test_eval_samples_truncated_and_refuses_impossible_values():
    common = "eval.py", "n=2", "env=textcraft", "textcraft.max_turns=1", "max_new_tokens=4"
    status, out, err = run_program(*common, "top_k=1")
    lines = [line.split("success")[1] for line in out.splitlines() if ": test " in line]
    assert status == 0 and len(lines) == 2 and lines[0] == lines[1], "top_k=1 is greedy" + err
    for word, reason in (
        ("top_p=0", "top_p"),
        ("top_p=1.5", "top_p=1.5: a probability"),
        ("top_k=-1", "top_k"),
    ):
        status, out, err = run_program(*common, word)
        assert status == 2 and reason in err and len(err.splitlines()) == 1
    status, _, err = run_program(*common, "top_k=5", "server=http://localhost:1/v1", "model=x")
    assert status == 2 and "the server samples" in err
