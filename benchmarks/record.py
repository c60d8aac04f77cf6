"""Put an evaluation of runs that were started by hand into a record, as benchmarks.referee makes them.

    python eval.py adapter=base,runs/sft,runs/rl env=textcraft n=200 json=played.json
    python -m benchmarks.record played.json names=base,sft,grpo runs=-,-,runs/rl start=sft command="..." out=x.json

names= and runs= go by the evaluation's adapters. A run that began from the policy start= has its folder, from which its
rate and its sampled tokens up to the epoch that was played are read; "-" is for the others. A record that exists gets
the row of this environment anew, and keeps the rest. `make results` makes tables of it (benchmarks/page.py).
"""

import json
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import common, referee
from rl.config import program
from rl.config.arguments import ArgumentError
from rl.run import exits, history
from rl.run.files import read_json

NAME = "benchmarks.record"


@dataclass(frozen=True)
class Keys:
    played: str  # eval.py's json=
    names: str  # of the policies, by comma
    runs: str  # the folder of each policy's run by comma, or -
    start: str  # the policy that the runs began from
    command: str  # that made the runs, ENV in the place of the environment
    out: str  # the record


def row_of(keys: Keys) -> dict:
    """Return the row of an evaluation. Raise ArgumentError for words that do not fit it."""
    played = read_json(Path(keys.played))
    results, names, runs = played["results"], keys.names.split(","), keys.runs.split(",")
    if not len(results) == len(names) == len(runs) or keys.start not in names:
        raise ArgumentError(f"names= and runs= need {len(results)} words, for {', '.join(results)}; start= is one name")
    base, policies = next(iter(results.values())), {}
    for name, run, (adapter, result) in zip(names, runs, results.items(), strict=True):
        policies[name] = referee.outcomes([result], base)
        if run != "-":
            last = int(Path(adapter).name.removeprefix("epoch_"))
            epochs = [line for line in history.records(Path(run)) if line["epoch"] <= last]
            tokens = sum(line.get("sampled_tokens", 0) for line in epochs)
            policies[name] |= {"words": "", "lr": history.settings(Path(run))["lr"], "tuning": {}, "tokens": [tokens]}
    budget = max((policy["tokens"][0] for policy in policies.values() if "tokens" in policy), default=0)
    tasks = [task["task"] or str(task["seed"]) for task in base[0]["tasks"]]
    about = {"env": played["played"]["env"], "seeds": 1, "budget": budget, "start": keys.start}
    return {**about, "tasks": tasks, "policies": policies}


def main(words: list[str]) -> None:
    (keys,) = program.parse(words, NAME, Keys, about=__doc__, positional="played")
    with exits.exits_cleanly(NAME):
        row, path = row_of(keys), Path(keys.out)
        commit = subprocess.run(
            ["git", "rev-parse", "--short=8", "HEAD"], cwd=referee.ROOT, capture_output=True, text=True
        )
        machine = {key: value for key, value in common.describe_machine().items() if key != "load_1min"}
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        record = {"benchmark": "referee", "command": keys.command, "commit": commit.stdout.strip() or "unknown"}
        record |= {"machine": machine, "versions": versions, "rows": []}
        if path.is_file():
            record = read_json(path)
        record["rows"] = [*(other for other in record["rows"] if other["env"] != row["env"]), row]
        path.write_text(json.dumps(record) + "\n")
        print(*referee.table(row), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
