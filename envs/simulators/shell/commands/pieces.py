"""split, join and od."""

import re

from envs.simulators.shell.commands.options import Fail, getopt, lines, number, ordered, quote_value, read
from envs.simulators.shell.files import Timeout, raw
from envs.simulators.shell.process import Process

MOST_FILES = 5000  # that split may write


def split(p: Process) -> None:
    long = {"lines:": "l", "bytes:": "b", "numeric-suffixes::": "d", "suffix-length:": "a", "additional-suffix:": "s"}
    chosen, operands = getopt(p.argv, "l:b:da:", long)
    name, prefix = (operands + ["-", "x"][len(operands) :])[:2]
    data = read(p, name)
    if "b" in chosen:
        size = max(1, number(chosen["b"], "number of bytes"))
        parts = [data[at : at + size] for at in range(0, len(data), size)]
    else:
        size = number(chosen.get("l", "1000"), "number of lines")
        if not size:
            raise Fail(f"invalid number of lines: {quote_value(chosen['l'])}")
        found = lines(data, keep=True)
        parts = ["".join(found[at : at + size]) for at in range(0, len(found), size)]
    if len(parts) > MOST_FILES:
        raise Timeout
    width = max(1, int(chosen.get("a", "2")[:2])) if chosen.get("a", "2").isdecimal() else 2
    for place, part in enumerate(parts):
        p.tick(4)
        p.write(prefix + _suffix(place, width, "d" in chosen) + chosen.get("s", ""), raw(part))


def _suffix(place: int, width: int, decimal: bool) -> str:
    base, letters = (10, "0123456789") if decimal else (26, "abcdefghijklmnopqrstuvwxyz")
    if place >= base**width:
        raise Fail("output file suffixes exhausted")
    return "".join(letters[place // base**power % base] for power in range(width - 1, -1, -1))


def join(p: Process) -> None:
    options, names = ordered(p.argv, "1:2:t:a:v:o:e:ij:", {"ignore-case": "i", "header": "h"}, least=2, most=2)
    chosen = dict(options)
    by = chosen.get("t")
    fields = [chosen.get(flag, chosen.get("j", "1")) for flag in "12"]
    if bad := [field for field in fields if not field.isdecimal() or not field.isascii() or not int(field[:9])]:
        raise Fail(f"invalid field number: {quote_value(bad[0])}")
    keys = [int(field[:9]) - 1 for field in fields]
    tables = [[line.split(by) if by else line.split() for line in lines(read(p, name))] for name in names]
    rows = [[(fields[key] if key < len(fields) else "", fields) for fields in table]
            for key, table in zip(keys, tables, strict=True)]  # fmt: skip
    only, single = {value for flag, value in options if flag == "v"}, {value for flag, value in options if flag == "a"}
    i = j = 0
    while i < len(rows[0]) or j < len(rows[1]):
        p.tick()
        left = rows[0][i] if i < len(rows[0]) else None
        right = rows[1][j] if j < len(rows[1]) else None
        if right is None or (left is not None and left[0] < right[0]):
            if "1" in only | single:
                p.out(_joined(left[0], left[1], keys[0], [], 0, by, chosen) + "\n")
            i += 1
        elif left is None or right[0] < left[0]:
            if "2" in only | single:
                p.out(_joined(right[0], [], 0, right[1], keys[1], by, chosen) + "\n")
            j += 1
        else:
            same = [row for row in rows[1][j:] if row[0] == left[0]]
            for _, fields in same if not only else ():
                p.tick(1 + (len(fields) >> 4))
                p.out(_joined(left[0], left[1], keys[0], fields, keys[1], by, chosen) + "\n")
            i += 1
            if i >= len(rows[0]) or rows[0][i][0] != left[0]:
                j += len(same)


def _joined(key: str, left: list, at: int, right: list, place: int, by, chosen: dict) -> str:
    if "o" in chosen and chosen["o"] != "auto":
        fields = []
        for part in re.split("[ ,]+", chosen["o"]):
            side, _, number = part.partition(".")
            row = left if side == "1" else right
            column = int(number[:3] or 0) - 1 if number.isdecimal() else 0
            fields.append(key if side == "0" else row[column] if column < len(row) else chosen.get("e", ""))
    else:
        fields = [key, *left[:at], *left[at + 1 :], *right[:place], *right[place + 1 :]]
    return (by or " ").join(fields)


NAMES = {0: "\\0", 7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r"}


def od(p: Process) -> None:
    long = {"address-radix:": "A", "format:": "t", "read-bytes:": "N", "skip-bytes:": "j", "output-duplicates": "v"}
    options, names = ordered(p.argv, "A:t:N:j:vcbxodw::", long)
    chosen, kinds = dict(options), [value if flag == "t" else flag for flag, value in options if flag in "tcbxod"]
    data = raw("".join(read(p, name) for name in names or ["-"]))
    data = data[number(chosen.get("j", "0"), "-j argument") :]
    data = data[: number(chosen["N"], "-N argument")] if "N" in chosen else data
    kind = {"b": "o1", "x": "x2", "d": "u2", "o": "o2"}.get(*(kinds or ["o2"])[:1] * 2)
    radix, previous, starred = chosen.get("A", "o"), b"", False
    for at in range(0, len(data), 16):
        p.tick()
        row = data[at : at + 16]
        if row == previous and len(row) == 16 and "v" not in chosen:
            p.out("*\n" if not starred else "")
            starred = True
            continue
        previous, starred = row, False
        p.out(f"{_address(at, radix)}{_cells(row, kind)}\n")
    p.out(_address(len(data), radix) + "\n" if radix != "n" else "")


def _address(at: int, radix: str) -> str:
    return {"o": f"{at:07o}", "d": f"{at:07d}", "x": f"{at:06x}", "n": ""}.get(radix, "")


def _cells(row: bytes, kind: str) -> str:
    if kind[:1] in "ca":
        return "".join(f"{NAMES.get(byte) or (chr(byte) if 32 <= byte < 127 else f'{byte:03o}'):>4}" for byte in row)
    letter, size = kind[0], int(kind[1:2]) if kind[1:2] in ("1", "2", "4", "8") else 4
    values = [int.from_bytes(row[at : at + size], "little") for at in range(0, len(row), size)]
    if letter == "d":
        values = [value - (1 << 8 * size) if value >> (8 * size - 1) else value for value in values]
    width = {"o": -(-8 * size // 3), "x": 2 * size}.get(letter, {1: 3, 2: 5, 4: 10, 8: 20}[size] + (letter == "d"))
    form = {"o": f"0{width}o", "x": f"0{width}x"}.get(letter, f"{width}d")
    return "".join(" " + format(value, form) for value in values)


COMMANDS = {"split": split, "join": join, "od": od}
