"""The expected gradient of each algorithm, on a decision process small enough to sum over every outcome.

Two turns: one token in state A, then two tokens in states B and C. An episode ends after the first turn with some
luck, unless the process is `fixed`. The policy is a table of logits. The expectation of a loss's gradient runs over all
tuples of episodes that a batch can consist of; what it must be is written down independently, from the probabilities
and returns of single episodes.
"""

import itertools
import statistics
from dataclasses import dataclass, replace

import pytest
import torch

from rl import grpo, ppo, reinforce, sft
from rl.batch import make_batch
from rl.records import Episode, Turn

THETA = torch.tensor([[0.3, -0.4], [-0.2, 0.5], [0.6, 0.1]], dtype=torch.float64)
ELSEWHERE = torch.tensor([[-0.5, 0.2], [0.4, 0.3], [-0.3, 0.7]], dtype=torch.float64)
VALUES = torch.tensor([0.75, -0.5, 1.5], dtype=torch.float64)  # a critic that is wrong
A, B, C = range(3)


@dataclass(frozen=True)
class Path:
    """One course of an episode: its (state, action) tokens, the reward of each turn, the probability of its luck."""

    tokens: tuple
    rewards: tuple
    luck: float = 1.0

    @property
    def score(self) -> float:
        return sum(self.rewards)

    def logprob(self, theta) -> torch.Tensor:
        return sum(theta.log_softmax(-1)[s, a] for s, a in self.tokens)

    def probability(self, theta) -> torch.Tensor:
        return self.luck * self.logprob(theta).exp()

    def episode(self, group: int = 0) -> Episode:
        made = Episode("process", 0, group, [0], [0], [0.0], terminated=True)
        for reward, n in zip(self.rewards, (1, 2), strict=False):
            made.turns.append(Turn(len(made.ids_T), len(made.ids_T) + n, reward, "stop"))
            made.ids_T += [0] * n
            made.action_mask_T += [1] * n
            made.logprobs_T += [0.0] * n
        return made


REWARDS = {(0, 0): 1.0, (0, 1): -0.5, (1, 0): 0.25, (1, 1): 2.0}  # of the second turn, by its two actions
LATER = [((B, b), (C, c), reward) for (b, c), reward in REWARDS.items()]
PATHS = {
    "free": [
        Path(((A, 0),), (0.5,), 0.75),
        *(Path(((A, 0), b, c), (-0.25, reward), 0.25) for b, c, reward in LATER),
        *(Path(((A, 1), b, c), (0.5, 2 - reward)) for b, c, reward in LATER),
    ],
    "fixed": [Path(((A, a), b, c), (a / 2, reward * (1 - 2 * a))) for a in (0, 1) for b, c, reward in LATER],
}


def expected(process: str, module, cfg, size: int, theta=THETA, sampled_by=THETA, **fields) -> torch.Tensor:
    """Return the gradient at theta of the module's loss, in expectation over batches of `size` episodes."""
    theta = theta.clone().requires_grad_()
    values = fields.pop("values", VALUES)
    total = 0.0
    for paths in itertools.product(PATHS[process], repeat=size):
        batch = make_batch([path.episode() for path in paths])
        state, action = torch.tensor([token for path in paths for token in path.tokens]).T
        old = sampled_by.log_softmax(-1)[state, action]
        batch = replace(
            batch,
            reward_N=batch.reward_N.double(),
            old_logprobs_N=old,
            logprobs_N=theta.log_softmax(-1)[state, action],
            ref_logprobs_N=ELSEWHERE.log_softmax(-1)[state, action],
            entropy_N=torch.zeros_like(old),
            old_values_N=values.detach()[state],
            values_N=values[state],
            last_values_B=old.new_zeros(size),
            kl_coef=getattr(cfg, "kl_coef", 0.0),
            **fields,
        )
        batch = module.advantages(batch, cfg)
        if batch.episodes:
            batch = replace(batch, total_tokens=len(batch.episode_N), total_episodes=len(batch.episodes))
            chance = torch.stack([path.probability(sampled_by) for path in paths]).prod()
            total = total + chance * module.loss(batch, cfg)[0]
    wanted = values if values.requires_grad else theta
    return torch.autograd.grad(total, wanted)[0]


