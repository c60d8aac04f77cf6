"""Break one rank of several at a random moment: all must end within a minute, with one line that names the rank and the
phase, and the repeated command must end as a run that never stopped: PYTHONPATH=. python tests/faults.py times=10

rollout, backward, save: the rank is killed there. hang: it sleeps there. nan: the gradient of a micro-batch is NaN.
The seconds of the heartbeat are shortened, so that a rank that hangs is found in LIMIT * TURN seconds.
"""

import contextlib
import ctypes
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import chaos
import pytest
import torch
from planting import plant

from models.engine import Engine
from rl.config import program
from rl.config.arguments import Positive
from rl.ranks import heartbeat
from rl.run import checkpoint

WORDS = [*chaos.WORDS, "algo=ppo", "epochs=3", "batch_size=8", "micro_tokens=256", "max_turns=3", "ranks=2"]
LINES = {  # fault: the line that its run must end with
    "rollout": r"rank {rank} was killed by SIGKILL in phase (collect|evaluate|trial|load); ",
    "backward": r"rank {rank} was killed by SIGKILL in phase (learn|score|collect); ",
    "save": r"rank {rank} was killed by SIGKILL in phase (save|load|learn); ",
    "hang": r"rank {rank} \(process \d+\) has done nothing for \d+ seconds in phase (collect|evaluate|learn|trial); ",
    "nan": r"no gradient was finite, in 1 optimizer steps; learn: not finite on rank {rank}; ",
}
TURN, SOON = 0.2, 60.0  # seconds


@dataclass
class Keys:
    faults: str = ",".join(LINES)  # by comma
    times: Positive[int] = 10  # that each is planted
    seed: int = 0  # of the moments


@dataclass
class Plan:
    """Break the rank at the n-th call of the fault's function; n = 0: only count the calls."""

    fault: str = ""
    rank: int = 0
    n: int = 0


class Planted:
    """Counts the calls of each function that a fault can break, on this rank, and breaks one."""

    def __init__(self, plan: Plan, rank: int, counts: Path):
        self.plan, self.rank, self.counts, self.calls, self.saving = plan, rank, counts, Counter(), 0
        Engine.step = self.wrapped(Engine.step, "rollout", "hang")
        backward = torch.Tensor.backward
        torch.Tensor.backward = self.wrapped(lambda loss: backward(loss * self.factor()), "backward", "hang")
        os.fsync = self.wrapped(os.fsync, "save")
        for name in ("save_checkpoint", "save_epoch"):
            plant(pytest.MonkeyPatch(), checkpoint, name, self.saves)

    def saves(self, function):
        def save(*args):
            self.saving += 1
            function(*args)
            self.saving -= 1
            self.counts.write_text(json.dumps(self.calls))

        return save

    def wrapped(self, function, *faults: str):
        def call(*args):
            for fault in faults:
                if (fault != "save" or self.saving) and self.is_now(fault):
                    if fault == "hang":
                        time.sleep(10**6)
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*args)

        return call

    def factor(self) -> float:
        return float("nan") if self.is_now("nan") else 1.0

    def is_now(self, fault: str) -> bool:
        self.calls[fault] += 1
        return (fault, self.rank, self.calls[fault]) == (self.plan.fault, self.plan.rank, self.plan.n)


def run(out: Path, plan: Plan) -> tuple[int, str, float]:
    """Run train.py with two ranks. Return its exit status, what it printed, and how long it took."""
    began, log = time.monotonic(), out.parent / "log"
    child = os.fork()
    if not child:
        status = 1
        try:
            with open(log, "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                os.chdir(chaos.ROOT)
                heartbeat.TURN, sys.argv = TURN, ["train.py", *WORDS, f"out={out}"]
                chaos.plant(lambda rank: Planted(plan, rank, out.parent / f"counts-{rank}"))
                status = chaos.execute()
        finally:
            os._exit(status)
    status = chaos.wait(child)
    return status, log.read_text(), time.monotonic() - began


def main(keys: Keys) -> int:
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(chaos.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    draw, failed = random.Random(keys.seed), 0
    with tempfile.TemporaryDirectory() as work:
        whole, out = Path(work) / "whole", Path(work) / "run"
        status, said, usual = run(whole, Plan())
        assert status == 0, said
        expected = chaos.results(whole)
        counts = [json.loads((Path(work) / f"counts-{rank}").read_text()) for rank in range(2)]
        for fault in keys.faults.split(","):
            wrong = []
            for _ in range(keys.times):
                rank = 0 if fault == "save" else draw.randrange(2)  # the first rank alone writes
                plan = Plan(fault, rank, draw.randint(1, counts[rank][fault]))
                status, said, seconds = run(out, plan)
                lines = [line for line in said.splitlines() if line.startswith("train.py: ")]
                if status != 1 or len(lines) != 1 or not re.search(LINES[fault].format(rank=rank), lines[0]):
                    wrong.append(f"{plan}: status {status}: {lines or said.splitlines()[-3:]}")
                if seconds > usual + SOON:
                    wrong.append(f"{plan}: ended after {seconds:.0f} s")
                status, said, _ = run(out, Plan())
                if status or chaos.results(out) != expected:
                    wrong.append(f"{plan}: the repeated run ended with status {status}, {said.splitlines()[-1:]}")
                shutil.rmtree(out)
            print(f"{fault}: {keys.times} planted, {len(wrong)} wrong", *wrong, sep="\n  ", flush=True)
            failed += len(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    [keys] = program.parse(sys.argv[1:], "tests/faults.py", Keys, about=__doc__)
    sys.exit(main(keys))
