"""Reading and checking a checkpoint's JSON files."""

import json
import sys
from pathlib import Path


def read_object(path: Path) -> dict:
    """Return the JSON object in a file, empty if there is no file. Raise ValueError with one line for anything else."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: not a JSON object")
    return found


def number(key: str, value) -> float:
    """Return a positive finite number as a float. Raise ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{key} must be a positive number, not {value!r}")
    return float(value)
