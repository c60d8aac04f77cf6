"""The expected gradient of each algorithm, on a decision process small enough to sum over every outcome.

Two turns: one token in state A, then two tokens in states B and C. An episode ends after the first turn with some
luck, unless the process is `fixed`. The policy is a table of logits. The expectation of a loss's gradient runs over all
tuples of episodes that a batch can consist of; what it must be is written down independently, from the probabilities
and returns of single episodes.
"""

import itertools
import statistics
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

import envs
from rl import gigpo, grpo, opd, ppo, reinforce, sft
from rl.batch import make_batch
from rl.config.fields import Reward
from rl.records import Episode
from rl.reward import measure_progress, turn_reward

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
    seen: tuple = ((),)  # ids of the observation before each turn but the first; the prompt is (0,)

    @property
    def score(self) -> float:
        return sum(self.rewards)

    @property
    def turns(self) -> list[tuple]:
        """Return the tokens of each turn: one token, and in the last turn the rest."""
        last = len(self.rewards) - 1
        return [*((token,) for token in self.tokens[:last]), self.tokens[last:]]

    def by_token(self, of_turns) -> torch.Tensor:
        """Return a number of each turn as one of each of its tokens."""
        return torch.tensor([x for x, turn in zip(of_turns, self.turns, strict=True) for _ in turn])

    def logprob(self, theta, weights=1.0) -> torch.Tensor:
        return (weights * torch.stack([theta.log_softmax(-1)[s, a] for s, a in self.tokens])).sum()

    def probability(self, theta) -> torch.Tensor:
        return self.luck * self.logprob(theta).exp()

    def returns(self, gamma: float) -> list[float]:
        """Return each turn's discounted return."""
        return [sum(gamma**k * r for k, r in enumerate(self.rewards[u:])) for u in range(len(self.rewards))]

    def episode(self, group: int = 0) -> Episode:
        made = Episode("process", 0, group, [0], [0], [0.0], terminated=True, success=self.score > 0)
        for reward, tokens in zip(self.rewards, self.turns, strict=True):
            made.append(list(self.seen[len(made.turns) - 1]) if made.turns else [])
            made.append_turn([action for _, action in tokens], [0.0] * len(tokens), "stop")
            made.turns[-1].reward = reward
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
PATHS["binary"] = [
    replace(path, rewards=(0.0,) * (len(path.turns) - 1) + (float(path.score > 1),)) for path in PATHS["free"]
]
PATHS["uneven"] = [replace(path, rewards=(0.5, abs(path.score))) for path in PATHS["fixed"]]
PATHS["revisited"] = [replace(path, seen=((0,),)) for path in PATHS["free"]]  # the prompt is observed once more
PATHS["paid at once"] = [replace(path, rewards=(1.0, 0.0)[: len(path.turns)]) for path in PATHS["revisited"]]
PATHS["shifted"] = [  # three turns and success at the end; observation 2 comes one turn earlier after action 1
    replace(path, rewards=(0.0, 0.0, 1.0), seen=((2,), (3,)) if path.tokens[0] == (A, 1) else ((1,), (2,)))
    for path in PATHS["fixed"]
]


def expected(
    process: str, module, cfg, size: int, theta=THETA, sampled_by=THETA, reference=ELSEWHERE, **fields
) -> torch.Tensor:
    """Return the gradient at theta of the module's loss, in expectation over batches of `size` episodes."""
    theta = theta.clone().requires_grad_()
    values, observed = fields.pop("values", VALUES), fields.pop("observed", lambda path, theta: torch.tensor(0.0))
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
            ref_logprobs_N=reference.log_softmax(-1)[state, action],
            teacher_logprobs_N=ELSEWHERE.log_softmax(-1)[state, action],
            entropy_N=torch.zeros_like(old),
            old_values_N=values.detach()[state],
            values_N=values[state],
            last_values_B=old.new_zeros(size),
            kl_coef=getattr(cfg, "kl_coef", 0.0),
            observation_nll_B=torch.stack([observed(path, theta) for path in paths]),
            **fields,
        )
        if top_k := getattr(cfg, "top_k", 0):
            choices_N = ELSEWHERE[state].topk(top_k).indices
            of_teacher, of_policy = (x.log_softmax(-1)[state].gather(1, choices_N) for x in (ELSEWHERE, theta))
            batch = replace(batch, choices_N=choices_N, teacher_choices_N=of_teacher, choice_logprobs_N=of_policy)
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
            total = total - chance * sum(path.logprob(theta, w) for w, path in zip(weights(paths), paths, strict=True))
        return total

    return slope(surrogate)


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    assert wanted.abs().max() > 1e-2, "a target that says nothing"
    torch.testing.assert_close(actual, wanted, atol=1e-6, rtol=0)


