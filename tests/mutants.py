"""Planted bugs: each must end a tiny strict run, or fail a test; `make mutants` writes which to
benchmarks/results/mutants.md.

A mutant is a function that takes the right function and returns a wrong one, which replaces it in every module. Each
runs in a process of its own, forked from this one: two optimizer steps of the embedded model with strict=true, which a
check of rl/run/health.py must end by its name; or pytest on one test, of which an assertion must fail.
tests/core/test_mutations.py holds more of them, for single functions, beside their properties.
"""

import contextlib
import copy
import io
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from planting import plant
from torch import nn

import envs
import lora
import train
from envs import textcraft
from lora.fused import FusedLoRA
from lora.layer import Adapter
from models import CausalLM, Tokenizer, engine, load_model, logprob, random
from models.hooks import hooks
from rl import batch, core, evaluate, kl, ppo, reinforce, reward, sft, stats, tasks, update
from rl import rollout as rollouts
from rl.config import program
from rl.config.words import parse
from rl.records import Episode
from rl.run import checkpoint, files, resume, retention, watch

ROOT = Path(__file__).parents[1]
WORDS = "algo=grpo epochs=2 episodes=16 batch_size=16 max_turns=2 max_new_tokens=12 eval_episodes=0 lora.r=2"
WORDS += " temperature=1.5 reward.rule=shaped threads=1 products=plain strict=true"


@dataclass(frozen=True)
class Mutant:
    name: str
    part: str  # of the way of the data
    owner: object  # a module, class or object
    function: str
    wrong: Callable[[Callable], Callable]
    caught_by: str  # the name of a check, as in the metric `warnings`, or a test
    run: Callable[[Path], None]  # the run that a check must end

    @property
    def target(self) -> str:
        owner = getattr(self.owner, "__qualname__", None) or getattr(self.owner, "__name__", type(self.owner).__name__)
        return f"{owner}.{self.function}"

    @property
    def is_run(self) -> bool:
        return "::" not in self.caught_by


@dataclass
class Keys:
    only: str = ""  # mutants whose name or part contains this
    out: str = ""  # also write the table to this file, in Markdown
    seconds: int = 600  # a mutant's longest time; one that takes longer counts as not caught


MUTANTS: list[Mutant] = []


def with_words(words: str) -> Callable[[Path], None]:
    """Return a run with these settings on top of WORDS."""
    return lambda folder: train.main(parse([*WORDS.split(), *words.split(), f"out={folder}/run"]))


def resumed(words: str) -> Callable[[Path], None]:
    """Return a run of one epoch that is resumed for a second."""

    def run(folder: Path) -> None:
        with_words(f"{words} epochs=1")(folder)
        train.main(parse([f"resume={folder}/run", "epochs=2"]))

    return run


def from_adapter(folder: Path) -> None:
    """Run from an adapter with random factors."""
    model = load_model("tiny")
    lora.inject(model, r=2)
    for _, layer in lora.lora_layers(model):
        nn.init.normal_(layer.adapter.B, std=0.02, generator=torch.Generator().manual_seed(0))
    lora.save_adapter(model, folder / "adapter", "tiny")
    words = [word for word in WORDS.split() if not word.startswith("lora.")]
    train.main(parse([*words, f"resume_from={folder}/adapter", f"out={folder}/run"]))


def mutant(name: str, part: str, owner, function: str, caught_by: str, run: str | Callable = ""):
    """Add the mutant whose wrong function the decorated one makes."""

    def add(wrong):
        MUTANTS.append(Mutant(name, part, owner, function, wrong, caught_by, run if callable(run) else with_words(run)))
        return wrong

    return add


def arguments(name: str, part: str, owner, function: str, caught_by: str, change: Callable, run: str = ""):
    """Add a mutant that changes the arguments: `change` gets them and returns the positional ones."""
    wrong = lambda right: lambda *args, **options: right(*change(*args, **options))  # noqa: E731
    mutant(name, part, owner, function, caught_by, run)(wrong)


def result(name: str, part: str, owner, function: str, caught_by: str, change: Callable, run: str | Callable = ""):
    """Add a mutant that changes the result: `change` gets the right one, then the arguments."""
    wrong = lambda right: lambda *args, **options: change(right(*args, **options), *args, **options)  # noqa: E731
    mutant(name, part, owner, function, caught_by, run)(wrong)


