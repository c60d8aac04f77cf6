"""Read data files of strangers: their size and the number of their values are bounded."""

import json
import sys
from ast import literal_eval
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from envs.refusal import Refusal

MOST_BYTES = 1 << 25  # of a file of JSON
MOST_LINE = 1 << 23  # bytes of a line of a file of rows
MOST_LISTS = 500_000  # lists and objects in a text


def read_text(path: str | Path) -> str:
    """Return the text of a file. Raise ValueError for one that is too large or not UTF-8."""
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Refusal(f"data: {path} has more than {MOST_BYTES:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refusal(f"data: {path} is not UTF-8: {error}") from None


def read_json(path: str | Path, lines: bool = False) -> Any:
    """Return the value of a JSON file, or of JSON Lines the list of values. Raise ValueError for other files."""
    text = read_text(path)
    try:
        if text.count("[") + text.count("{") > MOST_LISTS:
            raise Refusal(f"more than {MOST_LISTS:,} lists and objects")
        read = partial(json.loads, object_pairs_hook=unique)
        found = [read(line) for line in text.splitlines() if line.strip()] if lines else read(text)
        return whole(found, text)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"data: {path} is not JSON: {error}") from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these keys and values. Raise ValueError for a key that stands twice: one of its values would
    be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise Refusal(
            f"the key {next(name for name in names if names.count(name) > 1)[:80]!r} stands twice in an object"
        )
    return found


def whole(value: Any, text: str = "\\ud") -> Any:
    """Return the value of a text. Raise ValueError for half a surrogate pair in it, which no tokenizer takes."""
    try:
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise Refusal("half a surrogate pair in a string") from None
    return value


def say_unread(path: str | Path, entries: Iterable[dict], read: set[str]) -> None:
    """Print the keys of a file's entries that are not among those that are read, with how many entries have them."""
    unread = Counter(key for entry in entries if isinstance(entry, dict) for key in entry.keys() - read)
    if unread:
        keys = ", ".join(f"{key!r} ({count:,})" for key, count in sorted(unread.most_common(12)))
        print(f"data: keys of {path} that are not read: {keys}", file=sys.stderr)


def plain_entry(entry: dict, nested: tuple[str, ...]) -> dict:
    """Return an entry whose nested fields are values: rows of Hugging Face hold them as Python's repr.

    Raise TypeError for a text that is no Python value.
    """
    texts = {name: entry[name] for name in nested if isinstance(entry.get(name), str)}
    try:
        return entry | {name: literal_eval(text) for name, text in texts.items()}
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise TypeError(f"a field of {', '.join(texts)} is no Python value: {str(error)[:80]}") from None


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file. Raise ValueError for one that is too long."""
    while line := file.readline(MOST_LINE + 1):
        if len(line) > MOST_LINE:
            raise Refusal(f"data: a line of {file.name} has more than {MOST_LINE:,} bytes")
        yield line