def slope(function, theta=THETA) -> torch.Tensor:
    theta = theta.clone().requires_grad_()
    return torch.autograd.grad(function(theta), theta)[0]


def objective(process: str):
    return lambda theta: sum(path.probability(theta) * path.score for path in PATHS[process])


def over_groups(process: str, size: int, weights) -> torch.Tensor:
    """Return minus the sum over tuples of P(tuple) * weights(tuple)[i] * the gradient of path i's log-probability."""

    def surrogate(theta):
        total = 0.0
        for paths in itertools.product(PATHS[process], repeat=size):
            chance = torch.stack([path.probability(THETA) for path in paths]).prod()
            total = total - chance * sum(w * path.logprob(theta) for w, path in zip(weights(paths), paths, strict=True))
        return total

    return slope(surrogate)


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    assert wanted.abs().max() > 1e-2, "a target that says nothing"
    torch.testing.assert_close(actual, wanted, atol=1e-6, rtol=0)


def centred(paths) -> list[float]:
    mean = statistics.fmean(path.score for path in paths)
    return [path.score - mean for path in paths]


# ------------------------------------------------------------------------------- the gradient of the expected score


@pytest.mark.parametrize("process", PATHS)
@pytest.mark.parametrize("to_go", [True, False])
@pytest.mark.parametrize(
    ("keys", "size", "fields", "share"),
    [
        pytest.param({"baseline": "none"}, 1, {}, 1.0, marks=pytest.mark.full),
        ({"baseline": "none"}, 2, {}, 1.0),
        ({"baseline": "moving"}, 2, {"baseline": 0.7}, 1.0),
        ({"baseline": "leave_one_out", "group_size": 3}, 3, {}, 1.0),
        ({"baseline": "batch"}, 2, {}, 1 / 2),  # its own score is in the mean
        pytest.param({"baseline": "batch"}, 3, {}, 2 / 3, marks=pytest.mark.full),
    ],
)
def test_reinforce(process, to_go, keys, size, fields, share):
    found = expected(process, reinforce, reinforce.Config(to_go=to_go, **keys), size, **fields)
    close(found, -share * slope(objective(process)))


@pytest.mark.parametrize("size", [2, 3])
def test_dr_grpo_is_the_policy_gradient_times_a_constant(size):
    cfg = grpo.Config(aggregation="constant", constant_length=10)
    close(expected("free", grpo, cfg, size), -(1 - 1 / size) / 10 * slope(objective("free")))


@pytest.mark.parametrize("level", ["turn", "token"])
@pytest.mark.parametrize("size", [1, 2])
def test_ppo_with_whole_returns_is_the_policy_gradient(level, size):
    cfg = ppo.Config(level=level, gamma=1.0, gae_lambda=1.0, whiten=False, entropy_coef=0.0)
    close(expected("fixed", ppo, cfg, size), -slope(objective("fixed")) / 3)  # a mean over three tokens


def true_values(process: str) -> torch.Tensor:
    """Return the values of the states A, B and C; C is reached in two ways, which are weighted by probability."""
    chance = [path.probability(THETA).item() for path in PATHS[process]]
    later = [sum(path.rewards[1:]) for path in PATHS[process]]
    reached = [c for c, path in zip(chance, PATHS[process], strict=True) if len(path.tokens) == 3]
    at_b = sum(c * v for c, v in zip(chance, later, strict=True)) / sum(reached)
    at_a = sum(c * path.score for c, path in zip(chance, PATHS[process], strict=True))
    return torch.tensor([at_a, at_b, at_b], dtype=torch.float64)