def no_op(name: str, part: str, owner, function: str, caught_by: str, run: str | Callable = "", value=None):
    """Add a mutant that does nothing."""
    mutant(name, part, owner, function, caught_by, run)(lambda right: lambda *args, **options: value)


# ---- Sampling ----

arguments(
    "train samples at temperature 1", "sampler", rollouts, "rollout", "sampler_gap",
    lambda model, tokenizer, played, cfg, temperature, *rest: (model, tokenizer, played, cfg, 1.0, *rest),
)  # fmt: skip


@mutant("the adapter is off while sampling", "sampler", rollouts, "rollout", "weights")
def _(right):
    def wrong(model, *args):
        with lora.adapters_off(model):
            return right(model, *args)

    return wrong


@mutant("the sampler keeps its first copy of the weights", "sampler", rollouts, "rollout", "weights")
def _(right):
    copies = []

    def wrong(model, *args):
        copies.append(copies[0] if copies else copy.deepcopy(model))
        return right(copies[-1], *args)

    return wrong


@mutant("the decode step keeps stale factors", "sampler", hooks("cpu"), "decode_step", "sampler_gap")
def _(right):
    made = []

    def wrong(model):
        made.append(made[0] if made else right(model))
        return made[-1]

    return wrong


arguments(
    "decoded tokens stand one position late", "positions", engine.Engine, "_next", "sampler_gap",
    lambda self, ids_B, positions_B, view: (self, ids_B, positions_B + 1, view),
)  # fmt: skip


@mutant("log-probabilities are sampled without the temperature", "sampler", engine, "sample", "sampler_gap")
def _(right):
    def wrong(hidden_BD, weight_VD, temperature, uniforms_B):
        ids_B, _ = right(hidden_BD, weight_VD, temperature, uniforms_B)
        with torch.no_grad():
            return ids_B, logprob.token_logprobs(hidden_BD, weight_VD, ids_B.to(hidden_BD.device))[0]

    return wrong


@mutant("only the five likeliest tokens are sampled", "sampler", engine, "sample", "sampler_gap")
def _(right):
    def wrong(hidden_BD, weight_VD, temperature, uniforms_B):
        logits_BV = logprob.head_logits(hidden_BD, weight_VD, temperature or 1.0)
        top = logits_BV.topk(5).indices
        logprobs = logits_BV.gather(1, top).log_softmax(-1)
        at = (logprobs.exp().cumsum(-1) < uniforms_B[:, None]).sum(-1, keepdim=True).clamp(max=4)
        return top.gather(1, at)[:, 0], logprobs.gather(1, at)[:, 0]

    return wrong


arguments(
    "every episode has the same random numbers", "sampler", random, "fold_all",
    "tests/core/test_engine.py::test_another_seed_episode_or_turn_samples_otherwise",
    lambda counters: ([(seed, 0, turn) for seed, _, turn in counters],),
)  # fmt: skip
arguments(
    "log-probabilities stand at the token before", "masks", Episode, "append_turn", "sampler_gap",
    lambda self, ids, logprobs, *more: (self, ids, logprobs[1:] + logprobs[:1], *more),
)  # fmt: skip


@mutant("the action mask is one token early", "masks", Episode, "append_turn", "sampler_gap")
def _(right):
    def wrong(self, ids, *more):
        right(self, ids, *more)
        if ids:
            self.action_mask_T[self.turns[-1].start - 1], self.action_mask_T[-1] = 1, 0

    return wrong


@mutant(
    "a stop token does not end a reply",
    "sampler",
    engine.Slot,
    "append",
    "tests/core/test_engine.py::test_stop_reasons",
)
def _(right):
    return lambda self, ids, logprobs, most, stop_ids, max_len: right(self, ids, logprobs, most, frozenset(), max_len)


# ---- Tasks and episodes ----


@mutant("the count of groups does not move", "rollouts", train, "learn", "tasks")
def _(right):
    def wrong(state, *args):
        before = state.groups
        losses = right(state, *args)
        state.groups = before
        return losses

    return wrong


