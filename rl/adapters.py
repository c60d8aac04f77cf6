"""Several adapters trained in one process over one base: python train.py adapters=sat,textcraft algo=grpo.

Each name is a run of its own, with the settings, folder, optimizer, evaluations and random numbers that it has alone:
train.py's `main`, unchanged, in a thread. One thread computes at a time, the one that holds the baton. What they share:

    the weights    each run has a model of its own, whose frozen tensors are the base's
    the sampler    where models/cpu/step.py has a step for the base, a step of sampling waits until every run that has
                   not finished wants one; then the rows of all of them go through the base together
                   (models/cpu/mixed.py)

So a run that learns keeps the others waiting, and its next episodes join theirs in the middle. A row's bits do not
depend on other rows, nor do its random numbers: each run computes what it would compute alone.
"""

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Thread, current_thread
from time import strftime
from typing import Any, TextIO

import torch

import envs
from models import CausalLM, load_model
from models.hooks import hooks
from rl.config import arguments
from rl.config.arguments import ArgumentError
from rl.config.fields import Config
from rl.config.refusals import hint, recipe_names
from rl.config.words import parse

SAME = ("model", "dtype", "quant", "device", "exact", "threads", "products")  # settings of the base, or of the process


@dataclass(frozen=True)
class Keys:
    """Several runs in one process."""

    adapters: str = ""  # environments or recipes by comma: one process trains an adapter for each, in out=/NAME


class Stopped(KeyboardInterrupt):
    """Another run has failed, or a signal came: this run is saved and ends."""


def settings(words: list[str]) -> dict[str, Config]:
    """Return the settings of each run by its name; without adapters= those of one run, named "".

    Exit as `parse` does, and with 2 and one line for runs that cannot share a process.
    """
    try:
        given = {} if arguments.wants_help(words) else arguments.split(words)
        if "adapters" not in given:
            return {"": parse(words, "train.py", Keys)[0]}
        keys = words_of_each(given.pop("adapters"), given)
        words_of = {name: [f"{key}={value}" for key, value in own.items()] for name, own in keys.items()}
        runs = {name: parse(own, "train.py") for name, own in words_of.items()}
        check(runs)
        return runs
    except ArgumentError as error:
        arguments.fail("train.py", error)


