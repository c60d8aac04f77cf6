"""Rows of satpalsr/rl-python for abd and ded: a file with an object in each line, as JSON or as a Python literal.

A field that is an object may itself be written either way, in a string.
"""

import ast
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from random import Random

from envs.base import SPLITS, check_file, split_of


def unpack(value):
    """A field that is written as JSON, or as a Python literal; anything else as it is."""
    if not isinstance(value, str):
        return value
    for read in (json.loads, ast.literal_eval):
        try:
            return read(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            pass
    return value


def as_text(value) -> str:
    """A field as the text of stdin or stdout: lists have an item a line, what is no text is written as JSON."""
    if isinstance(value, list):
        return "\n".join(map(as_text, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def row_places(path: str, task_of: Callable[[dict], str]) -> dict[str, list[int]]:
    """Where in a file the rows of each split begin. `task_of` gives a row's canonical task; "" leaves it out.

    Raises ValueError for a file that is not there, or that cannot be used.
    """
    check_file("a file with a row in each line", path)
    stat = Path(path).stat()
    return _places(path, task_of, (stat.st_size, stat.st_mtime_ns))


@lru_cache(maxsize=4)  # a file is read through once, however many environments there are, and again when it has changed
def _places(path: str, task_of: Callable[[dict], str], _: tuple[int, int]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {split: [] for split in SPLITS}
    with open(path, "rb") as file:
        place = 0
        for count, line in enumerate(file, 1):
            if line.strip():
                row = unpack(line.decode("utf-8-sig", "replace"))
                if not isinstance(row, dict):
                    raise ValueError(f"data: line {count} of {path} must be one object, as JSON or as a Python literal")
                if task := task_of(row):
                    places[split_of(task)].append(place)
            place += len(line)
    if not any(places.values()):
        raise ValueError(f"data: no row of {path} can be used")
    return places


def row_at(path: str, places: dict[str, list[int]], rng: Random, split: str) -> dict:
    """A row of a split."""
    if not places[split]:
        there = " and ".join(f"{name} ({len(found)})" for name, found in places.items() if found)
        out = "; eval_episodes=0 or eval_split=train trains without them" if places["train"] else ""
        raise ValueError(f"data: {path} has no row in split {split}, only in {there}{out}")
    with open(path, "rb") as file:
        file.seek(rng.choice(places[split]))
        return unpack(file.readline().decode("utf-8-sig", "replace"))