def test_ppo_s_critic_is_pulled_towards_the_expected_return():
    values = VALUES.clone().requires_grad_()
    cfg = ppo.Config(gamma=1.0, gae_lambda=1.0, whiten=False, entropy_coef=0.0, value_clip=None)
    found = expected("fixed", ppo, cfg, 1, values=values)
    target = true_values("fixed")
    wanted = (
        0.5 * torch.stack([VALUES[A] - target[A], VALUES[B] - target[B], torch.tensor(0.0)]) / 2
    )  # vf_coef, 2 turns
    assert wanted[:2].abs().min() > 1e-2
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def test_ppo_with_one_step_returns_believes_its_critic():
    """lambda = 0: the documented bias. A turn's return is its reward plus the critic's next value."""
    cfg = ppo.Config(gamma=0.9, gae_lambda=0.0, whiten=False, entropy_coef=0.0)

    def weighed(theta):
        total, log = 0.0, theta.log_softmax(-1)
        for path in PATHS["fixed"]:
            (a, *rest), chance = path.tokens, path.probability(THETA)
            first = path.rewards[0] + 0.9 * VALUES[B] - VALUES[A]
            second = path.rewards[1] - VALUES[B]
            total = total - chance * (first * log[a] + second * sum(log[token] for token in rest)) / 3
        return total

    close(expected("fixed", ppo, cfg, 1), slope(weighed))


# ------------------------------------------------------------------------------------------- documented biased targets


def test_grpo_as_published_weighs_short_episodes_more():
    """Each episode's mean instead of its sum, over the group's deviation: the paper's biased eq. 3."""
    cfg = grpo.Config(aggregation="sequence", divide_by_std=True)

    def weights(paths):
        deviation = statistics.stdev(path.score for path in paths) + 1e-4
        return [a / deviation / len(path.tokens) / 2 for a, path in zip(centred(paths), paths, strict=True)]

    close(expected("free", grpo, cfg, 2), over_groups("free", 2, weights))


@pytest.mark.parametrize("drop", [False, True])
def test_dapo_divides_by_the_tokens_of_the_groups_that_stay(drop):
    cfg = grpo.Config(aggregation="token", divide_by_std=False, drop_equal=drop)
    weights = lambda paths: [a / sum(len(p.tokens) for p in paths) for a in centred(paths)]  # noqa: E731
    close(expected("free", grpo, cfg, 2), over_groups("free", 2, weights))


def test_the_overlong_penalty_is_part_of_the_score():
    cfg = grpo.Config(aggregation="constant", constant_length=1, overlong_limit=4, overlong_cache=2)  # 3 tokens: -1/2
    long = lambda path: path.score - (0.5 if len(path.tokens) == 3 else 0.0)  # noqa: E731
    penalised = slope(lambda theta: sum(path.probability(theta) * long(path) for path in PATHS["free"]))
    close(expected("free", grpo, cfg, 2), -penalised / 2)


def test_gspo_on_policy_is_grpo_by_sequence():
    cfg = grpo.Config(surrogate="sequence", aggregation="sequence", clip=3e-4, clip_high=4e-4)
    weights = lambda paths: [a / len(p.tokens) / 2 for a, p in zip(centred(paths), paths, strict=True)]  # noqa: E731
    close(expected("free", grpo, cfg, 2), over_groups("free", 2, weights))


def test_cispo_weighs_the_score_function_by_clipped_ratios():
    """Off policy, so ratios differ from 1; clipped ones keep their gradient."""
    cfg = grpo.Config(surrogate="weight", aggregation="token", clip=1.0, clip_high=0.1)

    def surrogate(theta):
        total, log, old = 0.0, theta.log_softmax(-1), ELSEWHERE.log_softmax(-1)
        for paths in itertools.product(PATHS["free"], repeat=2):
            chance = torch.stack([path.probability(ELSEWHERE) for path in paths]).prod()
            for advantage, path in zip(centred(paths), paths, strict=True):
                for token in path.tokens:
                    weight = min((log[token] - old[token]).exp().item(), 1.1)
                    total = total - chance * advantage * weight * log[token] / sum(len(p.tokens) for p in paths)
        return total

    close(expected("free", grpo, cfg, 2, sampled_by=ELSEWHERE), slope(surrogate))


