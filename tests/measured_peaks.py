"""Planned and measured peak memory of each phase of a run.

The measured peak is that of all live tensors' storage (live_storage.py) of the functions that a run calls, with random
weights. One optimizer step has been taken before, so that the optimizer's moments count. On CUDA it is that of torch's
allocator, which counts libraries' workspaces and the graphs' memory too.
"""

import json
from dataclasses import replace

import torch
from live_storage import LiveStorage

import lora
from benchmarks import sides
from benchmarks.sides import SHAPES
from models import choose_threads
from models.attention import QUERY_TILE
from models.config import parse_config
from models.decoder import checkpoint_blocks
from models.engine import Engine
from models.hooks import hooks, keep_copies
from models.sizes import sizes_of
from models.weights import TINY
from rl import peaks
from rl.batch import add_values, make_batch
from rl.config import fields
from rl.config.words import parse
from rl.ppo import Critic
from rl.records import Batch, Episode, Turn
from rl.run import full_finetuning
from rl.run.state import TrainState
from rl.update import make_optimizer, optimizer_step


def raw_config(name: str) -> dict:
    """Return a shape's config.json."""
    return json.loads((TINY / "config.json").read_text()) if name == "tiny" else SHAPES[name]


def planned(name: str, words: list[str]) -> dict[str, int]:
    """Return the planned bytes of each phase."""
    return peaks.phases(sizes_of(parse_config(raw_config(name))), settings(name, words))


def settings(name: str, words: list[str]):
    """Return the settings of a run with these words; products=auto is decided once for the plan and the run."""
    cfg = parse(["algo=ppo", "epochs=2", "device=cpu", "lora.r=16", *words])
    cfg = replace(cfg, batch_size=2 * cfg.micro_tokens // cfg.max_len)  # two micro-batches a step
    return peaks.settled(sizes_of(parse_config(raw_config(name))), cfg)


class Allocated:
    """The interface of LiveStorage for everything that torch allocates on CUDA."""

    def __enter__(self):
        self.before = torch.cuda.memory_allocated()
        self.reset_peak()
        return self

    def __exit__(self, *_):
        pass

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() - self.before


def measured(name: str, words: list[str]) -> dict[str, int]:
    """Return the measured bytes of each phase but merge."""
    cfg, found = settings(name, words), {}
    torch.manual_seed(0)
    with LiveStorage() if cfg.device == "cpu" else Allocated() as live:
        model = sides.random(raw_config(name), getattr(torch, cfg.dtype), cfg.device)
        if cfg.quant != "none":
            sides.quantised(model, cfg.quant)
        if cfg.lora.r:
            lora.inject(model, r=cfg.lora.r, targets=cfg.lora.targets)
        else:
            full_finetuning.train_all(model)
        live.reset_peak()
        critic = Critic(model.config.hidden_size, cfg.ppo.critic_hidden, cfg.device)
        state = TrainState(model, critic, make_optimizer(model, critic, cfg))
        if not cfg.lora.r and cfg.dtype != "float32":
            full_finetuning.use_masters(state)
        found["load"] = live.peak
        choose_threads(model, cfg.threads, products=cfg.products)
        if cfg.checkpoint == "block":
            checkpoint_blocks(model)
        batch = full_batch(cfg, model.config.vocab_size)
        optimizer_step(state, batch, fields.algorithm_module("ppo"), cfg)
        play(state, cfg)  # with the trial of the decode step, which a run makes at its start
        live.reset_peak()
        add_values(batch, model, critic, cfg.micro_tokens)
        found["values"] = live.peak
        live.reset_peak()
        optimizer_step(state, batch, fields.algorithm_module("ppo"), cfg)
        found["update"] = live.peak
        live.reset_peak()
        play(state, cfg)
        found["rollout"] = live.peak
    keep_copies(True)  # drops the engine that is kept
    return found


def full_batch(cfg, vocabulary: int) -> Batch:
    """Return a batch of two micro-batches, so that the second is computed beside the first one's gradients: episodes
    of max_len tokens, of which all but the first are sampled."""
    episodes = []
    for i in range(cfg.batch_size):
        ids = torch.randint(vocabulary, (cfg.max_len,)).tolist()
        turns = [Turn(1, len(ids), 1.0, "stop")]
        mask = [0] + [1] * (len(ids) - 1)
        episodes.append(Episode("", 0, i, ids, mask, [-1.0] * len(ids), turns, terminated=True))
    batch = make_batch(episodes)
    batch.advantages_N = batch.returns_N = batch.old_values_N = torch.ones(len(batch.episode_N))
    batch.total_tokens = batch.learned_tokens = len(batch.episode_N)
    batch.total_turns = batch.total_episodes = len(episodes)
    return batch


def play(state: TrainState, cfg) -> None:
    """Fill every row of the cache in one turn, then in two, of which the second begins with a tile of tokens."""
    version = lora.adapter_version(state.model)
    engine = hooks(state.model.lm_head.weight).engine(Engine, state.model, cfg.rollout_batch_size, cfg.max_len, version)
    first = max(cfg.max_len - QUERY_TILE - 4, 1)  # and twice two sampled tokens
    for turns in ((cfg.max_len - 2,), (first, cfg.max_len - first - 4)):
        slots = [engine.open((0, i)) for i in range(cfg.rollout_batch_size)]
        for count in turns:
            for slot in slots:
                engine.feed(slot, torch.randint(state.model.config.vocab_size, (count,)).tolist())
            list(engine.run(2, 1.0, frozenset()))
        for slot in slots:
            engine.close(slot)
