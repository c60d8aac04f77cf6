"""A run of train.py in phases: seconds, tokens and peak memory of load, trial, eval, rollout, values, update and save.

load: the model, its adapter and the optimizer. trial: the one of exactness. values: the critic's.

The functions that train.py calls for each phase are wrapped; what runs is train.main itself.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from unittest.mock import patch

import torch

import rl.evaluate
import train
from benchmarks import common
from rl.config.parse import parse

FUNCTIONS = {  # name in train.py -> phase; those of one phase add up
    "collect": "rollout",
    "add_values": "values",
    "learn": "update",
    "save_epoch": "save",
    "save_checkpoint": "save",
    "write_report": "save",
}


@dataclass
class Phase:
    seconds: float = 0.0
    tokens: int = 0  # sampled in a rollout or an evaluation; prompts and observations too in an update; 0: not counted
    cpu_seconds: float = 0.0  # of all threads of this process: on a busy machine less than seconds
    peak_gib: float = 0.0  # of the whole process on a CPU, of torch's allocations on a GPU

    @property
    def rate(self) -> float | None:
        """Tokens per second."""
        return self.tokens / self.seconds if self.tokens else None


class Phases:
    """Phases by name, in the order in which they began. A phase that runs within another one is not counted to it."""

    def __init__(self, device: str):
        self.device, self.found, self.open, self.since = device, {}, [], (0.0, 0.0)

    @contextmanager
    def measured(self, name: str) -> Iterator[Phase]:
        phase = self.found.setdefault(name, Phase())
        self._book()
        self.open.append(phase)
        self._restart()
        yield phase
        self._book()
        self.open.pop()
        self._restart()

    def _book(self) -> None:
        """Add the time since `_restart`, and its peak, to the innermost phase."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        if self.open:
            phase = self.open[-1]
            began, cpu_began = self.since
            phase.seconds += time.perf_counter() - began
            phase.cpu_seconds += time.process_time() - cpu_began
            phase.peak_gib = max(phase.peak_gib, common.peak_gib(self.device))

    def _restart(self) -> None:
        common.reset_peak(self.device)
        self.since = time.perf_counter(), time.process_time()

    def wrap(self, name: str, function: Callable, tokens: Callable[..., int] = lambda *_: 0) -> Callable:
        """Return the function with its calls measured. tokens: (result, arguments) -> how many it took care of."""

        @wraps(function)
        def call(*words, **keys):
            with self.measured(name) as phase:
                result = function(*words, **keys)
            phase.tokens += tokens(result, words)
            return result

        return call


def sampled(episodes) -> int:
    return sum(sum(episode.action_mask_T) for episode in episodes)


def learned(_stats, words: tuple) -> int:
    """Return the tokens of an epoch's updates: (state, batch, cfg) are train.learn's arguments."""
    _, batch, cfg = words
    return cfg.algorithm.epochs * sum(len(episode.ids_T) for episode in batch.episodes)


def run(words: list[str]) -> dict[str, Phase]:
    """Run train.py with these words and return its phases, "whole" last."""
    cfg = parse(words, "train.py")
    phases = Phases(cfg.device)
    counts = {"collect": lambda episodes, _: sampled(episodes), "learn": learned}
    with ExitStack() as stack:
        for name, phase in (("start", "load"), ("choose_threads", "trial")):
            stack.enter_context(patch.object(train.setup, name, phases.wrap(phase, getattr(train.setup, name))))
        for name, phase in FUNCTIONS.items():
            wrapped = phases.wrap(phase, getattr(train, name), counts.get(name, lambda *_: 0))
            stack.enter_context(patch.object(train, name, wrapped))
        real = rl.evaluate.rollouts
        rollouts = phases.wrap("eval", lambda *words: list(real(*words)), lambda played, _: sum(map(sampled, played)))
        stack.enter_context(patch.object(rl.evaluate, "rollouts", rollouts))
        began = time.perf_counter()
        train.main(cfg)
        whole = Phase(time.perf_counter() - began)
    whole.peak_gib = max(phase.peak_gib for phase in phases.found.values())
    return {**phases.found, "whole": whole}
