"""Success of the base, after SFT and after RL in each environment: examples/pipeline.py for one after another.

    python -m benchmarks.learning                               the twelve environments, 65 minutes of a Zen 3 core
    python -m benchmarks.learning quick=true                    the same with less of everything, 17 minutes
    python -m benchmarks.learning envs=sat,textcraft n=500      two of them, with more demonstrations, epochs and tasks
    python -m benchmarks.learning model=FOLDER rl="algo=ppo"    all other words are the pipeline's

The pipeline: the expert's demonstrations -> SFT -> RL from the epoch of lowest held-out loss -> base, SFT and RL play
the same tasks of split=test. An environment's runs, log and evaluation are in runs=FOLDER/ENVIRONMENT. The same command
goes on after an interruption. An environment whose pipeline fails is a row with the reason; the exit status is then 1.
"""

import json
import platform
import resource
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import envs
from benchmarks import common, machine
from examples import pipeline
from rl import stats
from rl.config import arguments, program
from rl.config.arguments import ArgumentError
from rl.config.refusals import hint
from rl.judge import results as judge
from rl.run import exits
from rl.run.files import read_json

ENVS = [name for name in envs.NAMES if name not in envs.WITHOUT_TASKS]
TWELVE = [name for name in ENVS if name != "sums"]  # which is for the first minutes
NAME, POLICIES = "benchmarks.learning", ("base", "SFT", "RL")
FULL = "demos=1000 n=200 eval_episodes=100"
FULL_STAGES = {
    "sft": "algo=sft epochs=3 eval_every=1",
    "rl": "algo=grpo lr=5e-4 epochs=26 eval_every=13",
}
QUICK = "demos=256 n=100 eval_episodes=20"
QUICK_STAGES = {
    "sft": "algo=sft epochs=2 eval_every=1",
    "rl": "algo=grpo lr=5e-4 epochs=4 episodes=64 eval_every=0",
}


@dataclass(frozen=True)
class Keys:
    envs: str = ",".join(TWELVE)  # environments by comma
    runs: str = "runs/learning"  # folder of the runs, one folder for each environment
    quick: bool = False  # fewer demonstrations, epochs and tasks
    out: str = ""  # also write the JSON to this file, and the table beside it as .md

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in ENVS:
                raise ValueError(f"envs={self.envs}: no {name!r}; choose from: {', '.join(ENVS)}{hint(name, ENVS)}")
            if self.names.count(name) > 1:
                raise ValueError(f"envs={self.envs}: {name} is named twice")

    @property
    def names(self) -> list[str]:
        return [name.strip() for name in self.envs.split(",")]


def main(words: list[str]) -> None:
    """Run the pipelines that are not done, and print the table. Exit with 1 if one has failed."""
    if arguments.wants_help(words):
        program.parse(words, NAME, Keys, about=__doc__)
    try:
        given = arguments.split(words)
        keys = arguments.build(Keys, {key: given.pop(key) for key in arguments.keys_of(Keys) if key in given})
        commands = {name: command(keys, name, given) for name in keys.names}
        for name in keys.names:
            check(keys, name, commands[name])
    except (ValueError, OSError) as error:
        arguments.fail(NAME, error)
    with exits.exits_cleanly(NAME):
        failed = {}
        for name in keys.names:
            reason = run(Path(keys.runs) / name, commands[name])
            failed |= {name: reason} if reason else {}
        rows = [{"env": name, "failed": failed[name]} if name in failed else row(keys, name) for name in keys.names]
        report(keys, given, rows)
    if failed:
        raise SystemExit(1)


def command(keys: Keys, name: str, given: dict[str, str]) -> list[str]:
    """Return the pipeline's words for an environment; the words of the command line win."""
    usual = arguments.split((QUICK if keys.quick else FULL).split()) | (QUICK_STAGES if keys.quick else FULL_STAGES)
    return [f"{key}={value}" for key, value in (usual | given | {"env": name}).items()]


def check(keys: Keys, name: str, words: list[str]) -> None:
    """Raise ArgumentError for wrong words, and for an environment whose pipeline is done with other words."""
    folder = Path(keys.runs) / name
    if "out" in arguments.split(words):
        raise ArgumentError("runs= is the folder of all pipelines; out= is the table's")
    pipeline.commands(words)
    if (done := words_of(folder)) and done != shlex.join(words):
        raise ArgumentError(f"{folder} was made by {done!r}, not {shlex.join(words)!r}; choose another runs=")


def words_of(folder: Path) -> str:
    """Return the words that the folder's pipeline was finished with; "" if it has not finished."""
    return (folder / "done.txt").read_text() if (folder / "done.txt").is_file() else ""


