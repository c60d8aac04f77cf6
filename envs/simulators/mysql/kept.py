"""Values as the columns of a table keep them: ranges, lengths, days, members of ENUM and SET.

`kept` takes a value and the type of its column as SHOW prints it, and raises Refused where MySQL's strict mode does.
"""

import re
from functools import lru_cache

from envs.simulators.mysql.dates import CLOCK, moment, seconds_of
from envs.simulators.mysql.functions import decimal
from envs.simulators.mysql.json_values import stored
from envs.simulators.mysql.tokens import Refused

LEADING = re.compile(r"\s*[-+]?\d+(\.\d*)?|", re.ASCII)  # the number that a text begins with
SIZES = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}  # bits
LENGTHS = {"tinytext": 255, "text": 65535, "mediumtext": 2**24, "longtext": 2**32}
WHAT = {"decimal": "decimal", "datetime": "datetime", "timestamp": "datetime", "date": "date", "time": "time"}


def members_of(said: str) -> list[str]:
    """Return the members of an ENUM or SET."""
    return [text.replace("''", "'") for text in re.findall(r"'((?:[^']|'')*)'", said)]


@lru_cache(256)
def _read(said: str) -> tuple[str, list[int], list[str], bool]:
    """Return a type's name, its sizes, its members, and whether it is unsigned."""
    name = re.match(r"\w+", said)[0]
    if name in ("enum", "set"):
        return name, [], members_of(said), False
    return name, [int(digits) for digits in re.findall(r"\d+", said)], [], said.endswith("unsigned")


def kept(value, said: str, ignores: bool):
    """Return the value that a column of this type keeps. ignores: IGNORE, which converts what would be refused."""
    if value is None:
        return None
    name, sizes, members, unsigned = _read(said)
    if name in SIZES or name == "year":
        return _whole(value, name, unsigned, ignores)
    if name in ("decimal", "float", "double"):
        return _real(value, name, sizes, unsigned, ignores)
    if name in ("enum", "set"):
        return _member(value, name, members, ignores)
    if name == "json":
        return stored(str(value))
    if name in ("char", "varchar") or name in LENGTHS:
        return _text(str(value), name, sizes, ignores)
    return _day(str(value), name, ignores)


def _number(text: str, what: str, ignores: bool) -> float:
    try:
        if text.isascii() and "_" not in text and "n" not in text.lower():
            return float(text)
    except ValueError:
        pass
    if ignores:
        return float(LEADING.match(text)[0] or 0)
    if what == "float" or text.strip()[:1].isdigit():
        raise Refused(1265, "01000", "Data truncated for column '{column}' at row {row}")
    raise Refused(1366, "HY000", f"Incorrect {what} value: '{text[:80]}' for column '{{column}}' at row {{row}}")


def _limited(number, low, high, ignores: bool):
    if low <= number <= high:
        return number
    if ignores:
        return max(low, min(number, high))
    raise Refused(1264, "22003", "Out of range value for column '{column}' at row {row}")


def _whole(value, name: str, unsigned: bool, ignores: bool) -> int:
    number = _number(value, "integer", ignores) if isinstance(value, str) else value
    if isinstance(number, float):
        number = int(decimal(number, 0)) if abs(number) < 1e20 else 10**20 if number > 0 else -(10**20)
    if name == "year":
        number += (2000 if number < 70 else 1900) if 0 < number < 100 else 0
        return _limited(number, 1901, 2155, ignores) if number else 0
    bits = SIZES[name]
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    number = _limited(number, low, high, ignores)
    return number - 2**64 if number >= 2**63 else number


def _real(value, name: str, sizes: list[int], unsigned: bool, ignores: bool) -> float:
    number = _number(value, "decimal" if name == "decimal" else "float", ignores) if isinstance(value, str) else value
    limit = float("inf")
    if name == "decimal":
        digits, places = (sizes + [10, 0])[:2] if len(sizes) < 2 else sizes
        number = float(decimal(number, places)) if abs(number) < 1e60 else number
        limit = 10.0 ** (digits - places) - 10.0**-places
    return float(_limited(number, 0 if unsigned else -limit, limit, ignores))


def _text(text: str, name: str, sizes: list[int], ignores: bool) -> str:
    length = sizes[0] if sizes else LENGTHS.get(name, 1)
    text = text.rstrip(" ") if name == "char" else text
    if len(text.rstrip(" ") if sizes else text.encode()) > length and not ignores:
        raise Refused(1406, "22001", "Data too long for column '{column}' at row {row}")
    return text[:length]


def _member(value, name: str, members: list[str], ignores: bool) -> str:
    wanted = [str(value)] if name == "enum" else [text for text in str(value).split(",") if text]
    found = [member for member in members for text in wanted if member.lower() == text.lower()]
    if not found and name == "enum" and str(value).isdigit() and 0 < int(value) <= len(members):
        return members[int(value) - 1]
    if (len(found) < len(wanted) or (name == "enum" and not found)) and not ignores:
        raise Refused(1265, "01000", "Data truncated for column '{column}' at row {row}")
    return ",".join(dict.fromkeys(found))


def _day(text: str, name: str, ignores: bool) -> str | None:
    if name == "time":
        found = seconds_of(text) if CLOCK.match(text) else None
        if found is not None:
            minutes, seconds = divmod(abs(found), 60)
            return f"{'-' * (found < 0)}{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
    elif found := moment(text):
        return str(found.date()) if name == "date" else str(found.replace(microsecond=0))
    if ignores:
        return None
    raise Refused(1292, "22007", f"Incorrect {WHAT[name]} value: '{text[:80]}' for column '{{column}}' at row {{row}}")
