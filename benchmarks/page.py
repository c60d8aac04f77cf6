"""Write the tables of docs/results.md anew, from the records in benchmarks/results.

    python -m benchmarks.page                           make results
    python -m benchmarks.page check=true                write nothing; exit with 1 if the page has other tables

A table stands between <!-- FILE --> and <!-- end -->, where FILE is a record of benchmarks/referee.py. With
<!-- FILE in rows --> it has a row for each environment, with <!-- FILE FILE in columns --> two columns for each, and a
row for each algorithm. The rest of the page is written by hand.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

from benchmarks import referee, tables
from rl.config import program
from rl.config.refusals import Refusal
from rl.run import exits
from rl.run.files import read_json, write_text

NAME = "benchmarks.page"
PAGE, RECORDS = referee.ROOT / "docs" / "results.md", referee.ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"<!-- ((?:[\w./-]+\.json )+)(?:in (rows|columns) )?-->\n.*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True)
class Keys:
    check: bool = False  # only compare


def table_of_each(rows: list[dict]) -> Iterator[str]:
    """Yield the lines of the tables, one for each environment."""
    for row in rows:
        yield from tables.table(row)
        yield ""


def table_in_rows(rows: list[dict]) -> Iterator[str]:
    """Yield the lines of one table: sampled success, greedy success, and what training adds to each, over SFT where a
    row has it and else over the base. A policy that failed has its reason."""
    names = names_of(rows)
    trained = [name for name in names if any(name in row["policies"] and tables.trained(row, name) for row in rows)]
    yield f"| `env=` | distinct tasks | {' | '.join([*names, *(f'{name} adds' for name in trained)])} |"
    yield f"|---|{'---:|' * (1 + len(names) + len(trained))}"
    for row in rows:
        rates = [success(row, name) for name in names]
        added = [gain(row, name) for name in trained]
        yield f"| `{row['env']}` | {len(set(row['tasks']))} | {' | '.join(rates + added)} |"
    if len(rows) > 1 and all("sampled" in row["policies"].get(name, {}) for row in rows for name in names):
        means = [mean(rows, name) for name in names] + [mean(rows, name, gained=True) for name in trained]
        yield f"| mean | | {' | '.join(means)} |"
    yield ""


def mean(rows: list[dict], name: str, gained: bool = False) -> str:
    """Return the cell of a policy's mean sampled and greedy success over the environments, or of what it adds to the
    starts."""
    starts = [row["start"] if gained else "" for row in rows]
    kinds = [
        fmean(tables.mean_and_interval(row, name, kind, start)[0] for row, start in zip(rows, starts, strict=True))
        for kind in ("sampled", "greedy")
    ]
    return "; ".join(f"{value:{'+' * gained}.1%}" for value in kinds)


def table_in_columns(rows: list[dict]) -> Iterator[str]:
    """Yield the lines of the same table turned: a row for each policy, and for each environment its success and what
    training adds."""
    heads = [(f"`{row['env']}`", "adds") for row in rows]
    yield f"| | {' | '.join(chain(*heads))} |"
    yield f"|---|{'---:|' * 2 * len(rows)}"
    for name in names_of(rows):
        cells = [(success(row, name), gain(row, name)) for row in rows]
        yield f"| {name} | {' | '.join(chain(*cells))} |"
    yield ""


def names_of(rows: list[dict]) -> list[str]:
    """Return the names of policies, each once, in their order."""
    return list(dict.fromkeys(name for row in rows for name in row["policies"]))


def success(row: dict, name: str) -> str:
    """Return the cell of a policy's sampled and greedy success; empty if the row has no such policy."""
    policy = row["policies"].get(name, {})
    if "failed" in policy:
        return f"failed: {policy['failed'].replace('|', '/')}"
    if not policy:
        return ""
    greedy, *_ = tables.mean_and_interval(row, name, "greedy")
    return "{:.1%} ({:.1%} to {:.1%})".format(*tables.mean_and_interval(row, name, "sampled")) + f"; {greedy:.1%}"


def gain(row: dict, name: str) -> str:
    """Return the cell of what an algorithm adds to the start's sampled and greedy success; empty if it has none."""
    if "sampled" not in row["policies"].get(name, {}) or not tables.trained(row, name):
        return ""
    greedy, *_ = tables.mean_and_interval(row, name, "greedy", row["start"])
    sampled = tables.mean_and_interval(row, name, "sampled", row["start"])
    return "{:+.1%} ({:+.1%} to {:+.1%})".format(*sampled) + f"; {greedy:+.1%}"


def written_anew(page: str) -> str:
    """Return the page with the tables of today's records. Raise Refusal if a record is not there."""

    def block(found: re.Match) -> str:
        paths = [RECORDS / name for name in found[1].split()]
        if missing := [path for path in paths if not path.is_file()]:
            raise Refusal(f"{PAGE}: there is no {missing[0]}; out= of python -m {referee.NAME} writes it")
        records = [read_json(path) for path in paths]
        heads = [f"`{record['command']}` at {record['commit']}:" for record in records]
        form = {"rows": table_in_rows, "columns": table_in_columns, None: table_of_each}[found[2]]
        lines = form([row for record in records for row in record["rows"]])
        return "\n".join([found[0].partition("\n")[0], *heads, "", *lines, "<!-- end -->"])

    return BLOCK.sub(block, page)


def main(words: list[str]) -> None:
    (keys,) = program.parse(words, NAME, Keys, about=__doc__)
    with exits.exits_cleanly(NAME):
        page = PAGE.read_text()
        anew = written_anew(page)
        if not keys.check:
            write_text(PAGE, anew)
        elif page != anew:
            raise Refusal(f"{PAGE} has other tables than its records: make results")


if __name__ == "__main__":
    main(sys.argv[1:])
