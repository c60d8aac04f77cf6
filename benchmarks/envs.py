"""Environments: seconds per step and per reset, and memory over many steps: python -m benchmarks.envs

Each step is timed alone; a row has the median of each repeat. Half of the episodes are the expert's; in the others
every second reply is invalid. Of abd and ded, which start a process per reply, the step is not timed. qa needs a
file and http a server: they are left out. The shell and the SQL engine are also timed alone, without the environments,
on the solutions of tasks of every kind: the mean of each repeat. The sandbox runs a trivial program, two at a time.
"""

import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import count, islice
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import TypeVar

import envs
from benchmarks import common
from benchmarks.common import Parts, Row
from envs.db_bench import tasks as db_tasks
from envs.os_interaction import tasks as os_tasks
from envs.os_interaction.judge import prepared
from envs.simulators import sandbox
from envs.simulators.mysql import Database
from envs.simulators.shell import Shell, base_machine
from envs.webshop.goods import Catalogue, catalogue
from rl.config.arguments import Positive

STEPS = {"textcraft": 20_000, "alfworld": 20_000, "babyai": 5_000, "webshop": 5_000, "sciworld": 5_000}
STEPS |= {"os_interaction": 3_000, "db_bench": 3_000, "tau_retail": 5_000}  # target steps per second
T = TypeVar("T")
RESET = 5e-3  # target seconds per reset


@dataclass
class Options(common.Options):
    steps: Positive[int] = 2000  # steps timed in each repeat
    growth: Positive[int] = 100_000  # steps over which memory must not grow; abd, ded, a program a step: a tenth


def play(env, steps: int, first: int = 0) -> tuple[list[float], list[float]]:
    """Play episodes first, first + 1, ... Return the seconds of each step and of each reset."""
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


def repeated(options: Options, measure: Callable[[int], T]) -> list[T]:
    """Return what `measure`, called with the number of the repeat, returns after the warm-up."""
    return [measure(repeat) for repeat in range(options.warmup + options.repeats)][options.warmup :]


def resident() -> float:
    """Return the process's memory in MiB after garbage collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def rows_of(name: str, options: Options) -> Parts:
    """Return the rows of one environment."""

    @cache
    def times() -> list[tuple[float, float]]:
        """Return the (step, reset) seconds of each repeat."""
        env = envs.make(name)
        return repeated(options, lambda i: tuple(map(median, play(env, options.steps, first=i * options.steps))))

    def time(which: int, bound: float | None, row: str) -> Row:
        return Row(row, {"ours": [seconds[which] for seconds in times()]}, targets={"ours": bound} if bound else {})

    return {
        f"{name}, step": partial(time, 0, 1 / STEPS[name] if name in STEPS else None),
        f"{name}, reset": partial(time, 1, RESET if name in STEPS else None),
    }


def gained(options: Options, steps: int, name: str, row: str) -> Row:
    """Measure the memory that an environment's steps gain after a warm-up of a fifth of them."""
    used = []
    for first, most in ((10**6, steps // 5), (10**7, steps)):
        for played in range(0, most, 50):  # as a rollout, which makes an environment for each episode
            play(envs.make(name), min(50, most - played), first + played)
        used.append(resident())
    targets = {"ours": 4.0} if common.as_stated(options, "growth") else {}  # a shorter warm-up is not over
    return Row(row, {"ours": [used[1] - used[0]]}, "MiB", targets=targets)


def shell_lines() -> Iterator[Callable]:
    """Yield calls that run the solutions of os_interaction's tasks of all levels, line by line, in order."""
    for seed in count():
        rng = Random(seed)
        task = os_tasks.draw(rng, rng.choice(list(os_tasks.LEVELS)), "train")
        shell = Shell(prepared(task))
        for line in task.truth:
            yield partial(shell.run, line)


def statements() -> Iterator[Callable]:
    """Yield calls that run the solutions of db_bench's tasks of all skills and levels, each on its own table."""
    solver, database = Database(), Database()
    for seed in count():
        rng, skill = Random(seed), db_tasks.SKILLS[seed % len(db_tasks.SKILLS)]
        task = db_tasks.draw(rng, skill, rng.choice(list(db_tasks.LEVELS)), "train", solver)
        database.load(task.table, task.columns, task.rows)
        yield partial(database.run, task.sql)


ALONE = {  # row -> (the calls to time, target calls per second)
    "shell alone, a line": (shell_lines, 3_000),
    "SQL alone, a statement": (statements, 3_000),
}


def alone(options: Options, name: str) -> Row:
    works, rate = ALONE[name]
    runs = works()
    seconds = repeated(options, lambda _: fmean(common.seconds_of(run) for run in islice(runs, options.steps)))
    return Row(name, {"ours": seconds}, targets={"ours": 1 / rate})


BUILT = {  # row -> (the function that builds, calls in each repeat, target seconds per call)
    "webshop's catalogue, built": (lambda: Catalogue(list(catalogue().products.values())), 1, 0.5),
    "a machine of the shell, built": (base_machine, 100, 1e-3),
}


def built(options: Options, name: str) -> Row:
    build, calls, bound = BUILT[name]
    seconds = repeated(options, lambda _: fmean(common.seconds_of(build) for _ in range(calls)))
    return Row(name, {"ours": seconds}, targets={"ours": bound})


def reset_alone(options: Options, row: str) -> Row:
    """Time the resets of an environment whose steps start a process each."""
    env = envs.make(row.removesuffix(", reset"))

    def resets(repeat: int) -> float:
        seeds = range(100 * repeat, 100 * (repeat + 1))
        return median(common.seconds_of(partial(env.reset, seed)) for seed in seeds)

    return Row(row, {"ours": repeated(options, resets)}, targets={"ours": RESET})


def trivial_programs(options: Options, row: str) -> Row:
    """Time programs in the sandbox, two at a time, as a rollout on two cores runs them."""
    number = options.steps // 10
    run = lambda i: sandbox.run("print(int(input()) * 2)", str(i)).stdout  # noqa: E731
    with ThreadPoolExecutor(2) as pool:

        def programs(_) -> None:
            if list(pool.map(run, range(number))) != [f"{2 * i}\n" for i in range(number)]:
                raise ValueError("a program printed something else")

        seconds = repeated(options, lambda i: common.seconds_of(partial(programs, i)) / number)
    return Row(row, {"ours": seconds}, targets={"ours": 1 / 400})


def main(options: Options) -> None:
    programs, parts = ("abd", "ded"), {}
    names = [name for name in envs.NAMES if name not in (*programs, *envs.WITHOUT_TASKS)]
    for name in names:
        parts |= rows_of(name, options)
    parts |= dict.fromkeys((f"{name}, reset" for name in programs), partial(reset_alone, options))
    parts |= dict.fromkeys(BUILT, partial(built, options))
    parts["sandbox, a trivial program"] = partial(trivial_programs, options)
    parts |= dict.fromkeys(ALONE, partial(alone, options))
    for name in (*names, *programs):
        steps = options.growth // 10 if name in programs else options.growth
        parts[f"memory, {name}, gained by {steps:,} steps"] = partial(gained, options, steps, name)
    notes = [
        "Default options of each environment; the median step of each repeat, one process, one thread.",
        "Alone: the solutions of os_interaction's and db_bench's tasks, without environments; the mean of each repeat.",
    ]
    common.measure_and_report("envs", parts, options, notes, {})


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