result(
    "all groups have the first one's task", "rollouts", tasks, "make_tasks", "tasks",
    lambda made, *_, **__: [replace(task, seed=made[0].seed) for task in made],
)  # fmt: skip
result(
    "members of a group have different tasks", "rollouts", tasks, "make_tasks", "groups",
    lambda made, *_, **__: [replace(task, seed=task.seed + i) for i, task in enumerate(made)],
)  # fmt: skip
result(
    "an episode has the group of its neighbour", "rollouts", tasks, "make_tasks", "groups",
    lambda made, *_, **__: [
        replace(task, group=other.group) for task, other in zip(made, made[1:] + made[:1], strict=True)
    ],
)  # fmt: skip


@mutant("the environment ignores its seed", "rollouts", textcraft.Env, "reset", "groups")
def _(right):
    count = iter(range(10**6))
    return lambda self, seed, split="train": right(self, next(count), split)


def failing(right: Callable) -> Callable:
    """Return textcraft's step, which fails in every fourth task."""

    def step(self, action_text):
        if self.task_number % 4 == 1:
            raise envs.EnvironmentFailed("planted")
        return right(self, action_text)

    return step


@mutant("failed environments are learned from", "rollouts", train, "score", "failed_episodes")
def _(right):
    played, collect, step, reset = [], train.collect, textcraft.Env.step, textcraft.Env.reset

    def kept(*args):
        played[:] = collect(*args)
        return played

    def numbered(self, seed, split="train"):
        self.task_number = seed
        return reset(self, seed, split)

    train.collect, textcraft.Env.reset, textcraft.Env.step = kept, numbered, failing(step)
    return lambda state, episodes, cfg: right(state, played, cfg)


@mutant(
    "a failed environment counts as a failed agent", "rollouts", rollouts._Games, "fail",
    "tests/core/test_rollout.py::test_episode_of_a_failed_environment_is_left_out[step-False]",
)  # fmt: skip
def _(right):
    def wrong(self, game, error):
        right(self, game, error)
        game.episode.infrastructure_failed, game.episode.outcome = False, "incorrect"

    return wrong


# ---- Adapters ----


@mutant("B starts at random", "adapters", Adapter, "__init__", "adapter")
def _(right):
    def wrong(self, *args, **options):
        right(self, *args, **options)
        nn.init.normal_(self.B, std=0.02)

    return wrong


@mutant("A and B both start at zero", "adapters", Adapter, "__init__", "gradient")
def _(right):
    def wrong(self, *args, **options):
        right(self, *args, **options)
        nn.init.zeros_(self.A)

    return wrong


@mutant(
    "the adapter that training starts from is not loaded", "adapters", update, "make_optimizer", "adapter", from_adapter
)
def _(right):
    def wrong(model, *args):
        for _, layer in lora.lora_layers(model):
            nn.init.zeros_(layer.adapters["default"].B)
        return right(model, *args)

    return wrong


@mutant("the adapter is scaled twice in training", "adapters", update, "accumulate", "sampler_gap")
def _(right):
    def wrong(state, *args):
        adapters = [layer.adapter for _, layer in lora.lora_layers(state.model)]
        for adapter in adapters:
            adapter.scale *= 2
        found = right(state, *args)
        for adapter in adapters:
            adapter.scale /= 2
        return found

    return wrong


@mutant(
    "dropout in reinforcement learning", "adapters", CausalLM, "train", "dropout", "recipe=tests/fixtures/dropout.toml"
)
def _(right):
    return lambda self, mode=True: right(self, True)


@mutant("no dropout in fine-tuning", "adapters", CausalLM, "train", "dropout", "algo=sft lora.dropout=0.3")
def _(right):
    return lambda self, mode=True: right(self, False)


@mutant("the last layer's B gets no gradient", "adapters", FusedLoRA, "backward", "factors")
def _(right):
    def wrong(ctx, grad):
        found = list(right(ctx, grad))
        if len(found) > 5:
            found[-1] = torch.zeros_like(found[-1])
        return tuple(found)

    return wrong


# ---- The update ----


def without(factor: str) -> Callable:
    """Return make_optimizer without the factors "A" or "B"."""

    def mutate(right):
        def wrong(model, *args):
            optimizer = right(model, *args)
            left_out = {id(p) for name, p in model.named_parameters() if name.endswith(f".{factor}")}
            group = optimizer.param_groups[0]
            group["params"] = [p for p in group["params"] if id(p) not in left_out]
            return optimizer

        return wrong

    return mutate


