"""Does the trial of products choose well? A GRPO epoch by each library: python -m benchmarks.products model=smol

`ours` is the epoch of benchmarks.real_size with products=auto; beside it stands the same epoch with each library that
is usable here. Each runs in a process of its own, in turn. The choice is good if no library is faster than it by more
than speed.SAME, up to which the trial counts two as equal. The trial's own time is not in the rows.
"""

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import common, real_size
from benchmarks.common import Row
from benchmarks.real_size import Phase
from models.cpu import process, speed
from rl.config.arguments import Positive
from rl.run import exits

PHASES = {"sampling": ("collect",), "update": ("learn",), "both": ("collect", "learn")}


@dataclass
class Options(real_size.Options):
    repeats: Positive[int] = 3  # epochs by each library


def epoch(options: Options, model: str) -> tuple[str, dict[str, Phase]]:
    """Return the library in use, which the process keeps, and the phases of an epoch."""
    phases = real_size.run_side(options, "ours", model)
    return process.library(), phases


def rows_of(runs: dict[str, list[dict[str, Phase]]]) -> list[Row]:
    """Return the seconds of an epoch's parts, and its peak. runs: the epochs by each way, `ours` first."""
    least = dict.fromkeys((by for by in runs if by != "ours"), 1 / speed.SAME)
    rows = []
    for name, parts in PHASES.items():
        seconds = {by: [sum(one[part].seconds for part in parts) for one in found] for by, found in runs.items()}
        tokens = next(iter(runs.values()))[0]["collect"].tokens
        rows.append(Row(name, seconds, speedup=True, tokens=tokens, targets=least if name == "both" else {}))
    peaks = {by: [max(phase.peak_gib for phase in one.values()) for one in found] for by, found in runs.items()}
    return [*rows, Row("peak", peaks, "GiB")]


def main(options: Options) -> None:
    if options.products != "auto":
        sys.exit(f"products={options.products}: this command forces each library itself")
    ways = {"ours": "auto"} | {f"products={by}": by for by in process.usable_libraries()}
    runs: dict[str, list[dict[str, Phase]]] = {name: [] for name in ways}
    chosen = []
    with tempfile.TemporaryDirectory() as folder:
        model = real_size.base_of(options, Path(folder))
        for _ in range(options.repeats):
            for name, by in ways.items():
                library, phases = real_size.alone(epoch, replace(options, products=by), model)
                runs[name].append(phases)
                chosen += [library] if by == "auto" else []
    rows = [common.progress(row) for row in rows_of(runs)]
    notes = [f"products=auto chose: {', '.join(chosen)}.", "tok/s counts sampled tokens."]
    common.report("products", rows, options, notes, real_size.described(options))


if __name__ == "__main__":
    with exits.exits_cleanly("benchmarks.products"):
        main(common.parse(Options, sys.argv[1:]))
