"""Shared by all benchmarks: options, interleaved repeats, rows with targets, the report.

All sides have the same weights, adapter, inputs, dtype and threads. They run in one process, interleaved (ours, theirs,
ours, theirs, ...), so that whatever else the machine does falls on all of them. Medians are reported; the JSON line has
every value. benchmarks/sides.py makes the models of the sides.
"""

import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import median, quantiles
from typing import Literal, TypeVar

import torch

from benchmarks import machine, memory
from models.cpu import process
from models.cpu.speed import random_part
from models.sizes import Sizes
from rl.config import program
from rl.config.arguments import Positive
from rl.run.memory_errors import is_out_of_memory

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
ENOUGH = 3  # measured repeats of a row that takes long
T = TypeVar("T")
PACKAGES = ("torch", "triton", "transformers", "peft", "trl", "liger-kernel", "cut-cross-entropy")


@dataclass
class Options:
    repeats: Positive[int] = 5  # measured repeats of each side
    warmup: Positive[int] = 2  # repeats before those
    threads: Positive[int] = 2  # torch threads, of all sides
    clock: Literal["wall", "cpu"] = "wall"  # cpu: processor time of this process, where other programs run beside it
    products: Literal["auto", "onednn", "mkl", "plain"] = "auto"  # of our side; auto: what a run chooses here
    only: str = ""  # rows whose name starts so
    out: str = ""  # also write the JSON to this file, and the table beside it as .md


def parse(options: type[T], words: list[str]) -> T:
    """Return the options that key=value words give. Print the help and exit with 0 on --help; print one line and exit
    with 2 on a wrong word."""
    module = sys.modules[options.__module__]
    name = f"benchmarks.{Path(module.__file__).stem}"
    [given] = program.parse(words, name, options, about=module.__doc__)
    if given.out and Path(given.out).is_dir():
        print(f"{name}: out={given.out} is a folder; give the name of a file", file=sys.stderr)
        sys.exit(2)
    return given


_chosen = {}  # {dtype and sizes of a model: the line about our products}


def choose_products(options: Options, sizes: Sizes, device: str = "cpu", dtype=torch.float32) -> None:
    """On a CPU, let ours multiply as a run with a model of these sizes does; `report` says how."""
    if device == "cpu":
        line = process.choose_products(options.products, random_part(sizes, dtype))
        _chosen[f"{str(dtype)[6:]} of layers of {sizes.D} to {sizes.I}"] = line


def as_stated(options: Options, *sizes: str) -> bool:
    """Return whether the named options have their defaults, for which targets of time and memory are stated."""
    return all(getattr(options, name) == getattr(type(options), name) for name in sizes)


def dtypes_of(words: str) -> dict[str, torch.dtype]:
    """Return the dtypes of names separated by commas. Exit with one line if a name is not a floating-point dtype."""
    found = {word: getattr(torch, word, None) for word in words.split(",")}
    for word, dtype in found.items():
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            sys.exit(f"dtypes={words}: {word} is not a floating-point type; float32, bfloat16, ...")
    return found


def absent(*packages: str) -> list[str]:
    """Return the packages that are not installed."""
    return [name for name in packages if version(name) is None]


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# ---- rows ----


def digits(x: float, count: int = 3) -> str:
    """Return a number with `count` significant digits, or as a whole number if it has more before the point."""
    return f"{x:,.0f}" if abs(x) >= 10**count - 0.5 else f"{x:.{count}g}"


