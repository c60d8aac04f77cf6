"""A whole optimizer step of GRPO with LoRA, beside trl's GRPOTrainer on a PEFT model: python -m benchmarks.step

One step: sample `samples` replies of exactly `new` tokens to each of `prompts` prompts, score them, turn the scores
into advantages, one forward and backward over all of them, clip, AdamW. No KL term and no reference model, one pass
over the samples, the same objective on both sides.

The trainer's loop is trl's own. It hands over in a callback at the end of each step, where one step of ours runs: the
two alternate step by step. In float32 on a CPU every second step of the trainer is `by oneDNN too`.
"""

import itertools
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

import lora
from benchmarks import common, memory, sides
from benchmarks.common import TOO, Parts, Row
from models import fast_matmul, load_tokenizer
from models.engine import Engine
from models.sizes import sizes_of
from rl import grpo
from rl.batch import make_batch
from rl.config.arguments import Positive
from rl.config.words import parse
from rl.records import Episode, Turn
from rl.run import exits
from rl.run.state import TrainState
from rl.update import make_optimizer, update


@dataclass
class Options(common.Options):
    model: str = "tiny"  # tiny | small (random, 25 million parameters) | 0.5b (random) | a folder | a hub id
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"  # of the base's weights; the adapter is float32
    device: Literal["cpu", "cuda"] = "cpu"  # where to measure
    prompts: Positive[int] = 8  # P
    samples: Positive[int] = 8  # G, of each prompt
    prompt: Positive[int] = 64  # tokens of each
    new: Positive[int] = 32  # tokens to sample for each
    pieces: Positive[int] = 1  # in which trl takes its batch through forward and backward; ours goes by tokens


LR = 1e-5  # of AdamW


def reward(ids: list[int]) -> float:
    """Return a reward from the ids that neither side can skip computing."""
    return sum(i % 2 == 0 for i in ids) / len(ids)


class Clock:
    """Measure each step, its sampling, which lasts from the step's start until the rewards are computed, and how far
    the step's peak of memory is above what the process held at its start."""

    def __init__(self, device: str, kind: str = "wall"):
        self.device, self.now, self.steps, self.sampling, self.grown = device, common.CLOCKS[kind], [], [], []

    def start(self) -> None:
        memory.reset_peak(self.device)
        self.held = memory.peak_gib(self.device)
        self.began = self._now()

    def sampled(self) -> None:
        self.sampling.append(self._now() - self.began)

    def stop(self) -> None:
        self.steps.append(self._now() - self.began)
        self.grown.append(memory.peak_gib(self.device) - self.held)

    def _now(self) -> float:
        if self.device != "cpu":
            torch.cuda.synchronize()
        return self.now()


class Ours:
    """Run the steps of train.py on given prompts."""

    def __init__(self, options: Options, base: Path, adapter: Path):
        self.options, self.clock = options, Clock(options.device, options.clock)
        dtype = getattr(torch, options.dtype)
        self.model, self.tokenizer = sides.our_model(base, adapter, dtype, options.device)
        common.choose_products(options, sizes_of(self.model.config), options.device, dtype)
        self.prompts = sides.windows(self.tokenizer, [options.prompt] * options.prompts)
        count = options.prompts * options.samples
        words = ["algo=grpo", "model=given", f"lr={LR}", f"episodes={count}", f"batch_size={count}"]
        words += [f"grpo.group_size={options.samples}", "grpo.divide_by_std=true"]
        self.cfg = parse(words, "benchmarks.step")
        self.state = TrainState(self.model, critic=None, optimizer=make_optimizer(self.model, None, self.cfg))
        self.before = {name: p.detach().clone() for name, p in self.state.trainable().items()}
        self.gap = 0.0

    def step(self) -> None:
        self.clock.start()
        episodes = self.rollout()
        self.clock.sampled()
        for episode in episodes:
            episode.turns[-1].reward = reward(episode.ids_T[episode.turns[-1].start :])
        batch = grpo.advantages(make_batch(episodes), self.cfg.grpo)
        losses, _ = update(self.state, batch, grpo, self.cfg, tqdm(disable=True))
        self.state.epoch += 1
        self.clock.stop()
        assert losses["optimizer_steps"] == 1 and losses["grad_norm"] > 0
        self.gap = max(self.gap, losses["sampler_gap"] or 0.0)
        assert self.gap == 0.0 or self.options.device != "cpu", "sampling and training disagree"

    def rollout(self) -> list[Episode]:
        """Sample as rl/rollout.py does: one engine per epoch, the prompt of a group computed once, replies decoded."""
        options, count = self.options, self.options.prompts * self.options.samples
        engine = Engine(self.model, count, self.cfg.max_len, lora.adapter_version(self.model))
        episodes, playing = [], {}
        for group, prompt in enumerate(self.prompts):
            slot = None
            for _ in range(options.samples):
                first, key = slot is None, (self.cfg.seed, self.state.epoch * count + len(episodes))
                slot = engine.open(key, parent=slot)
                if first:
                    engine.feed(slot, prompt)
                episode = Episode("text", 0, group, list(prompt), [0] * len(prompt), [0.0] * len(prompt))
                episodes.append(episode)
                playing[slot] = episode
        for row in engine.run(options.new, self.cfg.temperature, stop_ids=frozenset()):
            self.tokenizer.decode(row.ids)
            episode = playing[row.slot]
            episode.turns.append(Turn(len(episode.ids_T), len(episode.ids_T) + len(row.ids), 0.0, row.stop_reason))
            episode.ids_T += row.ids
            episode.logprobs_T += row.logprobs
            episode.action_mask_T += [1] * len(row.ids)
            episode.terminated = True
            engine.close(row.slot)
            assert len(row.ids) == options.new
        return episodes

    def verify(self) -> None:
        assert all(not torch.equal(self.before[name], p) for name, p in self.state.trainable().items())


