"""The arithmetic of policy gradients against hand-worked vectors, and the algorithms that are made of it."""

import math
from dataclasses import replace

import pytest
import torch

from rl import core, gigpo, grpo, kl, opd, ppo, reinforce, sft
from rl.batch import make_batch, micro_batches, whiten_rewards
from rl.kl import next_kl_coef
from rl.records import Batch, Episode, Turn


def f64(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: torch.Tensor, expected, atol: float = 1e-9) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), atol=atol, rtol=0)


def slope(function, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the sum of function(x)."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


def played(*rewards: float, lengths=None, group: int = 0, **keys) -> Episode:
    """Return an episode with a turn per reward: 2 ids of prompt or observation, then `lengths[u]` sampled ids."""
    episode = Episode("fake", 0, group, **{"terminated": True, **keys})
    for reward, n in zip(rewards, lengths or [2] * len(rewards), strict=True):
        start = len(episode.ids_T) + 2
        episode.turns.append(Turn(start, start + n, reward, "stop"))
        episode.ids_T += range(start - 2, start + n)
        episode.action_mask_T += [0, 0] + [1] * n
        episode.logprobs_T += [0.0, 0.0] + [-0.5 - 0.1 * i for i in range(n)]
    return episode


def scored(episodes: list[Episode], seed: int = 0, drift: float = 0.3) -> Batch:
    """Return a float64 batch as a loss gets it, after the policy moved each log-probability by about `drift`."""
    torch.manual_seed(seed)
    batch, draw = make_batch(episodes), lambda n, width: width * torch.randn(n, dtype=torch.float64)
    N, old = len(batch.episode_N), batch.old_logprobs_N.double()
    return replace(
        batch,
        old_logprobs_N=old,
        logprobs_N=(old + draw(N, drift)).requires_grad_(),
        ref_logprobs_N=old + draw(N, 0.3),
        teacher_logprobs_N=old + draw(N, 0.3),
        teacher_choices_N=draw(N, 1.0)[:, None].sigmoid().log() - 0.5,
        choice_logprobs_N=(draw(N, 1.0)[:, None].sigmoid().log() - 0.5).requires_grad_(),
        entropy_N=draw(N, 1.0).abs().requires_grad_(),
        old_values_N=draw(N, 1.0),
        values_N=draw(N, 1.0).requires_grad_(),
        last_values_B=draw(len(episodes), 1.0),
        kl_coef=0.1,
    )


EPISODES = [
    played(0.5, 1.0, lengths=[3, 1], group=0),
    played(1.0, lengths=[5], group=0),
    played(0.0, 0.0, 2.0, lengths=[1, 2, 4], group=1, terminated=False, truncated=True),
    played(-1.0, lengths=[2], group=1),
    played(0.5, 0.5, lengths=[2, 2], group=1),
]
TOKENS, TURNS = 22, 9
ALGORITHMS = {
    "sft": (sft, sft.Config()),
    "ppo": (ppo, ppo.Config()),
    "ppo by token": (ppo, ppo.Config(level="token", value_clip=None, whiten=False)),
    "grpo": (grpo, grpo.Config(kl_coef=0.1)),
    "grpo as published": (grpo, grpo.Config(kl_coef=0.1, divide_by_std=True, aggregation="sequence", clip_high=0.2)),
    "dr grpo": (grpo, grpo.Config(aggregation="constant", kl_coef=0.1, kl_estimator="k2")),
    "dapo": (grpo, grpo.Config(divide_by_std=True, drop_equal=True, overlong_limit=6, overlong_cache=4)),
    "gspo": (grpo, grpo.Config(surrogate="sequence", aggregation="sequence", kl_coef=0.1)),
    "cispo": (grpo, grpo.Config(surrogate="weight")),
    "turns": (grpo, grpo.Config(aggregation="turn")),
    "gigpo": (gigpo, gigpo.Config(divide_by_std=True)),
    "dual clip": (ppo, ppo.Config(dual_clip=1.5, kl_coef=0.1)),
    "kl in the reward": (ppo, ppo.Config(kl_coef=0.1, kl_in="reward", kl_estimator="k1")),
    "opd": (opd, opd.Config(teacher="x", reward_coef=0.5, group_size=2, gate=2.0, aggregation="turn")),
    "opd over choices": (opd, opd.Config(teacher="x", top_k=1, gate=2.0)),
    "reinforce": (reinforce, reinforce.Config(entropy_coef=0.01, kl_coef=0.1)),
    "reinforce by token": (reinforce, reinforce.Config(aggregation="token", whiten=True, gamma=0.9)),
    "rloo": (reinforce, reinforce.Config(baseline="leave_one_out", group_size=2, aggregation="sequence")),
}


# Returns and advantages


@pytest.mark.parametrize(
    ("last_value", "advantages", "returns"),
    [
        (0.0, [0.21712, 0.246, 0.3], [0.71712, 0.846, 1.0]),  # V1: the task terminated
        (0.4, [0.403744, 0.5052, 0.66], [0.903744, 1.1052, 1.36]),  # V2: a limit cut it off
    ],
)
def test_gae(last_value, advantages, returns):
    rewards, values, episode = f64(0, 0, 1), f64(0.5, 0.6, 0.7), torch.zeros(3, dtype=torch.long)
    found = core.gae(rewards, values, episode, f64(last_value), gamma=0.9, lam=0.8)
    close(found[0], advantages)
    close(found[1], returns)


def test_gae_of_ragged_episodes_is_the_sum_of_discounted_deltas():
    torch.manual_seed(0)
    for gamma, lam in ((0.99, 0.95), (1.0, 1.0), (0.9, 0.0), (0.0, 0.9)):
        lengths = torch.randint(1, 8, (20,)).tolist()
        rewards, values = (torch.randn(sum(lengths), dtype=torch.float64) for _ in range(2))
        last, episode = torch.randn(20, dtype=torch.float64), torch.repeat_interleave(torch.tensor(lengths))
        expected = []
        for b, (r, v) in enumerate(zip(rewards.split(lengths), values.split(lengths), strict=True)):
            deltas = r + gamma * torch.cat((v[1:], last[b : b + 1])) - v
            expected += [sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(r))]
        advantages, returns = core.gae(rewards, values, episode, last, gamma, lam)
        close(advantages, torch.stack(expected))
        close(returns, advantages + values)


