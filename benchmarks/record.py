"""Put an evaluation of runs that were started by hand into a record, as benchmarks.referee makes them.

    python eval.py adapter=base,runs/sft/epoch_5,runs/rl/epoch_14 env=textcraft n=200 json=played.json
    python -m benchmarks.record played.json names=base,sft,grpo start=sft trained=grpo command="..." out=x.json

names= names the evaluation's adapters in their order. trained= are those that began from the policy start=: epochs of
runs, whose rate and sampled tokens are read beside them. A record that exists gets the environment's row anew and keeps
the other rows. `make results` makes tables of it (benchmarks/page.py).
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import referee, tables
from rl.config import program
from rl.config.arguments import ArgumentError
from rl.run import exits, history
from rl.run.files import read_json, write_text

NAME = "benchmarks.record"


@dataclass(frozen=True)
class Keys:
    played: str  # eval.py's json=
    names: str  # of the policies, by comma
    start: str  # the policy that runs began from
    trained: str  # the policies of these runs, by comma
    command: str  # that made the runs, with ENV in the place of the environment
    out: str  # the record
    commit: str = ""  # of the code that made the runs; empty: this checkout's


def row_of(keys: Keys) -> dict[str, Any]:
    """Return the row of an evaluation. Raise ArgumentError for a file or words that do not fit."""
    names, trained = keys.names.split(","), keys.trained.split(",")
    if strange := [name for name in [keys.start, *trained] if name not in names]:
        raise ArgumentError(f"names={keys.names} has no {strange[0]!r}")
    try:
        played = read_json(Path(keys.played))
        env, results = played["played"]["env"], list(played["results"].items())
        base = results[0][1]
        tasks = [task["task"] or str(task["seed"]) for task in base[1]["tasks"]]
        found = [referee.outcomes([result], base) for _, result in results]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ArgumentError(f"{keys.played}: no file of eval.py json= with sampled and greedy play ({error})") from None
    if len(set(names)) != len(names) or len(names) != len(results):
        adapters = ", ".join(adapter for adapter, _ in results)
        raise ArgumentError(f"names={keys.names} must have a name of its own for each of {adapters}")
    policies = dict(zip(names, found, strict=True))
    for name, (adapter, _) in zip(names, results, strict=True):
        if name in trained:
            policies[name] |= of_run(Path(adapter))
    budget = max(policies[name]["tokens"][0] for name in trained)
    about = {"env": env, "seeds": 1, "budget": budget, "start": keys.start}
    return {**about, "tasks": tasks, "policies": policies}


def of_run(adapter: Path) -> dict[str, Any]:
    """Return the rate of the run that saved this epoch, and what its epochs up to there took."""
    epoch, settings = re.fullmatch(r"epoch_(\d{1,9})", adapter.name), history.settings(adapter.parent)
    lines = history.records(adapter.parent) if epoch and "lr" in settings else []
    spent = referee.costs([line for line in lines if line["epoch"] <= int(epoch[1])])
    if not spent["tokens"]:
        raise ArgumentError(f"{adapter}: no epoch_N in the folder of a run that has sampled tokens")
    return {"words": "", "lr": settings["lr"], "tuning": {}} | {cost: [value] for cost, value in spent.items()}


def record_with(row: dict[str, Any], keys: Keys) -> dict[str, Any]:
    """Return the record of out= with the row, or a new one. Raise ArgumentError for a record of other runs."""
    record, rows = referee.described(keys.command) | ({"commit": keys.commit} if keys.commit else {}), []
    if Path(keys.out).is_file():
        before = read_json(Path(keys.out))
        changed = [key for key in record if before.get(key) != record[key]]
        if changed:
            key = changed[0]
            raise ArgumentError(f"out={keys.out} has {key} {before.get(key)!r}, not {record[key]!r}: take another file")
        rows = [other for other in before["rows"] if other["env"] != row["env"]]
    return record | {"rows": [*rows, row]}


def main(words: list[str]) -> None:
    (keys,) = program.parse(words, NAME, Keys, about=__doc__, positional="played")
    with exits.exits_cleanly(NAME):
        row = row_of(keys)
        write_text(Path(keys.out), json.dumps(record_with(row, keys)) + "\n")
        print(*tables.table(row), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
