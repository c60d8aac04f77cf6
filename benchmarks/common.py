"""What the benchmarks share: options, the model of both sides, taking turns, peak memory, the report.

Both sides have the same weights, adapter, prompts, lengths, dtype (float32) and threads, live in one process and take
turns (ours, theirs, ours, theirs, ...), so that whatever else the machine does falls on both. Medians are reported,
every time is in the JSON line. Peak memory is measured afterwards, each side alone in a process of its own.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from statistics import median

import torch

import envs
import lora
from models import CausalLM, Tokenizer, load_model, load_tokenizer
from models.scratch import main as new_model
from models.weights import TINY, resolve

SIDES = ("ours", "peer")


@dataclass
class Options:
    model: str = "tiny"  # tiny (random weights of its shape where it is not there) | a folder | a hub id
    repeats: int = 5  # measured turns of each side
    warmup: int = 2  # turns before those
    threads: int = 2  # torch threads, of both sides
    out: str = ""  # also write the JSON to this file, and the table beside it as .md
    only: str = ""  # rows whose name starts so
    memory: str = ""  # ours | peer: run that side of the row `only` once and print its peak memory as JSON


def parse(options: type, words: list[str]):
    """The options that key=value words say. Exits with one line for a word that is not one."""
    known = {f.name: f.type for f in fields(options)}
    given = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in known or not value:
            sys.exit(f"{word}: not one of {', '.join(f'{name}=' for name in known)}")
        try:
            given[key] = known[key](value)
        except ValueError:
            sys.exit(f"{word}: not a whole number" if known[key] is int else f"{word}: not a number")
    parsed = options(**given)
    if parsed.repeats < 1 or parsed.warmup < 1:
        sys.exit("repeats and warmup must be at least 1")
    return parsed


def absent(*packages: str) -> list[str]:
    """Those that are not installed."""
    return [name for name in packages if version(name) is None]


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# ---- the model of both sides ----


def corpus() -> str:
    """A few thousand words of what an agent reads in TextCraft."""
    env = envs.make("textcraft", prompt="short", distractors=3)
    return "\n".join(message["content"] for seed in range(200) for message in env.reset(seed, "train"))


def windows(tokenizer: Tokenizer, lengths: list[int]) -> list[list[int]]:
    """Pieces of the corpus, of exactly these lengths, that are encoded from their text as they are."""
    ids, start, found = tokenizer.encode(corpus()), 0, []
    for length in lengths:
        while tokenizer.encode(tokenizer.decode(ids[start : start + length])) != ids[start : start + length]:
            start += 1
        found.append(ids[start : start + length])
        start += length
    assert [len(piece) for piece in found] == lengths, "the corpus is too short for these prompts"
    return found


def prepare(name: str, work: Path) -> tuple[Path, Path]:
    """(base, adapter) folders that either side loads; the adapter's B is not zero."""
    base = work / "base" if name == "tiny" and not (TINY / "model.safetensors").is_file() else resolve(name)
    if base == work / "base":
        (work / "corpus.txt").write_text(corpus())
        new_model(work / "corpus.txt", base)
    model = load_model(str(base))
    torch.manual_seed(0)
    lora.inject(model, r=16, alpha=32, targets="all-linear")
    for _, layer in lora.lora_layers(model):
        torch.nn.init.normal_(layer.adapters["default"].B, std=0.02)
    lora.save_adapter(model, work / "adapter", str(base))
    return base, work / "adapter"


def our_model(base: Path, adapter: Path) -> tuple[CausalLM, Tokenizer]:
    model = load_model(str(base))
    lora.load_adapter(model, adapter)
    return model, load_tokenizer(str(base))


def peer_model(base: Path, adapter: Path, trainable: bool = False):
    """(PeftModel, its tokenizer), in float32 and with the adapter unmerged, as ours is."""
    import transformers
    from peft import PeftModel

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, padding_side="left")
    return PeftModel.from_pretrained(model, adapter, is_trainable=trainable), tokenizer