def test_gae_steps_over_observations():
    """V3: rewards and values of 9 and -9 at masked tokens have no effect; a batch has only sampled tokens."""
    episode = played(0.2, 1.0)
    batch = replace(make_batch([episode]), old_values_N=f64(0.1, 0.3, 0.5, 0.4), last_values_B=f64(0.0))
    cfg = ppo.Config(level="token", gamma=0.99, gae_lambda=0.95, whiten=False)
    batch = ppo.advantages(batch, cfg)
    close(batch.advantages_N, [0.975651377075, 0.82791215, 0.4603, 0.6], 1e-7)
    close(batch.returns_N, [1.075651377075, 1.12791215, 0.9603, 1.0], 1e-7)


def test_turn_level_gae():
    """V4: the value at the turn's first token, one reward, one advantage that all its tokens share."""
    batch = replace(
        make_batch([played(0.2, 1.0, lengths=[2, 3])]),
        old_values_N=f64(0.1, 7.0, 0.5, -7.0, 8.0),
        last_values_B=f64(0.0),
    )
    batch = ppo.advantages(batch, ppo.Config(level="turn", gamma=0.99, gae_lambda=0.95, whiten=False))
    close(batch.advantages_N, [1.06525, 1.06525, 0.5, 0.5, 0.5], 1e-7)
    close(batch.returns_N, [1.16525, 1.16525, 1.0, 1.0, 1.0], 1e-7)


def test_turns_of_one_token_make_turn_level_token_level():
    episodes = [played(*map(float, range(n)), lengths=[1] * n) for n in (1, 4, 2)]
    batch = scored(episodes)
    turn, token = (ppo.advantages(batch, ppo.Config(level=level)) for level in ("turn", "token"))
    assert torch.equal(turn.advantages_N, token.advantages_N) and torch.equal(turn.returns_N, token.returns_N)
    (a, _), (b, _) = ppo.loss(turn, ppo.Config(level="turn")), ppo.loss(token, ppo.Config(level="token"))
    close(a, b.item(), 1e-12)


def test_whiten():
    close(core.whiten(f64(1, 2, 3, 4)), [-1.161895000377, -0.387298333459, 0.387298333459, 1.161895000377])  # V5
    assert core.whiten(f64(3.0)).tolist() == [0.0] and core.whiten(f64(2, 2, 2)).tolist() == [0.0] * 3


GROUPS = [f64(1, 0, 0, 1), f64(1, 1, 1, 1), f64(2, -1, 0.5, 0)]


def test_group_advantages():
    """V6, with the members of the groups shuffled."""
    expected = {
        True: [
            f64(0.865875429761, -0.865875429761, -0.865875429761, 0.865875429761),
            f64(0, 0, 0, 0),
            f64(1.299896008319, -1.099912007039, 0.09999200064, -0.29997600192),
        ],
        False: [f64(0.5, -0.5, -0.5, 0.5), f64(0, 0, 0, 0), f64(1.625, -1.375, 0.125, -0.375)],
    }
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    group = torch.tensor([7, 3, 11]).repeat_interleave(4)[order]
    for divide, values in expected.items():
        close(core.group_advantages(torch.cat(GROUPS)[order], group, divide), torch.cat(values)[order])


