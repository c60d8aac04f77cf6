"""Compare algorithms: the same held-out tasks, the same start and the same budget of sampled tokens for each.

    python -m benchmarks.referee algos=ppo,ppo-token,grpo,gigpo envs=textcraft,sat seeds=3 out=referee.json
    python -m benchmarks.referee tune=lr ranks=1 threads=1      all, each at its best rate; other words are train.py's
    python -m benchmarks.referee algos=r1,r16,r64,lora+,all tune=lr     ranks of adapters, and every weight
    python -m benchmarks.referee algos=r16,muon,all,all-8bit tune=lr    optimizers
    python -m benchmarks.referee table=referee.json             print the tables of a file again; out= draws too

Every command is printed before it runs, and the same words go on after an interruption. Two programs may share runs= if
their envs= differ; a third with all of envs= makes the tables.

Rules. What is equal for all algorithms of an environment:

    panel     n tasks of split=test, the same for every run and seed, played sampled and greedily; what a recipe says of
              turns, replies or rewards gives way to the environment's settings. The table counts distinct tasks
    start     the base; where it solves less than 10 % of the panel, an SFT adapter, made once for each seed
    budget    tokens= sampled tokens. A run ends with the first epoch that reaches it, and its rate decays up to there
    judged    the last epoch of each seed, never the best one. If a run fails, its algorithm has the reason, no number

May be tuned: the rate, by tune=lr. Each algorithm has three values, its own rate times rates=. Each is tried once with
the whole budget and a seed of its own, and judged by sampled success on n tasks of split=train. May not: anything else
for one algorithm alone. ALGOS has the settings as published, and LORA adapters, every weight and other
optimizers, all with GRPO; train.py's words change them for all.

Differences are paired by seed and task. Their 80 % intervals are for other tasks and other seeds (rl/stats.py,
`seeds_interval`).
"""

import json
import platform
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks import common, machine, tables
from benchmarks.learning import ENVS
from examples import pipeline
from examples.pipeline import as_words
from lora.peft_files import is_adapter
from rl.config import arguments, checks, program
from rl.config.arguments import ArgumentError, Positive
from rl.config.refusals import Refusal, hint
from rl.config.words import resolve
from rl.judge import results as judge
from rl.judge.adapter_settings import what_is_played
from rl.run import exits, history
from rl.run.files import checkpoints, read_json, write_text

NAME, ROOT = "benchmarks.referee", Path(__file__).parents[1]
ALGOS = {
    "ppo": "algo=ppo",
    "ppo-token": "algo=ppo ppo.level=token",
    "grpo": "algo=grpo",
    **{name: f"recipe={name}" for name in ("dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce", "gigpo", "maxrl")},
}
LORA = {
    **{f"r{rank}": f"algo=grpo lora.r={rank}" for rank in (1, 4, 16, 64)},
    "rslora": "algo=grpo lora.r=64 lora.rslora=true",
    "lora+": "algo=grpo lora.b_rate=16 lr=6e-4",
    "all": "algo=grpo lora.r=0 lr=3e-4",
    "muon": "algo=grpo optimizer=muon",
    "all-8bit": "algo=grpo lora.r=0 lr=3e-4 optimizer=adamw8bit",
}
COMPARED = ALGOS | LORA
USUAL = "epochs=10000 eval_episodes=0 save_total_limit=2"  # of every run; words of the command line win
OURS = ("algo", "recipe", "env", "seed", "max_sampled_tokens", "data", "rollouts", "resume", "resume_from")
FOLDERS = ("runs", "out", "table")  # keys that name places of one machine, which no record has
LEAST = 0.1  # success of the base from which no SFT is needed
TUNING_SEED = 1000  # of the runs that tune a rate, which are not compared