# ---- time and memory ----


@dataclass
class Result:
    """One row of the table."""

    name: str
    tokens: int  # sampled tokens in one turn
    seconds: dict[str, list[float]]  # of each side, one per measured turn
    check: str = ""  # what was verified
    memory_mib: dict[str, float] = field(default_factory=dict)  # peak above the loaded model, of each side

    def median(self, side: str) -> float | None:
        return median(self.seconds[side]) if self.seconds.get(side) else None

    @property
    def ratio(self) -> float | None:
        """How many times faster ours is."""
        return self.median("peer") / self.median("ours") if self.seconds.get("peer") else None


def take_turns(sides: dict[str, Callable[[], object]], repeats: int, warmup: int) -> dict[str, list[float]]:
    """Seconds of each side, turn by turn, the warm-up left out."""
    seconds = {name: [] for name in sides}
    for _ in range(warmup + repeats):
        for name, work in sides.items():
            began = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - began)
    return {name: values[warmup:] for name, values in seconds.items()}


def peak_of(work: Callable[[], object]) -> float:
    """MiB by which this process's resident memory peaks above what it holds now, while work runs.

    From /proc: getrusage's ru_maxrss starts at the parent's peak in a process that was forked, and never falls.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now the present
    before = _resident("VmRSS")
    work()
    return (_resident("VmHWM") - before) / 1024


def _resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))  # KiB


def add_memory(result: Result, module: str, options: Options) -> None:
    """Runs each side of this row alone in a process of its own."""
    if not Path("/proc/self/clear_refs").exists():
        return
    for side in result.seconds:
        words = {**asdict(options), "only": result.name, "memory": side, "out": ""}
        command = [sys.executable, "-m", module, *(f"{key}={value}" for key, value in words.items() if value != "")]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        result.memory_mib[side] = json.loads(output.splitlines()[-1])["peak_mib"]


# ---- the report ----


def report(name: str, peer: str, results: list[Result], options: Options, notes: list[str], about: dict) -> None:
    """The table, and the JSON line last."""
    command = f"python -m benchmarks.{name} " + " ".join(word for word in sys.argv[1:] if not word.startswith("out="))
    versions = {package: version(package) or "absent" for package in ("torch", "transformers", "peft", "trl")}
    machine = {"cpu": _cpu(), "cores": os.cpu_count(), "load_1min": round(os.getloadavg()[0], 2)}
    lines = [f"{command.strip()}", f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_1min']:.1f}"]
    lines += [f"{options.threads} torch threads; Python {platform.python_version()}, " + _join(versions)]
    units = ("s", "tok/s", "MiB")
    heads = [f"{side} {unit}" for unit in units for side in ("ours", peer)]
    lines += [_join(about), "", f"| | ratio | {' | '.join(heads)} | checked |", "|---|" + 7 * "---:|" + "---|"]
    for r in results:
        seconds = [f"{r.median(side):.3f}" if r.median(side) else "absent" for side in SIDES]
        rates = [f"{r.tokens / r.median(side):,.0f}" if r.median(side) else "absent" for side in SIDES]
        ratio = f"{r.ratio:.2f}x" if r.ratio else "-"
        peaks = [f"{r.memory_mib[side]:.0f}" if side in r.memory_mib else "-" for side in SIDES]
        lines.append("| " + " | ".join([r.name, ratio, *seconds, *rates, *peaks, r.check]) + " |")
    table = "\n".join([*lines, "", *(f"- {note}" for note in notes)])
    rows = [{**asdict(r), "median": {side: r.median(side) for side in SIDES}, "ratio": r.ratio} for r in results]
    record = {"benchmark": name, "command": command.strip(), "machine": machine, "versions": versions, **about}
    record = json.dumps({**record, "options": asdict(options), "rows": rows, "notes": notes})
    print(f"{table}\n\n{record}", flush=True)
    if options.out:
        path = Path(options.out)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(record + "\n")
        path.with_suffix(".md").write_text(table + "\n")


def _join(values: dict) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
