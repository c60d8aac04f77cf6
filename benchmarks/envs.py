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
from functools import partial
from itertools import count, islice
from pathlib import Path
from random import Random
from statistics import fmean, median

import envs
from benchmarks import common
from benchmarks.common import Row
from envs import db_tasks, os_tasks
from envs.mysql import Database
from envs.os_interaction import prepared
from envs.shell import Shell

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


def rows_of(name: str, options: Options) -> list[Row]:
    env, steps, resets = envs.make(name), [], []
    for turn in range(options.warmup + options.repeats):
        found = play(env, options.steps, first=turn * options.steps)
        steps.append(median(found[0]))
        resets.append(median(found[1]))
    kept, held = slice(options.warmup, None), []
    for first, most in ((10**6, options.growth // 5), (10**7, options.growth)):
        played = 0
        while played < most:
            played += len(play(env, min(1000, most - played), first + played)[0])
        held.append(resident())
    bound = {"ours": 1 / STEPS[name]} if name in STEPS else {}
    rows = [
        Row(f"{name}, step", {"ours": steps[kept]}, targets=bound),
        Row(f"{name}, reset", {"ours": resets[kept]}, targets={"ours": RESET} if name in STEPS else {}),
        Row(f"{name}, memory gained by {played:,} steps", {"ours": [held[1] - held[0]]}, "MiB", targets={"ours": 4.0}),
    ]
    return [common.progress(row) for row in rows]


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


def row_alone(name: str, options: Options) -> Row:
    works, rate = ALONE[name]
    runs, seconds = works(), []
    for _ in range(options.warmup + options.repeats):
        seconds.append(fmean(common.seconds_of(run) for run in islice(runs, options.steps)))
    return common.progress(Row(name, {"ours": seconds[options.warmup :]}, targets={"ours": 1 / rate}))


def main(options: Options) -> None:
    names = [name for name in envs.NAMES if name not in ("abd", "ded", "http") and name.startswith(options.only)]
    rows = [row for name in names for row in rows_of(name, options)]
    rows += [row_alone(name, options) for name in ALONE if name.startswith(options.only)]
    notes = [
        "Default options of each world; the median step of each turn, one process, one thread.",
        "Alone: the solutions of os_interaction's and db_bench's tasks, without these worlds; the mean of each turn.",
    ]
    common.report("envs", rows, options, notes, {"worlds": ", ".join(names)})


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