mutant("the optimizer does not have B", "update", update, "make_optimizer", "gradient")(without("B"))
mutant("the optimizer does not have A", "update", update, "make_optimizer", "factors")(without("A"))


@mutant("the optimizer takes no step", "update", update, "make_optimizer", "factors")
def _(right):
    def wrong(*args):
        optimizer = right(*args)
        optimizer.step = lambda closure=None: None
        return optimizer

    return wrong


no_op("the learning rate is 0", "schedule", core, "learning_rate_factor", "factors", value=0.0)


@mutant(
    "the warm-up begins at 0", "schedule", core, "learning_rate_factor",
    "tests/core/test_core.py::test_learning_rate_factor",
)  # fmt: skip
def _(right):
    return lambda step, total, kind, warmup, more: (
        step / warmup if step < warmup else right(step, total, kind, warmup, more)
    )


result(
    "the graph is cut behind the model", "update", batch, "forward", "gradient",
    lambda found, *_: replace(found, logprobs_N=found.logprobs_N.detach() + 0 * found.logprobs_N),
)  # fmt: skip
arguments(
    "training forgets the temperature", "update", batch, "forward", "sampler_gap",
    lambda piece, model, temperature, *more: (piece, model, 1.0, *more),
)  # fmt: skip
result(
    "old log-probabilities are lost", "update", batch, "make_batch", "sampler_gap",
    lambda found, *_: replace(found, old_logprobs_N=torch.zeros_like(found.old_logprobs_N)),
)  # fmt: skip


@mutant("packed episodes see one another", "masks", CausalLM, "forward", "sampler_gap")
def _(right):
    def wrong(self, ids_BT, *args, sequences_ST=None, **options):
        if sequences_ST is not None:
            sequences_ST = torch.arange(ids_BT.numel())[None]
        return right(self, ids_BT, *args, sequences_ST=sequences_ST, **options)

    return wrong


@mutant("the loss is not a number", "update", core, "clipped_surrogate", "nonfinite")
def _(right):
    return lambda *args, **options: tuple(x * torch.nan for x in right(*args, **options))


@mutant(
    "a step with an infinite gradient is taken", "update", torch.nn.utils, "clip_grad_norm_",
    "tests/core/test_learning.py::test_step_with_an_infinite_gradient_is_skipped",
)  # fmt: skip
def _(right):
    return lambda *args, **options: right(*args, **options).nan_to_num()


arguments(
    "critic_warmup is ignored", "update", update, "optimizer_step",
    "tests/core/test_learning.py::test_critic_warmup_trains_the_critic_alone",
    lambda state, piece, algo, cfg: (state, piece, algo, replace(cfg, ppo=replace(cfg.ppo, critic_warmup=0))),
)  # fmt: skip
arguments(
    "gradients are not clipped", "update", torch.nn.utils, "clip_grad_norm_",
    "tests/core/test_learning.py::test_a_gradient_is_scaled_down_to_clip_norm", lambda params, norm: (params, 1e9),
)  # fmt: skip
no_op(
    "gradients add up over steps", "update", torch.optim.Optimizer, "zero_grad",
    "tests/core/test_learning.py::test_steps_do_not_share_gradients",
)  # fmt: skip
result(
    "each piece has its own denominators", "update", batch, "micro_batches",
    "tests/core/test_batch.py::test_gradient_is_independent_of_the_layout",
    lambda found, *_: (replace(piece, total_tokens=len(piece.episode_N)) for piece in found),
)  # fmt: skip
arguments(
    "one optimizer step leaves the last episode out", "update", batch, "optimizer_steps",
    "tests/core/test_batch.py::test_optimizer_steps_take_every_episode_once",
    lambda whole, size, seed: (batch.select(whole, list(range(len(whole.episodes) - 1))), size, seed),
)  # fmt: skip

# ---- Losses and advantages ----