def test_groups_of_one_or_equal_scores_have_advantage_0():
    """Exactly 0: subtracting a rounded mean would leave noise of 1e-8 / 1e-4."""
    scores, group = torch.tensor([0.1] * 7 + [5.0]), torch.tensor([0] * 7 + [1])
    for divide in (True, False):
        assert not core.group_advantages(scores, group, divide).any()


def test_over_group_mean():
    """By hand: means 0.5 and 0. A negative score is refused: a negative mean would turn the gradient round."""
    scores, group = f64(1, 0, 0, 1, 0, 0), torch.tensor([7, 7, 7, 7, 3, 3])
    advantages = core.group_advantages(scores, group, divide_by_std=False)
    close(core.over_group_mean(advantages, scores, group), f64(1, -1, -1, 1, 0, 0))
    with pytest.raises(ValueError, match=r"scores of 0 or more, and an episode has -0\.5"):
        core.over_group_mean(advantages, scores - 0.5, group)


def test_graph_returns():
    """Two paths share state 1: 0 -> 1 -> 2 -> lost and 3 -> 1 -> 4 -> solved. State 2 leads nowhere."""
    states, after = torch.tensor([0, 1, 2, 3, 1, 4]), torch.tensor([1, 2, -2, 1, 4, -1])
    close(core.graph_returns(states, after, 0.5), f64(0.25, 0, 0, 0.25, 0.5, 1).float())
    close(core.graph_returns(states, after, 1.0), f64(1, 0, 0, 1, 1, 1).float())
    assert not core.graph_returns(torch.tensor([0, 0]), torch.tensor([0, -2]), 0.9).any(), "no episode succeeded"


# Losses


V7 = 0.2, [-2.4, -1.0, 3.0, 1.6, -1.1, 5.0], [0.0, -1.0, 3.0, 0.0, -1.1, 5.0]
CLIP_HIGHER = 0.28, [-2.56, -1.0, 3.0, 1.6, -1.1, 5.0], [0.0, -1.0, 3.0, 0.0, -1.1, 5.0]  # V7b


@pytest.mark.parametrize(("clip_high", "losses", "slopes"), [V7, CLIP_HIGHER])
def test_clipped_surrogate(clip_high, losses, slopes):
    old = f64(-1.0, -2.0, -0.5, -3.0, -1.5, -2.5)
    logprobs, A = old + f64(1.5, 0.5, 1.5, 0.5, 1.1, 5.0).log(), f64(2, 2, -2, -2, 1, -1)
    loss, ratio, clipped = core.clipped_surrogate(logprobs - old, A, 0.2, clip_high)
    close(loss, losses)
    close(ratio, [1.5, 0.5, 1.5, 0.5, 1.1, 5.0])
    assert clipped.tolist() == [1, 0, 0, 1, 0, 0] and clipped.mean().item() == pytest.approx(1 / 3)
    close(slope(lambda x: core.clipped_surrogate(x - old, A, 0.2, clip_high)[0], logprobs), slopes)


def test_dual_clip():
    """V7: with a negative advantage the loss is at most 3 times it, and flat beyond; other losses do not change."""
    log_ratio, A = f64(1.5, 0.5, 1.5, 0.5, 1.1, 5.0).log(), f64(2, 2, -2, -2, 1, -1)
    loss, _, clipped = core.clipped_surrogate(log_ratio, A, 0.2, 0.2, 3.0)
    close(loss, [-2.4, -1.0, 3.0, 1.6, -1.1, 3.0])
    close(slope(lambda x: core.clipped_surrogate(x, A, 0.2, 0.2, 3.0)[0], log_ratio), [0.0, -1.0, 3.0, 0.0, -1.1, 0.0])
    assert clipped.tolist() == [1, 0, 0, 1, 0, 1]


