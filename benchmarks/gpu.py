"""Everything that needs a GPU to measure, in one command and at most ten minutes: python -m benchmarks.gpu

The parts (benchmarks/gpu_parts.py) run one after the other in a worker process, with random weights that are made on
the device, at sizes that fit its memory (benchmarks/gpu_sizes.py). A part that fails, takes too long or ends its
process is a line in the notes, and the next part goes on, in a new process if it must. Each part has seconds of its
own, which no earlier part can take. With out= the file and its table are written again after every row.
`size=tiny device=cpu dtype=float32` runs all parts without a GPU.
"""

import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Literal

import torch

from benchmarks import common
from benchmarks.common import Row
from benchmarks.gpu_sizes import SIZES, Given, by_memory, named
from rl.config.arguments import Positive

GRACE = 15  # seconds that a worker has to stop by itself when a part's time is over


@dataclass
class Options(common.Options):
    repeats: Positive[int] = 3  # measured repeats of each side
    warmup: Positive[int] = 1  # repeats before those
    only: str = ""  # parts whose name starts so
    size: Literal["auto", *SIZES] = "auto"  # set of sizes; auto: by the device's memory
    large: str = ""  # shape of the large model, a key of sides.SHAPES; empty: the set's
    small: str = ""  # shape of the small model; empty: the set's
    checkpoint: str = "tiny"  # trained model of the part `text`: tiny | a folder | a hub id
    device: Literal["cuda", "cpu"] = "cuda"  # where to measure
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"  # of the weights
    seconds: Positive[int] = 540  # of all parts together
    part: Positive[int] = 600  # of one part at most
    worker: bool = False  # run the parts that standard input names, for the process that watches the time


# ---- the worker: names of parts and their seconds come in, messages go out, a line of JSON each ----


class TimeOver(BaseException):
    """Raised when time is over. Not an Exception, which a peer's code may catch."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise TimeOver in the block after `seconds`, as soon as a running call returns to Python."""

    def ring(*_):
        raise TimeOver

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_part(name: str, part: Callable, seconds: float, given: Given, send: Callable[[dict], None]) -> None:
    """Run a part and send its rows, each with its peak memory; a failure or the end of its time becomes a note."""
    torch.set_num_threads(given.options.threads)  # a part may have changed it
    common.reset_peak(given.device)
    try:
        with deadline(seconds):
            for row in part(given):
                row.details["peak_gib"] = round(common.peak_gib(given.device), 3)
                common.progress(row)
                send({"part": name, "row": asdict(row)})
                common.reset_peak(given.device)
    except TimeOver:
        given.note(f"{name}: cut off after {seconds:.0f} seconds; what it had not measured by then is missing.")
    except Exception as error:  # a failure of any kind must not stop the other parts
        given.note(f"{name}: failed, {common.one_line(error)}")
    common.free_memory()


def work(options: Options) -> None:
    """Run the parts that standard input names until it ends. Exit with 1 if the device no longer works."""
    from benchmarks.gpu_parts import PARTS

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a part or a library prints goes to stderr

    def send(message: dict) -> None:
        print(json.dumps(message), file=out, flush=True)

    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    scale = named(options.size, options.large, options.small)
    given = Given(scale, options, options.device, dtype, lambda text: send({"note": text}))
    for line in sys.stdin:
        name, seconds = json.loads(line)
        print(f"-- {name}, at most {seconds:.0f} s", file=sys.stderr, flush=True)
        run_part(name, PARTS[name][0], seconds, given, send)
        if options.device != "cpu":
            try:
                torch.zeros(1, device=options.device).add_(1).item()
            except Exception as error:  # an illegal access breaks the whole process
                send({"note": f"{name}: the device no longer answered, {common.one_line(error)}"})
                sys.exit(1)
        send({"end": name})


# ---- the process that watches the time ----


