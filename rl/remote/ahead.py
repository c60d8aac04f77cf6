"""ahead=1: a server samples the next epoch's episodes while this epoch is learned, so that neither side waits.

An epoch's episodes are then from the weights before the last update; the first epoch's, also of a resumed run, from the
present ones. The metric `staleness` counts the optimizer steps in between. rl/remote/off_policy.py corrects for what
these changed as it does for what the server computes differently: by truncated importance weights, against log-
probabilities of the present weights."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from tqdm import tqdm

from models import Tokenizer
from rl import ranks, rollout
from rl.config.fields import Config
from rl.evaluate import progress_bar
from rl.ranks.pace import Pace
from rl.ranks.playing import Lines, assigned, play_on_ranks
from rl.records import Episode
from rl.remote import sampler
from rl.run.health import sampler_hash
from rl.tasks import Task, make_tasks


@dataclass
class Sampling:
    """An epoch's episodes, which a thread of each rank has the server sample."""

    tasks: list[Task]
    shares: list[list[Task]]  # of each rank
    played: Future  # this rank's episodes
    lines: Lines  # what the thread wants to print
    step: int  # the optimizer steps taken by the weights that sample,
    adapter_hash: str  # and their hash

    def result(self, progress: tqdm, pace: Pace) -> list[Episode]:
        """Wait for the episodes of all ranks and return them in the order of the tasks."""

        def sampled(_tasks: list[Task], bar: Any) -> list[Episode]:
            ranks.meet(partial(wait, [self.played]))
            for line in self.lines.lines:
                bar.write(line)
            return self.played.result()

        return next(play_on_ranks([sampled], self.tasks, progress, pace, [[share] for share in self.shares]))


@dataclass
class Ahead:
    """What TrainState.ahead holds: the epoch that is learned, and the next one."""

    now: Sampling
    coming: Sampling | None = None

    def stop(self) -> None:
        """Let the threads end soon: their requests fail."""
        for engine in sampler.engines:
            engine.server.left.set()


def collect(tokenizer: Tokenizer, state: Any, cfg: Config) -> list[Episode]:
    """Return the epoch's episodes, and let the next epoch's be sampled, if there is one, while these are learned."""
    begin: Callable = partial(started, tokenizer, state, cfg)
    state.ahead = Ahead(state.ahead.coming if state.ahead and state.ahead.coming else begin(state.groups))
    with progress_bar(cfg.episodes, f"epoch {state.epoch + 1} episodes") as progress:
        episodes = state.ahead.now.result(progress, state.pace)
    if state.epoch + 1 < cfg.epochs:
        state.ahead.coming = begin(state.groups + cfg.episodes // cfg.algorithm.group_size)
    return episodes


def started(tokenizer: Tokenizer, state: Any, cfg: Config, first: int) -> Sampling:
    """Start to sample the epoch whose groups are those from `first` on, with the present weights."""
    size, weights, world = cfg.algorithm.group_size, sampler_hash(state.model), ranks.here.world
    tasks = make_tasks(cfg, first, cfg.episodes // size, size, "train", cfg.seed, cfg.order, cfg.max_samples)
    shares = assigned(tasks, world, state.pace)
    sampler.in_use.clear()
    # This sends the adapter now, because its weights will change; an evaluation in between leaves it on the server.
    sampler.in_use.add(sampler.remote_engine(state.model, cfg, weights).name)
    play = partial(rollout.play_here, state.model, tokenizer, cfg, cfg.temperature, weights, False)
    pool, lines = ThreadPoolExecutor(1), Lines(tqdm(disable=True))
    played = pool.submit(play, shares[ranks.here.rank], lines)
    pool.shutdown(wait=False)  # the thread ends with its only task
    return Sampling(tasks, shares, played, lines, state.step, weights)
