"""Does each algorithm and each environment still learn? A small budget for each, beside the committed table.

    make learn                                          before and after a change of numbers
    python -m benchmarks.learn write=true ranks=1       make the table, with three seeds; other words are train.py's

One seed of every algorithm that learns from rewards on one environment, and of one algorithm on every other one, by
benchmarks/referee.py and its rules. Each line says whether sampled success lies within the interval of the earlier
value. It is clearly below if it is SURE standard errors lower; the error is that of one seed, pooled over the table's
rows. Then the exit status is 1, as for a run that fails.
"""

import math
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance
from time import strftime

from benchmarks import referee, tables
from benchmarks.learning import TWELVE
from examples.pipeline import as_words
from rl.config import arguments, program
from rl.config.arguments import ArgumentError
from rl.run import exits
from rl.run.files import read_json

NAME, TABLE = "benchmarks.learn", str(referee.ROOT / "benchmarks" / "results" / "learn.json")
ENV, ALGO = "textcraft", "grpo"
SIZE = {"tokens": "40000", "n": "100", "sft": "epochs=4"}
SEEDS = 3  # of the table
BELOW = "CLEARLY BELOW"  # how a line ends
SURE = 3.0  # one row in 700 is that far below by chance, and a run has two dozen


@dataclass(frozen=True)
class Keys:
    write: bool = False  # make the table, instead of a comparison with it
    table: str = TABLE  # the table's file
    runs: str = ""  # folder of the runs, to go on after an interruption; empty: a new one under runs/


def main(words: list[str]) -> None:
    """Run everything, and compare it with the table or write that. Exit with 1 if a row is clearly below."""
    if arguments.wants_help(words):
        program.parse(words, NAME, Keys, about=__doc__)
    with exits.exits_cleanly(NAME):
        given = arguments.split(words)
        keys = arguments.build(Keys, {key: given.pop(key) for key in arguments.keys_of(Keys) if key in given})
        if not keys.write and not Path(keys.table).is_file():
            raise ArgumentError(f"there is no {keys.table}; python -m {NAME} write=true makes it")
        then = {} if keys.write else read_json(Path(keys.table))
        runs = keys.runs or strftime("runs/learn-%Y%m%d-%H%M%S")
        print(f"runs={runs} goes on after an interruption", flush=True)
        usual = {**SIZE, "seeds": SEEDS if keys.write else 1, "runs": runs} | given
        parts = [(",".join(referee.ALGOS), ENV), (ALGO, ",".join(env for env in TWELVE if env != ENV))]
        plans = [referee.read(as_words(usual | {"algos": algos, "envs": envs})) for algos, envs in parts]
        for plan in plans:  # all of them before anything runs
            referee.claim(*plan)
        records = [referee.compare(*plan) for plan in plans]
        said = [word for word in words if word.partition("=")[0] not in referee.FOLDERS]
        now = {**records[0], "benchmark": "learn", "command": shlex.join(["python", "-m", NAME, *said])}
        now["rows"] = [row for record in records for row in record["rows"]]
        if keys.write:
            referee.report(now, keys.table)
        lines = [] if keys.write else list(compared(now["rows"], then["rows"]))
        print(*lines, sep="\n", flush=True)
    if any(policy.get("failed") for row in now["rows"] for policy in row["policies"].values()):
        raise SystemExit(1)
    if any(line.endswith(BELOW) for line in lines):
        raise SystemExit(1)


def compared(now: list[dict], then: list[dict]) -> Iterator[str]:
    """Yield a line for each policy of `now`, rows as referee.compare has them: where its success lies in the interval
    of the same policy in `then`."""
    known, spread = {row["env"]: row for row in then}, seed_deviation(then)
    for row in now:
        earlier = known.get(row["env"], {"policies": {}})
        changed = [key for key in ("tasks", "budget", "start") if row[key] != earlier.get(key)]
        for name, policy in row["policies"].items():
            line = f"{row['env']:15} {name:10} "
            if "failed" in policy:
                yield f"{line} failed: {policy['failed']}"
                continue
            mean = fmean(tables.mean_of_seeds(row, name))
            if "sampled" not in earlier["policies"].get(name, {}):
                yield f"{line} {mean:6.1%}  the table lacks it"
                continue
            value, low, high = tables.mean_and_interval(earlier, name, "sampled")
            counts = [len(one["policies"][name]["sampled"]) for one in (row, earlier)]
            error = spread * math.sqrt(sum(1 / count for count in counts))
            place = "above" if mean > high else "within" if mean >= low else "below, as by chance"
            place = BELOW if mean < min(low, value - SURE * error) else place
            other = f"other {' and '.join(changed)}; " if changed else ""
            yield f"{line} {mean:6.1%}  earlier {value:6.1%} ({low:.1%} to {high:.1%}): {other}{place}"


def seed_deviation(rows: list[dict]) -> float:
    """Return the standard deviation of one seed's success on the panel, pooled over the policies with several seeds."""
    by_policy = [tables.mean_of_seeds(row, name) for row in rows for name in row["policies"]]
    return math.sqrt(fmean([variance(means) for means in by_policy if len(means) > 1] or [0.0]))


if __name__ == "__main__":
    main(sys.argv[1:])
