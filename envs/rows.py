"""Read files of rows for abd, ded and planner: one object per line, as JSON or as a Python literal.

A field whose value is an object may hold it as a string in either form.
"""

import ast
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from random import Random

from envs.common import SPLITS, check_file, split_of
from envs.data_files import read_lines, whole

MOST_LITERAL = 1 << 20  # characters of a Python literal, whose syntax tree is many times as large


def unpack(value):
    """Return the value of a string that holds JSON or a Python literal; return any other value unchanged."""
    if not isinstance(value, str):
        return value
    for read in (json.loads, ast.literal_eval)[: 2 if len(value) <= MOST_LITERAL else 1]:
        try:
            return read(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            pass
    return value


def as_text(value) -> str:
    """Return a field as the text of stdin or stdout: one line per list item; other values as JSON."""
    if isinstance(value, list):
        return "\n".join(map(as_text, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def row_places(path: str, task_of: Callable[[dict], str]) -> dict[str, list[int]]:
    """Return the byte offsets of each split's rows in a file.

    task_of: returns a row's canonical task, or "" to leave the row out.
    Raise ValueError if the file does not exist or has no usable row.
    """
    check_file("a file with a row in each line", path)
    stat = Path(path).stat()
    return _places(path, task_of, (stat.st_size, stat.st_mtime_ns))


@lru_cache(maxsize=4)  # many environments share one scan; a changed file is scanned again
def _places(path: str, task_of: Callable[[dict], str], _: tuple[int, int]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {split: [] for split in SPLITS}
    with open(path, "rb") as file:
        place = 0
        for count, line in enumerate(read_lines(file), 1):
            if line.strip():
                row = unpack(text := line.decode("utf-8-sig", "replace"))
                if not isinstance(row, dict):
                    raise ValueError(f"data: line {count} of {path} must be one object, as JSON or as a Python literal")
                try:
                    whole(row, text)
                except ValueError as error:
                    raise ValueError(f"data: line {count} of {path} has {error}") from None
                if task := task_of(row):
                    places[split_of(task)].append(place)
            place += len(line)
    if not any(places.values()):
        raise ValueError(f"data: {path} has no usable row")
    return places


def row_at(path: str, places: dict[str, list[int]], rng: Random, split: str) -> dict:
    """Return a random row of a split. Raise ValueError if the split has none."""
    if not places[split]:
        there = " and ".join(f"{name} ({len(found)})" for name, found in places.items() if found)
        out = "; eval_episodes=0 or eval_split=train trains without them" if places["train"] else ""
        raise ValueError(f"data: {path} has no row in split {split}, only in {there}{out}")
    with open(path, "rb") as file:
        file.seek(rng.choice(places[split]))
        return unpack(file.readline().decode("utf-8-sig", "replace"))