def test_gspo():
    """V11: one ratio per episode, the geometric mean; its gradient is shared by the episode's tokens."""
    ratio, episode, A = f64(1.2, 0.9, 1.1, 0.7, 0.8), torch.tensor([0, 0, 0, 1, 1]), f64(1, 1, 1, -1, -1)

    def loss(log_ratio):
        mean = core.sequence_log_ratio(log_ratio, episode)
        return core.aggregate(core.clipped_surrogate(mean, A, 0.3, 0.3)[0], episode, "sequence", 5, 2)

    close(core.sequence_log_ratio(ratio.log(), episode).exp(), [1.059104500598] * 3 + [0.748331477355] * 2)
    close(loss(ratio.log()), -0.155386511622)
    close(slope(loss, ratio.log()), [-0.176517416766] * 3 + [0.187082869339] * 2)


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    logprobs, ratio, A = f64(-1.0, -2.0, -0.5), f64(1.5, 0.5, 1.1), f64(2, -2, -1)
    loss, found, clipped = core.weighted_surrogate(ratio.log(), logprobs, A, 0.2, 0.28)
    close(loss, [1.28 * 2 * 1.0, -0.8 * 2 * 2.0, -1.1 * 0.5])
    close(slope(lambda x: core.weighted_surrogate(ratio.log(), x, A, 0.2, 0.28)[0], logprobs), [-2.56, 1.6, 1.1])
    assert clipped.tolist() == [1, 1, 0]
    close(found, ratio)


def test_leave_one_out():
    """V6: a score minus its baseline is RLOO's advantage. A group of one is its own baseline."""
    group = torch.tensor([0, 1, 2, 0, 0, 1, 1, 0, 1, 3])
    scores = f64(1, 2, 5, 0, 0, -1, 0.5, 1, 0, 7)
    thirds = f64(2, 6.5, 0, -2, -2, -5.5, 0.5, 2, -1.5, 0)
    close(scores - core.leave_one_out(scores, group), thirds / 3)


def test_leave_one_out_of_equal_scores_is_exactly_zero():
    """A rounding error there would be an advantage, and the group would learn from it."""
    for score in (0.1, 1 / 3, 0.7, 1e-3):
        for size in (3, 6, 7, 11):
            scores = torch.full((size,), score)
            assert (scores - core.leave_one_out(scores, torch.zeros(size, dtype=torch.long))).tolist() == [0.0] * size


def test_groups_are_equal_only_exactly():
    scores, group = f64(1, 1, 0.3, 0.3, 0.3, 0.1 + 0.2, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3])
    assert core.equal_groups(scores, group).tolist() == [True] * 4 + [False] * 2 + [True]


def test_overlong_penalty():
    tokens = torch.tensor([10, 80, 90, 100, 500])
    close(core.overlong_penalty(tokens, 100, 20).double(), [0.0, 0.0, -0.5, -1.0, -1.0])


def test_returns_to_go():
    rewards, episode = f64(1, 2, 4, 8, 16), torch.tensor([0, 0, 0, 1, 1])
    close(core.returns_to_go(rewards, episode, 0.5), [1 + 1 + 1, 2 + 2, 4, 8 + 8, 16])
    close(core.returns_to_go(rewards, episode, 0.0), rewards)


def test_moving_average():
    assert reinforce.moving_average(None, 3.0, 0.9) == 3.0
    assert reinforce.moving_average(3.0, 1.0, 0.9) == pytest.approx(2.8)


@pytest.mark.parametrize("gap", [1e4, -1e4])
def test_a_huge_log_ratio_stays_finite(gap):
    loss, ratio, _ = core.clipped_surrogate(torch.tensor([gap]), torch.tensor([-1.0]), 0.2, 0.2)
    assert torch.isfinite(loss).all() and ratio.item() == pytest.approx(math.exp(math.copysign(20, gap)), rel=1e-5)


def test_value_loss():
    values, old, returns = f64(1.0, 0.5, -0.5, 0.1), f64(0.5, 0.5, 0.5, 0.0), f64(2.0, 0.0, -1.0, 0.05)
    close(core.value_loss(values, old, returns, 0.2), [0.845, 0.125, 0.845, 0.00125])  # V8
    close(slope(lambda v: core.value_loss(v, old, returns, 0.2), values), [0.0, 0.5, 0.0, 0.05])
    close(core.value_loss(values, old, returns, None), [0.5, 0.125, 0.125, 0.00125])
    close(slope(lambda v: core.value_loss(v, old, returns, None), values), [-1.0, 0.5, 0.5, 0.05])


@pytest.mark.parametrize(
    ("kind", "values", "slopes"),
    [
        ("k1", [0.2, -0.5, 0.0], [1.0, 1.0, 1.0]),
        ("k2", [0.02, 0.125, 0.0], [0.2, -0.5, 0.0]),
        ("k3", [0.018730753078, 0.1487212707, 0.0], [0.181269246922, -0.6487212707, 0.0]),
    ],
)
def test_kl_estimates(kind, values, slopes):
    reference = f64(-1.0, -2.0, -3.0)  # V9
    logprobs = reference + f64(0.2, -0.5, 0.0)
    close(core.kl_estimate(logprobs, reference, kind), values)
    close(slope(lambda x: core.kl_estimate(x, reference, kind), logprobs), slopes)


