"""Which episodes to play: tasks drawn from the environments that env= names, with their weights."""

import random
from dataclasses import dataclass
from typing import Any

import envs


@dataclass(frozen=True)
class Task:
    """An episode to play: its random stream, and the environment's seed, which it shares with its group."""

    key: tuple[int, int]  # of the engine's random stream: (seed of the run, number of the episode)
    env: str
    seed: int  # of the environment
    group: int
    split: str


def mixture(text: str) -> dict[str, float]:
    """Return the weight of each environment that env= names. Raise ArgumentError if it is not as env= takes it."""
    if text in envs.NAMES:
        return {text: 1.0}
    from rl.mixtures import weights_of

    return weights_of(text)


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
        tasks += [Task((stream, group * group_size + i), env, seed, group, split) for i in range(group_size)]
    return tasks


def make_env(cfg: Any, name: str) -> envs.Environment:
    """Return the environment of that name with the run's options."""
    env = envs.make(name, **vars(getattr(cfg, name)))
    if cfg.system_prompt:
        from rl.system_prompt import add_to

        add_to(env, cfg.system_prompt)
    return env