arguments(
    "advantages have the wrong sign", "losses", core, "clipped_surrogate",
    "tests/core/test_core.py::test_clipped_surrogate",
    lambda ratio, advantages, *more: (ratio, -advantages, *more),
)  # fmt: skip
arguments(
    "the surrogate is not clipped", "losses", core, "clipped_surrogate",
    "tests/core/test_core.py::test_clipped_surrogate",
    lambda ratio, advantages, low, high, dual=None: (ratio, advantages, 9.0, 9.0, dual),
)  # fmt: skip
no_op(
    "approximate_kl is 0", "losses", core, "approximate_kl",
    "tests/core/test_learning.py::test_target_kl_stops_the_epochs_updates", value=torch.zeros(()),
)  # fmt: skip
arguments(
    "KL pushes away from the reference", "losses", kl, "in_loss",
    "tests/core/test_core.py::test_kl_in_the_loss_pulls_towards_the_reference",
    lambda piece, cfg: (replace(piece, kl_coef=-piece.kl_coef), cfg),
)  # fmt: skip
arguments(
    "the value loss has no clip", "losses", core, "value_loss", "tests/core/test_core.py::test_value_loss",
    lambda values, old, returns, clip: (values, old, returns, None),
)  # fmt: skip
result(
    "the entropy bonus is a penalty", "losses", reinforce, "loss",
    "tests/core/test_core.py::test_entropy_bonus_lowers_the_reinforce_loss",
    lambda found, piece, cfg: (found[0] + 2 * cfg.entropy_coef * piece.entropy_N.sum(), found[1]),
)  # fmt: skip
arguments(
    "sft divides by episodes", "losses", sft, "loss",
    "tests/core/test_core.py::test_sft_is_the_mean_negative_log_likelihood",
    lambda piece, cfg: (replace(piece, total_tokens=piece.total_episodes), cfg),
)  # fmt: skip


@mutant("no bootstrap after a cut", "advantages", core, "gae", "tests/core/test_core.py::test_gae")
def _(right):
    return lambda rewards, values, episode, last, *more, **options: right(
        rewards, values, episode, torch.zeros_like(last), *more, **options
    )


result(
    "whitening keeps the mean", "advantages", core, "whiten", "tests/core/test_core.py::test_whiten",
    lambda y, x: y + x.mean(),
)  # fmt: skip
arguments(
    "the baseline is that of all groups", "advantages", core, "group_advantages",
    "tests/core/test_core.py::test_group_advantages",
    lambda scores, group, *more: (scores, torch.zeros_like(group), *more),
)  # fmt: skip
result(
    "a terminated episode is bootstrapped", "advantages", batch, "add_values",
    "tests/core/test_batch.py::test_values_before_the_update",
    lambda found, *_: replace(found, last_values_B=found.last_values_B + 1),
)  # fmt: skip
arguments(
    "PPO counts tokens as steps", "advantages", ppo, "advantages", "tests/core/test_core.py::test_turn_level_gae",
    lambda piece, cfg: (piece, replace(cfg, level="token" if cfg.level == "turn" else "turn")),
)  # fmt: skip

# ---- Rewards ----


@mutant(
    "reward.scale is forgotten", "rewards", reward, "turn_reward",
    "tests/core/test_rollout.py::test_the_reward_rule_is_applied_in_one_place",
)  # fmt: skip
def _(right):
    return lambda step, episode, cfg: right(step, episode, cfg) / cfg.scale


@mutant(
    "an invalid action earns what it should cost", "rewards", reward, "turn_reward",
    "tests/core/test_rollout.py::test_the_reward_rule_is_applied_in_one_place[shaped]",
)  # fmt: skip
def _(right):
    def wrong(step, episode, cfg):
        paid = right(step, episode, cfg)
        return paid - 2 * cfg.scale * cfg.invalid if cfg.rule == "shaped" and not step.info["valid"] else paid

    return wrong


@mutant(
    "a cut episode is paid as unknown", "rewards", reward, "turn_reward",
    "tests/core/test_rollout.py::test_episode_cut_by_max_len_is_a_timeout",
)  # fmt: skip
def _(right):
    return lambda step, episode, cfg: 0.0 if step.info.get("outcome") == "timeout" else right(step, episode, cfg)


@mutant(
    "an episode cut by max_len counts as terminated", "rewards", rollouts, "add_step",
    "tests/core/test_rollout.py::test_episode_cut_by_max_len_is_a_timeout",
)  # fmt: skip
def _(right):
    def wrong(episode, *args):
        ids = right(episode, *args)
        episode.terminated, episode.truncated = episode.terminated or episode.truncated, False
        return ids

    return wrong


# ---- Checkpoints ----


@mutant("a resumed run forgets the count of groups", "resume", resume, "_load_checkpoint", "tasks", resumed(""))
def _(right):
    def wrong(state, folder):
        right(state, folder)
        state.groups = 0

    return wrong


