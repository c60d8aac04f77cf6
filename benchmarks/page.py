"""Write the tables of docs/results.md anew, from the records in benchmarks/results.

    python -m benchmarks.page                           make results
    python -m benchmarks.page check=true                write nothing; exit with 1 if the page has other tables

A table stands between <!-- FILE --> and <!-- end -->, where FILE is a record of benchmarks/referee.py. The rest of the
page is written by hand.
"""

import re
import sys
from dataclasses import dataclass

from benchmarks import referee
from rl.config import program
from rl.config.refusals import Refusal
from rl.run import exits
from rl.run.files import read_json, write_text

NAME = "benchmarks.page"
PAGE, RECORDS = referee.ROOT / "docs" / "results.md", referee.ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"<!-- ([\w./-]+\.json) -->\n.*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True)
class Keys:
    check: bool = False  # only compare


def tables_of(record: dict) -> str:
    """Return the record's commands and tables in markdown."""
    lines = [f"`{record['command']}` at {record['commit']}:", ""]
    for row in record["rows"]:
        lines += [*referee.table(row), ""]
    return "\n".join(lines)


def written_anew(page: str) -> str:
    """Return the page with the tables of today's records. Raise Refusal if a record is not there."""

    def block(found: re.Match) -> str:
        path = RECORDS / found[1]
        if not path.is_file():
            raise Refusal(f"{PAGE}: there is no {path}; out= of python -m {referee.NAME} writes it")
        return f"<!-- {found[1]} -->\n{tables_of(read_json(path))}<!-- end -->"

    return BLOCK.sub(block, page)


def main(words: list[str]) -> None:
    (keys,) = program.parse(words, NAME, Keys, about=__doc__)
    with exits.exits_cleanly(NAME):
        page = PAGE.read_text()
        anew = written_anew(page)
        if keys.check and page != anew:
            raise Refusal(f"{PAGE} has other tables than its records: make results")
        write_text(PAGE, anew)


if __name__ == "__main__":
    main(sys.argv[1:])
