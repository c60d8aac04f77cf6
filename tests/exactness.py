"""Where do sampling and training give the same bits? PYTHONPATH=. python tests/exactness.py models=tiny

Each row is printed as a line of JSON. The exit status is 1 if bits differ where the trial of a run says that they are
equal, or if a resumed run differs.

A row is a model, a dtype, a LoRA rank (0: every weight trains) and a number of threads. It holds the verdict of
models/trial.py against episodes of random ids and, with resume=true, against a run that is resumed.
OMP_WAIT_POLICY=passive in the environment keeps threads without a core of their own from waiting busily: set it.
"""

import io
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from random_episodes import CHANGED, LARGE, MICRO_TOKENS, NEW, SHORT, gaps_of, play

import lora
import train
from benchmarks import sides
from benchmarks.common import Row
from models import CausalLM, load_model
from models.cpu import packed, process
from models.trial import first_difference
from rl.config import program
from rl.config.words import parse

RANKS, THREADS, MODELS = "1,2,3,7,16,64,192,256,0", "1,2,3,4,6,8,16", "tiny,small,0.5b"
LARGE_MODELS = ("0.5b", "smol")  # which are slow; smol is SmolLM2, for which `make smol` is needed
LARGE_RANKS, LARGE_THREADS = (1, 16, 192, 0), (1, 2, 3, 16)  # their rows
RUN = "algo=grpo epochs=2 episodes=16 batch_size=8 max_turns=2 max_new_tokens=24 eval_episodes=0"
RUN += " temperature=1.5 reward.rule=shaped"  # or so few episodes have equal rewards and no gradient
# Replies of random weights all earn the same; PPO's entropy bonus has a gradient nevertheless.
RANDOM_RUN = "algo=ppo epochs=2 eval_episodes=0 ppo.epochs=1 textcraft.prompt=short"
SMALL_RUN = RANDOM_RUN + " episodes=4 batch_size=2 max_turns=2 max_new_tokens=16"
LARGE_RUN = RANDOM_RUN + " episodes=2 batch_size=1 max_turns=1 max_new_tokens=8"
SAVED = ("checkpoint-2/trainable.safetensors", "episodes.jsonl")
MADE = ("tiny", "smol")  # models that are there; the others get random weights
Cell = tuple[str, str, int, int]  # model, dtype, rank, threads


@dataclass
class Options:
    models: str = MODELS  # by comma; smol too
    dtypes: str = "float32,bfloat16"  # by comma
    ranks: str = RANKS  # by comma; 0 trains every weight
    threads: str = THREADS  # torch threads, by comma
    resume: bool = True  # also resume a run in each row

    def __post_init__(self):
        cells(self.models, self.dtypes, self.ranks, self.threads)


