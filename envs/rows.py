"""Read files of rows for abd, ded, planner and qa: one object per line, as JSON or as a Python literal, a JSON array,
or Parquet where pyarrow is installed.

A field whose value is an object may hold it as a string in either form.
"""

import ast
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from random import Random

from envs import parquet
from envs.common import SPLITS, check_file, split_of
from envs.data_files import read_json, read_lines, unique, whole
from envs.refusal import Refusal


class LeftOut(Exception):
    """A row that cannot be used, though its file may: it is counted. The text is the reason, the same for its kind."""


BEGINNINGS = {  # of files that are not rows as they are, and what to do
    b"\x1f\x8b": "is compressed with gzip: gunzip it",
    b"version https://git-lfs.github.com/spec/v1": "is a Git LFS pointer, not the file: git lfs pull",
}
OTHER_FORMS = (".csv", ".tsv", ".yaml", ".yml")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(?<!\.json)(?<!\.jsonl)(?<!\.parquet)")
MOST_LITERAL = 1 << 20  # characters of a Python literal, whose syntax tree is many times as large


def unpack(value):
    """Return the value of a string that holds JSON or a Python literal; return any other value unchanged.

    Raise ValueError for JSON in which a key stands twice.
    """
    if not isinstance(value, str):
        return value
    readers = (partial(json.loads, object_pairs_hook=unique), ast.literal_eval)
    for read in readers[: 2 if len(value) <= MOST_LITERAL else 1]:
        try:
            return read(value)
        except Refusal:
            raise
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            pass
    return value