class Peer:
    """Run trl's trainer. Its sides alternate step by step, `steps` of each; after the last of them comes `between`."""

    def __init__(self, options: Options, base: Path, adapter: Path, work: Path, steps: int, between: Callable):
        too = options.device == "cpu" and options.dtype == "float32"
        names = ("trl", f"trl, {TOO}") if too else ("trl",)
        self.options, self.between, self.norms = options, between, []
        self.clocks = {side: Clock(options.device, options.clock) for side in names}
        self.order, self.switch = itertools.cycle(names), nullcontext()
        steps *= len(names)
        dtype = getattr(torch, options.dtype)
        model, tokenizer = sides.peer_model(base, adapter, trainable=True, dtype=dtype, device=options.device)
        ours = load_tokenizer(str(base))
        prompts = sides.windows(ours, [options.prompt] * options.prompts)
        texts = [ours.decode(ids) for ids in prompts]
        assert tokenizer(text=texts)["input_ids"] == prompts, "the two tokenizers disagree"
        count = options.prompts * options.samples
        more = {
            "use_cpu": options.device == "cpu",
            "max_steps": steps,
            "learning_rate": LR,
            "per_device_train_batch_size": count // options.pieces,
            "gradient_accumulation_steps": options.pieces,
            "num_generations": options.samples,
            "max_completion_length": options.new,
            "generation_kwargs": {"min_new_tokens": options.new},
        }
        words = model, tokenizer, self._reward, texts * steps, work, more
        self.trainer = sides.grpo_trainer(*words, callbacks=[_alternate(self)])
        self.before = {name: p.detach().clone() for name, p in self._trainable()}

    def run(self) -> None:
        try:
            self.trainer.train()
        finally:
            self.switch.__exit__(None, None, None)  # of the step that failed, or of the one that would have come

    def begin(self) -> None:
        self.side = next(self.order)
        self.switch = fast_matmul() if self.side.endswith(TOO) else nullcontext()
        self.switch.__enter__()
        self.clocks[self.side].start()

    def end(self) -> None:
        self.clocks[self.side].stop()
        self.switch.__exit__(None, None, None)
        if self.side == list(self.clocks)[-1]:
            self.between()

    def _reward(self, completion_ids, **_) -> list[float]:
        self.clocks[self.side].sampled()
        assert [len(ids) for ids in completion_ids] == [self.options.new] * len(completion_ids)
        assert len(completion_ids) == self.options.prompts * self.options.samples
        return [reward(ids) for ids in completion_ids]

    def _trainable(self):
        return [(name, p) for name, p in self.trainer.model.named_parameters() if p.requires_grad]

    def verify(self) -> None:
        assert self.norms and all(norm > 0 for norm in self.norms)
        assert all(not torch.equal(self.before[name], p) for name, p in self._trainable())