@dataclass(frozen=True)
class Keys:
    algos: str = ",".join(ALGOS)  # by comma, also names of LORA; others are compared with the start and with the first
    envs: str = "textcraft,sciworld,sat"  # environments by comma
    seeds: Positive[int] = 3  # seeds 0, 1, ... of each algorithm
    tokens: Positive[int] = 300_000  # budget of a run, in sampled tokens
    n: Positive[int] = 200  # tasks of the panel
    sft: str = "epochs=8"  # words of train.py for SFT, where the base is weak
    tune: Literal["none", "lr"] = "none"  # lr: try three rates for each algorithm and environment first
    rates: str = "0.3,1,3"  # tune=lr: factors on the algorithm's own rate
    runs: str = "runs/referee"  # folder of the runs, one folder for each environment
    out: str = ""  # also write the JSON to this file, and beside it the tables as .md and a picture of each environment
    table: str = ""  # run nothing, and print the tables of this JSON file

    def __post_init__(self) -> None:
        for key, known in (("algos", COMPARED), ("envs", ENVS)):
            names = self.names(key)
            for name in names:
                if name not in known:
                    raise Refusal(f"{key}: no {name!r}; choose from: {', '.join(known)}{hint(name, known)}")
                if names.count(name) > 1:
                    raise Refusal(f"{key}: {name} is named twice")
        for factor in self.names("rates"):
            arguments.convert("rates", factor, Positive[float])
        if len(set(self.names("rates"))) != 3:
            raise Refusal(f"rates={self.rates}: three different factors, the same for each algorithm")

    def names(self, key: str) -> list[str]:
        return [name.strip() for name in getattr(self, key).split(",")]


class Failed(Exception):
    """A command ended with another status than 0; the message is its last line."""


def main(words: list[str]) -> None:
    """Run what is not done, and print the tables. Exit with 1 if a run has failed."""
    if arguments.wants_help(words):
        program.parse(words, NAME, Keys, about=__doc__)
    with exits.exits_cleanly(NAME):
        keys, given = read(words)
        record = read_json(Path(keys.table)) if keys.table else compare(keys, given)
        report(record, keys.out)
        for row in record["rows"] if keys.out else ():
            write_text(Path(f"{keys.out.removesuffix('.json')}-{row['env']}.svg"), tables.drawn(row))
    if any("failed" in policy for row in record["rows"] for policy in row["policies"].values()):
        raise SystemExit(1)


def read(words: list[str]) -> tuple[Keys, dict[str, str]]:
    """Return the keys and the words of train.py. Raise ArgumentError for wrong ones."""
    given = arguments.split(words)
    keys = arguments.build(Keys, {key: given.pop(key) for key in arguments.keys_of(Keys) if key in given})
    for key in given:
        if key in OURS:
            raise ArgumentError(f"{key}= is not yours to give: see the rules in --help")
    if keys.table and not Path(keys.table).is_file():
        raise ArgumentError(f"table={keys.table} is not a file; out= of an earlier comparison writes one")
    keys = replace(keys, out=keys.out.replace("{cpu}", machine.cpu_name()))
    if keys.out and Path(keys.out).is_dir():
        raise ArgumentError(f"out={keys.out} is a folder; give the name of a file")
    if keys.tune == "lr" and "lr" in given:
        raise ArgumentError("tune=lr looks for the rate, so lr= cannot be given")
    return keys, given


def claim(keys: Keys, given: dict[str, str]) -> None:
    """Write down the settings of each algorithm in runs=. Raise ArgumentError, before anything runs, for settings that
    train.py refuses, and if others are written there."""
    files = {}
    for env in keys.names("envs"):
        for name in ("sft", *keys.names("algos")):
            words = settings(keys, given, env, name)
            cfg = resolve(arguments.split(words))
            checks.check(cfg)
            checks.check_training(cfg)
            tuned = [f"rates={keys.rates}"] if keys.tune == "lr" and name != "sft" else []
            files[Path(keys.runs, env, f"{name}.txt")] = shlex.join([*words, f"n={keys.n}", *tuned])
    for path, line in files.items():
        if path.is_file() and path.read_text() != line:
            raise ArgumentError(f"{path} has {path.read_text()!r}, not {line!r}; choose another runs=")
    for path, line in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, line)