def as_text(value) -> str:
    """Return a field as the text of stdin or stdout: one line per list item; other values as JSON."""
    if isinstance(value, list):
        return "\n".join(map(as_text, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def row_places(path: str, task_of: Callable[[dict], str], once: bool = False) -> dict[str, list[int]]:
    """Return the places of each split's rows in a file: byte offsets of lines, or indices in an array.

    task_of: returns a row's canonical task; raises LeftOut for a row to count, ValueError for one to refuse.
    once: of rows with equal tasks only the first counts, and a line on stderr says how many do not.
    A line on stderr counts the rows left out, with reasons. Raise ValueError if the file does not exist, or if more
    than half of its rows are left out.
    """
    return _scan(path, task_of, once)[1]


def places_in_order(path: str, task_of: Callable[[dict], str], once: bool = False) -> list[int]:
    """Return the places of all usable rows of a file, in its order; otherwise as `row_places`."""
    return _scan(path, task_of, once)[0]


def each_row(path: str) -> Iterator[tuple[int, str, dict]]:
    """Yield the place, its name in messages, and the row of each row of a file."""
    return _array_rows(path) if _is_array(path) else _lines(path)


def check_rows_file(path: str) -> None:
    """Raise ValueError if the value of data= is not a file of rows; the line says what it is instead."""
    what, ending = "", Path(path).suffix.lower()
    if os.path.isdir(path):
        what = "is a folder: name one of its files"
    elif os.path.exists(path) and not os.path.isfile(path):
        what = "is a stream, and rows are read more than once: write them into a file"
    elif os.path.isfile(path):
        with open(path, "rb") as file:
            first = file.read(100)
        what = next((what for begins, what in BEGINNINGS.items() if first.startswith(begins)), "")
        if ending in OTHER_FORMS:
            what = f"is {ending[1:].upper()}: the forms of rows are JSON Lines, one JSON array, and Parquet"
    elif "," in path and all(map(os.path.isfile, path.split(","))):
        what = "names several files: write their rows into one"
    elif HUB_NAME.fullmatch(path) and not os.path.isdir(os.path.dirname(path)):
        what = f"is no file; a data set of the hub is downloaded first: hf download {path} --repo-type dataset"
    if what:
        raise Refusal(f"data: {path} {what}")
    check_file("a file with a row in each line", path)


def _scan(path: str, task_of: Callable[[dict], str], once: bool) -> tuple[list[int], dict[str, list[int]]]:
    """Return the places of all usable rows, and those of each split by hash."""
    check_rows_file(path)
    return _scanned(path, task_of, once, _version(path))


@lru_cache(maxsize=16)  # many environments share one scan; a changed file is scanned again
def _scanned(
    path: str, task_of: Callable[[dict], str], once: bool, _: tuple[int, int]
) -> tuple[list[int], dict[str, list[int]]]:
    in_order, by_split = [], {split: [] for split in SPLITS}
    first, repeated, total, reasons, first_out = {}, [], 0, Counter(), ""
    for place, where, row in each_row(path):
        total += 1
        try:
            task = task_of(row)
        except LeftOut as reason:
            reasons[str(reason)] += 1
            first_out = first_out or where
            continue
        except ValueError as error:
            raise Refusal(f"data: {where} of {path}: {error}") from None
        if once and (before := first.setdefault(task, where)) != where:
            repeated.append((where, before))
        else:
            in_order.append(place)
            by_split[split_of(task)].append(place)
    report_left_out(path, total, reasons, first_out)
    if not in_order:
        raise Refusal(f"data: {path} has no row")
    if repeated:
        (where, before), more = repeated[0], f" (and {len(repeated) - 1:,} more such rows)" if repeated[1:] else ""
        print(f"data: {where} of {path} repeats {before}{more}; the first one counts", file=sys.stderr)
    return in_order, by_split


def report_left_out(path: str, total: int, reasons: Counter[str], first: str, what: str = "rows") -> None:
    """Print how many rows of a file are left out, and why. Raise ValueError if these are more than half of all.

    reasons: {reason: rows}. first: the place of the first of them. what: the name of the rows in the line.
    """
    count = sum(reasons.values())
    if not count:
        return
    why = "; ".join(f"{number:,} with {reason}" for reason, number in reasons.most_common(3))
    why = next(iter(reasons)) if len(reasons) == 1 else why
    line = f"data: {count:,} of {total:,} {what} of {path} left out: {why}; the first is {first}"
    if 2 * count > total:
        raise Refusal(f"{line}; a file of which more than half is left out is refused")
    print(line, file=sys.stderr)


def _version(path: str) -> tuple[int, int]:
    """Return what differs between two versions of a file."""
    stat = Path(path).stat()
    return stat.st_size, stat.st_mtime_ns


def _is_array(path: str) -> bool:
    """Return whether a file is Parquet, or begins like a JSON array of objects, as chunks of Affine's R2 storage do."""
    if path.endswith(parquet.ENDING):
        return True
    with open(path, "rb") as file:
        return bool(re.match(rb"(\xef\xbb\xbf)?\s*\[\s*[{\]]", file.read(100)))


@lru_cache(maxsize=4)
def _array(path: str, _: tuple[int, int]) -> list[dict]:
    """Return the rows of a JSON array or of a Parquet file. Raise ValueError if one is no object."""
    found = parquet.read(path) if path.endswith(parquet.ENDING) else read_json(path)
    for count, row in enumerate(found, 1):
        if not isinstance(row, dict):
            raise Refusal(f"data: row {count} of the array in {path} must be an object")
    return found


def _array_rows(path: str) -> Iterator[tuple[int, str, dict]]:
    """Yield the index, its name in messages, and the row of each entry of an array."""
    for place, row in enumerate(_array(path, _version(path))):
        yield place, f"row {place + 1}", row


def _lines(path: str) -> Iterator[tuple[int, str, dict]]:
    """Yield the byte offset, its name in messages, and the row of each line. Raise ValueError if one is no object."""
    with open(path, "rb") as file:
        place = 0
        for count, line in enumerate(read_lines(file), 1):
            if line.strip():
                try:
                    row = unpack(text := line.decode("utf-8-sig"))
                except UnicodeDecodeError as error:
                    raise Refusal(f"data: line {count} of {path} is not UTF-8: {error}") from None
                except ValueError as error:
                    raise Refusal(f"data: line {count} of {path}: {error}") from None
                if not isinstance(row, dict):
                    form = "one object, as JSON or as a Python literal"
                    raise Refusal(f"data: line {count} of {path} must be {form}{_fault(text)}")
                try:
                    whole(row, text)
                except ValueError as error:
                    raise Refusal(f"data: line {count} of {path} has {error}") from None
                yield place, f"line {count}", row
            place += len(line)


def _fault(text: str) -> str:
    """Return where and why a text is not JSON; nothing if it is."""
    try:
        json.loads(text.strip())
    except (ValueError, RecursionError) as error:
        return f" (as JSON: {error})"
    return ""


def row_at(path: str, places: dict[str, list[int]], rng: Random, split: str) -> dict:
    """Return a random row of a split. Raise ValueError if the split has none."""
    return row_of(path, rng.choice(of_split(path, places, split)))


def of_split(path: str, places: dict[str, list[int]], split: str) -> list[int]:
    """Return the places of a split's rows. Raise ValueError if it has none."""
    if not places[split]:
        there = " and ".join(f"{name} ({len(found)})" for name, found in places.items() if found)
        out = "; eval_episodes=0 or eval_split=train trains without them" if places["train"] else ""
        raise Refusal(f"data: {path} has no row in split {split}, only in {there}{out}")
    return places[split]


def row_of(path: str, place: int) -> dict:
    """Return the row at a place of a file: a byte offset, or an index of an array."""
    if _is_array(path):
        found = _array(path, _version(path))
        row = found[place] if place < len(found) else None
    else:
        with open(path, "rb") as file:
            file.seek(place)
            row = unpack(file.readline().decode("utf-8-sig", "replace"))
    if not isinstance(row, dict):
        raise Refusal(f"data: {path} changed while its rows were read")
    return row