def centred(paths) -> list[float]:
    mean = statistics.fmean(path.score for path in paths)
    return [path.score - mean for path in paths]


# ------------------------------------------------------------------------------- the gradient of the expected score


@pytest.mark.parametrize("process", ["free", "fixed"])
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


def test_a_mean_over_turns_weighs_each_turn_of_an_episode_alike():
    """The documented bias: a token of a long turn, and a turn of a long episode, weighs less."""
    cfg = grpo.Config(aggregation="turn")

    def weights(paths):
        shares = [path.by_token([1 / len(turn) / len(path.turns) for turn in path.turns]) for path in paths]
        return [a * share / 2 for a, share in zip(centred(paths), shares, strict=True)]

    close(expected("free", grpo, cfg, 2), over_groups("free", 2, weights))


@pytest.mark.parametrize("size", [2, 3])
def test_maxrl_has_the_gradient_of_the_first_terms_of_log_p(size):
    """-sum over k < G of (1 - p)^k / k. The mean, which contains the episode itself, costs the G-th term."""
    cfg = grpo.Config(divide_by_mean=True, aggregation="constant", constant_length=1)
    terms = lambda theta: sum((1 - objective("binary")(theta)) ** k / k for k in range(1, size))  # noqa: E731
    close(expected("binary", grpo, cfg, size), slope(terms))


def test_echo_adds_the_cross_entropy_of_observations_whatever_the_score():
    """Whether the process goes on is observed; here the policy predicts it in state C. Its own denominator is 2."""

    def nll(path, theta):
        return -theta.log_softmax(-1)[C, len(path.turns) - 1]

    found = expected("free", grpo, grpo.Config(echo_coef=0.3), 2, observed=nll, total_observed=2)
    entropy = lambda theta: sum(path.probability(THETA) * nll(path, theta) for path in PATHS["free"])  # noqa: E731
    close(found - expected("free", grpo, grpo.Config(), 2), 0.3 * slope(entropy))


STEPS = {"aggregation": "constant", "constant_length": 1}


@pytest.mark.parametrize("anchor", ["observation", "history"])
@pytest.mark.parametrize("process", ["free", "revisited"])
@pytest.mark.parametrize("divide", [False, True])
def test_gigpo_adds_to_grpo_the_returns_within_step_groups(process, anchor, divide):
    """Written over all turns of a group by their states' names; a group of one adds 0."""
    cfg = gigpo.Config(step_coef=0.7, gamma=0.9, anchor=anchor, divide_by_std=divide, **STEPS)

    def standing(x, group):
        if len(group) < 2:
            return 0.0
        return (x - statistics.fmean(group)) / (statistics.stdev(group) + 1e-4 if divide else 1)

    def weights(paths):
        names = {"history": lambda path, u: path.tokens[:u], "observation": lambda path, u: u and path.seen != ((0,),)}
        turns = [(names[anchor](path, u), x) for path in paths for u, x in enumerate(path.returns(0.9))]
        scores, found = [path.score for path in paths], []
        for path in paths:
            of_turns = [
                standing(path.score, scores)
                + 0.7 * standing(x, [y for name, y in turns if name == names[anchor](path, u)])
                for u, x in enumerate(path.returns(0.9))
            ]
            found.append(path.by_token(of_turns) / 2)
        return found

    close(expected(process, gigpo, cfg, 2), over_groups(process, 2, weights))


def test_gigpo_by_history_is_the_policy_gradient_with_a_weight_for_each_state():
    """Half of the return, times the chance that the group's other episode meets the state too: for the first turn 1."""
    found = expected("uneven", gigpo, gigpo.Config(gamma=1.0, anchor="history", **STEPS), 2)
    found = found - expected("uneven", grpo, grpo.Config(**STEPS), 2)

    def meets(first):
        return sum(path.probability(THETA) for path in PATHS["uneven"] if path.tokens[0] == first)

    def weighed(theta):
        total = 0.0
        for path in PATHS["uneven"]:
            returns = [chance * x for chance, x in zip((1.0, meets(path.tokens[0])), path.returns(1.0), strict=True)]
            total = total - path.probability(THETA) * path.logprob(theta, path.by_token(returns)) / 2
        return total

    close(found, slope(weighed))


