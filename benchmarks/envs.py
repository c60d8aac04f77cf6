"""The worlds: seconds of a step and of a reset, and memory over many steps: python -m benchmarks.envs

A step is timed by itself, the median taken of each turn's. Half of the episodes are the expert's, in the others every
second reply is one that no world understands. Those that start a process for each reply (abd, ded) and those that ask a
server are left out.
"""

import gc
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import envs
from benchmarks import common
from benchmarks.common import Row

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


def main(options: Options) -> None:
    names = [name for name in envs.NAMES if name not in ("abd", "ded", "http") and name.startswith(options.only)]
    rows = [row for name in names for row in rows_of(name, options)]
    notes = ["Default options of each world; the median step of each turn, one process, one thread."]
    common.report("envs", rows, options, notes, {"worlds": ", ".join(names)})


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