@pytest.mark.parametrize(
    ("kind", "expectation", "slopes"),
    [
        ("k1", 0.04989654100768108, [0.0, 0.0, 0.0]),
        ("k2", 0.05041943714773363, [-0.14013610144, 0.004288531723, 0.135847569717]),  # of KL(policy || reference)
        ("k3", 0.04989654100768097, [-0.146384885273, 0.014478408819, 0.131906476454]),  # of KL(reference || policy)
    ],
)
def test_kl_estimates_and_their_gradients_in_expectation(kind, expectation, slopes):
    """V9b: exact expectations over three categories; the samples' probabilities are constants, as in sampling."""
    logits, reference = f64(0.3, -0.2, 0.5), f64(0.5, 0.2, 0.3).log()
    sampled = logits.softmax(0)
    expected = lambda x: sampled * core.kl_estimate(x.log_softmax(0), reference, kind)  # noqa: E731
    assert expected(logits).sum().item() == pytest.approx(expectation, abs=1e-12)
    close(slope(expected, logits), slopes)


def test_approximate_kl_is_from_the_old_policy_to_the_new():
    old, new = f64(0.2, 0.3, 0.5).log(), f64(0.3, 0.2, 0.5).log()
    per_token = core.approximate_kl(new, old)
    assert (per_token >= 0).all() and per_token[2] == 0
    assert (old.exp() * per_token).sum().item() == pytest.approx((old.exp() * (old - new)).sum().item())


@pytest.mark.parametrize("kind", ["k4", "kl", ""])
def test_unknown_names_are_refused(kind):
    with pytest.raises(ValueError, match="is not one of k1, k2, k3"):
        core.kl_estimate(f64(0.0), f64(0.0), kind)
    with pytest.raises(ValueError, match="is not one of token, sequence, turn, episode, constant"):
        core.aggregate(f64(0.0), torch.tensor([0]), kind, 1, 1, 1)
    with pytest.raises(ValueError, match="is not one of constant, linear, cosine"):
        core.learning_rate_factor(0, (0, 1), kind, 0, 0.1)


@pytest.mark.parametrize(
    ("kind", "total"),
    [
        ("token", 4.0),
        ("sequence", 6.25),
        ("turn", 6.5),
        ("episode", 10.0),
        ("constant", 5 / 2),
    ],  # V10, less its empty row
)
def test_aggregate(kind, total):
    loss, episode = f64(1, 2, 3, 4, 10), torch.tensor([0, 0, 0, 0, 1])
    first = torch.tensor([True, False, False, True, True])  # means of turns: 2 and 4, and 10
    close(core.aggregate(loss, episode, kind, total_tokens=5, total_episodes=2, constant=4, turn_first_N=first), total)
    parts = [
        core.aggregate(loss[mine], torch.zeros(int(mine.sum()), dtype=torch.long), kind, 5, 2, 4, first[mine])
        for mine in (episode == 0, episode == 1)
    ]
    close(sum(parts), total)  # not the mean of the pieces' means, 6.25 for tokens


