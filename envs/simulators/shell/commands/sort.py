"""sort, with one stable sort per key, from the last key to the first; shuf."""

import re
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from random import Random

from envs.simulators.shell.commands.options import Fail, failing, lines, number, ordered, quote_if, quote_value, read
from envs.simulators.shell.files import raw
from envs.simulators.shell.process import Process

LONG = {"numeric-sort": "n", "reverse": "r", "unique": "u", "ignore-case": "f", "ignore-leading-blanks": "b"}
LONG |= {"human-numeric-sort": "h", "stable": "s", "zero-terminated": "z"}
LONG |= {"key:": "k", "field-separator:": "t", "output:": "o"}
ORDERS = "bfhnr"
BLANKS, FIELD = re.compile(r"[ \t]*"), re.compile(r"[ \t]*[^ \t]*")


@dataclass
class Key:
    """Start and end of a key in a line (field and character, from 0), and how it is compared."""

    start: tuple[int, int] = (0, 0)
    end: tuple[int, int] | None = None  # None: the end of the line; character 0: the end of the field
    flags: str = ""
    skip_start: bool = False  # blanks before the start character do not count
    skip_end: bool = False


def sort(p: Process) -> None:
    options, files = ordered(p.argv, "bfhnrsuzk:t:o:", LONG, status=2)
    flags = "".join(flag for flag, _ in options)
    chosen = dict(options)
    separator = _separator(chosen["t"]) if "t" in chosen else None
    keys = _keys([value for flag, value in options if flag == "k"], [f for f in flags if f in ORDERS])
    end = "\0" if "z" in chosen else "\n"
    found = []
    for name in files or ["-"]:
        try:
            found += lines(read(p, name), end)
        except OSError as error:
            what = "read failed" if error.strerror == "Is a directory" else "cannot read"
            raise Fail(f"{what}: {quote_if(name)}: {error.strerror}", 2) from None
    p.tick(len(found) * (1 + len(keys)) + (sum(map(len, found)) * len(keys) >> 6))
    unique, reverse = "u" in chosen, "r" in flags
    if not unique and "s" not in chosen:
        found.sort(reverse=reverse)
    for key in reversed(keys):
        found.sort(key=lambda line, key=key: _value(line, key, separator), reverse="r" in key.flags)
    if unique:
        groups = groupby(found, lambda line: [_value(line, key, separator) for key in keys])
        found = [next(equal) for _, equal in groups]
    data = "".join(line + end for line in found)
    if "o" not in chosen:
        p.out(data)
        return
    with failing(f"open failed: {quote_if(chosen['o'])}", 2):
        p.write(chosen["o"], raw(data))


def _separator(value: str) -> str:
    if value == "\\0":
        return "\0"
    if not value:
        raise Fail("empty tab", 2)
    if len(value) > 1:
        raise Fail(f"multi-character tab {quote_value(value)}", 2)
    return value


def _keys(specs: list[str], general: list[str]) -> list[Key]:
    """Return the keys; keys without flags take the general ones. Without keys, the whole line is one."""
    keys = [_key(spec) for spec in specs]
    for key in keys:
        if not key.flags and not (key.skip_start or key.skip_end):
            key.flags = "".join(general)
            key.skip_start = key.skip_end = "b" in general
    if not keys and (set(general) - {"r"}):
        keys = [Key(flags="".join(general), skip_start="b" in general)]
    return keys or [Key(flags="r" if "r" in general else "")]