def words_of_each(names: str, given: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return the keys of each run by its name: those that are given for all, and its own."""
    if given.get("ranks", "1") != "1" or "WORLD_SIZE" in os.environ:
        raise ArgumentError("adapters= trains in one process: leave ranks= out, and start it without torchrun")
    if "plan" in given:
        raise ArgumentError("plan= counts one run: give it without adapters=")
    now, runs = strftime("%Y%m%d-%H%M%S"), {}
    place = "resume" if given.get("resume") else "out"
    folder = given.get(place, "runs/adapters-{timestamp}").replace("{timestamp}", now)
    if place == "out" and "{" in folder:
        raise ArgumentError(
            f"out={folder}: with adapters= only {{timestamp}} is filled in; each run is a folder in out="
        )
    for word in names.split(","):
        name = Path(word).stem if word.endswith(".toml") else word
        key = "env" if word in envs.NAMES else "recipe"
        if name != Path(word).stem or (key == "recipe" and name == word and name not in recipe_names()):
            near = hint(word, [*envs.NAMES, *recipe_names()])
            raise ArgumentError(f"adapters={names}: {word!r} is neither an environment nor a recipe{near}")
        if name in runs:
            raise ArgumentError(f"adapters={names}: two runs would write into {folder}/{name}")
        own = {} if place == "resume" else {key: word}  # a resumed run has its settings
        if key in own and key in given:
            raise ArgumentError(f"{key}={given[key]} has no effect beside adapters={names}, which sets it for each run")
        runs[name] = {**given, **own, "ranks": "1", place: f"{folder}/{name}"}
    return runs


def check(runs: dict[str, Config]) -> None:
    """Raise ArgumentError for runs that cannot share a process and a base."""
    first, *others = runs
    for name, cfg in runs.items():
        if not cfg.lora.r:
            raise ArgumentError(f"adapters=: lora.r=0 of {name} trains the base, which all runs read")
        if cfg.device != "cpu":
            raise ArgumentError(
                f"adapters= samples on a CPU alone so far, not with device={cfg.device}; give device=cpu"
            )
        alone = {"sampler": cfg.sampler, "track.to": cfg.track.to, "shard": cfg.shard}
        for key, value in alone.items():
            if value not in ("", "none", "ddp"):  # their defaults
                raise ArgumentError(f"adapters=: {key}={value} of {name} is for a run that has its process to itself")
    for key, name in product(SAME, others):
        one, other = getattr(runs[first], key), getattr(runs[name], key)
        if one != other:
            raise ArgumentError(
                f"adapters= share one base and one process: {first} has {key}={one}, {name} {key}={other}"
            )


class Together:
    """The runs of a process: the base that they share, and the steps of sampling that wait for one another."""

    def __init__(self, base: CausalLM, names: list[str]):
        self.base, self.baton = base, Condition()  # who holds it computes
        self.unfinished = set(names)
        self.ended: SimpleQueue[str] = SimpleQueue()  # the runs that have ended, for the thread that waits for them
        self.asked: dict[str, tuple] = {}  # {run: (step, ids_B, positions_B, view)} of the runs that wait
        self.answers: dict[str, torch.Tensor] = {}
        self.mix = hooks(base.lm_head.weight).mixer()
        self.chosen: dict[str, Any] = {}  # threads and products, as the first run's trial has chosen them
        self.error: BaseException | None = None  # that ends all runs

    def run(self, main: Callable, name: str, cfg: Config) -> None:
        """Train one of the runs, in this thread. An error ends the others too."""
        with self.baton:
            try:
                if self.error is None:
                    main(replace(cfg, **self.chosen), Seat(self, name))
            except BaseException as error:
                self.error = self.error or error
            finally:
                self.unfinished.discard(name)
                self.ended.put(name)
                self.baton.notify_all()

    def wait(self) -> None:
        """Wait until all runs have ended. After a signal each still ends its step and saves.

        Thread.join would not do: in Python 3.11 a thread whose join was interrupted counts as ended.
        """
        while self.unfinished:
            try:
                self.ended.get()
            except KeyboardInterrupt as signal:
                self.error = self.error or signal  # each run sees it at its next step

    def step(self, name: str, *asked: Any) -> torch.Tensor:
        """Return hidden states [B, D] of a step of sampling, once every unfinished run has asked for one."""
        self.asked[name], generator = asked, torch.get_rng_state()
        while name in self.asked:
            if self.error is not None:
                raise Stopped
            if len(self.asked) < len(self.unfinished):
                self.baton.wait()
            else:
                self._answer()
        torch.set_rng_state(generator)  # other runs have drawn first weights meanwhile
        return self.answers.pop(name)

    def _answer(self) -> None:
        steps, *inputs = zip(*self.asked.values(), strict=True)
        mixed = self.mix(list(steps)) if len(steps) > 1 else None
        hidden = mixed(*inputs) if mixed else [step(*row) for step, *row in self.asked.values()]
        self.answers = dict(zip(self.asked, hidden, strict=True))
        self.asked.clear()
        self.baton.notify_all()


@dataclass
class Seat:
    """A run's place beside the others."""

    together: Together
    name: str

    def model(self) -> CausalLM:
        """Return a model with modules of its own, for an adapter of its own, and the tensors of the base."""
        base = self.together.base
        return deepcopy(base, {id(tensor): tensor for tensor in chain(base.parameters(), base.buffers())})

    def take(self, model: CausalLM, cfg: Config) -> None:
        """Let the model sample beside the others from now on. cfg: of the run that has started."""
        self.together.chosen = {"threads": cfg.threads, "products": cfg.products}
        model.step_together = partial(self.together.step, self.name)


@dataclass
class Labelled:
    """Standard output, each line of a run's thread behind the run's name."""

    out: TextIO
    names: set[str]
    begins: bool = True  # the next character begins a line

    def write(self, text: str) -> None:
        name = current_thread().name
        for line in text.splitlines(keepends=True):
            label = f"{name}: " if self.begins and name in self.names else ""
            self.out.write(label + line)
            self.begins = line.endswith("\n")

    def flush(self) -> None:
        self.out.flush()

    def isatty(self) -> bool:
        return False  # lines now and then, because live bars of several runs would overwrite one another


def train(main: Callable[[Config, Seat], Any], runs: dict[str, Config], cfg: Config) -> None:
    """Train all runs. cfg: of the first. An error of one, or a signal, ends all, which then can go on."""
    dtype = getattr(torch, cfg.dtype)
    together = Together(load_model(cfg.model, dtype, cfg.device, cfg.exact, cfg.quant), list(runs))
    threads = [Thread(target=together.run, args=(main, *run), name=run[0]) for run in runs.items()]
    with redirect_stdout(Labelled(sys.stdout, set(runs))):
        for thread in threads:
            thread.start()
        together.wait()
        for thread in threads:
            thread.join()
    if together.error is not None:
        folder = Path(next(iter(runs.values())).resume or next(iter(runs.values())).out).parent
        if all((folder / name / "config.json").is_file() for name in runs):
            together.error.add_note(f"python train.py adapters={','.join(runs)} resume={folder} goes on with all")
        raise together.error
