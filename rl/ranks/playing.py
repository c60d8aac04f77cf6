"""How several ranks share the episodes that are played."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from rl import ranks
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


def play(play_own: Callable[[list, Any], list], tasks: list[Task], progress: tqdm) -> list[Episode]:
    """Do what rl.ranks.play says, for several ranks."""
    mine = assigned(tasks, ranks.here.world)[ranks.here.rank]
    progress.reset(total=len(mine))
    lines = Lines(progress)

    def work() -> tuple[list[Episode], list[str]]:
        with ranks.sampling():
            return play_own(mine, lines) if mine else [], lines.lines

    parts = ranks.together(work)
    for line in (line for _, lines in parts for line in lines):
        progress.write(line)
    by_key = {}
    for share, (episodes, _) in zip(assigned(tasks, ranks.here.world), parts, strict=True):
        by_key |= {task.key: episode for task, episode in zip(share, episodes, strict=True)}
    episodes = [by_key[task.key] for task in tasks]
    if episodes and all(episode.infrastructure_failed for episode in episodes):
        last = [line for _, lines in parts for line in lines][-1:]
        raise ValueError(f"every one of {len(episodes)} episodes failed; the last: {''.join(last)}")
    for episode in episodes:
        count = tokens_of[episode.env]
        count[:] = count[0] + 1, count[1] + len(episode.ids_T)
    return episodes


def assigned(tasks: list[Task], world: int) -> list[list[Task]]:
    """Return each rank's tasks: whole groups, so that each rank has about as many tokens to expect.

    Groups are assigned from the most expensive one to the cheapest, each to the rank with the least so far; an
    environment's episodes are expected to be as long as its earlier ones in this process.
    """
    groups: dict[int, list[Task]] = defaultdict(list)
    for task in tasks:
        groups[task.group].append(task)
    costs = {group: sum(map(expected_tokens, members)) for group, members in groups.items()}
    shares, loads = [[] for _ in range(world)], [0.0] * world
    for group in sorted(groups, key=lambda group: -costs[group]):
        rank = loads.index(min(loads))
        shares[rank] += groups[group]
        loads[rank] += costs[group]
    return shares


def expected_tokens(task: Task) -> float:
    """Return the mean tokens of the episodes of the task's environment so far; of an unknown one the mean of all."""
    count, tokens = tokens_of.get(task.env, (0, 0))
    if not count:
        count, tokens = (sum(column) for column in zip(*tokens_of.values(), strict=True)) if tokens_of else (0, 0)
    return tokens / count if count else 1.0
