"""The arithmetic of policy gradients against hand-worked vectors, and the algorithms that are made of it."""

import math
from dataclasses import replace

import pytest
import torch

from rl import core, grpo, ppo, sft
from rl.batch import make_batch, micro_batches
from rl.records import Batch, Episode, Turn


def f64(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: torch.Tensor, expected, atol: float = 1e-9) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), atol=atol, rtol=0)


def slope(function, x: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of function(x)."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


def played(*rewards: float, lengths=None, group: int = 0, **keys) -> Episode:
    """An episode with a turn per reward: 2 ids of prompt or observation, then `lengths[u]` sampled ones."""
    episode = Episode("fake", 0, group, **{"terminated": True, **keys})
    for reward, n in zip(rewards, lengths or [2] * len(rewards), strict=True):
        start = len(episode.ids_T) + 2
        episode.turns.append(Turn(start, start + n, reward, "stop"))
        episode.ids_T += range(start - 2, start + n)
        episode.action_mask_T += [0, 0] + [1] * n
        episode.logprobs_T += [0.0, 0.0] + [-0.5 - 0.1 * i for i in range(n)]
    return episode


def scored(episodes: list[Episode], seed: int = 0, drift: float = 0.3) -> Batch:
    """A batch as a loss gets it, after the policy moved each log-probability by about `drift`. Float64."""
    torch.manual_seed(seed)
    batch, draw = make_batch(episodes), lambda n, width: width * torch.randn(n, dtype=torch.float64)
    N, old = len(batch.episode_N), batch.old_logprobs_N.double()
    return replace(
        batch,
        old_logprobs_N=old,
        logprobs_N=(old + draw(N, drift)).requires_grad_(),
        ref_logprobs_N=old + draw(N, 0.3),
        entropy_N=draw(N, 1.0).abs().requires_grad_(),
        old_values_N=draw(N, 1.0),
        values_N=draw(N, 1.0).requires_grad_(),
        last_values_B=draw(len(episodes), 1.0),
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
    check_gae_is_the_sum_of_discounted_deltas()


def check_gae_is_the_sum_of_discounted_deltas():
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


def check_gae_steps_over_what_the_environment_said():
    """V3: rewards and values at the masked tokens 9 and -9 do not enter; only sampled tokens are in a batch at all."""
    episode = played(0.2, 1.0)
    batch = replace(make_batch([episode]), old_values_N=f64(0.1, 0.3, 0.5, 0.4), last_values_B=f64(0.0))
    cfg = ppo.Config(level="token", gamma=0.99, gae_lambda=0.95, whiten=False)
    batch = ppo.advantages(batch, cfg)
    close(batch.advantages_N, [0.975651377075, 0.82791215, 0.4603, 0.6], 1e-7)
    close(batch.returns_N, [1.075651377075, 1.12791215, 0.9603, 1.0], 1e-7)


def test_gae_steps_over_what_the_environment_said():
    check_gae_steps_over_what_the_environment_said()


def check_turn_level_gae():
    """V4: one value at the turn's first token, one reward, one advantage that all its tokens share."""
    batch = replace(
        make_batch([played(0.2, 1.0, lengths=[2, 3])]),
        old_values_N=f64(0.1, 7.0, 0.5, -7.0, 8.0),
        last_values_B=f64(0.0),
    )
    batch = ppo.advantages(batch, ppo.Config(level="turn", gamma=0.99, gae_lambda=0.95, whiten=False))
    close(batch.advantages_N, [1.06525, 1.06525, 0.5, 0.5, 0.5], 1e-7)
    close(batch.returns_N, [1.16525, 1.16525, 1.0, 1.0, 1.0], 1e-7)


def test_turn_level_gae():
    check_turn_level_gae()


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


def check_group_advantages():
    """V6, the members of the groups shuffled among one another."""
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


def test_group_advantages():
    check_group_advantages()


def test_a_group_of_one_and_a_group_of_equals_have_advantage_zero():
    """Exactly 0, where subtracting a rounded mean would leave 1e-8 / 1e-4 of noise to learn from."""
    scores, group = torch.tensor([0.1] * 7 + [5.0]), torch.tensor([0] * 7 + [1])
    for divide in (True, False):
        assert not core.group_advantages(scores, group, divide).any()


# Losses


@pytest.mark.parametrize(
    ("clip_high", "losses", "slopes"),
    [
        (0.2, [-2.4, -1.0, 3.0, 1.6, -1.1, 5.0], [0.0, -1.0, 3.0, 0.0, -1.1, 5.0]),  # V7
        (0.28, [-2.56, -1.0, 3.0, 1.6, -1.1, 5.0], [0.0, -1.0, 3.0, 0.0, -1.1, 5.0]),  # V7b: clip-higher
    ],
)
def test_clipped_surrogate(clip_high, losses, slopes):
    check_clipped_surrogate(clip_high, losses, slopes)


def check_clipped_surrogate(
    clip_high=0.28, losses=(-2.56, -1.0, 3.0, 1.6, -1.1, 5.0), slopes=(0.0, -1.0, 3.0, 0.0, -1.1, 5.0)
):
    old = f64(-1.0, -2.0, -0.5, -3.0, -1.5, -2.5)
    logprobs, A = old + f64(1.5, 0.5, 1.5, 0.5, 1.1, 5.0).log(), f64(2, 2, -2, -2, 1, -1)
    loss, ratio, clipped = core.clipped_surrogate(logprobs, old, A, 0.2, clip_high)
    close(loss, losses)
    close(ratio, [1.5, 0.5, 1.5, 0.5, 1.1, 5.0])
    assert clipped.tolist() == [1, 0, 0, 1, 0, 0] and clipped.mean().item() == pytest.approx(1 / 3)
    close(slope(lambda x: core.clipped_surrogate(x, old, A, 0.2, clip_high)[0], logprobs), slopes)


@pytest.mark.parametrize("gap", [1e4, -1e4])
def test_a_huge_log_ratio_stays_finite(gap):
    loss, ratio, _ = core.clipped_surrogate(torch.tensor([gap]), torch.zeros(1), torch.tensor([-1.0]), 0.2, 0.2)
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
def test_what_each_kl_estimate_is_and_pulls_towards_in_expectation(kind, expectation, slopes):
    """V9b: exact expectations over three categories, the samples' probabilities held fixed as sampling holds them."""
    logits, reference = f64(0.3, -0.2, 0.5), f64(0.5, 0.2, 0.3).log()
    sampled = logits.softmax(0)
    expected = lambda x: sampled * core.kl_estimate(x.log_softmax(0), reference, kind)  # noqa: E731
    assert expected(logits).sum().item() == pytest.approx(expectation, abs=1e-12)
    close(slope(expected, logits), slopes)


def test_approximate_kl_is_that_of_the_old_policy_from_the_new():
    old, new = f64(0.2, 0.3, 0.5).log(), f64(0.3, 0.2, 0.5).log()
    per_token = core.approximate_kl(new, old)
    assert (per_token >= 0).all() and per_token[2] == 0
    assert (old.exp() * per_token).sum().item() == pytest.approx((old.exp() * (old - new)).sum().item())


@pytest.mark.parametrize("kind", ["k4", "kl", ""])
def test_unknown_names_are_refused(kind):
    with pytest.raises(ValueError, match="is not one of k1, k2, k3"):
        core.kl_estimate(f64(0.0), f64(0.0), kind)
    with pytest.raises(ValueError, match="is not one of token, sequence, constant"):
        core.aggregate(f64(0.0), torch.tensor([0]), kind, 1, 1, 1)
    with pytest.raises(ValueError, match="is not one of constant, linear, cosine"):
        core.learning_rate_factor(0, 1, kind, 0, 0.1)


@pytest.mark.parametrize(
    ("kind", "total"),
    [("token", 4.0), ("sequence", 6.25), ("constant", 5 / 2)],  # V10, less its empty row
)
def test_aggregate(kind, total):
    loss, episode = f64(1, 2, 3, 4, 10), torch.tensor([0, 0, 0, 0, 1])
    close(core.aggregate(loss, episode, kind, total_tokens=5, total_episodes=2, constant=4), total)
    parts = [
        core.aggregate(loss[mine], torch.zeros(int(mine.sum()), dtype=torch.long), kind, 5, 2, 4)
        for mine in (episode == 0, episode == 1)
    ]
    close(sum(parts), total)  # and not the mean of the pieces' means, 6.25 for tokens


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
    found = [core.learning_rate_factor(step, len(factors), kind, warmup, 0.2) for step in range(len(factors))]
    assert found == pytest.approx(factors, abs=1e-12)
    past = core.learning_rate_factor(99, len(factors), kind, warmup, 0.2)
    assert past == pytest.approx(factors[-1])  # a resumed or longer run stays at the end


# The algorithms


@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_sum_to_the_whole(name):
    check_micro_batches_sum_to_the_whole(name)


def check_micro_batches_sum_to_the_whole(name="ppo"):
    module, cfg = ALGORITHMS[name]
    whole = module.advantages(scored(EPISODES), cfg)
    fields = ("logprobs_N", "entropy_N", "values_N")

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
    """What a forward fills in, cut from the whole so that its gradient flows there."""
    index = {id(e): b for b, e in enumerate(whole.episodes)}
    where = torch.cat([(whole.episode_N == index[id(e)]).nonzero()[:, 0] for e in piece.episodes])
    return replace(piece, **{name: getattr(whole, name)[where] for name in fields})


@pytest.mark.parametrize("name", ["ppo", "ppo by token", "grpo", "grpo as published"])
def test_at_ratio_one_the_gradient_is_reinforce(name):
    check_at_ratio_one_the_gradient_is_reinforce(name)


def check_at_ratio_one_the_gradient_is_reinforce(name="ppo"):
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
    check_the_signs_of_the_ppo_loss()


def check_the_signs_of_the_ppo_loss():
    """More likely good tokens, more entropy and values nearer to the returns all lower it."""
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


def test_whitened_advantages_have_mean_zero_and_deviation_one_over_tokens():
    batch = ppo.advantages(scored(EPISODES), ppo.Config())
    assert batch.advantages_N.mean().abs() < 1e-12 and batch.advantages_N.std().item() == pytest.approx(1.0)
    raw = ppo.advantages(scored(EPISODES), ppo.Config(whiten=False))
    assert torch.equal(raw.returns_N, batch.returns_N), "returns are never whitened"


def test_grpo_gives_every_token_the_advantage_of_its_episode():
    batch = grpo.advantages(scored(EPISODES), grpo.Config())
    expected = [0.25] * 4 + [-0.25] * 5 + [4 / 3] * 7 + [-5 / 3] * 2 + [1 / 3] * 4
    close(batch.advantages_N, expected, 1e-6)


@pytest.mark.parametrize("divide", [True, False])
def test_equal_scores_teach_grpo_nothing(divide):
    cfg = grpo.Config(divide_by_std=divide)
    batch = grpo.advantages(scored([played(0.1, lengths=[n]) for n in (1, 2, 5)]), cfg)
    assert not batch.advantages_N.any()
    loss, _ = grpo.loss(batch, cfg)
    assert not torch.autograd.grad(loss, batch.logprobs_N)[0].any()


def test_grpo_kl_pulls_towards_the_reference():
    cfg = grpo.Config(kl_coef=0.5)
    batch = replace(scored(EPISODES, drift=0.0), advantages_N=torch.zeros(TOKENS, dtype=torch.float64))
    (found,) = torch.autograd.grad(grpo.loss(batch, cfg)[0], batch.logprobs_N)
    assert (found.sign() == (batch.logprobs_N - batch.ref_logprobs_N).sign()).all()


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
