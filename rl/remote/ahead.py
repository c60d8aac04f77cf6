"""ahead=true: a server samples the next epoch's episodes while this epoch is learned, so that neither side waits.

An epoch's episodes are then from the weights before the last update; the first epoch's, also of a resumed run, from the
present ones. The metric `staleness` counts the optimizer steps in between. rl/remote/off_policy.py corrects for what
these changed as it does for what the server computes differently: by truncated importance weights, against log-
probabilities of the present weights."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

from tqdm import tqdm

from models import Tokenizer
from rl import ranks, rollout
from rl.config.fields import Config
from rl.evaluate import progress_bar
from rl.ranks.pace import Pace
from rl.ranks.playing import Lines, assigned, play_on_ranks
from rl.records import Episode
from rl.remote.sampler import RemoteEngine, remote_engine
from rl.run.health import sampler_hash
from rl.run.state import TrainState
from rl.tasks import Task, training_tasks


@dataclass
class Sampling:
    """An epoch's episodes, which a thread of each rank has the server sample."""

    engine: RemoteEngine  # this rank's
    tasks: list[Task]
    shares: list[list[Task]]  # of each rank
    played: Future  # this rank's episodes
    lines: Lines  # what the thread wants to print
    step: int  # the optimizer steps taken by the weights that sample,
    adapter_hash: str  # and their hash

    def result(self, progress: tqdm, pace: Pace) -> list[Episode]:
        """Wait for the episodes of all ranks and return them in the order of the tasks."""

        def sampled(_tasks: list[Task], bar: tqdm) -> list[Episode]:
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
        for sampling in (self.now, self.coming):
            if sampling:
                sampling.engine.server.cancelled.set()


def collect(tokenizer: Tokenizer, state: TrainState, cfg: Config) -> list[Episode]:
    """Return the epoch's episodes, and let the next epoch's be sampled, if there is one, while these are learned."""
    coming = state.ahead.coming if state.ahead else None
    state.ahead = Ahead(coming or started(tokenizer, state, cfg, state.groups))
    with progress_bar(cfg.episodes, f"epoch {state.epoch + 1} episodes") as progress:
        episodes = state.ahead.now.result(progress, state.pace)
    if state.epoch + 1 < cfg.epochs:
        state.ahead.coming = started(tokenizer, state, cfg, state.groups + cfg.episodes // cfg.algorithm.group_size)
    return episodes


def started(tokenizer: Tokenizer, state: TrainState, cfg: Config, first: int) -> Sampling:
    """Start to sample the epoch whose groups are those from `first` on, with the present weights."""
    weights = sampler_hash(state.model)
    tasks = training_tasks(cfg, first)
    shares = assigned(tasks, ranks.here.world, state.pace)
    engine = remote_engine(state.model, cfg, weights)  # sends the adapter now, because its weights will change
    lines = Lines(tqdm(disable=True))
    arguments = state.model, tokenizer, cfg, cfg.temperature, weights, shares[ranks.here.rank], lines
    pool = ThreadPoolExecutor(1)
    played = pool.submit(rollout.play_with, engine, *arguments)
    pool.shutdown(wait=False)  # the thread ends with its only task
    return Sampling(engine, tasks, shares, played, lines, state.step, weights)