class Worker:
    """A worker process and the messages that it has sent."""

    def __init__(self, command: list[str]):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def part(self, name: str, seconds: float) -> Iterator[dict]:
        """Yield the messages of a part. Kill the worker if it has not ended the part GRACE seconds after its time."""
        end = time.monotonic() + seconds + GRACE
        try:
            print(json.dumps([name, seconds]), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            yield {"note": f"{name}: not run, the worker had ended."}
            return
        while True:
            try:
                line = self.lines.get(timeout=max(end - time.monotonic(), 0))
            except queue.Empty:
                self.stop()
                yield {"note": f"{name}: killed {GRACE} seconds after its time of {seconds:.0f} seconds."}
                return
            if line is None:
                yield {"note": f"{name}: its process ended with status {self.process.wait()}."}
                return
            message = json.loads(line)
            if message.get("end") == name:
                return
            yield message

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """End the process and those that it started."""
        if self.runs:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def command_of(options: Options) -> list[str]:
    """Return the command of a worker."""
    words = {f.name: getattr(options, f.name) for f in fields(options)} | {"worker": True, "out": "", "only": ""}
    given = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in words.items()]
    return [sys.executable, "-m", "benchmarks.gpu", *(word for word in given if not word.endswith("="))]


def run(
    names: dict[str, int], options: Options, command: list[str], changed: Callable[[list[Row], list[str]], None]
) -> tuple[list[Row], list[str]]:
    """Return (rows, notes) of the parts. changed: called after every message.

    names: the seconds that are kept for each part. A part may also take those that earlier ones left.
    """
    end, rows, notes, worker = time.monotonic() + options.seconds, [], [], Worker(command)
    later = sum(names.values())
    try:
        for name, own in names.items():
            left, later = end - time.monotonic(), later - own
            seconds = min(left, options.part, max(own, left - later))
            if seconds > 0 and not worker.runs:
                worker = Worker(command)
            over = [{"note": f"{name}: not run, {options.seconds} seconds were over."}]
            for message in worker.part(name, seconds) if seconds > 0 else over:
                if "row" in message:
                    rows.append(Row(**message["row"]))
                elif message["note"] not in notes:
                    notes.append(message["note"])
                    print(message["note"], file=sys.stderr, flush=True)
                changed(rows, notes)
    finally:
        worker.stop()
    return rows, notes


def about_device(options: Options) -> dict:
    about = {"size": options.size, "dtype": options.dtype, "lora": "r=16 all-linear, unmerged on every side"}
    if options.device != "cpu":
        properties = torch.cuda.get_device_properties(0)
        about |= {"cuda": torch.version.cuda, "memory": f"{properties.total_memory / 2**30:.1f} GiB"}
        about |= {"capability": f"{properties.major}.{properties.minor}"}
    return about


NOTES = [
    "Times are of CUDA events, or of the host's clock after synchronizing for the GRPO step and train.py's phases; "
    f"rows of long repeats stop at {common.ENOUGH} of them when the set's patience is over.",
    "mixed: one engine and one manager for all repeats. multi-turn and the exact path: each repeat makes its engines, "
    "and captures their graphs within its time, on both sides.",
    "limit of decode: every weight and each row's keys and values read once, at the speed of a copy in this run, or "
    "the products of all rows; of prefill and a training pass: the products of the layers (twice as many with the "
    "gradients of the inputs) at the speed of a large product in this run. Adapters and attention are not in it.",
    "checked: kernels of one step or pass, their time on the device, and the families' shares of it (their counts).",
    "The JSON has each row's peak of allocated memory (details.peak_gib).",
]


def main(options: Options) -> None:
    if options.worker:
        return work(options)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "benchmarks.gpu: no CUDA device on this machine, or in this torch; make bench runs on a CPU",
            file=sys.stderr,
        )
        raise SystemExit(2)
    if options.size == "auto":
        memory = torch.cuda.get_device_properties(0).total_memory if options.device == "cuda" else 0
        options.size = by_memory(memory / 2**30)
    try:
        named(options.size, options.large, options.small)
    except ValueError as error:
        sys.exit(f"benchmarks.gpu: {error}")
    from benchmarks.gpu_parts import PARTS

    names = {name: PARTS[name][1] for name in common.chosen(PARTS, options.only)}
    common.hint(common.absent("transformers", "peft", "trl", "liger-kernel", "cut-cross-entropy"), "bench-gpu")
    about = about_device(options)

    def changed(rows: list[Row], notes: list[str]) -> None:
        common.save(options.out, *common.compose("gpu", rows, options, ["not finished", *notes, *NOTES], about))

    rows, notes = run(names, options, command_of(options), changed)
    if not rows:
        sys.exit("benchmarks.gpu: no part gave a row; the lines above say why")
    table, record = common.compose("gpu", rows, options, [*notes, *NOTES], about)
    common.save(options.out, table, record)
    print(table if options.out else f"{table}\n\n{record}", flush=True)
    if any(not math.isfinite(row.median("ours")) for row in rows if "ours" in row.values):
        raise SystemExit(1)


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