def _key(spec: str) -> Key:
    shape = re.compile(r"(\d*)(?:\.(\d*))?([bfhnr]*)(?:,(\d*)(?:\.(\d*))?([bfhnr]*))?")
    found = shape.match(spec)
    first, char, _, last, _, _ = found.groups()
    rest = spec[found.end() :]
    field = "invalid field specification"
    wrong, shown = "", spec
    if not first:
        wrong = "invalid number at field start: invalid count at start of"
    elif not int(first[:9]):
        wrong = f"field number is zero: {field}"
    elif char and not int(char[:9]):
        wrong = f"character offset is zero: {field}"
    elif last == "" or (last is None and rest[:1] == ","):
        wrong = "invalid number after ',': invalid count at start of"
        shown = spec[found.start(4) :] if last == "" and not rest else rest.removeprefix(",")
    elif rest:
        wrong = f"stray character in field spec: {field}"
    elif last and not int(last[:9]):
        wrong = f"field number is zero: {field}"
    if wrong:
        raise Fail(f"{wrong} {quote_value(shown)}", 2)
    end = None if last is None else (int(last[:9]) - 1, int((found[5] or "0")[:9]))
    start, stop = found[3] or "", found[6] or ""
    flags = "".join(dict.fromkeys((start + stop).replace("b", "")))
    return Key((int(first[:9]) - 1, int((char or "1")[:9]) - 1), end, flags, "b" in start, "b" in stop)


def _part(line: str, key: Key, separator: str | None) -> str:
    """Return the characters of a key."""
    if key.start == (0, 0) and key.end is None:
        return line.lstrip(" \t") if key.skip_start else line
    begin = _field(line, key.start[0], separator)
    if key.skip_start:
        begin = BLANKS.match(line, begin).end()
    begin = min(len(line), begin + key.start[1])
    if key.end is None:
        return line[begin:]
    field, char = key.end
    stop = _field(line, field + (not char and separator is None), separator)
    if not char:
        found = line.find(separator, stop) if separator is not None else stop
        return line[begin : len(line) if found < 0 else found]
    if key.skip_end:
        stop = BLANKS.match(line, stop).end()
    return line[begin : min(len(line), stop + char)]


def _field(line: str, index: int, separator: str | None) -> int:
    """Return where a field begins: after its separator, or with the blanks before it."""
    at = 0
    for _ in range(index):
        if at >= len(line):
            return len(line)
        if separator is not None:
            found = line.find(separator, at)
            if found < 0:
                return len(line)
            at = found + 1
        else:
            at = FIELD.match(line, at).end()
    return at


def _value(line: str, key: Key, separator: str | None):
    """Return the value that Python compares for a key."""
    part = _part(line, key, separator)
    flags = key.flags
    if "n" in flags:
        return _number(part)
    if "h" in flags:
        found = re.match(r"\s*(-?)(\d*\.?\d*)([KMGTPEZYk]?)", part)
        power = "kMGTPEZY".find(found[3].replace("K", "k")) + 1 if found[3] and found[2] else 0
        value, sign = _number(part), -1 if found[1] else 1
        return (sign * power if value else 0, value)
    return part.upper() if "f" in flags else part


def _number(part: str):
    found = re.match(r"[ \t]*(-?)(\d*)(?:\.(\d*))?", part)
    whole, fraction = found[2], (found[3] or "").rstrip("0")
    if not fraction and len(whole) < 18:
        return int(found[1] + whole) if whole else 0
    return Decimal(f"{found[1]}{whole or 0}.{fraction or 0}")


def shuf(p: Process) -> None:
    long = {"echo": "e", "input-range:": "i", "head-count:": "n", "output:": "o"}
    options, operands = ordered(p.argv, "ei:n:o:z", long | {"zero-terminated": "z"})
    chosen = dict(options)
    end = "\0" if "z" in chosen else "\n"
    if "i" in chosen:
        found = re.fullmatch(r"(\d{1,9})-(\d{1,9})", chosen["i"])
        if not found or int(found[1]) > int(found[2]) + 1:
            raise Fail(f"invalid input range: {quote_value(chosen['i'])}")
        p.tick(int(found[2]) - int(found[1]) >> 2)
        items = [str(n) for n in range(int(found[1]), int(found[2]) + 1)]
    else:
        items = list(operands) if "e" in chosen else lines(read(p, operands[0] if operands else "-"), end)
    p.machine.next_pid()
    rng = Random(f"shuf {p.machine.clock} {p.machine.pids}")
    many = number(chosen["n"], "line count") if "n" in chosen else None
    rng.shuffle(items)
    data = "".join(item + end for item in items[:many])
    if "o" in chosen:
        p.write(chosen["o"], raw(data))
    else:
        p.out(data)


COMMANDS = {"sort": sort, "shuf": shuf}