def main(options: Options) -> None:
    rows, chosen = [], cells(options.models, options.dtypes, options.ranks, options.threads)
    try:
        for row in measured(chosen, options.resume):
            rows.append(row)
            print(json.dumps(row.record()), flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print(f"{summary(rows)} {len(chosen) - len(rows)} rows were not measured.")
    if any(map(wrong, rows)):
        sys.exit(1)


def cells(models: str, dtypes: str, ranks: str, threads: str) -> list[Cell]:
    """Return the matrix of words by comma. Raise ValueError with one line for a wrong word, or if no row is left."""
    for key, words, known in (
        ("models", models, f"{MODELS},smol"),
        ("ranks", ranks, RANKS),
        ("threads", threads, THREADS),
    ):
        for word in words.split(","):
            if word not in (*MODELS.split(","), "smol") if key == "models" else not word.isdecimal():
                raise ValueError(f"{key}={words}: {word!r} is none of {key} by comma, such as {known}")
    if "0" in threads.split(","):
        raise ValueError(f"threads={threads} must be positive")
    numbers = [[int(word) for word in words.split(",")] for words in (ranks, threads)]
    every = itertools.product(models.split(","), numbers[0], dtypes.split(","), numbers[1])
    chosen = [(name, dtype, r, t) for name, r, dtype, t in every]
    chosen = [x for x in chosen if x[0] not in LARGE_MODELS or (x[2] in LARGE_RANKS and x[3] in LARGE_THREADS)]
    if not chosen:
        raise ValueError(f"models={models} has ranks {LARGE_RANKS} and threads {LARGE_THREADS} alone")
    return chosen


def measured(chosen: list[Cell], resume: bool) -> Iterator[Row]:
    """Yield the row of each cell, printed to stderr when it is measured. Restore torch's number of threads and
    the library of products."""
    bases = {name: name for name in MADE}
    threads, library = torch.get_num_threads(), packed.library
    try:
        with tempfile.TemporaryDirectory() as work:
            for cell in chosen:
                torch.set_num_threads(cell[3])
                if resume and cell[0] not in bases:
                    Path(work, cell[0]).mkdir()
                    bases[cell[0]] = str(sides.prepare(cell[0], Path(work, cell[0]))[0])
                row = measure(cell, bases[cell[0]] if resume else None)
                print(f"{row.name}: {row.median('ours'):.1e} nats, {row.check}", file=sys.stderr, flush=True)
                yield row
    finally:
        torch.set_num_threads(threads)
        packed.use(library)


def measure(cell: Cell, base: str | None) -> Row:
    """Return the largest difference of log-probabilities, with the target 0 if the trial says that there is none.
    Products are those that a run of the cell chooses before its trial.

    base: the model of the run that is resumed; None: no run.
    """
    process.choose_products("auto", make_model(cell))
    plays = (LARGE,) if cell[0] in LARGE_MODELS else (CHANGED, NEW)
    difference, gaps = tried_and_compared(partial(make_model, cell), plays, MICRO_TOKENS)
    largest, check = gaps.max().item(), f"exact: {difference or 'yes'}; {int((gaps != 0).sum())} of {len(gaps)} differ"
    check += f"; products: {packed.library}"
    if base:
        resumed, sampler_gap = resumed_run(cell, base)
        largest, check = max(largest, sampler_gap), f"{check}; resumed: {resumed}"
    name = "{}, {}, r={}, {} threads".format(*cell).replace("r=0", "full")
    return Row(name, {"ours": [largest]}, "nats", targets={} if difference else {"ours": 0.0}, check=check)


def tried_and_compared(
    make: Callable[[], CausalLM], plays: Sequence[tuple], sizes: Sequence[int]
) -> tuple[str | None, torch.Tensor]:
    """Return (what the trial says of the new model, |sampled - trained log-probability| of every token).

    plays: what random_episodes.py plays once the weights have changed. The first model has prepared its
    decode step while B was zero, as a run's first epoch does; the others prepare it afterwards, as a resumed run does.
    sizes: of micro-batches, in tokens.
    """
    first, *others = plays
    model = make()
    difference = first_difference(model)
    play(model, *SHORT)
    gaps = [_changed_gaps(model, first, sizes)]
    gaps += [_changed_gaps(make(), episodes, sizes) for episodes in others]
    return difference, torch.cat(gaps)


def _changed_gaps(model: CausalLM, episodes: tuple, sizes: Sequence[int]) -> torch.Tensor:
    change_weights(model)
    return gaps_of(model, play(model, *episodes), sizes)


def wrong(row: Row) -> bool:
    """Return whether tokens differ although the trial says that none does, or the resumed run differs."""
    return bool(row.targets and row.median("ours") != 0) or "resumed: differs" in row.check


def summary(rows: list[Row]) -> str:
    exact, resumed = [row for row in rows if row.targets], [row for row in rows if "resumed: " in row.check]
    return (
        f"{len(rows)} rows: the trial says yes in {len(exact)}, and tokens differ in "
        f"{sum(row.median('ours') != 0 for row in exact)} of them; it says no in {len(rows) - len(exact)}. "
        f"{sum('resumed: equal' in row.check for row in resumed)} of {len(resumed)} resumed runs are equal."
    )


def make_model(cell: Cell) -> CausalLM:
    name, dtype, r, _ = cell[0], getattr(torch, cell[1]), *cell[2:]
    torch.manual_seed(0)
    model = load_model(name, dtype) if name in MADE else sides.random(sides.SHAPES[name], dtype)
    if not r:
        return model.requires_grad_(True)
    lora.inject(model, r, 2 * r)
    return model


@torch.no_grad()
def change_weights(model: CausalLM) -> None:
    """Make the B factors random, or scale all weights of a model without adapters."""
    Bs = [layer.adapters["default"].B for _, layer in lora.lora_layers(model)]
    for weight in Bs or model.parameters():
        weight.normal_(std=0.05 / weight.shape[1] ** 0.5) if Bs else weight.mul_(1.01)


def resumed_run(cell: Cell, base: str) -> tuple[str, float]:
    """Resume a copy of a run as if it had stopped after its first epoch. Return ("equal" or which files differ from
    the run's own, the largest sampler_gap)."""
    run = {"tiny": RUN, "small": SMALL_RUN, "0.5b": LARGE_RUN, "smol": LARGE_RUN}[cell[0]]
    words = [*run.split(), f"model={base}", f"dtype={cell[1]}"]
    words += [f"lora.r={cell[2]}", f"threads={cell[3]}"]
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        whole, cut = Path(folder, "whole"), Path(folder, "cut")
        train.main(parse([*words, f"out={whole}"]))
        shutil.copytree(whole, cut)
        for name in ("checkpoint-2", "epoch_2"):
            shutil.rmtree(cut / name)
        train.main(parse([f"resume={cut}"]))
        names = (f"epoch_2/{'adapter_model' if cell[2] else 'model'}.safetensors", *SAVED)
        files = [name for name in names if (whole / name).read_bytes() != (cut / name).read_bytes()]
        lines = (cut / "metrics.jsonl").read_text().splitlines()
    metrics = [record for record in map(json.loads, lines) if record.get("sampler_gap") is not None]
    equal = "equal" if any(record["grad_norm"] for record in metrics) else "without a gradient"
    return f"differs in {', '.join(files)}" if files else equal, max(
        [0.0, *(record["sampler_gap"] for record in metrics)]
    )


if __name__ == "__main__":
    main(*program.parse(sys.argv[1:], "tests/exactness.py", Options, about=__doc__))
