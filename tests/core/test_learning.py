"""Every algorithm learns a bandit, played by token, whose best policy is known, and unlearns it with a wrong sign."""

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from conftest import random_model

import lora
import train
from models.engine import Engine
from rl import grpo, ppo
from rl.config.refusals import Refusal
from rl.config.words import parse
from rl.ppo import Critic
from rl.records import Episode, StepResult, Turn
from rl.run.state import TrainState
from rl.update import make_optimizer, means, optimizer_step

PROMPT = [5, 9, 2]
LEARNED = 0.85  # reward per turn; a random policy earns half of 1


def make_state(algo: str, **keys):
    """Return a random model with a LoRA adapter, and the configuration of a short run."""
    torch.manual_seed(0)
    words = dict(algo=algo, lr=1e-2, batch_size=16, episodes=32, epochs=16) | keys
    cfg = parse([f"{key}={value}" for key, value in words.items()])
    model = random_model("qwen3").requires_grad_(False)
    lora.inject(model, r=8, alpha=16)
    critic = Critic(48, 16) if algo == "ppo" else None
    state = TrainState(model, critic, make_optimizer(model, critic, cfg))
    state.kl_coef = 0.0 if algo == "sft" else getattr(cfg, algo).kl_coef
    return state, cfg


def play(state, cfg, first: int, turns: int = 2) -> list[Episode]:
    """Return episodes of two turns of one token, which earns 1 if it is even. Groups of four share only a number."""
    engine = Engine(state.model, max_rows=cfg.episodes, max_len=64, version=lora.adapter_version(state.model))
    playing, done = {}, {}
    for i in range(first, first + cfg.episodes):
        slot = engine.open((cfg.seed, i))
        engine.feed(slot, PROMPT)
        playing[slot] = (i, Episode("bandit", 0, i // 4, list(PROMPT), [0] * 3, [0.0] * 3, terminated=True))
    for row in engine.run(1, 1.0, frozenset()):
        i, episode = playing[row.slot]
        episode.turns.append(Turn(len(episode.ids_T), len(episode.ids_T) + 1, float(row.ids[0] % 2 == 0), "length"))
        episode.ids_T += row.ids
        episode.logprobs_T += row.logprobs
        episode.action_mask_T += [1]
        if len(episode.turns) < turns:
            for record, value in ((episode.ids_T, 7), (episode.action_mask_T, 0), (episode.logprobs_T, 0.0)):
                record.append(value)
            engine.feed(row.slot, [7])
        else:
            done[i] = episode
    return [done[i] for i in sorted(done)]


def learn(algo: str, sign: float = 1.0, **keys) -> tuple[float, float]:
    """Return the mean reward per turn before and after epochs of train.py's stages 3 and 4, which end once two epochs
    in a row are far above LEARNED. sign -1 flips every advantage."""
    state, cfg = make_state(algo, **keys)
    means = []
    for epoch in range(cfg.epochs):
        episodes = play(state, cfg, epoch * cfg.episodes)
        means.append(sum(e.score for e in episodes) / len(episodes) / 2)
        if min(means[-2:]) > LEARNED + 0.05:
            break
        if algo == "sft":  # the demonstrations are the best episodes
            episodes = [e for e in episodes if e.score == 2] or episodes[:1]
        batch = train.score(state, episodes, cfg)
        losses, _ = train.learn(state, replace(batch, advantages_N=sign * batch.advantages_N), cfg)
        if algo != "sft" and batch.episodes:
            assert losses["sampler_gap"] == 0.0, "sampling and training disagree"
    return means[0], means[-1]


GROUP = {"grpo.group_size": 4}
KEYS = {
    "sft": {"sft.epochs": 2},
    "ppo": {"ppo.epochs": 2},
    "ppo, dual clip, kl": {"ppo.epochs": 2, "ppo.dual_clip": 3, "ppo.kl_coef": 0.01, "ppo.kl_target": 1.0},
    "ppo, warm-up": {"ppo.epochs": 2, "ppo.critic_warmup": 2},
    "grpo": GROUP,
    "grpo, kl in the reward": {**GROUP, "grpo.kl_coef": 0.001, "grpo.kl_in": "reward", "grpo.kl_estimator": "k1"},
    "reinforce": {"reinforce.baseline": "batch"},
    "reinforce, none": {"reinforce.baseline": "none"},
    "reinforce, moving": {"reinforce.baseline": "moving"},
    "reinforce, one episode a step": {"reinforce.baseline": "moving", "batch_size": 1, "lr": 3e-3, "epochs": 6},
    "reinforce, sgd": {"optimizer": "sgd", "lr": 0.5, "clip_norm": 10.0, "epochs": 20},
    **{name: {"recipe": name} for name in ("rloo", "dr_grpo", "dapo", "cispo")},
    "gspo": {"recipe": "gspo", "lr": 2e-2},
}
LEARN = ["sft", "ppo, dual clip, kl", "grpo, kl in the reward", "reinforce, moving", "cispo", "gspo"]
LEARN += [pytest.param(name, marks=pytest.mark.full) for name in KEYS if name not in LEARN]
SIGNED = ["ppo", "grpo", "reinforce"]  # the other surrogates and all options in test-full
SIGNED += [pytest.param(name, marks=pytest.mark.full) for name in KEYS if name not in (*SIGNED, "sft", "ppo, warm-up")]


def algo_of(name: str) -> str:
    return {"rloo": "reinforce", "dr_grpo": "grpo", "dapo": "grpo", "gspo": "grpo", "cispo": "grpo"}.get(
        name, name.split(",")[0]
    )


@pytest.mark.all_only
@pytest.mark.parametrize("name", LEARN)
def test_learns_a_bandit(name):
    before, after = learn(algo_of(name), **KEYS[name])
    assert 0.2 < before < 0.8
    assert after > LEARNED


@pytest.mark.parametrize("name", SIGNED)
def test_flipped_advantages_unlearn_it(name):
    before, after = learn(algo_of(name), sign=-1.0, **{"epochs": 10} | KEYS[name])
    assert after < before - 0.05


@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_first_pass_has_ratio_one_and_nothing_clipped(algo):
    """One optimizer step covers the whole epoch, so the policy that trains is the one that sampled."""
    state, cfg = make_state(algo, batch_size=32, **{f"{algo}.epochs": 1})
    losses, _ = train.learn(state, train.score(state, play(state, cfg, 0), cfg), cfg)
    assert losses["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert losses["clip_fraction"] == 0.0
    assert losses["approx_kl"] == 0.0
    assert losses["sampler_gap"] == 0.0


@pytest.mark.parametrize(("warmup", "found"), [(1, True), (0, False)])
def test_sampler_gap_covers_every_step_with_the_weights_that_sampled(warmup, found):
    """Two optimizer steps; the log-probability of a token of the second is changed. In the critic's warm-up the policy
    does not change, so this step can be compared too."""
    state, cfg = make_state("ppo", batch_size=16, order="sequential", **{"ppo.critic_warmup": warmup, "ppo.epochs": 1})
    batch = train.score(state, play(state, cfg, 0), cfg)
    batch.old_logprobs_N[-1] -= 0.5
    losses, _ = train.learn(state, batch, cfg)
    assert losses["optimizer_steps"] == 2
    assert losses["sampler_gap"] == (pytest.approx(0.5, abs=1e-5) if found else 0.0)


def test_critic_warmup_trains_the_critic_alone():
    state, cfg = make_state("ppo", **{"ppo.critic_warmup": 1})
    policy = {name: p.clone() for name, p in state.trainable().items()}
    for moved in (False, True):
        critic = state.critic.down.weight.clone()
        train.learn(state, train.score(state, play(state, cfg, 0), cfg), cfg)
        assert not torch.equal(state.critic.down.weight, critic)
        assert moved != all(torch.equal(policy[name], p) for name, p in state.trainable().items())


@pytest.mark.parametrize("source", ["rollouts", "sampler", None])
def test_epoch_without_a_group_to_learn_from_takes_no_step(source):
    """DAPO drops groups that all fail: no batch is left, and no weight changes. Episodes are also read from a file, or
    sampled by a server."""
    state, cfg = make_state("grpo", **{"grpo.group_size": 4, "grpo.drop_equal": True})
    cfg = replace(cfg, **{source: "http://there/v1"}) if source else cfg
    episodes = play(state, cfg, 0)
    for episode in episodes:
        for turn in episode.turns:
            turn.reward = 0.0
    before = {name: p.clone() for name, p in state.trainable().items()}
    batch = train.score(state, episodes, cfg)
    losses, _ = train.learn(state, batch, cfg)
    assert losses["optimizer_steps"] == 0 and "loss" not in losses and losses["sampler_gap"] is None
    assert not batch.episodes and all(math.isfinite(x) for x in batch.metrics.values())
    assert all(torch.equal(before[name], p) for name, p in state.trainable().items())


def test_demonstrations_are_fitted_at_temperature_one():
    """The sampling temperature is that of evaluations alone."""
    losses = []
    for temperature in (1.0, 0.5):
        state, cfg = make_state("sft", temperature=temperature)
        batch = train.score(state, play(state, cfg, 0), cfg)
        losses.append(train.learn(state, batch, cfg)[0]["loss"])
    assert losses[0] == losses[1]


def test_target_kl_stops_the_epochs_updates():
    for target, fewer in (("none", False), ("1e-6", True)):
        state, cfg = make_state("ppo", **{"ppo.target_kl": target, "ppo.epochs": 4})
        losses, _ = train.learn(state, train.score(state, play(state, cfg, 0), cfg), cfg)
        assert (losses["optimizer_steps"] < 8) == fewer


def test_target_kl_refuses_a_loss_that_does_not_return_approx_kl(monkeypatch):
    """As somebody's own loss may; without it the bound could never stop anything."""
    right = ppo.loss

    def own(batch, cfg):
        loss, metrics = right(batch, cfg)
        del metrics["approx_kl"]
        return loss, metrics

    monkeypatch.setattr(ppo, "loss", own)
    for target in ("none", "0.1"):
        state, cfg = make_state("ppo", **{"ppo.target_kl": target})
        batch = train.score(state, play(state, cfg, 0), cfg)
        wanted = pytest.raises(Refusal, match=r"ppo\.target_kl=0\.1 needs a loss that returns the metric approx_kl")
        with nullcontext() if target == "none" else wanted:
            train.learn(state, batch, cfg)


def test_step_with_an_infinite_gradient_is_skipped():
    state, cfg = make_state("grpo", **{"grpo.group_size": 4})
    batch = train.score(state, play(state, cfg, 0), cfg)
    before = {name: p.clone() for name, p in state.trainable().items()}
    batch.advantages_N[0] = float("nan")
    losses, _ = train.learn(state, batch, cfg)
    assert losses["skipped_steps"] == 1 and losses["optimizer_steps"] == 1
    assert all(p.isfinite().all() for p in state.trainable().values())

    state, cfg = make_state("grpo", batch_size=32, **{"grpo.group_size": 4})
    with pytest.raises(FloatingPointError, match="epoch 1: no gradient was finite, in 1 optimizer steps"):
        train.learn(state, batch, cfg)
    assert all(torch.equal(before[name], p) for name, p in state.trainable().items())


def test_a_metric_of_some_steps_is_their_mean():
    """In whatever order: a loss may have a metric that it cannot give in every step."""
    none = torch.zeros(0)
    steps = [StepResult(metrics, none, none, 0.0, none, 10) for metrics in ({"a": 1.0}, {"a": 2.0, "b": 4.0})]
    skipped = StepResult({"a": float("nan")}, none, none, 0.0, none, 10, skipped=True)
    for order in (steps, steps[::-1]):
        counts = {"optimizer_steps": 2, "skipped_steps": 1, "trained_tokens": 30}
        assert means([skipped, *order]) == {"a": 1.5, "b": 4.0} | counts


def test_steps_do_not_share_gradients():
    """A second step on the same batch has the same gradient: the first, at a learning rate near 0, leaves none."""
    state, cfg = make_state("grpo", lr=1e-12, **{"grpo.group_size": 4})
    batch = train.score(state, play(state, cfg, 0), cfg)
    first, second = (optimizer_step(state, batch, grpo, cfg).metrics["grad_norm"] for _ in range(2))
    assert second == pytest.approx(first, rel=1e-4) and first > 0


def test_a_gradient_is_scaled_down_to_clip_norm():
    """A step of plain gradient descent at lr=1 has the length clip_norm, if the gradient is longer."""
    state, cfg = make_state("grpo", optimizer="sgd", lr=1, clip_norm=1e-3, **{"grpo.group_size": 4})
    batch = train.score(state, play(state, cfg, 0), cfg)
    before = {name: p.detach().clone() for name, p in state.trainable().items()}
    assert optimizer_step(state, batch, grpo, cfg).metrics["grad_norm"] > 0.01
    moved = torch.cat([(p.detach() - before[name]).flatten() for name, p in state.trainable().items()])
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-2)
