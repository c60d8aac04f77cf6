"""The worlds: seconds of a step and of a reset, and memory over many steps: python -m benchmarks.envs

A step is timed by itself, the median taken of each turn's. Half of the episodes are the expert's, in the others every
second reply is one that no world understands. Those that start a process for each reply (abd, ded) and those that ask a
server are left out. Of the shell and of the SQL engine there is what they take without their world, which prepares,
compares and judges: on the solutions of tasks of every kind, the mean of each turn's.
"""

import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import count, islice
from pathlib import Path
from random import Random
from statistics import fmean, median

import envs
from benchmarks import common
from benchmarks.common import Parts, Row
from envs.db_bench import tasks as db_tasks
from envs.os_interaction import prepared
from envs.os_interaction import tasks as os_tasks
from envs.simulators.mysql import Database
from envs.simulators.shell import Shell

STEPS = {"textcraft": 20_000, "alfworld": 20_000, "babyai": 5_000, "webshop": 5_000, "sciworld": 5_000}
STEPS |= {"os_interaction": 3_000, "db_bench": 3_000, "tau_retail": 5_000}  # a second
RESET = 5e-3  # seconds


@dataclass
class Options(common.Options):
    steps: int = 2000  # timed in each turn
    growth: int = 100_000  # steps over which memory must not grow, after a fifth as many


def play(env, steps: int, first: int = 0) -> tuple[list[float], list[float]]:
    """Seconds of each step and of each reset of the episodes first, first + 1, ..."""
    took, resets, seed = [], [], first
    while len(took) < steps:
        began = time.perf_counter()
        env.reset(seed)
        resets.append(time.perf_counter() - began)
        over, turn = False, 0
        while not over and len(took) < steps:
            reply = "?" if seed % 2 and turn % 2 else env.oracle()
            began = time.perf_counter()
            step = env.step(reply)
            took.append(time.perf_counter() - began)
            over, turn = step.terminated or step.truncated, turn + 1
        seed += 1
    return took, resets


def resident() -> float:
    """MiB that are held now, garbage collected."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def world_parts(world: str, options: Options) -> Parts:
    """The rows of one world."""

    @cache
    def times() -> list[tuple[float, float]]:
        """Of a step and of a reset, in each turn."""
        env, turns = envs.make(world), range(options.warmup + options.repeats)
        found = [play(env, options.steps, first=turn * options.steps) for turn in turns]
        return [(median(steps), median(resets)) for steps, resets in found[options.warmup :]]

    def time(which: int, bound: float | None, row: str) -> Row:
        return Row(row, {"ours": [turn[which] for turn in times()]}, targets={"ours": bound} if bound else {})

    def gained(row: str) -> Row:
        env, held = envs.make(world), []
        for first, most in ((10**6, options.growth // 5), (10**7, options.growth)):
            for played in range(0, most, 1000):
                play(env, min(1000, most - played), first + played)
            held.append(resident())
        return Row(row, {"ours": [held[1] - held[0]]}, "MiB", targets={"ours": 4.0})

    return {
        f"{world}, step": partial(time, 0, 1 / STEPS[world] if world in STEPS else None),
        f"{world}, reset": partial(time, 1, RESET if world in STEPS else None),
        f"{world}, memory gained by {options.growth:,} steps": gained,
    }


def shell_lines() -> Iterator[Callable]:
    """The lines that solve os_interaction's tasks of all levels, each to be run when the one before it was."""
    for seed in count():
        rng = Random(seed)
        task = os_tasks.draw(rng, rng.choice(list(os_tasks.LEVELS)), "train")
        shell = Shell(prepared(task))
        for line in task.truth:
            yield partial(shell.run, line)


def statements() -> Iterator[Callable]:
    """The statements that solve db_bench's tasks of all skills and levels, each on a table of its own."""
    solver, database = Database(), Database()
    for seed in count():
        rng, skill = Random(seed), db_tasks.SKILLS[seed % len(db_tasks.SKILLS)]
        task = db_tasks.draw(rng, skill, rng.choice(list(db_tasks.LEVELS)), "train", solver)
        database.load(task.table, task.columns, task.rows)
        yield partial(database.run, task.sql)


ALONE = {  # row -> what is run in it, and how many a second are to be reached
    "shell alone, a line": (shell_lines, 3_000),
    "SQL alone, a statement": (statements, 3_000),
}


def alone(options: Options, name: str) -> Row:
    works, rate = ALONE[name]
    runs, seconds = works(), []
    for _ in range(options.warmup + options.repeats):
        seconds.append(fmean(common.seconds_of(run) for run in islice(runs, options.steps)))
    return Row(name, {"ours": seconds[options.warmup :]}, targets={"ours": 1 / rate})


def main(options: Options) -> None:
    worlds, parts = [name for name in envs.NAMES if name not in ("abd", "ded", "http")], {}
    for world in worlds:
        parts |= world_parts(world, options)
    rows = list(common.measured(parts | dict.fromkeys(ALONE, partial(alone, options)), options.only))
    notes = [
        "Default options of each world; the median step of each turn, one process, one thread.",
        "Alone: the solutions of os_interaction's and db_bench's tasks, without these worlds; the mean of each turn.",
    ]
    played = [world for world in worlds if any(row.name.startswith(f"{world}, ") for row in rows)]
    common.report("envs", rows, options, notes, {"worlds": ", ".join(played)})


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