def _alternate(peer: Peer):
    """Return the callback that times the trainer's steps and runs ours between them."""
    from transformers import TrainerCallback

    class Alternate(TrainerCallback):
        def on_train_begin(self, *_, **__):
            peer.begin()

        def on_pre_optimizer_step(self, *_, **__):
            if not peer.norms:  # in the warm-up only
                gradients = [p.grad.norm() for _, p in peer._trainable()]
                peer.norms.append(torch.stack(gradients).norm().item())

        def on_step_end(self, *_, **__):
            peer.end()
            peer.begin()

    return Alternate()


WHOLE, SAMPLING, REST, GAP = "whole step", "sampling", "the rest", "sampling against training"  # the rows
MEMORY = "memory of a step"


def rows_of(options: Options, clocks: dict[str, Clock], targets: dict) -> list[Row]:
    """Return the rows of the whole step, of its two parts and of its memory. targets: of the whole."""
    tokens, kept = options.prompts * options.samples * options.new, slice(options.warmup, None)
    parts = {WHOLE: {}, SAMPLING: {}, REST: {}}
    for side, clock in clocks.items():
        parts[WHOLE][side] = clock.steps[kept]
        parts[SAMPLING][side] = clock.sampling[kept]
        parts[REST][side] = [a - b for a, b in zip(clock.steps[kept], clock.sampling[kept], strict=True)]
    rows = [Row(name, seconds, speedup=True, tokens=tokens) for name, seconds in parts.items()]
    rows[0].check, rows[0].targets = "lengths, gradients, weights moved on both sides", targets
    grown = {side: clock.grown[kept] for side, clock in clocks.items()}
    return [*rows, Row(MEMORY, grown, "GiB")]


def measure(options: Options, missing: list[str], targets: dict) -> list[Row]:
    """Measure all sides step by step; ours alone if packages are missing."""
    steps = options.warmup + options.repeats
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        base, adapter = sides.prepare(options.model, work)
        ours, clocks, dropped = Ours(options, base, adapter), {}, {}

        def peers() -> dict[str, Clock]:
            peer = Peer(options, base, adapter, work, steps, between=ours.step)
            peer.run()
            peer.verify()
            return peer.clocks

        if not missing:
            clocks = common.each_side({"trl": peers}, dropped).get("trl", {})
        for _ in range(steps - len(ours.clock.steps)):  # those that a trainer which failed did not hand over to
            ours.step()
        ours.verify()
    rows = rows_of(options, {"ours": ours.clock} | clocks, targets)
    rows[0].dropped = dropped
    return [*rows, Row(GAP, {"ours": [ours.gap]}, "nats apart at most")]


def parts(options: Options, missing: list[str]) -> Parts:
    stated = common.as_stated(options, "model", "dtype", "device", "prompts", "samples", "prompt", "new", "pieces")

    @cache
    def rows() -> dict[str, Row]:
        return {row.name: row for row in measure(options, missing, {"trl": 2.5} if stated else {})}

    return {name: lambda name: rows()[name] for name in (WHOLE, SAMPLING, REST, MEMORY, GAP)}


def main(options: Options) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    missing = common.absent(*sides.TRAINER)
    about = {"model": options.model, "dtype": options.dtype, "lora": "r=16 all-linear"}
    about |= {"batch": f"{options.prompts} prompts of {options.prompt} tokens x {options.samples} samples"}
    about |= {"reply": f"{options.new} tokens"}
    notes = [
        "tok/s counts sampled tokens.",
        "trl: beta=0, no gradient checkpointing (its default is on), no logging, transformers' generate with "
        "min_new_tokens, so that all replies have one length; it recomputes no old log-probabilities either.",
        "memory of a step: its peak above what the process held when it began. Held are the weights of both sides, our "
        "copies of them and both optimizers; `real_size` has the peaks of each side alone. Memory that the allocator "
        "kept from earlier steps is returned to the system first, so both sides take theirs anew in each step.",
        "sampling runs from the start of the step until the rewards are computed, decoding included.",
        "ours: the log-probabilities of sampling equal those of the training forward, bit for bit on a "
        "CPU (checked in each step); the prompt of a group goes through the model once to sample and once "
        "to train.",
    ]
    common.measure_and_report("step", parts(options, missing), options, notes, about, sides.TRAINER)


if __name__ == "__main__":
    with exits.exits_cleanly("benchmarks.step"):
        main(common.parse(Options, sys.argv[1:]))