no_op(
    "the optimizer's moments are not restored", "resume", torch.optim.Optimizer, "load_state_dict",
    "tests/runs/test_checkpoint.py::test_loaded_checkpoint_equals_the_saved_state_bitwise",
)  # fmt: skip
no_op(
    "the random number generator is not restored", "resume", torch, "set_rng_state",
    "tests/runs/test_checkpoint.py::test_loaded_checkpoint_equals_the_saved_state_bitwise",
)  # fmt: skip


@mutant(
    "the critic is not restored", "resume", resume, "_load_checkpoint",
    "tests/runs/test_checkpoint.py::test_loaded_checkpoint_equals_the_saved_state_bitwise",
)  # fmt: skip
def _(right):
    def wrong(state, folder):
        before = {name: p.clone() for name, p in state.critic.state_dict().items()} if state.critic else None
        right(state, folder)
        if before:
            state.critic.load_state_dict(before)

    return wrong


no_op(
    "damaged checkpoints are taken", "resume", files, "verify",
    "tests/runs/test_checkpoint.py::test_damaged_checkpoint_is_skipped_for_the_one_before",
)  # fmt: skip
no_op(
    "no checkpoint is removed", "checkpoints", retention, "prune",
    "tests/runs/test_checkpoint.py::test_only_the_newest_stay"
)  # fmt: skip


@mutant(
    "the checkpoint is the adapter before the update", "checkpoints", checkpoint, "save_checkpoint",
    "tests/runs/test_train.py::test_resumed_run_equals_the_uninterrupted_one_bitwise[sft from a file]",
)  # fmt: skip
def _(right):
    before = {}

    def wrong(state, run):
        now = {name: p.detach().clone() for name, p in state.trainable().items()}
        with torch.no_grad():
            for name, p in state.trainable().items():
                p.copy_(before.get(name, p))
            saved = right(state, run)
            for name, p in state.trainable().items():
                p.copy_(now[name])
        before.update(now)
        return saved

    return wrong


@mutant(
    "an adapter is saved with alpha = r", "checkpoints", json, "dumps",
    "tests/files/test_lora_files.py::test_round_trip_is_bitwise",
)  # fmt: skip
def _(right):
    def wrong(value, **options):
        changed = {**value, "lora_alpha": value["r"]} if isinstance(value, dict) and "lora_alpha" in value else value
        return right(changed, **options)

    return wrong


# ---- Evaluation ----

arguments(
    "evaluation plays training tasks", "evaluation", evaluate, "evaluate",
    "tests/core/test_rollout.py::test_evaluation_plays_held_out_tasks_with_the_adapter",
    lambda model, tokenizer, cfg, temperature, split, episodes: (
        model, tokenizer, cfg, temperature, "train", episodes
    ),
)  # fmt: skip
arguments(
    "greedy evaluation samples", "evaluation", evaluate, "evaluate",
    "tests/core/test_rollout.py::test_evaluation_plays_held_out_tasks_with_the_adapter",
    lambda model, tokenizer, cfg, temperatures, *more: (model, tokenizer, cfg, [1.0] * len(temperatures), *more),
)  # fmt: skip


@mutant(
    "evaluation plays the base", "evaluation", evaluate, "evaluate",
    "tests/core/test_rollout.py::test_evaluation_plays_held_out_tasks_with_the_adapter",
)  # fmt: skip
def _(right):
    def wrong(model, *args):
        with lora.adapters_off(model):
            yield from right(model, *args)

    return wrong


@mutant(
    "failed environments count in evaluations", "evaluation", evaluate, "judged",
    "tests/core/test_rollout.py::test_episode_of_a_failed_environment_is_left_out[step-False]",
)  # fmt: skip
def _(right):
    return lambda played, *args: right([replace(e, infrastructure_failed=False) for e in played], *args)


@mutant(
    "intervals are those of 95 %", "evaluation", stats, "jeffreys", "tests/core/test_stats.py::test_jeffreys_frozen"
)
def _(right):
    return lambda successes, trials, level=0.95: right(successes, trials, 0.95)


# ---- Files ----

no_op(
    "replies end at a text", "tokenizer", Tokenizer, "_read_eos", "tokenizer", value={300}
)  # fmt: skip


