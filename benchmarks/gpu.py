"""Everything that needs a GPU to measure, in one command and at most ten minutes: python -m benchmarks.gpu

The parts (benchmarks/gpu_parts.py) run one after the other, each in a process of its own, with random weights that are
made on the device, at sizes that fit its memory (benchmarks/gpu_sizes.py). A part that fails, crashes or hangs is a
line in the notes, and the next part goes on. Each part has seconds of its own, which no earlier part can take. With
out= the file and its table are written again after every row, so that a run which breaks off leaves them; only=PART
measures what is missing.
`size=tiny device=cpu dtype=float32` runs all parts without a GPU.
"""

import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import torch

from benchmarks import common, gpu_parts, sides
from benchmarks.common import Row
from benchmarks.gpu_sizes import SIZES, Given, by_memory
from rl.config.arguments import Positive


@dataclass
class Options(common.Options):
    repeats: Positive[int] = 3  # measured repeats of each side
    warmup: Positive[int] = 1  # repeats before those
    only: str = ""  # parts whose name starts so
    size: Literal["auto", *SIZES] = "auto"  # set of sizes; auto: by the device's memory
    large: Literal["", *sides.SHAPES] = ""  # shape of the large model; empty: the set's
    small: Literal["", *sides.SHAPES] = ""  # shape of the small model; empty: the set's
    device: Literal["cuda", "cpu"] = "cuda"  # where to measure
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"  # of the weights
    seconds: Positive[int] = 540  # of all parts together


PROCESSES = multiprocessing.get_context("forkserver")  # parts fork from a process that has imported them
PROCESSES.set_forkserver_preload(["benchmarks.gpu_parts"])


def run_part(name: str, given: Given, seconds: float, send: Callable = gpu_parts.send) -> Iterator[Row | str]:
    """Run a part in a process of its own, by `send`. Yield its rows and its notes, and a note if the process crashes or
    is killed after `seconds`."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=send, args=(name, given, sender))
    process.start()
    sender.close()  # so that the end of the process is the end of the pipe
    end = time.monotonic() + seconds
    try:
        while receiver.poll(max(end - time.monotonic(), 0)):
            found = receiver.recv()
            if found is None:
                return
            yield found
        yield f"{name}: cut off after {seconds:.0f} seconds; what it had not measured by then is missing."
    except EOFError:
        process.join()
        yield f"{name}: its process ended with status {process.exitcode}; what it had not measured is missing."
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what the part has started
        process.kill()
        process.join()


def run(parts: dict[str, tuple[gpu_parts.Part, int]], given: Given) -> Iterator[Row | str]:
    """Run the parts, each in the seconds that are kept for it and in those that earlier ones left."""
    options, end, later = given.options, time.monotonic() + given.options.seconds, sum(own for _, own in parts.values())
    for name, (_, own) in parts.items():
        left, later = end - time.monotonic(), later - own
        seconds = min(left, max(own, left - later))
        if seconds <= 0:
            yield f"{name}: not run, {options.seconds} seconds were over."
            continue
        print(f"-- {name}, at most {seconds:.0f} s", file=sys.stderr, flush=True)
        yield from run_part(name, given, seconds)


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
    "checked: kernels of one step or pass, and their time on the device.",
    "The JSON has each row's peak of allocated memory (details.peak_gib).",
]


def main(options: Options) -> None:
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "benchmarks.gpu: no CUDA device on this machine, or in this torch; make bench runs on a CPU",
            file=sys.stderr,
        )
        raise SystemExit(2)
    if options.size == "auto":
        memory = torch.cuda.get_device_properties(0).total_memory if options.device == "cuda" else 0
        options.size = by_memory(memory / 2**30)
    scale = SIZES[options.size][1]
    scale = replace(scale, large=options.large or scale.large, small=options.small or scale.small)
    parts = {name: gpu_parts.PARTS[name] for name in common.chosen(gpu_parts.PARTS, options.only)}
    common.hint(common.absent("transformers", "peft", "trl", "liger-kernel", "cut-cross-entropy"), "bench-gpu")
    about = about_device(options)

    rows: list[Row] = []
    notes: list[str] = []
    for found in run(parts, Given(scale, options, options.device, getattr(torch, options.dtype))):
        if isinstance(found, Row):
            rows.append(common.progress(found))
            common.save(options.out, *common.compose("gpu", rows, options, ["not finished", *notes, *NOTES], about))
        elif found not in notes:
            notes.append(found)
            print(found, file=sys.stderr, flush=True)
    if not rows:
        sys.exit("benchmarks.gpu: no part gave a row; the lines above say why")
    table, record = common.compose("gpu", rows, options, [*notes, *NOTES], about)
    common.save(options.out, table, record)
    print(table if options.out else f"{table}\n\n{record}", flush=True)
    if any(not math.isfinite(row.median("ours")) for row in rows if "ours" in row.values):
        raise SystemExit(1)


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
