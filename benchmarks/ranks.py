"""The time of a run by its number of ranks, with a core for each of them, simulated from measured CPU time:
python -m benchmarks.ranks worlds=1,2,4

Each number of ranks makes the same run of train.py, in processes of this machine. From one exchange to the next a rank
needs no other; so a phase takes the sum, over these intervals, of the CPU time of the rank that has most to do. The
machine may have fewer cores than there are ranks, and may be busy: then the ranks only wait longer for one another,
which is not counted. Not counted either is what it takes to send something, and to start processes. `idle` is the share
of the ranks' time in which they would wait for the slowest.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from unittest import mock

import torch

import train
from rl import ranks
from rl.config import program
from rl.config.arguments import Positive
from rl.config.parse import parse
from rl.ranks import launch
from rl.run.run import Run

PER_EPOCH = ("collect", "score", "learn", "save")
EVALUATIONS = 2  # of a measured run: before and after


@dataclass(frozen=True)
class Keys:
    worlds: str = "1,2,4"  # numbers of ranks by comma
    repeats: Positive[int] = 1  # of each, in turns; the median is taken
    epochs: Positive[int] = 2  # of a measured run
    eval_episodes: Positive[int] = 200  # of each of its two evaluations
    words: str = ""  # more words of train.py
    of_run: str = "48,3"  # epochs and evaluations of the run that the last rows are about: `make train`


def rank(number: int, world: int, place: str, words: list[str], results: multiprocessing.Queue) -> None:
    """Run train.py as one of the ranks. Put (number, {phase: CPU seconds of each interval between two exchanges})."""
    intervals, began = defaultdict(list), time.thread_time()
    parts: list[float] = []  # of the phase under way
    meet, end_phase = ranks.meet, Run.end_phase

    def book() -> None:
        nonlocal began
        parts.append(time.thread_time() - began)
        began = time.thread_time()

    def meeting(exchange) -> None:
        nonlocal began
        book()
        meet(exchange)
        began = time.thread_time()

    def ending(run: Run, name: str, tokens: int = 0) -> None:
        book()
        intervals[name] += parts
        parts.clear()
        end_phase(run, name, tokens)

    with mock.patch.object(ranks, "meet", meeting), mock.patch.object(Run, "end_phase", ending):
        cfg = parse(words, "train.py")
        if world == 1:
            with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
                train.main(cfg)
        else:
            os.environ |= {"RANK": str(number), "WORLD_SIZE": str(world), launch.STARTED: place}
            launch.join("cpu")
            with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
                launch.call(train.main, cfg)
            torch.distributed.destroy_process_group()
    results.put((number, dict(intervals)))


def measured(world: int, words: list[str]) -> list[dict[str, list[float]]]:
    """Return what `rank` found on each of so many ranks."""
    spawn, store = multiprocessing.get_context("spawn"), None
    if world > 1:
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    results, place = spawn.Queue(), f"127.0.0.1:{store.port}:{os.getpid()}" if store else ""
    processes = [spawn.Process(target=rank, args=(i, world, place, words, results)) for i in range(world)]
    for process in processes:
        process.start()
    found = dict(results.get() for _ in processes)
    for process in processes:
        process.join()
    return [found[number] for number in range(world)]


def simulated(found: list[dict[str, list[float]]]) -> dict[str, tuple[float, float]]:
    """Return for each phase (seconds with a core for each rank, the mean of the ranks' own seconds)."""
    times = {}
    for name in found[0]:
        parts = [one[name] for one in found]
        times[name] = sum(map(max, zip(*parts, strict=True))), sum(map(sum, parts)) / len(parts)
    return times


def main(keys: Keys) -> None:
    worlds = [int(word) for word in keys.worlds.split(",")]
    epochs, evaluations = map(int, keys.of_run.split(","))
    times = {world: [] for world in worlds}
    hashes = set()
    for _ in range(keys.repeats):
        for world in worlds:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                words = ["algo=ppo", f"epochs={keys.epochs}", f"eval_episodes={keys.eval_episodes}", "eval_every=0"]
                times[world].append(simulated(measured(world, [*words, *keys.words.split(), f"out={out}"])))
                adapter = out / f"epoch_{keys.epochs}" / "adapter_model.safetensors"
                hashes.add(sha256(adapter.read_bytes()).hexdigest()[:16])
    print("adapters:", *hashes)
    share = {name: epochs / keys.epochs for name in PER_EPOCH} | {"evaluate": evaluations / EVALUATIONS}
    print("| phase | " + " | ".join(f"{world}, s | idle" for world in worlds) + " |")
    print("| --- |" + " ---: | ---: |" * len(worlds))
    whole = dict.fromkeys(worlds, 0.0)
    for name in times[worlds[0]][0]:
        cells = []
        for world in worlds:
            seconds, busy = (median(found[name][i] for found in times[world]) for i in range(2))
            whole[world] += seconds * share.get(name, 1)
            cells.append(f"{seconds:.2f} | {1 - busy / seconds:.0%}")
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(f"| {epochs} epochs | " + " | ".join(f"{whole[world]:.1f} | " for world in worlds) + " |")
    print("| share of the first | " + " | ".join(f"{whole[w] / whole[worlds[0]]:.3f} | " for w in worlds) + " |")


if __name__ == "__main__":
    [given] = program.parse(sys.argv[1:], "benchmarks.ranks", Keys, about=__doc__)
    main(given)