def settings(keys: Keys, given: dict[str, str], env: str, name: str) -> list[str]:
    """Return the words of train.py for an algorithm, or for "sft". What is played is as without the algorithm."""
    if name == "sft":
        of_both = {key: value for key, value in given.items() if key != "lr"}
        words = arguments.split(["algo=sft", "eval_episodes=0"]) | of_both | arguments.split(shlex.split(keys.sft))
    else:
        words = arguments.split([*USUAL.split(), f"max_sampled_tokens={keys.tokens}", *COMPARED[name].split()]) | given
    words |= {"env": env}
    theirs, usual = (what_is_played(resolve(one)) for one in (words, {**given, "env": env}))
    return as_words(words | {key: value for key, value in usual.items() if theirs.get(key) != value})


# ---- commands ----


def run(command: list[str], log: Path) -> None:
    """Print a command and run it; its lines go to the log. Raise Failed with the last one unless it ends with 0."""
    print(shlex.join(["python", *command]), flush=True)
    with open(log, "a") as file:
        status = pipeline.call(command, file)
    if status:
        lines = [line for line in log.read_text().splitlines() if line.strip()] or ["it printed nothing"]
        print(f"failed with status {status}: {lines[-1]}; {log} has the rest", flush=True)
        raise Failed(lines[-1])


def train(folder: Path, words: list[str]) -> str:
    """Train the run in this folder, or go on with it. Return the folder of its last epoch. Raise Failed."""
    done = Path(f"{folder}.done")
    if not done.is_file():
        own = [f"resume={folder}"] if checkpoints(folder) else [*words, f"out={folder}"]
        run(["train.py", *own], Path(f"{folder}.log"))
        done.touch()
    return str(folder / f"epoch_{history.saved_epochs(folder)[-1]}")


def judged(folder: Path, adapter: str, split: str, keys: Keys, given: dict[str, str]) -> list[dict]:
    """Return eval.py's results of an adapter, sampled and greedy, from the file that it has written. Raise Failed."""
    file, new = Path(f"{folder}.json"), Path(f"{folder}.part")
    if not file.is_file():
        cfg = resolve({**given, "env": folder.parent.name})
        played = what_is_played(cfg) | {key: getattr(cfg, key) for key in pipeline.LOADED}
        whole = adapter != "base" and not is_adapter(Path(adapter))  # of lora.r=0
        played |= {"adapter": "base", "model": adapter} if whole else {"adapter": adapter}
        command = ["eval.py", f"split={split}", f"n={keys.n}", *as_words(played), f"json={new}"]
        run(command, Path(f"{folder}.log"))
        new.rename(file)
    return next(iter(read_json(file)["results"].values()))


# ---- an environment ----


def compare(keys: Keys, given: dict[str, str]) -> dict[str, Any]:
    """Run what is not done, and return the record of all outcomes."""
    claim(keys, given)
    changed = {key: value for key, value in vars(keys).items() if value != getattr(Keys, key) and key not in FOLDERS}
    record = described(shlex.join(["python", "-m", NAME, *as_words(changed | given)]))
    return record | {"rows": [row_of(keys, given, env) for env in keys.names("envs")]}


