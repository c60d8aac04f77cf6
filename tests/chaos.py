"""Kill runs at random moments and at every file operation, repeat their command, and compare: make chaos

Each algorithm's run is made once without interruption. Then copies of it are killed, most of them several times: after
a random time, or at the n-th operation on files, for every n. With ranks=N the copies have several processes, of which
one is killed at random; the first rank dies at the n-th operation. Between kills a second process may start on the same
folder, the disk may be full, and the newest of several checkpoints may be damaged. The command is repeated until the
run is done. Its weights, optimizer, episodes and metrics must equal the uninterrupted run's byte for byte.
"""

import contextlib
import ctypes
import json
import os
import random
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import train  # noqa: F401  (children are forked and need not import it again)
from rl.config import program
from rl.config.arguments import Positive
from rl.ranks import launch as of_ranks
from rl.run.files import checkpoints, is_whole
from rl.run.folder import LOCK
from rl.run.signals import Interrupted

ROOT = Path(__file__).parents[1]
WORDS = ["epochs=2", "episodes=8", "batch_size=4", "max_turns=2", "max_new_tokens=8", "eval_episodes=2", "lora.r=2"]
WORDS += ["temperature=1.5", "reward.rule=shaped", "threads=1", "products=plain"]
OPERATIONS = ((os, "rename"), (os, "fsync"), (shutil, "rmtree"), (Path, "write_text"), (Path, "mkdir"), (os, "unlink"))
FULL = (2**9, 2**11, 2**13, 2**16)  # bytes that a file may have when the disk is "full": one of these
PR_SET_CHILD_SUBREAPER = 36  # of prctl.h: ranks whose starter was killed become children of this process


@dataclass
class Keys:
    algos: str = "sft,reinforce,grpo,ppo"  # by comma
    kills: Positive[int] = 30  # of each algorithm, at random moments
    operations: bool = True  # also a kill at every operation on files
    copies: bool = False  # for these kills: copy the folder before each operation, and go on from each different copy
    ranks: Positive[int] = 1  # processes of each run that is killed
    seed: int = 0  # of the moments