def run(folder: Path, words: list[str]) -> str:
    """Run the pipeline unless it is done. Return why it failed, or ""."""
    if words_of(folder):
        print(f"{folder.name}: done before, in {folder}", flush=True)
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{folder.name}: python {pipeline.NAME} {shlex.join([*words, f'out={folder}'])}", flush=True)
    began, before = time.monotonic(), processor_seconds()
    try:
        with open(folder / "log.txt", "a") as log:
            status = pipeline.call([pipeline.NAME, *words, f"out={folder.absolute()}"], log)
    finally:
        with open(folder / "seconds.jsonl", "a") as file:  # a line for each attempt
            file.write(f"{json.dumps({'wall': time.monotonic() - began, 'cpu': processor_seconds() - before})}\n")
    if status:
        lines = [line for line in (folder / "log.txt").read_text().splitlines() if line.strip()]
        said = [line for line in lines if not line.startswith(f"{pipeline.NAME}: ")] or ["it printed nothing"]
        print(f"{folder.name}: failed with status {status}: {said[-1]}; {folder}/log.txt has the rest", flush=True)
        return said[-1]
    (folder / "done.txt").write_text(shlex.join(words))
    return ""


def processor_seconds() -> float:
    """Return the processor time of all programs that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(keys: Keys, name: str) -> dict[str, Any]:
    """Return what is known of an environment: each policy's success and the paired differences to the base, with 80 %
    intervals, sampled and greedy; and the seconds of all attempts."""
    folder = Path(keys.runs) / name
    attempts = [json.loads(line) for line in (folder / "seconds.jsonl").read_text().splitlines()]
    found = {"env": name} | {key: sum(attempt[key] for attempt in attempts) for key in ("wall", "cpu")}
    results = read_json(folder / "evaluation.json")["results"]
    for number, kind in enumerate(("sampled", "greedy")):
        of = {policy: one[number] for policy, one in zip(POLICIES, results.values(), strict=True)}
        found[kind] = {"tasks": of["base"]["episodes"], "success": {}, "difference": {}}
        for policy, one in of.items():
            found[kind]["success"][policy] = [one["success"], one["low"], one["high"]]
            if policy != "base":
                line = judge.compared(policy, one, "base", of["base"])
                found[kind]["difference"][policy] = [line[f"success{end}"] for end in ("", "_low", "_high")]
                changes = judge.task_differences(one, of["base"], "success")
                found[kind].setdefault("by_task", {})[policy] = changes
    return found


def mean_row(rows: list[dict[str, Any]], kind: str) -> str:
    """Return the table's last line: means over environments, each counted once, and of differences the interval."""
    cells = [f"{fmean(r[kind]['success']['base'][0] for r in rows):.1%}"]
    differences = []
    for policy in POLICIES[1:]:
        by_env = [r[kind]["by_task"][policy] for r in rows]
        low, high = stats.unweighted_interval(by_env, stats.DIFFERENCE)
        cells.append(f"{fmean(r[kind]['success'][policy][0] for r in rows):.1%}")
        differences.append(f"{fmean(map(fmean, by_env)):+.1%} ({low:+.1%} to {high:+.1%})")
    total = sum(r["cpu"] for r in rows)
    return " | ".join(["| mean", "", *cells, *differences, f"{total:.0f} |"])


def table(rows: list[dict[str, Any]], kind: str) -> Iterator[str]:
    """Yield the lines of a table in markdown, of sampled or of greedy play."""
    yield f"| {kind} | tasks | base | SFT | RL | SFT - base | RL - base | CPU s |"
    yield f"|---|{'---:|' * 7}"
    for found in rows:
        if "failed" in found:
            yield f"| {found['env']} | failed: {found['failed'].replace('|', '/')} {'| ' * 6}|"
            continue
        own = found[kind]
        cells = ["{:.1%} ({:.1%} to {:.1%})".format(*own["success"][policy]) for policy in POLICIES]
        cells += ["{:+.1%} ({:+.1%} to {:+.1%})".format(*own["difference"][policy]) for policy in POLICIES[1:]]
        yield " | ".join([f"| {found['env']}", f"{own['tasks']}", *cells, f"{found['cpu']:.0f} |"])
    whole = [found for found in rows if "failed" not in found]
    if len(whole) > 1:
        yield mean_row(whole, kind)


def report(keys: Keys, given: dict[str, str], rows: list[dict[str, Any]]) -> None:
    """Print the tables, and write them and the JSON to out=."""
    words = [f"envs={keys.envs}"] * (keys.names != TWELVE) + ["quick=true"] * keys.quick
    line = f"python -m benchmarks.learning {shlex.join([*words, *(f'{k}={v}' for k, v in given.items())])}".strip()
    here, versions = machine.describe(), {"python": platform.python_version(), "torch": torch.__version__}
    described = {**here, **versions}
    lines = [line, ", ".join(f"{key} {value}" for key, value in described.items())]
    lines += [f"each environment: {shlex.join(command(keys, 'ENV', given))}", ""]
    for kind in ("sampled", "greedy"):
        lines += [*table(rows, kind), ""]
    lines.append("Success with 80 % intervals; paired differences on the same held-out tasks. CPU s: all stages.")
    record = {"benchmark": "learning", "command": line, "machine": here, "versions": versions, "rows": rows}
    print(*lines, sep="\n", flush=True)
    common.save(keys.out, "\n".join(lines), json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1:])
