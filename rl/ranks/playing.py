"""How several ranks share the episodes that are played."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Any

import torch
from tqdm import tqdm

from rl import ranks
from rl.config.refusals import Refusal
from rl.ranks.pace import Pace
from rl.records import Episode
from rl.tasks import Task

Way = Callable[[list[Task], Any], list[Episode]]  # (tasks, progress) -> the episodes; plays them in this process


class Lines:
    """Takes the place of a progress bar: does what it does, but keeps the lines that are written."""

    def __init__(self, bar: tqdm):
        self.bar, self.lines = bar, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bar, name)

    def write(self, line: str) -> None:
        self.lines.append(line)


def play_on_ranks(
    ways: Sequence[Way],
    tasks: list[Task],
    progress: tqdm,
    pace: Pace | None = None,
    shares: list[list[list[Task]]] | None = None,
) -> Iterator[list[Episode]]:
    """Yield for each way to play the tasks their episodes, in the order of the tasks.

    One rank plays one way after the other. Several ranks share the tasks, in whole groups, and play all ways side by
    side; each gets all episodes, and the first prints the lines that the others write to `progress`.

    pace: measures this rank and knows how long episodes are; without it all tasks count the same.
    shares: each rank's tasks for each way, if they are not to be chosen here.
    Raises ValueError if every episode failed.
    """
    if ranks.here.world == 1 and shares is None:
        for way in ways:  # a caller sees the results of one before the next one is played
            yield way(tasks, progress)
        return
    pace, world, lines = pace or Pace(), ranks.here.world, Lines(progress)
    if shares is None:
        one_way = assigned(tasks, world, pace)
        shares = [[share] for share in one_way] if len(ways) == 1 else side_by_side(one_way, len(ways))
    mine = shares[ranks.here.rank]
    progress.reset(total=sum(map(len, mine)))

    def work() -> tuple[list[list[Episode]], list[str]]:
        unit = "a token of an episode" if len(ways) == 1 else "an evaluation"  # of which the ranks' shares differ
        with ranks.sampling(), pace.measured(unit) as units:
            by_way = [way(some, lines) if some else [] for way, some in zip(ways, mine, strict=True)]
            episodes = [episode for some in by_way for episode in some]
            units += [len(episode.ids_T) for episode in episodes] if len(ways) == 1 else []
        for episode in (episode for episode in episodes if episode.hidden):
            # One tensor is sent sooner than parts of larger ones. Ranks that share the weights make each pass together.
            episode.hidden = [] if ranks.here.shards else [torch.cat(episode.hidden)]
        if not all(isfinite(sum(episode.logprobs_T)) for episode in episodes):
            raise FloatingPointError("collect: log-probabilities of sampled tokens are not finite")
        return by_way, lines.lines

    of_ranks = ranks.together(work)
    written = [line for _, lines in of_ranks for line in lines]
    for line in written:
        progress.write(line)
    all_played = []
    for way in range(len(ways)):
        by_key = {}
        for share, (by_way, _) in zip(shares, of_ranks, strict=True):
            by_key |= {task.key: episode for task, episode in zip(share[way], by_way[way], strict=True)}
        episodes = [by_key[task.key] for task in tasks]
        if tasks and all(episode.infrastructure_failed for episode in episodes):
            raise Refusal(f"every one of {len(tasks)} episodes failed; the last: {''.join(written[-1:])}")
        pace.add_episodes(episodes)
        all_played.append(episodes)
    yield from all_played


def assigned(tasks: list[Task], world: int, pace: Pace) -> list[list[Task]]:
    """Return each rank's tasks: whole groups, so that each rank has about as many tokens to expect.

    Groups are assigned from the most expensive one to the cheapest, each to the rank with the least so far.
    """
    groups: dict[int, list[Task]] = defaultdict(list)
    for task in tasks:
        groups[task.group].append(task)
    costs = {group: sum(pace.expected_tokens(task.env) for task in members) for group, members in groups.items()}
    shares, loads = [[] for _ in range(world)], [0.0] * world
    for group in sorted(groups, key=lambda group: -costs[group]):
        rank = loads.index(min(loads))
        shares[rank] += groups[group]
        loads[rank] += costs[group]
    return shares


def side_by_side(shares: list[list[Task]], ways: int) -> list[list[list[Task]]]:
    """Return each rank's tasks for each way to play them all: few ways with many tasks rather than a part of each,
    because a step of sampling costs nearly as much for half as many sequences.

    shares: `assigned` for one way. Those of ways x world ranks are laid way after way, and each rank takes as many.
    """
    world = len(shares)
    by_way = [[[] for _ in range(ways)] for _ in range(world)]
    for place in range(ways * world):
        by_way[place // ways][place // world] += shares[place % world]
    return by_way