def described(command: str) -> dict[str, Any]:
    """Return a record without rows: the command that made its runs, the commit, the machine and its versions."""
    return {
        "benchmark": "referee",
        "command": command,
        "commit": machine.commit(),
        "machine": {key: value for key, value in machine.describe().items() if key != "load_1min"},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def row_of(keys: Keys, given: dict[str, str], env: str) -> dict[str, Any]:
    """Return the outcomes of the start and of each algorithm, task by task."""
    folder, policies = Path(keys.runs).absolute() / env, {}
    row = {"env": env, "seeds": keys.seeds, "budget": keys.tokens, "start": "base", "tasks": [], "policies": policies}
    try:
        base = judged(folder / "base", "base", "test", keys, given)
        row["tasks"] = [task["task"] or str(task["seed"]) for task in base[0]["tasks"]]
        policies["base"] = outcomes([base], base)
        row["start"] = "sft" if base[0]["success"] < LEAST else "base"
        starts = {seed: start(row["start"], seed, keys, given, folder) for seed in range(keys.seeds)}
        if row["start"] == "sft":
            results = [judged(folder / f"sft-{seed}", starts[seed], "test", keys, given) for seed in starts]
            policies["sft"] = outcomes(results, base)
    except Failed as error:
        policies[row["start"]] = {"failed": str(error)}
        return row
    for name in keys.names("algos"):
        try:
            tuned = tune(name, row["start"], keys, given, folder) if keys.tune == "lr" else {}
            words = arguments.split(settings(keys, given, env, name))
            words |= {"lr": max(tuned, key=tuned.get)} if tuned else {}
            results, spent = [], []
            for seed, adapter in starts.items():
                own = folder / f"{name}-{seed}"
                last = train(own, as_words({**words, "seed": seed, **begun_from(adapter)}))
                results.append(judged(own, last, "test", keys, given))
                spent.append(costs(history.records(own)))
            policies[name] = {"words": shlex.join(as_words(words)), "lr": resolve(words).lr, "tuning": tuned}
            policies[name] |= {cost: [run[cost] for run in spent] for cost in spent[0]} | outcomes(results, base)
        except Failed as error:
            policies[name] = {"failed": str(error)}
    return row


def costs(lines: list[dict]) -> dict[str, float]:
    """Return what the epochs of a run's records took: sampled tokens, seconds without evaluations, the peak of memory
    in GiB, and the largest difference of a token's log-probability between sampling and training, in nats."""
    peaks = [phase["peak_bytes"] for line in lines for phase in line.get("phases", {}).values()]
    return {
        "tokens": sum(line.get("sampled_tokens", 0) for line in lines),
        "seconds": round(sum(line.get("seconds", 0.0) for line in lines), 1),
        "peak_gib": round(max(peaks, default=0) / 2**30, 2),
        "sampler_gap": max((line.get("sampler_gap") or 0.0 for line in lines), default=0.0),
    }


def start(kind: str, seed: int, keys: Keys, given: dict[str, str], folder: Path) -> str:
    """Return the adapter that runs with this seed start from, "base" for none. Raise Failed."""
    if kind == "base":
        return kind
    return train(folder / f"sft-{seed}", [*settings(keys, given, folder.name, "sft"), f"seed={seed}"])


def begun_from(adapter: str) -> dict[str, str]:
    """Return the words of a run that starts there; with lora.r=0 it is a model."""
    return {} if adapter == "base" else {"resume_from" if is_adapter(Path(adapter)) else "model": adapter}


def tune(name: str, kind: str, keys: Keys, given: dict[str, str], folder: Path) -> dict[str, float]:
    """Return sampled success on training tasks at each of three rates; 0 if the run failed. Raise Failed if all did."""
    words = arguments.split(settings(keys, given, folder.name, name)) | {"seed": TUNING_SEED}
    words, usual = words | begun_from(start(kind, TUNING_SEED, keys, given, folder)), resolve(words).lr
    found = {}
    for rate in (f"{float(factor) * usual:.3g}" for factor in keys.names("rates")):
        own = folder / f"{name}-lr-{rate}"
        try:
            last = train(own, as_words(words | {"lr": rate}))
            found[rate] = judged(own, last, "train", keys, given)[0]["success"]
        except Failed:
            found[rate] = 0.0
    if not any(found.values()):
        raise Failed(f"no success at any rate of {', '.join(found)}")
    return found


def outcomes(results: list[list[dict]], base: list[dict]) -> dict[str, list[str]]:
    """Return for sampled and greedy play a text for each seed, a character for each task: 1 for success, 0, or . if
    the environment failed. Raise ArgumentError if the tasks are not the base's."""
    found = {}
    for number, kind in enumerate(("sampled", "greedy")):
        for one in results:
            judge.check_same_tasks("a run", one[number], "the base", base[number])
        by_seed = [[task["success"] for task in one[number]["tasks"]] for one in results]
        found[kind] = ["".join(str(won[0]) if won else "." for won in tasks) for tasks in by_seed]
    return found


def report(record: dict[str, Any], out: str) -> None:
    """Print the tables. Write the record to out=, and the tables beside it as .md."""
    described = {"commit": record["commit"], **record["machine"], **record["versions"]}
    lines = [record["command"], ", ".join(f"{key} {value}" for key, value in described.items()), ""]
    for row in record["rows"]:
        lines += [*tables.table(row), ""]
    lines.append("80 % intervals for other tasks and, of several seeds, other seeds; differences paired by both.")
    print(*lines, sep="\n", flush=True)
    common.save(out, "\n".join(lines), json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1:])