@dataclass
class Row:
    """One thing that was measured on each side."""

    name: str
    values: dict[str, list[float]]  # by side, "ours" or a peer: one per measured repeat
    unit: str = "s"
    speedup: bool = False  # ratios are theirs / ours and targets the least; else ours / theirs, and the most
    targets: dict[str, float] = field(default_factory=dict)  # of the ratio to a peer; under "ours": of the value itself
    tokens: int = 0  # in one repeat, for tokens per second
    check: str = ""  # what was verified
    dropped: dict[str, str] = field(default_factory=dict)  # sides without a value, and the reason
    details: dict = field(default_factory=dict)  # more about the row, for the JSON alone

    def median(self, side: str) -> float:
        return median(self.values[side])

    def ratio(self, side: str) -> float:
        """Return the ratio to a peer, 1 if both are 0, as errors may be."""
        over, under = (side, "ours") if self.speedup else ("ours", side)
        over, under = self.median(over), self.median(under)
        return over / under if under else 1.0 if over == under else math.inf

    def by_repeat(self, side: str) -> list[float]:
        """Return the ratio to a peer of each repeat; of "ours" the value itself."""
        if side == "ours":
            return self.values[side]
        pairs = zip(self.values["ours"], self.values[side], strict=False)  # a limit has one value
        return [theirs / ours if self.speedup else ours / theirs for ours, theirs in pairs if ours and theirs]

    def target(self, side: str) -> str:
        """Return the target of this side and whether it was met, or "" without a target."""
        if side not in self.targets:
            return ""
        bound, own = self.targets[side], side == "ours"
        found = self.median(side) if own else self.ratio(side)
        least = self.speedup and not own
        met = found >= bound if least else found <= bound
        unit = f" {self.unit}" if own else "x"
        verdict = "met" if met else f"missed by {digits(abs(found - bound), 2)}"
        ratios = self.by_repeat(side)
        if len(ratios) >= ENOUGH:
            low, _, high = quantiles(ratios, n=4, method="inclusive")
            verdict += ", within the spread" if low < bound < high else ""
        return f"{'>=' if least else '<='} {digits(bound)}{unit}: {verdict}"

    def record(self) -> dict:
        peers = [side for side in self.values if side != "ours"]
        medians = {side: self.median(side) for side in self.values}
        targets = {side: self.target(side) for side in self.targets if side in self.values}
        ratios = {side: self.ratio(side) for side in peers if "ours" in self.values}
        return {**asdict(self), "median": medians, "ratio": ratios, "target": targets}

    def lines(self) -> list[str]:
        """Return the table's lines, one per side."""
        made = []
        for side in self.values:
            value, count = f"{digits(self.median(side))} {self.unit}", len(self.values[side])
            few = f" (median of {count})" if self.unit == "s" and 1 < count < 5 else ""
            rate = f"{self.tokens / self.median(side):,.0f}" if self.tokens and self.unit == "s" else ""
            kind = "" if self.unit != "s" else " the speed" if self.speedup else " the time"
            ratio = "" if side == "ours" or "ours" not in self.values else f"{digits(self.ratio(side))}x{kind}"
            first = side == next(iter(self.values))
            cells = (self.name if first else "", side + few, value, rate, ratio, self.target(side))
            made.append("| " + " | ".join([*cells, self.check if first else ""]) + " |")
        for side, reason in self.dropped.items():
            made.append(f"| {'' if made else self.name} | {side} | {reason} | | | | |")
        return made


Parts = dict[str, Callable[[str], Row]]  # row name -> the function that measures the row, called with the name


def measure_and_report(name: str, parts: Parts, options: Options, notes: list[str], about: dict, peers=()) -> None:
    """Measure the rows whose names begin with options.only, print each to stderr, and report all.

    Print first how to install the packages of the peers that are missing. Exits as `chosen` does.
    """
    names, missing = chosen(parts, options.only), absent(*peers)
    hint(missing)
    rows = [progress(parts[row](row)) for row in names]
    report(name, rows, options, [*notes, *absences(missing)], about)


def absences(missing: Iterable[str]) -> list[str]:
    """Return a note about each missing package."""
    return [f"{name}: absent; ours was measured without it." for name in missing]


