"""Every algorithm learns where the best policy is known, and unlearns with a wrong sign: a bandit, played by token."""

from dataclasses import replace

import pytest
import torch

import lora
from models.config import parse_config
from models.decoder import CausalLM
from models.generate import Engine
from rl import config
from rl.batch import add_values, make_batch
from rl.checkpoint import TrainState
from rl.records import Episode, Turn
from rl.update import Critic, make_optimizer, update

VOCAB, PROMPT = 32, [5, 9, 2]


def make_state(algo: str, **keys):
    """A random model of two layers with a LoRA adapter, and the configuration of a short run."""
    torch.manual_seed(0)
    words = dict(algo=algo, lr=1e-2, batch_size=16, episodes=32, epochs=12, **keys)
    cfg = config.parse([f"{key}={value}" for key, value in words.items()])
    raw = dict(model_type="qwen3", vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    model = CausalLM(parse_config({**raw, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}))
    torch.nn.init.normal_(model.lm_head.weight, std=0.7)  # wide enough for a policy that is sure of itself
    lora.inject(model, r=8, alpha=16)
    critic = Critic(32, 16) if algo == "ppo" else None
    return TrainState(model, critic, make_optimizer(model, critic, cfg)), cfg


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
    """Mean reward per turn before and after twelve epochs; sign -1 turns every advantage around."""
    state, cfg = make_state(algo, **keys)
    module, algo_cfg = config.ALGORITHMS[algo], getattr(cfg, algo)
    means = []
    for epoch in range(cfg.epochs):
        episodes = play(state, cfg, epoch * cfg.episodes)
        means.append(sum(e.score for e in episodes) / len(episodes) / 2)
        if algo == "sft":  # the expert is whoever played well
            episodes = [e for e in episodes if e.score == 2] or episodes[:1]
        batch = make_batch(episodes)
        if state.critic:
            batch = add_values(batch, state.model, state.critic, cfg.micro_tokens)
        batch = module.advantages(batch, algo_cfg)
        losses = update(state, replace(batch, advantages_N=sign * batch.advantages_N), module, cfg)
        if algo != "sft":
            assert losses["sampler_gap"] == 0.0, "sampling and training disagree"
        state.epoch += 1
    return means[0], means[-1]


KEYS = {"sft": {"sft.epochs": 2}, "grpo": {"grpo.group_size": 4}, "ppo": {"ppo.epochs": 2}}


@pytest.mark.parametrize("algo", KEYS)
def test_learns_a_bandit(algo):
    before, after = learn(algo, **KEYS[algo])
    assert 0.2 < before < 0.8
    assert after > 0.9


@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_a_flipped_advantage_unlearns_it(algo):
    _, after = learn(algo, sign=-1.0, **KEYS[algo])
    assert after < 0.15


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