def test_gigpo_by_observation_favours_one_more_turn_after_a_reward():
    """The documented bias: every episode scores 1, but a second look at an observation is in its own baseline."""
    process = "paid at once"
    assert slope(objective(process)).abs().max() < 1e-12
    anchors = {name: gigpo.Config(gamma=1.0, anchor=name, **STEPS) for name in ("observation", "history")}
    found = {name: expected(process, gigpo, cfg, 2) for name, cfg in anchors.items()}
    assert found["history"].abs().max() < 1e-12
    assert found["observation"][A][0] > 1e-2, "action 0, after which an episode may end, becomes less likely"


def test_graph_gpo_pays_turns_that_lead_where_another_episode_succeeded():
    """By hand: of two episodes in the same states one succeeds; both get gamma for the way there."""
    cfg = gigpo.Config(graph=True, gamma=0.5, **STEPS)

    def weights(paths):
        distances = []
        solvable = any(path.score > 0 and len(path.turns) == 2 for path in paths)
        for path in paths:
            ends = [1.0] if path.score > 0 else [0.0]
            distances.append([0.5 * solvable, *ends] if len(path.turns) == 2 else ends)
        found = []
        for path, own, a in zip(paths, distances, centred(paths), strict=True):
            groups = [[d[u] for d in distances if len(d) > u] for u in range(len(own))]
            steps = [x - statistics.fmean(group) for x, group in zip(own, groups, strict=True)]
            found.append(path.by_token([a + step for step in steps]) / 2)
        return found

    close(expected("free", gigpo, cfg, 2), over_groups("free", 2, weights))


def test_graph_gpo_finds_false_shortcuts_between_observations():
    """The documented bias: every episode succeeds after three turns, so no action is better than another.

    Where the two episodes of a group differ in their first action, action 1 leads to observation 2, from which the
    other episode succeeded in one turn. So the return of action 1 is gamma, and that of action 0 gamma ** 2.
    """
    assert slope(objective("shifted")).abs().max() < 1e-12
    found = {
        (graph, anchor): expected("shifted", gigpo, gigpo.Config(graph=graph, anchor=anchor, gamma=0.5, **STEPS), 2)
        for graph in (False, True)
        for anchor in ("observation", "history")
    }
    wanted = torch.zeros_like(THETA)
    wanted[A] = THETA[A].softmax(-1).prod() * (0.5 - 0.5**2) / 2 * torch.tensor([1, -1])  # towards action 1
    close(found.pop((True, "observation")), wanted)
    assert all(gradient.abs().max() < 1e-12 for gradient in found.values()), "only the graph of observations errs"


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