def hint(missing: Sequence[str], extra: str = "bench") -> None:
    if missing:
        text = f'{", ".join(missing)}: not installed, and left out; pip install -e ".[{extra}]" brings the peers'
        print(text, file=sys.stderr, flush=True)


def chosen(names: Iterable[str], only: str) -> list[str]:
    """Return the names that begin with `only`. If there is none, exit with 1 and one line that lists the names with the
    same words before the first comma, or else those words of all names."""
    found = [name for name in names if name.startswith(only)]
    if not found:
        near = [name for name in names if name.startswith(only.split(",")[0])]
        near = near or list(dict.fromkeys(name.split(",")[0] for name in names))
        sys.exit(f"only={only}: no row of this benchmark begins so; rows begin with: {'; '.join(near)}")
    return found


# ---- time ----


def interleave(
    sides: dict[str, Callable[[], object]],
    repeats: int,
    warmup: int,
    device: str = "cpu",
    limit: float = math.inf,
    dropped: dict[str, str] | None = None,
    clock: str = "wall",
) -> dict[str, list[float]]:
    """Return the seconds of each repeat of each side, without the warm-up. After `limit` seconds, stop
    once there are ENOUGH repeats. A side that `each_side` drops goes on no more and is left out."""
    seconds, began = {name: [] for name in sides}, time.perf_counter()
    for repeat in range(1, warmup + repeats + 1):
        works = {name: partial(seconds_of, sides[name], device, clock) for name in seconds}
        found = each_side(works, dropped)
        seconds = {name: [*seconds[name], value] for name, value in found.items()}
        if repeat - warmup >= ENOUGH and time.perf_counter() - began > limit:
            break
    return {name: values[warmup:] for name, values in seconds.items()}


def timed(
    name: str, sides: dict[str, Callable], options: Options, device="cpu", limit=math.inf, warmup=None, **row
) -> Row:
    """Return the row of the sides' interleaved seconds. warmup: by default the options'. row: other fields of the Row,
    whose `dropped` gets the sides that fail."""
    dropped = row.setdefault("dropped", {})
    warmup = options.warmup if warmup is None else warmup
    return Row(name, interleave(sides, options.repeats, warmup, device, limit, dropped, options.clock), **row)


def valued(name: str, sides: dict[str, Callable[[], float]], unit: str, **row) -> Row:
    """Return the row of one value of each side."""
    dropped = row.setdefault("dropped", {})
    found = each_side(sides, dropped)
    return Row(name, {side: [value] for side, value in found.items()}, unit, **row)


def compared(name: str, works: dict[str, Callable], output: Callable, given, **row) -> Row:
    """Return the row of the sides' seconds, with how far `output` of our result is from that of the first peer.

    given: benchmarks.gpu_sizes.Given.
    """
    dropped: dict[str, str] = {}
    found = {side: output(result).float() for side, result in each_side(works, dropped).items()}
    peers = [side for side in found if side != "ours"]
    if "ours" in found and peers:
        apart = (found["ours"] - found[peers[0]]).norm() / found[peers[0]].norm()
        row["check"] = f"{apart.item():.1e} of its norm from {peers[0]}"
    works = {side: works[side] for side in found}
    return timed(name, works, given.options, given.device, dropped=dropped, **row)


def each_side(works: dict[str, Callable[[], T]], dropped: dict[str, str] | None) -> dict[str, T]:
    """Return the result of each side. A peer that fails is left out, and so is ours if memory runs out: the reason goes
    into `dropped`, and is printed. Any other failure of ours, and any failure without `dropped`, is raised."""
    found = {}
    for side, work in works.items():
        reason = None
        try:
            found[side] = work()
        except Exception as error:  # a failure of any kind must not lose the rows of the other sides
            if dropped is None or (side == "ours" and not is_out_of_memory(error)):
                raise
            reason = "out of memory" if is_out_of_memory(error) else one_line(error)
        if reason is not None:  # past the except block, so that the traceback holds no tensors
            dropped[side] = reason
            print(f"{side}: dropped, {reason}", file=sys.stderr, flush=True)
            memory.free_memory()
    return found


