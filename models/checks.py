"""Checks of single values in a config.json."""

import sys


def number(key: str, value, least: float | None = None) -> float:
    """Return a positive finite number, not less than `least`, as a float. Raise ValueError for anything else."""
    finite = not isinstance(value, bool) and isinstance(value, int | float) and 0 < value <= sys.float_info.max
    if not finite or (least is not None and value < least):
        wanted = "a positive number" if least is None else f"a number not less than {least:g}"
        raise ValueError(f"{key} must be {wanted}, not {value!r}")
    return float(value)


def flag(raw: dict, key: str) -> bool:
    """Return a boolean key, false if absent. Raise ValueError for any other type."""
    if not isinstance(raw.get(key, False), bool):
        raise ValueError(f"{key} must be true or false, not {raw[key]!r}")
    return raw.get(key, False)