@pytest.mark.parametrize("aggregation", ["constant", "sequence"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_moved_reference_pulls_back_once_the_policy_has_moved(estimator, aggregation):
    """The reference is the policy that sampled, as after a move by reference_every; the policy then takes a step.

    At the first step k2 and k3 have no gradient. That of k1 is 0 in expectation, unless each episode is divided by its
    length: then k1 favours long episodes. After the step k2 and k3 pull back, and k1 pushes on.
    """
    plain = grpo.Config(aggregation=aggregation, constant_length=1)
    with_kl = replace(plain, kl_coef=0.3, kl_estimator=estimator)

    def share(path):
        return 1 / len(path.tokens) if aggregation == "sequence" else 1.0

    def pull(theta):
        both = (expected("free", grpo, cfg, 2, theta, reference=THETA) for cfg in (with_kl, plain))
        return torch.sub(*both)

    def penalty(theta):
        total = 0.0
        for path in PATHS["free"]:
            d = torch.stack([(theta.log_softmax(-1) - THETA.log_softmax(-1))[token] for token in path.tokens])
            estimates = {"k1": d, "k2": d**2 / 2, "k3": (-d).exp() - 1 + d}[estimator]
            total = total + path.probability(THETA) * share(path) * estimates.sum()
        return total

    if (estimator, aggregation) == ("k1", "sequence"):
        close(pull(THETA), 0.3 * slope(lambda theta: sum(p.probability(theta) * share(p) for p in PATHS["free"])))
    else:
        assert pull(THETA).abs().max() < 1e-12
    step = -3 * expected("free", grpo, plain, 2)
    found = pull(THETA + step)
    close(found, 0.3 * slope(penalty, THETA + step))
    uphill = (found * step).sum()
    assert uphill < -1e-3 if estimator == "k1" else uphill > 1e-3, "descent undoes the step, except with k1"


# -------------------------------------------------------------------------------------------- the expert's progress


# The expert's remaining moves, by the actions so far; after a wrong end 5, the most. Actions 011 are a detour to the
# end of 100.
LEFT = {"": 2, "0": 3, "1": 1, "000": 4, "001": 5, "010": 3, "011": 2, "100": 2, "101": 5, "110": 1, "111": 0}


def actions_of(tokens) -> str:
    return "".join(str(action) for _, action in tokens)


def with_progress(path: Path, cfg: Reward) -> Path:
    """Return the path with the rewards that its turns are trained on."""
    own = iter(path.rewards)
    env = SimpleNamespace(reset=lambda seed, split: [], step=lambda text: envs.Step("", next(own), False, False, {}))
    measure_progress(env, "process", {})
    env.reset(0)
    steps = [env.step(actions_of(turn)) for turn in path.turns]
    return replace(path, rewards=tuple(turn_reward(step, path.episode(), cfg) for step in steps))


@pytest.mark.parametrize("name", KL_CASES)
def test_progress_has_the_gradient_of_the_moves_saved(name, monkeypatch):
    """The sum over turns telescopes: a detour earns nothing. The documented bias: unsolved ends are paid for too."""
    module, cfg, size, share = KL_CASES[name]
    monkeypatch.setattr("rl.reward.moves_left", lambda name, options, task, actions: LEFT["".join(actions)])
    rewarded = [with_progress(path, Reward(progress=0.25, scale=2.0)) for path in PATHS["fixed"]]
    monkeypatch.setitem(PATHS, "with progress", rewarded)

    def saved(theta):
        return sum(path.probability(theta) * (LEFT[""] - LEFT[actions_of(path.tokens)]) for path in PATHS["fixed"])

    found = expected("with progress", module, replace(cfg, kl_coef=0.0, kl_in="loss"), size)
    close(found, -share * 2.0 * slope(lambda theta: objective("fixed")(theta) + 0.25 * saved(theta)))
    assert slope(saved).abs().max() > 1e-2


# ----------------------------------------------------------------------------------------------------- distillation


def of_visits(weights, theta) -> torch.Tensor:
    """Return the sum over states of how often THETA visits one, times sum over actions of pi(action) * weights."""
    p, q, old = theta.log_softmax(-1), ELSEWHERE.log_softmax(-1), THETA.log_softmax(-1)
    visits = torch.zeros(3, dtype=torch.float64)
    for path in PATHS["free"]:
        for state, _ in path.tokens:
            visits[state] += path.probability(THETA)
    return (visits * (p.exp() * weights(p, q, old)).sum(-1)).sum()


def taught(**keys) -> opd.Config:
    return opd.Config(teacher="elsewhere", aggregation="episode", **keys)


def test_undiscounted_grades_have_the_gradient_of_kl_of_episodes():
    found = expected("free", opd, taught(discount=1.0, teacher_coef=0.3), 1)
    close(found, 0.3 * slope(lambda theta: kl_of_episodes(theta, "free")))


@pytest.mark.parametrize("keys", [{}, {"top_k": 1}, {"top_k": 2}], ids=str)
def test_grades_of_single_tokens_have_the_gradient_of_kl_with_constant_visits(keys):
    """So has the loss over the teacher's choices: of two words one and the rest are the whole vocabulary."""
    wanted = slope(lambda theta: of_visits(lambda p, q, old: p - q, theta))
    close(expected("free", opd, taught(teacher_coef=0.3, **keys), 1), 0.3 * wanted)
    whole = slope(lambda theta: kl_of_episodes(theta, "free"))
    assert (whole - wanted).abs().max() > 1e-2, "the documented bias: where a token leads is left out"


@pytest.mark.parametrize("keys", [{"discount": 1.0}, {"top_k": 2}], ids=str)
def test_the_task_s_score_is_added_to_the_grades(keys):
    """The group's mean, which contains the episode itself, halves its gradient."""
    both = expected("free", opd, taught(reward_coef=0.7, group_size=2, **keys), 2)
    close(both - expected("free", opd, taught(**keys), 2), -0.7 / 2 * slope(objective("free")))


@pytest.mark.parametrize("top_k", [0, 2])
def test_a_gate_weighs_what_the_teacher_rejects_less(top_k):
    """The documented bias: the gate of the sampled token weighs its grade, or the KL of its place."""
    found = expected("free", opd, taught(gate=5.0, top_k=top_k), 1)

    def of_token(p, q, old):
        return torch.sigmoid(5 * (q - old)) * (old - q)

    def of_place(p, q, old):
        share = (old.exp() * torch.sigmoid(5 * (q - old))).sum(-1, keepdim=True)
        return share * (p - q)

    close(found, slope(lambda theta: of_visits(of_place if top_k else of_token, theta)))
    plain = expected("free", opd, taught(top_k=top_k), 1)
    assert (found - plain).abs().max() > 1e-2