# ---- The program ----


class Planted:
    """A pytest plugin that plants a mutant once the tests are imported, and keeps the error that ended a test."""

    def __init__(self, chosen: Mutant):
        self.chosen, self.ran = chosen, False
        self.error: BaseException | None = None

    def pytest_collection_finish(self, session) -> None:
        plant(pytest.MonkeyPatch(), self.chosen.owner, self.chosen.function, self.chosen.wrong)

    def pytest_runtest_call(self) -> None:
        self.ran = True

    def pytest_exception_interact(self, call) -> None:
        self.error = call.excinfo.value


def ended_by(chosen: Mutant | None, run: Callable[[Path], None]) -> str:
    """Make the run with the mutant planted. Return the name of the check that ended it; "" if it ended well."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if chosen:
            plant(patch, chosen.owner, chosen.function, chosen.wrong)
        try:
            run(Path(folder))
        except watch.Nonsense as error:
            return error.name
        except FloatingPointError:
            return "nonfinite"
    return ""


def failed_test(chosen: Mutant) -> str:
    """Return the mutant's test if one of its assertions fails, "" if it passes. Raise what else ended the test, and
    RuntimeError if there is no such test."""
    words = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", str(ROOT / chosen.caught_by)]
    planted = Planted(chosen)
    status = pytest.main(words, plugins=[planted])
    if status not in (0, 1) or not planted.ran:
        raise RuntimeError(f"{chosen.caught_by}: pytest ended with {status!r}")
    if planted.error and not isinstance(planted.error, AssertionError | pytest.fail.Exception):
        raise planted.error  # a mutant that crashes would be noticed without a test
    return chosen.caught_by if status == 1 else ""


def verdict(chosen: Mutant) -> str:
    """Return what caught the mutant; "" if nothing did."""
    return ended_by(chosen, chosen.run) if chosen.is_run else failed_test(chosen)


def in_a_fork(function: Callable[..., str], *args, seconds: int) -> str:
    """Return the function's result in a forked process, or "error: ..." for an exception or a timeout."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        text = io.StringIO()
        try:
            with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
                answer = function(*args)
        except BaseException as error:
            answer = f"error: {type(error).__name__}: {error}"
        os.write(writer, answer.encode()[:4000])
        os._exit(0)
    os.close(writer)
    ends, answer = time.monotonic() + seconds, b""
    with os.fdopen(reader, "rb") as pipe:
        while not (done := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < ends:
            time.sleep(0.05)
        if not done:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return f"error: took more than {seconds} s"
        answer = pipe.read()
    return answer.decode(errors="replace")


def table(rows: list[tuple[Mutant, str]]) -> str:
    """Return the table in Markdown."""
    lines = ["<!-- make mutants -->", "", "| part | planted bug | in | caught by |", "| --- | --- | --- | --- |"]
    for chosen, found in rows:
        by = f"`{found}`" if found else "nothing"
        lines.append(f"| {chosen.part} | {chosen.name} | `{chosen.target}` | {by} |")
    return "\n".join(lines) + "\n"


def main(keys: Keys) -> int:
    chosen = [mutant for mutant in MUTANTS if keys.only in mutant.name or keys.only == mutant.part]
    torch.set_num_threads(1)
    healthy = in_a_fork(ended_by, None, with_words(""), seconds=keys.seconds)
    if healthy:
        print(f"mutants: the run without a mutant ends too: {healthy}", file=sys.stderr)
        return 1
    rows = []
    for each in chosen:
        found = in_a_fork(verdict, each, seconds=keys.seconds)
        rows.append((each, found))
        wrong = "" if found == each.caught_by else f"  (expected: {each.caught_by})"
        print(f"{each.part:12} {each.name:55} {found or 'NOT CAUGHT'}{wrong}", flush=True)
    missed = [each.name for each, found in rows if found != each.caught_by]
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = spent.ru_utime + spent.ru_stime
    print(f"{len(rows) - len(missed)} of {len(rows)} are caught as their entries say, in {seconds:.0f} CPU seconds")
    if keys.out:
        Path(keys.out).write_text(table(rows))
    return 1 if missed else 0


if __name__ == "__main__":
    [keys] = program.parse(sys.argv[1:], "tests/mutants.py", Keys, about=__doc__)
    sys.exit(main(keys))