@pytest.mark.parametrize(
    ("kind", "warmup", "factors"),
    [
        ("constant", 0, [1.0] * 6),
        ("constant", 4, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        ("linear", 0, [1.0, 0.84, 0.68, 0.52, 0.36, 0.2]),
        ("linear", 2, [0.5, 1.0, 1.0, 1 - 0.8 / 3, 1 - 1.6 / 3, 0.2]),
        ("cosine", 1, [1.0, 1.0, 0.6 + 0.4 * math.sqrt(0.5), 0.6, 0.6 - 0.4 * math.sqrt(0.5), 0.2]),
    ],
)
def test_learning_rate_factor(kind, warmup, factors):
    steps = (0, len(factors))
    found = [core.learning_rate_factor(step, steps, kind, warmup, 0.2) for step in range(len(factors))]
    assert found == pytest.approx(factors, abs=1e-12)
    later = [core.learning_rate_factor(step + 7, (7, 7 + len(factors)), kind, 0, 0.2) for step in range(len(factors))]
    assert warmup or later == pytest.approx(factors, abs=1e-12)  # a decay may begin after some steps
    assert core.learning_rate_factor(3, (7, 9), kind, 0, 0.2) == 1.0
    past = core.learning_rate_factor(99, steps, kind, warmup, 0.2)
    assert past == pytest.approx(factors[-1])  # a resumed or longer run stays at the end


# The algorithms


@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_sum_to_the_whole(name):
    module, cfg = ALGORITHMS[name]
    whole = module.advantages(scored(EPISODES), cfg)
    fields = ("logprobs_N", "entropy_N", "values_N", "choice_logprobs_N")

    def total(pieces):
        losses, metrics = zip(*(module.loss(piece, cfg) for piece in pieces), strict=True)
        inputs = [getattr(whole, name) for name in fields]
        slopes = torch.autograd.grad(sum(losses), inputs, allow_unused=True)
        summed = {key: sum(m[key] for m in metrics) for key in metrics[0]}
        return sum(losses).item(), summed, [g for g in slopes if g is not None]

    loss, metrics, slopes = total([whole])
    assert metrics["loss"] == pytest.approx(loss, rel=1e-12)
    for micro_tokens in (1, 12, 20):
        pieces = [with_gradient(piece, whole, fields) for piece in micro_batches(whole, micro_tokens)]
        assert 1 < len(pieces) <= len(EPISODES) and {piece.total_tokens for piece in pieces} == {TOKENS}
        piecewise = total(pieces)
        assert piecewise[0] == pytest.approx(loss, rel=1e-9)
        assert piecewise[1] == pytest.approx(metrics, rel=1e-9, abs=1e-12)
        for a, b in zip(piecewise[2], slopes, strict=True):
            close(a, b, 1e-12)


def with_gradient(piece: Batch, whole: Batch, fields) -> Batch:
    """Fill in the fields that a forward sets, cut from the whole batch's so that gradients reach them."""
    index = {id(e): b for b, e in enumerate(whole.episodes)}
    where = torch.cat([(whole.episode_N == index[id(e)]).nonzero()[:, 0] for e in piece.episodes])
    return replace(piece, **{name: getattr(whole, name)[where] for name in fields})


@pytest.mark.parametrize("name", ["ppo", "ppo by token", "grpo", "grpo as published"])
def test_at_ratio_one_the_gradient_is_reinforce(name):
    module, cfg = ALGORITHMS[name]
    cfg = replace(cfg, kl_coef=0.0) if module is grpo else cfg
    batch = module.advantages(scored(EPISODES, drift=0.0), cfg)
    loss, metrics = module.loss(batch, cfg)
    assert metrics["clip_fraction"] == 0.0 and metrics["ratio"] == pytest.approx(1.0) and metrics["approx_kl"] == 0.0
    share_N = torch.full_like(batch.logprobs_N, 1 / TOKENS)
    if name == "grpo as published":
        share_N = 1 / (5 * torch.bincount(batch.episode_N)[batch.episode_N].double())
    (found,) = torch.autograd.grad(loss, batch.logprobs_N)
    close(found, -batch.advantages_N * share_N, 1e-12)
    assert found.any()


def test_the_signs_of_the_ppo_loss():
    """More likely good tokens, higher entropy and values nearer to the returns lower the loss."""
    batch = ppo.advantages(scored(EPISODES, drift=0.0), ppo.Config())
    loss, metrics = ppo.loss(batch, cfg := ppo.Config(value_clip=None))
    slopes = torch.autograd.grad(loss, [batch.logprobs_N, batch.entropy_N, batch.values_N])
    assert (slopes[0].sign() == -batch.advantages_N.sign()).all()
    close(slopes[1], torch.full_like(slopes[1], -cfg.entropy_coef / TOKENS), 1e-12)
    first = batch.turn_first_N
    close(slopes[2][first], cfg.vf_coef * (batch.values_N - batch.returns_N)[first] / TURNS, 1e-12)
    assert not slopes[2][~first].any(), "a turn has one value, at its first token"
    parts = metrics["policy_loss"] + cfg.vf_coef * metrics["value_loss"] - cfg.entropy_coef * metrics["entropy"]
    assert metrics["loss"] == pytest.approx(parts, rel=1e-12)


def test_whitened_advantages_have_mean_0_and_deviation_1():
    batch = ppo.advantages(scored(EPISODES), ppo.Config())
    assert batch.advantages_N.mean().abs() < 1e-12 and batch.advantages_N.std().item() == pytest.approx(1.0)
    raw = ppo.advantages(scored(EPISODES), ppo.Config(whiten=False))
    assert torch.equal(raw.returns_N, batch.returns_N), "returns are never whitened"


def test_grpo_gives_every_token_the_advantage_of_its_episode():
    batch = grpo.advantages(scored(EPISODES), grpo.Config())
    expected = [0.25] * 4 + [-0.25] * 5 + [4 / 3] * 7 + [-5 / 3] * 2 + [1 / 3] * 4
    close(batch.advantages_N, expected, 1e-6)


@pytest.mark.parametrize("divide", [True, False])
def test_equal_scores_have_no_gradient_in_grpo(divide):
    cfg = grpo.Config(divide_by_std=divide)
    batch = grpo.advantages(scored([played(0.1, lengths=[n]) for n in (1, 2, 5)]), cfg)
    assert not batch.advantages_N.any()
    loss, _ = grpo.loss(batch, cfg)
    assert not torch.autograd.grad(loss, batch.logprobs_N)[0].any()


@pytest.mark.parametrize("module", [grpo, ppo, reinforce])
def test_kl_in_the_loss_pulls_towards_the_reference(module):
    """Its weight is kl_coef of the batch, which may have been adapted."""
    still = torch.zeros(TOKENS, dtype=torch.float64)
    batch = replace(scored(EPISODES, drift=0.0), advantages_N=still, returns_N=still)
    cfg = module.Config(kl_coef=9.0)
    (found,) = torch.autograd.grad(module.loss(batch, cfg)[0], batch.logprobs_N)
    share = TOKENS if module is not reinforce else len(EPISODES)
    close(found, 0.1 * (1 - (batch.ref_logprobs_N - batch.logprobs_N).exp()) / share, 1e-12)


def test_gspo_clips_whole_episodes():
    """One ratio far from 1 is balanced by the other tokens of its episode: per-token clipping would clip it."""
    batch = make_batch([played(1.0, lengths=[2], group=0), played(-1.0, lengths=[2], group=0)])
    old = batch.old_logprobs_N.double()
    drift = f64(0.9, -0.9, 0.0, 0.0)
    batch = replace(batch, old_logprobs_N=old, logprobs_N=(old + drift).requires_grad_(), entropy_N=torch.zeros(4))
    for surrogate, clipped in (("sequence", 0.0), ("token", 0.25)):
        cfg = grpo.Config(surrogate=surrogate, aggregation="sequence")
        ready = grpo.advantages(batch, cfg)
        loss, metrics = grpo.loss(ready, cfg)
        assert metrics["clip_fraction"] == clipped
        if surrogate == "sequence":
            close(torch.autograd.grad(loss, batch.logprobs_N)[0], [-0.25, -0.25, 0.25, 0.25])


@pytest.mark.parametrize("aggregation", ["token", "episode"])
def test_entropy_bonus_lowers_the_reinforce_loss(aggregation):
    cfg = reinforce.Config(entropy_coef=0.3, aggregation=aggregation)
    batch = reinforce.advantages(scored(EPISODES), cfg)
    (found,) = torch.autograd.grad(reinforce.loss(batch, cfg)[0], batch.entropy_N)
    close(found, torch.full_like(found, -0.3 / (TOKENS if aggregation == "token" else len(EPISODES))), 1e-12)


def test_kl_in_the_reward():
    """V12: score 1.5 on the last token, minus beta times the log-ratio on each token."""
    batch = make_batch([played(1.5, lengths=[3])])
    old, reference = torch.tensor([-0.1, -0.7, -0.3]), torch.tensor([-0.2, -0.5, -0.3])
    batch = replace(batch, old_logprobs_N=old, ref_logprobs_N=reference, kl_coef=0.1)
    cfg = ppo.Config(kl_coef=9.0, kl_in="reward", kl_estimator="k1")  # the weight is the batch's, as adapted so far
    close(kl.in_reward(batch, cfg).reward_N, [-0.01, 0.02, 1.5], 1e-7)
    for other in (ppo.Config(kl_coef=9.0), ppo.Config(kl_estimator="k1")):
        assert kl.in_reward(batch, other) is batch, "KL in the loss, or none, leaves the reward alone"
    loss_N = kl.in_loss(replace(batch, logprobs_N=old), cfg)
    assert not loss_N.any(), "and KL in the reward leaves the loss alone"


@pytest.mark.parametrize(
    ("target", "episodes", "coefficient"),
    [
        (None, 100, 0.1),
        (0.01, 100, 0.1 * (1 + 0.2 * 0.1)),  # far above the target: up, by a fifth in 1000 episodes
        (0.5, 100, 0.1 * (1 - 0.2 * 0.1)),  # far below: down
        (0.1, 100, 0.1 * (1 + 0.1 * 0.1)),  # a tenth above
        (0.01, 5000, 0.12),  # by at most a fifth
    ],
)
def test_the_kl_weight_is_adapted(target, episodes, coefficient):
    batch = make_batch([played(1.0, lengths=[1])] * episodes)
    batch = replace(batch, ref_logprobs_N=batch.old_logprobs_N - 0.11, kl_coef=0.1)
    cfg = ppo.Config(kl_coef=0.1, kl_target=target, kl_horizon=1000)
    assert next_kl_coef(batch, cfg) == pytest.approx(coefficient, rel=1e-4)


def test_reinforce_baselines():
    """Scores 1.5, 1, 2, -1, 1; the groups are the first two and the last three."""
    returns = [1.5] * 3 + [1.0] + [1.0] * 5 + [2.0] * 7 + [-1.0] * 2 + [1.0] * 2 + [0.5] * 2
    first = [1.0] * 4 + [1.5] * 5 + [0.0] * 7 + [1.5] * 2 + [0.5] * 4  # the mean of the others in the group
    for baseline, subtracted in (("none", 0.0), ("batch", 0.9), ("moving", 0.25), ("leave_one_out", f64(*first))):
        cfg = reinforce.Config(baseline=baseline, group_size=2, kl_coef=0.0)
        batch = reinforce.advantages(replace(make_batch(EPISODES), baseline=0.25), cfg)
        close(batch.advantages_N.double(), f64(*returns) - subtracted, 1e-6)
        assert batch.baseline == pytest.approx(0.9 * 0.25 + 0.1 * 0.9)
    cfg = reinforce.Config(baseline="moving", to_go=False)
    batch = reinforce.advantages(make_batch(EPISODES), cfg)
    close(batch.advantages_N.double(), [1.5] * 4 + [1.0] * 5 + [2.0] * 7 + [-1.0] * 2 + [1.0] * 4, 1e-6)
    assert batch.baseline == pytest.approx(0.9), "the first average is the first mean"


def test_reinforce_discounts_by_turn():
    cfg = reinforce.Config(baseline="none", gamma=0.5)
    batch = reinforce.advantages(make_batch([played(1.0, 0.0, 2.0, lengths=[2, 1, 3])]), cfg)
    close(batch.advantages_N, [1.5, 1.5, 1.0, 2.0, 2.0, 2.0])


def test_dapo_leaves_out_groups_of_equal_scores():
    equal = [played(1.0, lengths=[n], group=7) for n in (2, 3)]
    cfg = grpo.Config(drop_equal=True)
    batch = grpo.advantages(make_batch([*EPISODES[:2], *equal, *EPISODES[2:]]), cfg)
    assert batch.episodes == EPISODES and len(batch.episode_N) == TOKENS
    close(batch.advantages_N, grpo.advantages(make_batch(EPISODES), cfg).advantages_N)
    nothing = grpo.advantages(make_batch(equal), cfg)
    assert not nothing.episodes and not len(nothing.advantages_N)


def test_dapo_s_overlong_penalty_is_in_the_score():
    long, short = played(1.0, lengths=[9], group=0), played(1.0, lengths=[2], group=0)
    cfg = grpo.Config(overlong_limit=10, overlong_cache=4)
    close(grpo.advantages(make_batch([long, short]), cfg).advantages_N, [-0.375] * 9 + [0.375] * 2)


def test_whitened_rewards():
    """The scores get deviation 1 and are not shifted; equal scores are not divided."""
    batch = whiten_rewards(make_batch(EPISODES))
    assert batch.scores_B.std().item() == pytest.approx(1.0)
    close(batch.reward_N, make_batch(EPISODES).reward_N / f64(1.5, 1, 2, -1, 1).std().item(), 1e-6)
    same = make_batch([played(0.3)] * 7)
    assert same.scores_B.std() > 0 and whiten_rewards(same) is same, "rounding is no deviation"


def test_sft_is_the_mean_negative_log_likelihood():
    batch = sft.advantages(scored(EPISODES), sft.Config())
    loss, _ = sft.loss(batch, sft.Config())
    close(loss, -batch.logprobs_N.mean().item(), 1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_losses_and_advantages_change_none_of_their_inputs(name):
    module, cfg = ALGORITHMS[name]
    batch = scored(EPISODES)
    tensors = {k: (v, v.detach().clone()) for k, v in vars(batch).items() if isinstance(v, torch.Tensor)}
    module.loss(module.advantages(batch, cfg), cfg)
    for key, (now, before) in tensors.items():
        assert getattr(batch, key) is now and torch.equal(now.detach(), before), key


@pytest.mark.parametrize("k", [1, 3, 7])
def test_kl_of_choices_is_that_of_all_words_with_the_others_as_one(k):
    torch.manual_seed(0)
    ours, theirs = (2 * torch.randn(5, 7, dtype=torch.float64) for _ in range(2))
    p, q = ours.softmax(-1), theirs.softmax(-1)
    choices = theirs.topk(k).indices
    found = core.kl_of_choices(p.log().gather(1, choices), q.log().gather(1, choices))
    for n in range(5):
        chosen = choices[n].tolist()
        parts = [(p[n, v], q[n, v]) for v in chosen]
        rest = [v for v in range(7) if v not in chosen]
        parts += [(p[n, rest].sum(), q[n, rest].sum())] if rest else []
        close(found[n], sum(a * (a / b).log() for a, b in parts))
    assert (found <= (p * (p / q).log()).sum(-1) + 1e-12).all()
