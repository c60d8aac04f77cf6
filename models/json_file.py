"""Read the JSON files of a checkpoint, which may be a stranger's.

Their size and nesting are bounded, and nothing in them is ambiguous: a key that stands twice is refused.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from models.refusal import Refusal

MOST_BYTES = 2**23  # of a file
POINTER = b"version https://git-lfs"  # the beginning of the text that Git keeps in the place of a large file
MOST_PARTS, MOST_DEPTH = 200_000, 32  # lists and objects in a text, and in one another


def read_object(path: Path) -> dict:
    """Return the JSON object in a file, empty if there is no file. Raise ValueError with one line for anything else."""
    if not path.is_file():
        return {}
    try:
        content = parse_json(read_bytes(path))
    except ValueError as error:
        raise Refusal(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise Refusal(f"{path}: not a JSON object")
    return content


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file. Raise ValueError if there are more than `most`, and for a Git LFS pointer."""
    with open(path, "rb") as file:
        content = file.read(most + 1)  # not the size in stat(): some of the system's own files say 0 bytes
    if len(content) > most:
        raise Refusal(f"larger than {most:,} bytes")
    check_pointer(content)
    return content


def check_pointer(content: bytes, name: str = "") -> None:
    """Raise ValueError if a file that begins with these bytes is a Git LFS pointer, as a clone without LFS leaves."""
    if content.startswith(POINTER):
        raise Refusal(f"{name}is a Git LFS pointer, not the file: git lfs pull")


def parse_json(text: bytes, most_parts: int = MOST_PARTS) -> Any:
    """Return the value of a JSON text. Raise ValueError for another text, many or deeply nested lists and objects, NaN
    and a repeated key."""
    if text.count(b"[") + text.count(b"{") > most_parts:
        raise Refusal(f"more than {most_parts:,} lists and objects")
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"not valid JSON ({error})") from None
    level = [[value]]
    for _ in range(MOST_DEPTH + 1):
        items = (item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer))
        if not (level := [item for item in items if isinstance(item, (dict, list))]):
            return value
    raise Refusal(f"lists and objects more than {MOST_DEPTH} deep")


def number(key: str, value) -> float:
    """Return a number that float32 can hold, and its inverse, as a float. Raise ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-30 <= value <= 1e30:
        raise Refusal(f"{key} must be a positive number, not {value!r} (1e-30 to 1e30)")
    return float(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise Refusal(f"the key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} twice")
    return table


def _refuse_constant(name: str) -> None:
    raise Refusal(f"{name} is no JSON number")
