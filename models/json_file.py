"""Reading and checking a checkpoint's JSON files."""

import json
from pathlib import Path

TINY = Path(__file__).parent / "tiny"  # the embedded model: its files are ours


def read_object(path: Path) -> dict:
    """Return the JSON object in a file, empty if there is no file. Raise ValueError with one line for anything else."""
    if not path.is_file():
        return {}
    if path.parent == TINY:
        return json.loads(path.read_text())
    from models.checkpoints.strict_json import read_strictly

    return read_strictly(path)


def number(key: str, value) -> float:
    """Return a number that float32 can hold, and its inverse, as a float. Raise ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-30 <= value <= 1e30:
        raise ValueError(f"{key} must be a positive number, not {value!r} (1e-30 to 1e30)")
    return float(value)