def results(run: Path) -> dict[str, object]:
    """Return what equal runs have in common: weights, optimizer, episodes, and metrics without times."""
    newest = checkpoints(run)[-1]
    files = [newest / "trainable.safetensors", newest / "optimizer.safetensors", newest / "state.json"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    records = [record for record in records if "phases" not in record]
    metrics = [{key: value for key, value in record.items() if key != "seconds"} for record in records]
    return {
        **{path.name: path.read_bytes() for path in [*files, run / "episodes.jsonl"] if path.is_file()},
        "": metrics,
    }


def start(
    words: list[str],
    log: Path,
    kill_at: int = 0,
    full: int = 0,
    ranks: int = 1,
    copy: tuple[Path, Path] | None = None,
) -> int:
    """Start train.py in a forked child and return its number. kill_at: it kills itself at that operation on files, or
    its first rank does. full: most bytes of a file, 0 for no bound. copy: (its folder, where copies of the folder go
    that are made before each operation)."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        with open(log, "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            if full:
                resource.setrlimit(resource.RLIMIT_FSIZE, (full, full))
            os.chdir(ROOT)
            sys.argv = ["train.py", *words, f"ranks={ranks}"]
            if ranks > 1:
                plant(lambda rank: count_operations(0 if rank else kill_at))
            else:
                count_operations(kill_at, copy)
            status = execute()
    finally:
        os._exit(status)


def execute() -> int:
    """Run train.py in this process and return its exit status."""
    try:
        runpy.run_path("train.py", run_name="__main__")
    except SystemExit as end:
        print("" if isinstance(end.code, int) else end.code)
        return end.code if isinstance(end.code, int) else 1
    except Interrupted as interrupted:
        return interrupted.status
    except BaseException as error:
        print(f"Traceback: {error!r}")
        return 1
    return 0


def plant(prepare: Callable[[int], None]) -> None:
    """Call prepare(rank) in each rank that this process starts, before it runs."""
    run_as_rank, sys.orig_argv = of_ranks.run_as_rank, [sys.executable, *sys.argv]  # ranks are forks of a program

    def planted(_main, cfg) -> None:
        prepare(int(os.environ["RANK"]))
        run_as_rank(runpy.run_path("train.py")["main"], cfg)  # which imports what was prepared

    of_ranks.run_as_rank = planted


def count_operations(kill_at: int, copy: tuple[Path, Path] | None = None) -> None:
    """Make this process kill itself at the n-th call of a function of OPERATIONS, or copy a folder before each."""
    done = Counter()

    def counted(function):
        def call(*args, **keys):
            done["calls"] += 1
            if done["calls"] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if copy and copy[0].exists():
                shutil.copytree(copy[0], copy[1] / f"{done['calls']:04}")
            return function(*args, **keys)

        return call

    for owner, name in OPERATIONS if kill_at or copy else ():
        setattr(owner, name, counted(getattr(owner, name)))


def content(folder: Path) -> list[tuple[Path, bytes]]:
    """Return what a run's folder holds, but for the lock."""
    paths = sorted(path for path in folder.rglob("*") if path.name != LOCK)
    return [(path.relative_to(folder), path.read_bytes() if path.is_file() else b"") for path in paths]


def children_of(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def wait(child: int, others: tuple[int, ...] = ()) -> int:
    """Return the exit status of a child; minus the number of the signal that killed it. Wait for its ranks too, which
    are children of this process now, as `others` are."""
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for orphan in set(children_of(os.getpid())) - {*others}:
        os.waitpid(orphan, 0)
    return status


def kill_after(child: int, seconds: float, draw: random.Random, others: tuple[int, ...] = ()) -> tuple[int, bool]:
    """Kill the child or one of its ranks after that time, unless it ends before. Return its status, and whether a
    process was killed."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended:
            return wait(child, others), False
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):  # a rank that has just ended
        os.kill(draw.choice([child, *children_of(child)]), signal.SIGKILL)
    return wait(child, others), True


def damage(run: Path, draw: random.Random) -> bool:
    """Flip a byte of the newest checkpoint if there is a whole one besides. Return whether one was flipped."""
    found = checkpoints(run)
    if len(found) < 2 or not is_whole(found[-2]):
        return False
    path = draw.choice(sorted(found[-1].iterdir()))
    data = bytearray(path.read_bytes())
    if data:
        data[draw.randrange(len(data))] ^= 1 + draw.randrange(255)
    path.write_bytes(data)
    return True


class Chaos:
    """One algorithm's runs, what happened to them, and what went wrong."""

    def __init__(self, algo: str, work: Path, draw: random.Random, ranks: int):
        self.algo, self.work, self.draw, self.ranks = algo, work, draw, ranks
        self.happened, self.wrong = Counter(), []
        began = time.monotonic()
        whole = work / f"{algo}-whole"
        assert wait(start(self.words(whole), work / "log")) == 0, (work / "log").read_text()
        self.seconds, self.expected = time.monotonic() - began, results(whole)
        if ranks > 1:
            began = time.monotonic()
            self.finish(work / f"{algo}-ranks", f"{algo}, not killed")
            self.seconds = time.monotonic() - began

    def words(self, run: Path) -> list[str]:
        return [f"algo={self.algo}", *WORDS, f"out={run}", *["grpo.group_size=2"] * (self.algo == "grpo")]

    def finish(self, run: Path, what: str) -> None:
        """Repeat the command until the run is done, and compare."""
        log = self.work / "log"
        status = wait(start(self.words(run), log, ranks=self.ranks))
        said = log.read_text()
        if status and "this run has finished" not in said:
            self.wrong.append(f"{what}: stuck with status {status}: {said.strip().splitlines()[-1:]}")
        elif results(run) != self.expected:
            self.wrong.append(f"{what}: differs")
        shutil.rmtree(run, ignore_errors=True)

    def at_random_moments(self, kills: int) -> None:
        """Kill runs that often, each up to five times."""
        log = self.work / "log"
        while self.happened["killed"] < kills:
            run, story = self.work / f"{self.algo}-{self.happened['runs']}", []
            self.happened["runs"] += 1
            for _ in range(self.draw.randint(1, 5)):
                second = self.draw.random() < 0.2
                full = 0 if second or self.draw.random() > 0.15 else self.draw.choice(FULL)
                child = start(self.words(run), log, full=full, ranks=self.ranks)
                other = start(self.words(run), self.work / "log2", ranks=self.ranks) if second else 0
                seconds = self.draw.uniform(0, 1.1 * self.seconds)
                status, killed = kill_after(child, seconds, self.draw, (other,))
                if other:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(other, signal.SIGKILL)
                    wait(other)
                story.append(f"{seconds:.2f} s{f' full at {full}' if full else ''}{' second' * second}: {status}")
                self.happened.update({"killed": killed, "full disk": bool(full), "second process": second})
                said, allowed = log.read_text(), killed or full or second
                if "Traceback" in said or (status and not (allowed or "has finished" in said)):
                    self.wrong.append(f"{story}: {said.strip().splitlines()[-1:]}")
                if self.draw.random() < 0.3 and damage(run, self.draw):
                    self.happened["damaged"] += 1
                    story.append("damaged")
            self.finish(run, f"{self.algo}, {story}")

    def at_every_operation(self) -> None:
        for number in range(1, 10**6):
            run = self.work / f"{self.algo}-operation"
            status = wait(start(self.words(run), self.work / "log", kill_at=number, ranks=self.ranks))
            killed = status == -9 or "rank 0 was killed by SIGKILL" in (self.work / "log").read_text()
            if not killed:
                self.happened["operations"] = number - 1
                shutil.rmtree(run, ignore_errors=True)
                return
            self.finish(run, f"{self.algo}, killed at operation {number}")

    def from_every_copy(self) -> None:
        """A kill at an operation leaves the folder as it is before it. Go on from each different one."""
        run, copies, different = self.work / f"{self.algo}-operation", self.work / f"{self.algo}-copies", []
        copies.mkdir()
        status = wait(start(self.words(run), self.work / "log", copy=(run, copies)))
        assert status == 0 and results(run) == self.expected, (self.work / "log").read_text()
        for copy in sorted(copies.iterdir()):
            self.happened["operations"] += 1
            if different and content(copy) == content(different[-1]):
                continue
            different.append(copy)
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(copy, run)
            self.finish(run, f"{self.algo}, before operation {copy.name}")
        self.happened["different folders"] = len(different)


def main(keys: Keys) -> int:
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        for algo in keys.algos.split(","):
            chaos = Chaos(algo, Path(work), random.Random(f"{keys.seed} {algo}"), keys.ranks)
            chaos.at_random_moments(keys.kills)
            if keys.operations:
                chaos.from_every_copy() if keys.copies else chaos.at_every_operation()
            counts = ", ".join(f"{name} {number}" for name, number in chaos.happened.items())
            print(f"{algo}, ranks={keys.ranks}: {counts}; {len(chaos.wrong)} wrong", flush=True)
            for line in chaos.wrong:
                print(f"  {line}", flush=True)
            failed += len(chaos.wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    [keys] = program.parse(sys.argv[1:], "tests/chaos.py", Keys, about=__doc__)
    sys.exit(main(keys))
