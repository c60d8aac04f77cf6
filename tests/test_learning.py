"""Every algorithm learns where the best policy is known, and unlearns with a wrong sign: a bandit, played by token."""

from dataclasses import replace

import pytest
import torch
from conftest import random_model

import lora
from models.engine import Engine
from rl import config, kl
from rl.batch import add_reference, add_values, make_batch
from rl.checkpoint import TrainState
from rl.records import Episode, Turn
from rl.update import Critic, make_optimizer, update

PROMPT = [5, 9, 2]


def make_state(algo: str, **keys):
    """A random model with a LoRA adapter, and the configuration of a short run."""
    torch.manual_seed(0)
    words = dict(algo=algo, lr=1e-2, batch_size=16, episodes=32, epochs=16) | keys
    cfg = config.parse([f"{key}={value}" for key, value in words.items()])
    model = random_model("qwen3").requires_grad_(False)
    lora.inject(model, r=8, alpha=16)
    critic = Critic(48, 16) if algo == "ppo" else None
    state = TrainState(model, critic, make_optimizer(model, critic, cfg))
    state.kl_coef = getattr(getattr(cfg, algo), "kl_coef", 0.0)
    return state, cfg


def play(state, cfg, first: int, turns: int = 2) -> list[Episode]:
    """Episodes of two turns of one token, which earns 1 if it is even. Groups of four share nothing but a number."""
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
    """Mean reward per turn before and after all epochs; sign -1 turns every advantage around."""
    state, cfg = make_state(algo, **keys)
    module, algo_cfg = config.ALGORITHMS[algo], getattr(cfg, algo)
    means = []
    for epoch in range(cfg.epochs):
        episodes = play(state, cfg, epoch * cfg.episodes)
        means.append(sum(e.score for e in episodes) / len(episodes) / 2)
        if algo == "sft":  # the expert is whoever played well
            episodes = [e for e in episodes if e.score == 2] or episodes[:1]
        batch = replace(make_batch(episodes), kl_coef=state.kl_coef, baseline=state.baseline)
        if state.critic:
            batch = add_values(batch, state.model, state.critic, cfg.micro_tokens)
        if algo_cfg.reference:
            with lora.adapters_off(state.model):
                batch = add_reference(batch, state.model, cfg.temperature, cfg.micro_tokens)
        batch = module.advantages(batch, algo_cfg)
        state.baseline, state.kl_coef = batch.baseline, kl.adapted(batch, algo_cfg) if algo_cfg.reference else 0.0
        losses = update(state, replace(batch, advantages_N=sign * batch.advantages_N), module, cfg)
        if algo != "sft" and batch.episodes:
            assert losses["sampler_gap"] == 0.0, "sampling and training disagree"
        state.epoch += 1
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
SIGNED = [name for name in KEYS if name not in ("sft", "ppo, warm-up")]


def algo_of(name: str) -> str:
    return {"rloo": "reinforce", "dr_grpo": "grpo", "dapo": "grpo", "gspo": "grpo", "cispo": "grpo"}.get(
        name, name.split(",")[0]
    )


@pytest.mark.parametrize("name", KEYS)
def test_learns_a_bandit(name):
    before, after = learn(algo_of(name), **KEYS[name])
    assert 0.2 < before < 0.8
    assert after > 0.85


@pytest.mark.parametrize("name", SIGNED)
def test_a_flipped_advantage_does_not(name):
    before, after = learn(algo_of(name), sign=-1.0, **KEYS[name])
    assert after < before - 0.05


@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_the_first_pass_has_ratio_one_and_nothing_clipped(algo):
    """One optimizer step over the whole epoch: the policy that trains is the one that sampled."""
    epochs = {f"{algo}.epochs": 1}
    state, cfg = make_state(algo, **epochs)
    cfg.batch_size = cfg.episodes
    batch = make_batch(play(state, cfg, 0))
    if state.critic:
        batch = add_values(batch, state.model, state.critic, cfg.micro_tokens)
    module = config.ALGORITHMS[algo]
    losses = update(state, module.advantages(batch, getattr(cfg, algo)), module, cfg)
    assert losses["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert losses["clip_fraction"] == 0.0
    assert losses["approx_kl"] == 0.0
    assert losses["sampler_gap"] == 0.0


def test_the_critic_warms_up_alone():
    state, cfg = make_state("ppo", **{"ppo.critic_warmup": 1})
    policy = {name: p.clone() for name, p in state.trainable().items()}
    for epoch, moved in ((0, False), (1, True)):
        state.epoch, critic = epoch, state.critic.down.weight.clone()
        batch = add_values(make_batch(play(state, cfg, 0)), state.model, state.critic, cfg.micro_tokens)
        update(state, config.ALGORITHMS["ppo"].advantages(batch, cfg.ppo), config.ALGORITHMS["ppo"], cfg)
        assert not torch.equal(state.critic.down.weight, critic)
        assert moved != all(torch.equal(policy[name], p) for name, p in state.trainable().items())


def test_an_epoch_without_a_group_to_learn_from_takes_no_step():
    """DAPO on groups that all fail: nothing is left, nothing is divided by, nothing moves."""
    state, cfg = make_state("grpo", **{"grpo.group_size": 4, "grpo.drop_equal": True})
    episodes = play(state, cfg, 0)
    for episode in episodes:
        for turn in episode.turns:
            turn.reward = 0.0
    module, before = config.ALGORITHMS["grpo"], {name: p.clone() for name, p in state.trainable().items()}
    losses = update(state, module.advantages(make_batch(episodes), cfg.grpo), module, cfg)
    assert losses["optimizer_steps"] == 0 and "loss" not in losses
    assert all(torch.equal(before[name], p) for name, p in state.trainable().items())


def test_target_kl_stops_the_epochs_updates():
    for target, fewer in (("none", False), ("1e-6", True)):
        state, cfg = make_state("ppo", **{"ppo.target_kl": target, "ppo.epochs": 4})
        batch = add_values(make_batch(play(state, cfg, 0)), state.model, state.critic, cfg.micro_tokens)
        module = config.ALGORITHMS["ppo"]
        steps = update(state, module.advantages(batch, cfg.ppo), module, cfg)["optimizer_steps"]
        assert (steps < 8) == fewer


def test_a_step_that_is_not_finite_is_not_taken():
    state, cfg = make_state("grpo", **{"grpo.group_size": 4})
    batch = make_batch(play(state, cfg, 0))
    batch = config.ALGORITHMS["grpo"].advantages(batch, cfg.grpo)
    before = {name: p.clone() for name, p in state.trainable().items()}
    batch.advantages_N[0] = float("nan")
    losses = update(state, batch, config.ALGORITHMS["grpo"], cfg)
    assert losses["skipped_steps"] == 1 and losses["optimizer_steps"] == 1
    assert all(p.isfinite().all() for p in state.trainable().values())

    state, cfg = make_state("grpo", **{"grpo.group_size": 4})
    cfg.batch_size = cfg.episodes
    with pytest.raises(FloatingPointError, match="epoch 1: no gradient was finite, in 1 optimizer steps"):
        update(state, batch, config.ALGORITHMS["grpo"], cfg)
    assert all(torch.equal(before[name], p) for name, p in state.trainable().items())
