"""How several ranks share the episodes that are played."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any

import torch
from tqdm import tqdm

from rl import ranks
from rl.config.refusals import Refusal
from rl.ranks import pace
from rl.records import Episode
from rl.tasks import Task

tokens_of: dict[str, list[int]] = defaultdict(lambda: [0, 0])  # environment: episodes played so far, their tokens


class Lines:
    """Takes the place of a progress bar: does what it does, but keeps the lines that are written."""

    def __init__(self, bar: tqdm):
        self.bar, self.lines = bar, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bar, name)

    def write(self, line: str) -> None:
        self.lines.append(line)


def play(
    ways: list[Callable[[list, Any], list]], tasks: list[Task], progress: tqdm, shares: list | None = None
) -> Iterator[list[Episode]]:
    """Return for each way to play the tasks their episodes, in the order of the tasks. way(tasks, progress) plays some
    tasks, of whole groups; several ranks share them, and play several ways side by side.

    shares: each rank's tasks for each way, where they are given.
    Lines that the others write to `progress` are printed by the first. Raises ValueError if every episode failed.
    """
    # Lazily, so that a caller sees the results of one way before the next one is played.
    if ranks.here.world == 1 and shares is None:
        return (way(tasks, progress) for way in ways)
    return _play_together(ways, tasks, progress, shares)


def _play_together(
    ways: list[Callable[[list, Any], list]], tasks: list[Task], progress: tqdm, shares: list | None
) -> Iterator[list[Episode]]:
    """Do what `play` says, of several ranks or with given shares."""
    world = ranks.here.world
    shares = shares or (assigned(tasks, world) if len(ways) == 1 else side_by_side(tasks, len(ways), world))
    mine = shares[ranks.here.rank]
    progress.reset(total=sum(map(len, mine)))
    lines = Lines(progress)

    def work() -> tuple[list[list[Episode]], list[str]]:
        kind = "a token of an episode" if len(ways) == 1 else "an evaluation"  # of which the ranks' shares differ
        with ranks.sampling(), pace.measured(kind) as units:
            by_way = [way(some, lines) if some else [] for way, some in zip(ways, mine, strict=True)]
            episodes = [episode for some in by_way for episode in some]
            units += [len(episode.ids_T) for episode in episodes] if len(ways) == 1 else []
        for episode in (episode for episode in episodes if episode.hidden):
            # One tensor is sent sooner than parts of larger ones. Ranks that share the weights make each pass together.
            episode.hidden = [] if ranks.here.shards else [torch.cat(episode.hidden)]
        if not all(isfinite(sum(episode.logprobs_T)) for episode in episodes):
            raise FloatingPointError("collect: log-probabilities of sampled tokens are not finite")
        return by_way, lines.lines

    parts = ranks.together(work)
    for line in (line for _, lines in parts for line in lines):
        progress.write(line)
    played = []
    for way in range(len(ways)):
        by_key = {}
        for share, (episodes, _) in zip(shares, parts, strict=True):
            by_key |= {task.key: episode for task, episode in zip(share[way], episodes[way], strict=True)}
        played.append([by_key[task.key] for task in tasks])
        if tasks and all(episode.infrastructure_failed for episode in played[-1]):
            last = [line for _, lines in parts for line in lines][-1:]
            raise Refusal(f"every one of {len(tasks)} episodes failed; the last: {''.join(last)}")
    for episode in (episode for episodes in played for episode in episodes):
        count = tokens_of[episode.env]
        count[:] = count[0] + 1, count[1] + len(episode.ids_T)
    return iter(played)


def side_by_side(tasks: list[Task], ways: int, world: int) -> list[list[list[Task]]]:
    """Return each rank's tasks for each way to play them all: few ways with many tasks rather than a part of each,
    because a step of sampling costs nearly as much for half as many rows.

    The shares that ways x world ranks would have are laid way after way, and each rank takes as many of them.
    """
    parts = [tasks for (tasks,) in assigned(tasks, world)]
    found = [[[] for _ in range(ways)] for _ in range(world)]
    for place in range(ways * world):
        found[place // ways][place // world] += parts[place % world]
    return found


def assigned(tasks: list[Task], world: int) -> list[list[list[Task]]]:
    """Return each rank's tasks, in a list of one: whole groups, so that each rank has about as many tokens to expect.

    Groups are assigned from the most expensive one to the cheapest, each to the rank with the least so far; an
    environment's episodes are expected to be as long as its earlier ones in this process.
    """
    groups: dict[int, list[Task]] = defaultdict(list)
    for task in tasks:
        groups[task.group].append(task)
    costs = {group: sum(map(expected_tokens, members)) for group, members in groups.items()}
    shares, loads = [[[]] for _ in range(world)], [0.0] * world
    for group in sorted(groups, key=lambda group: -costs[group]):
        rank = loads.index(min(loads))
        shares[rank][0] += groups[group]
        loads[rank] += costs[group]
    return shares


def expected_tokens(task: Task) -> float:
    """Return the mean tokens of the episodes of the task's environment so far; of an unknown one the mean of all."""
    count, tokens = tokens_of.get(task.env, (0, 0))
    if not count:
        count, tokens = (sum(column) for column in zip(*tokens_of.values(), strict=True)) if tokens_of else (0, 0)
    return tokens / count if count else 1.0
