"""Importance weights of episodes that another program sampled, and the masks on them."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rl import gigpo, grpo, opd, ppo
from rl.batch import make_batch
from rl.config.fields import Server
from rl.records import Batch, Episode
from rl.remote import off_policy

OWN = [[-1.0, -1.5, -1.0], [-2.0, -4.0]]  # log-probabilities under the trainer at the start of the update
SAMPLED = [[-1.0, -2.0, -3.0], [-1.5, -2.0]]  # and under the sampler
ADVANTAGES = [1.0, -2.0, 3.0, -1.0, 2.0]
RATIOS = [1.0, math.exp(0.5), math.exp(2.0), math.exp(-0.5), math.exp(-2.0)]


def sampled_elsewhere() -> Batch:
    episodes = []
    for logprobs in SAMPLED:
        episode = Episode("textcraft", 0, 0, [1], [0], [0.0])
        episode.append_turn([2] * len(logprobs), logprobs, "stop")
        episodes.append(episode)
    own_N = torch.tensor([logprob for logprobs in OWN for logprob in logprobs])
    return replace(make_batch(episodes), old_logprobs_N=own_N, advantages_N=torch.tensor(ADVANTAGES))


def test_weights_are_truncated_ratios_and_scale_advantages():
    found = off_policy.weighted(sampled_elsewhere(), Server(sampler_clip=2.0))
    wanted = [a * min(ratio, 2.0) for a, ratio in zip(ADVANTAGES, RATIOS, strict=True)]
    assert found.advantages_N.tolist() == pytest.approx(wanted)
    assert found.metrics == {
        "remote_clipped": pytest.approx(1 / 5),
        "remote_weight_mean": pytest.approx(sum(min(ratio, 2.0) for ratio in RATIOS) / 5),
    }


@pytest.mark.parametrize(
    ("floor", "sequence", "masked"),
    [
        (0.5, 0.0, [4]),
        (0.7, 0.0, [3, 4]),
        (0.0, 0.28, []),  # geometric means exp(2.5 / 3) = 2.30 and exp(-1.25) = 0.2865
        (0.0, 0.29, [3, 4]),
        (0.0, 0.5, [0, 1, 2, 3, 4]),
        (0.5, 0.28, [4]),
        (0.1, 0.2, []),
    ],
)
def test_masks_leave_out_tokens_below_the_floor_and_far_episodes(floor, sequence, masked):
    """Against a loop over episodes."""
    cfg = Server(sampler_floor=floor, sampler_sequence=sequence)
    found, expected, n = off_policy.weighted(sampled_elsewhere(), cfg), [], 0
    for own, sampled in zip(OWN, SAMPLED, strict=True):
        mean = math.exp(sum(a - b for a, b in zip(own, sampled, strict=True)) / len(own))
        far = sequence and not sequence <= mean <= 1 / sequence
        for _ in own:
            weight = min(RATIOS[n], 2.0)
            expected.append(0.0 if far or weight < floor else ADVANTAGES[n] * weight)
            n += 1
    assert found.advantages_N.tolist() == pytest.approx(expected)
    assert [n for n, advantage in enumerate(expected) if advantage == 0] == masked
    assert found.metrics["remote_masked"] == pytest.approx(len(masked) / 5)


CLIPPED = {
    "ppo": (ppo.loss, ppo.Config(clip=0.2, vf_coef=0.0, entropy_coef=0.0)),
    "grpo": (grpo.loss, grpo.Config(clip=0.2, clip_high=0.2)),
    "gigpo": (gigpo.loss, gigpo.Config(clip=0.2, clip_high=0.2)),
    "opd": (opd.loss, opd.Config(teacher="x", clip=0.2, clip_high=0.2)),
}


@pytest.mark.parametrize("algo", CLIPPED)
def test_weights_of_a_clipped_surrogate_are_the_decoupled_objective(algo):
    """Hilton et al. 2021: behaviour, proximal and current policy, each token and its gradient written out."""
    batch = off_policy.weighted(sampled_elsewhere(), Server(sampler_clip=1e9))
    current_N = (batch.old_logprobs_N + torch.tensor([0.1, -0.4, 0.5, 0.05, 0.4])).requires_grad_()
    zeros_N = torch.zeros(5)
    values = {"values_N": zeros_N, "old_values_N": zeros_N, "returns_N": zeros_N, "teacher_logprobs_N": zeros_N}
    batch = replace(batch, logprobs_N=current_N, entropy_N=zeros_N, **values)
    of_algorithm, cfg = CLIPPED[algo]
    loss, _ = of_algorithm(batch, cfg)
    textbook = 0.0
    behaviours, proximals = ([x for part in parts for x in part] for parts in (SAMPLED, OWN))
    for current, proximal, behaviour, advantage in zip(current_N, proximals, behaviours, ADVANTAGES, strict=True):
        of_proximal = math.exp(proximal - behaviour)
        plain = (current - behaviour).exp() * advantage
        clipped = (current - proximal).exp().clamp(0.8, 1.2) * of_proximal * advantage
        textbook = textbook - torch.minimum(plain, clipped) / 5
    torch.testing.assert_close(loss, textbook)
    found, wanted = (torch.autograd.grad(x, current_N, retain_graph=True)[0] for x in (loss, textbook))
    torch.testing.assert_close(found, wanted)
    assert (found == 0).any() and found.any()


@pytest.mark.parametrize(("ahead", "kept"), [(None, [1]), (5, [0, 1]), (7, [1])])
def test_far_episodes_are_left_out_unless_an_update_lies_between(ahead, kept, monkeypatch):
    """`ahead` is the step of the weights that sampled, of 7; the first episode is 2 nats per token away."""
    batch = make_batch(sampled_elsewhere().episodes)
    moved_N = batch.old_logprobs_N - 2.0 * (batch.episode_N == 0)
    monkeypatch.setattr(off_policy, "policy_logprobs", lambda *_: moved_N)
    now = None if ahead is None else SimpleNamespace(now=SimpleNamespace(step=ahead))
    state = SimpleNamespace(model=None, step=7, ahead=now)
    found = off_policy.recomputed(batch, state, SimpleNamespace(temperature=1.0, sampler="x"), 64)
    assert [batch.episodes.index(episode) for episode in found.episodes] == kept and found.metrics["remote_far"] == 1
    assert torch.equal(found.old_logprobs_N, moved_N if len(kept) == 2 else moved_N[batch.episode_N == 1])
