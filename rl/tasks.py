"""Which episodes to play: tasks drawn from the environments that env= names, with their weights."""

import random
from dataclasses import dataclass
from typing import Any

import envs
from rl.arguments import ArgumentError


@dataclass(frozen=True)
class Task:
    """An episode to play: its random stream, and the environment's seed, which it shares with its group."""

    key: tuple[int, int]  # of the engine's random stream: (seed of the run, number of the episode)
    env: str
    seed: int  # of the environment
    group: int
    split: str


def mixture(text: str) -> dict[str, float]:
    """Return environment names and weights from "a,b" or "a:2,b:1"; the environments of a group share its weight.

    Raises ArgumentError for a name that is unknown or given twice, and for a weight that is not positive.
    """
    weights = {}
    try:
        for part in text.split(","):
            name, colon, given = part.strip().partition(":")
            members, weight = envs.GROUPS.get(name, [name]), float(given if colon else 1)
            if not 0 < weight < float("inf"):
                raise ValueError
            for member in members:
                envs.config_class(member)  # raises ValueError for an unknown name
                if member in weights:
                    raise ValueError(f"{member} is named twice")
                weights[member] = weight / len(members)
    except ValueError as error:
        from rl.refusals import wrong_mixture

        raise ArgumentError(wrong_mixture(text, error)) from None
    return weights


def make_tasks(
    cfg: Any, first: int, groups: int, group_size: int, split: str, stream: int, order: str = "random", limit: int = 0
) -> list[Task]:
    """Return group_size tasks for each of a stream's groups from `first` on. Equal arguments give equal tasks.

    order: "random", or "sequential" for the environment's seeds 0, 1, 2, ...
    limit: number of different tasks, after which they repeat; 0: unlimited.
    """
    weights = mixture(cfg.env)
    tasks = []
    for group in range(first, first + groups):
        number = group % limit if limit else group
        draw = random.Random(f"{stream} {number} {split}")
        env = draw.choices(list(weights), list(weights.values()))[0]
        seed = draw.randrange(2**31) if order == "random" else number
        keys = [(stream, group * group_size + member) for member in range(group_size)]
        tasks += [Task(key, env, seed, group, split) for key in keys]
    return tasks


def make_env(cfg: Any, name: str) -> envs.Environment:
    """Return the environment of that name with the run's options."""
    return envs.make(name, **vars(getattr(cfg, name)))