@pytest.mark.parametrize("clip", [100.0, 0.1])
def test_unclipped_off_policy_ppo_is_importance_weighted(clip):
    cfg = ppo.Config(level="token", gamma=1.0, gae_lambda=1.0, whiten=False, entropy_coef=0.0, clip=clip)

    def surrogate(theta):
        total, log, old = 0.0, theta.log_softmax(-1), ELSEWHERE.log_softmax(-1)
        for path in PATHS["fixed"]:
            for i, token in enumerate(path.tokens):
                earned = path.score if i == 0 else path.rewards[1]
                advantage, ratio = earned - VALUES[token[0]].item(), (log[token] - old[token]).exp()
                clipped = (ratio > 1 + clip and advantage > 0) or (ratio < 1 - clip and advantage < 0)
                total = total - path.probability(ELSEWHERE) * advantage * (0.0 if clipped else ratio) / 3
        return total

    close(expected("fixed", ppo, cfg, 1, sampled_by=ELSEWHERE), slope(surrogate))


def test_sft_is_the_gradient_of_the_cross_entropy_to_the_expert():
    found = expected("fixed", sft, sft.Config(), 1, sampled_by=ELSEWHERE)  # the expert plays by another table
    entropy = lambda theta: -sum(p.probability(ELSEWHERE) * p.logprob(theta) for p in PATHS["fixed"]) / 3  # noqa: E731
    close(found, slope(entropy))


# --------------------------------------------------------------------------------------------------------------- KL


def kl_of_episodes(theta, process: str) -> torch.Tensor:
    """Return KL(policy || reference) of whole episodes."""
    return sum(p.probability(theta) * (p.logprob(theta) - p.logprob(ELSEWHERE)) for p in PATHS[process])


KL = {"kl_coef": 0.3, "kl_in": "reward", "kl_estimator": "k1"}


KL_CASES = {
    "reinforce": (reinforce, reinforce.Config(baseline="none", **KL), 1, 1.0),
    "rloo": (reinforce, reinforce.Config(baseline="leave_one_out", group_size=2, **KL), 2, 1.0),
    "dr_grpo": (grpo, grpo.Config(aggregation="constant", constant_length=1, **KL), 2, 1 / 2),
    "ppo": (ppo, ppo.Config(gamma=1.0, gae_lambda=1.0, whiten=False, entropy_coef=0.0, **KL), 1, 1 / 3),
}


@pytest.mark.parametrize("name", KL_CASES)
def test_k1_in_the_reward_is_the_gradient_of_score_less_kl(name):
    check_k1_in_the_reward("fixed" if name == "ppo" else "free", *KL_CASES[name])


def check_k1_in_the_reward(process, module, cfg, size, share):
    wanted = slope(lambda theta: objective(process)(theta) - 0.3 * kl_of_episodes(theta, process))
    close(expected(process, module, cfg, size), -share * wanted)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_loss_pulls_towards_the_reference(estimator):
    """With constant visits k2 has the gradient of KL(policy || reference), k3 that of KL(reference || policy)."""
    keys = {"baseline": "none", "kl_coef": 0.3, "kl_in": "loss", "kl_estimator": estimator}
    found = expected("free", reinforce, reinforce.Config(**keys), 1)
    visits = torch.zeros(3, dtype=torch.float64)
    for path in PATHS["free"]:
        for state, _ in path.tokens:
            visits[state] += path.probability(THETA)

    def penalty(theta):
        p, q = theta.log_softmax(-1), ELSEWHERE.log_softmax(-1)
        forward, backward = (p.exp() * (p - q)).sum(-1), (q.exp() * (q - p)).sum(-1)
        return (visits * {"k1": 0 * forward, "k2": forward, "k3": backward}[estimator]).sum()

    close(found, -slope(objective("free")) + 0.3 * slope(penalty))
    assert estimator == "k1" or slope(penalty).abs().max() > 0.05