def one_line(error: BaseException) -> str:
    """Return an error's class and the first line of its text."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"


def seconds_of(work: Callable[[], object], device: str = "cpu", clock: str = "wall") -> float:
    """Return the seconds of one call, by one of the host's CLOCKS, or by events on the GPU's stream."""
    if device == "cpu":
        now = CLOCKS[clock]
        began = now()
        work()
        return now() - began
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    work()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1000


# ---- the report ----

TOO = "by oneDNN too"  # of a peer, in its side's name


def report(name: str, rows: list[Row], options: Options, notes: list[str], about: dict) -> None:
    """Print the table, then the JSON line; write both to files if options.out is set."""
    table, record = compose(name, rows, options, notes, about)
    print(f"{table}\n\n{record}", flush=True)
    save(options.out, table, record)


def compose(name: str, rows: list[Row], options: Options, notes: list[str], about: dict) -> tuple[str, str]:
    """Return (the table, the record as a line of JSON)."""
    command = f"python -m benchmarks.{name} " + " ".join(word for word in sys.argv[1:] if not word.startswith("out="))
    versions = {"python": platform.python_version()}
    versions |= {package: version(package) or "absent" for package in PACKAGES}
    described = machine.describe()
    lines = [
        f"{command.strip()} at {machine.commit()}",
        _join(described),
        f"{options.threads} torch threads, " + _join(versions),
        _join(about),
        "",
    ]
    lines += ["| | side | median | tok/s | ratio | target | checked |", "|---|---|---:|---:|---:|---|---|"]
    lines += [line for row in rows for line in row.lines()]
    notes = [f"Ours multiplies {sizes}: {line}." for sizes, line in _chosen.items()] + notes
    if _chosen:
        notes.append("Copies of weights are laid out before the measured repeats. The peers run as they come, by MKL.")
    if any(TOO in side for row in rows for side in row.values):
        notes.append(f"`{TOO}`: that peer, with torch's switch to oneDNN. No target is held against it.")
    if options.clock == "cpu":
        notes.append("Seconds and tok/s are of processor time, because other programs ran beside this one.")
    counts = sorted({len(values) for row in rows for values in row.values.values()})
    convention = (
        f"Medians of {' or '.join(map(str, counts))} values. A ratio is ours beside that side: `x the time` and plain "
        "`x` are ours / theirs (lower is better), `x the speed` is their time / ours (higher is better). within the "
        "spread: some of the middle half of the repeats would meet the target and some would miss it. "
        "Targets are printed for the sizes that they are stated for, most for the default ones."
    )
    notes = [*notes, convention]
    record = {"benchmark": name, "command": command.strip(), "commit": machine.commit()}
    record |= {"machine": described, "versions": versions, **about}
    given = {key: value for key, value in asdict(options).items() if key != "out"}  # a place of one machine
    record |= {"options": given, "rows": [row.record() for row in rows], "notes": notes}
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]), json.dumps(record)


def save(out: str, table: str, record: str) -> None:
    """Write the record to the file `out`, and the table beside it as .md, each at once: an interrupt leaves the old
    file or the new one. `{cpu}` in the name becomes the `cpu_name` of this machine. Do nothing for an empty name."""
    if not out:
        return
    path = Path(out.replace("{cpu}", machine.cpu_name()))
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, text in ((path, record), (path.with_suffix(".md"), table)):
        target.with_name(target.name + ".part").write_text(text + "\n")
        target.with_name(target.name + ".part").replace(target)


def progress(row: Row) -> Row:
    """Print the row to stderr and return it."""
    medians = [f"{side} {row.median(side):.4g} {row.unit}" for side in row.values]
    print(f"{row.name}: {', '.join(medians)}", file=sys.stderr, flush=True)
    return row


def _join(values: dict) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())
