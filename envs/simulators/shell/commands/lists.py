"""Commands on lines and fields: cut, paste, tr, uniq, comm, fold."""

import re
import string
from itertools import groupby, zip_longest

from envs.simulators.regex.syntax import CLASSES
from envs.simulators.shell.commands.options import Fail, getopt, inputs, lines, number, ordered, quote_value, read
from envs.simulators.shell.files import raw
from envs.simulators.shell.process import Process


def cut(p: Process) -> None:
    long = {"bytes:": "b", "characters:": "c", "fields:": "f", "delimiter:": "d", "only-delimited": "s"}
    long |= {"output-delimiter:": "O", "zero-terminated": "z"}
    options, files = ordered(p.argv, "b:c:f:d:snz", long)
    modes, chosen = [(flag, value) for flag, value in options if flag in "bcf"], dict(options)
    mode, spec = modes[0] if modes else ("", "")
    wrong = ""
    if len(modes) != 1:
        wrong = "only one list may be specified" if modes else "you must specify a list of bytes, characters, or fields"
    elif len(chosen.get("d", "")) > 1:
        wrong = "the delimiter must be a single character"
    elif mode != "f" and "d" in chosen:
        wrong = "an input delimiter may be specified only when operating on fields"
    elif mode != "f" and "s" in chosen:
        wrong = "suppressing non-delimited lines makes sense\n\tonly when operating on fields"
    if wrong:
        raise Fail(wrong, try_help=True)
    wanted = _ranges(spec, mode == "f")
    delimiter = (chosen.get("d", "\t") or "\0") if mode == "f" else ""
    end = "\0" if "z" in chosen else "\n"
    for _, data in inputs(p, files):
        shown = []
        for line in lines(data, end):
            p.tick(1 + (len(line) >> 8) + (len(wanted) * (8 + len(chosen.get("O", ""))) >> 8))
            if mode != "f":
                parts = [line[low - 1 : high] for low, high in wanted]
                shown.append(chosen.get("O", "").join(part for part in parts if part) + end)
            elif delimiter not in line:
                shown.append("" if "s" in chosen else line + end)
            else:
                fields = line.split(delimiter)
                kept = [field for low, high in wanted for field in fields[low - 1 : high]]
                shown.append(chosen.get("O", delimiter).join(kept) + end)
        p.out("".join(shown))


def _ranges(spec: str, fields: bool) -> list[tuple[int, int | None]]:
    """Return a list such as 1,3-5,7- as sorted, disjoint ranges; None means no end."""
    found = []
    for item in spec.replace(" ", ",").replace("\t", ",").split(","):
        low, dash, high = item.partition("-")
        if not (low or high) and dash:
            raise Fail("invalid range with no endpoint: -", try_help=True)
        if not (low + high).isdecimal() and (low + high):
            what = "field value" if fields else "byte/character position"
            raise Fail(f"invalid {what} {quote_value(item.lstrip('0123456789-') if dash else item)}", try_help=True)
        start = int(low[:18]) if low else 1
        if start == 0 or (not low and not dash):
            what = "fields are numbered from 1" if fields else "byte/character positions are numbered from 1"
            raise Fail(what, try_help=True)
        stop = int(high[:18]) if high else None if dash else start
        if stop is not None and stop < start:
            raise Fail("invalid decreasing range", try_help=True)
        found.append((start, stop))
    return _merged(sorted(found, key=lambda pair: pair[0]))


def _merged(ranges: list) -> list[tuple[int, int | None]]:
    merged: list[tuple[int, int | None]] = []
    for low, high in ranges:
        if merged and (merged[-1][1] is None or low <= merged[-1][1]):
            last = merged[-1][1]
            merged[-1] = (merged[-1][0], None if last is None or high is None else max(last, high))
        else:
            merged.append((low, high))
    return merged


def paste(p: Process) -> int | None:
    chosen, files = getopt(p.argv, "d:s", {"delimiters:": "d", "serial": "s"})
    delimiters = _unescaped(chosen.get("d", "\t")) or [""]
    found = [(name, lines(data)) for name, data in inputs(p, files)]
    columns = [column for _, column in found]
    if "s" in chosen:
        for column in columns:
            p.out(_joined(column, delimiters) + "\n")
        return p.failed
    if p.failed:
        return 1
    dashes = [i for i, (name, _) in enumerate(found) if name == "-"]
    for turn, i in enumerate(dashes):  # standard input, which the first has read, gives a line to each dash in turn
        columns[i] = found[dashes[0]][1][turn :: len(dashes)]
    for row in zip_longest(*columns, fillvalue=""):
        p.tick()
        p.out(_joined(list(row), delimiters) + "\n")


def _joined(parts: list[str], delimiters: list[str]) -> str:
    shown = parts[:1]
    for i, part in enumerate(parts[1:]):
        shown += delimiters[i % len(delimiters)], part
    return "".join(shown)


def _unescaped(spec: str) -> list[str]:
    known = {"\\n": "\n", "\\t": "\t", "\\0": ""}
    return [known.get(part, part[-1]) for part in re.findall(r"\\.|.", spec, re.DOTALL)]


def tr(p: Process) -> None:
    long = {"complement": "c", "delete": "d", "squeeze-repeats": "s", "truncate-set1": "t"}
    options, sets = getopt(p.argv, "cCdst", long, permute=False, least=1)
    flags = {flag.lower() for flag in options}
    needs = 2 if ("d" not in flags and "s" not in flags) or ("d" in flags and "s" in flags) else 1
    if len(sets) < needs:
        what = "deleting and squeezing repeats" if flags >= {"d", "s"} else "translating"
        why = f"Two strings must be given when {what}."
        raise Fail(f"missing operand after {quote_value(sets[-1])}\n{why}", try_help=True)
    if len(sets) > 2 or (len(sets) == 2 and "d" in flags and "s" not in flags):
        extra = "\nOnly one string may be given when deleting without squeezing repeats." if len(sets) == 2 else ""
        raise Fail(f"extra operand {quote_value(sets[1 if len(sets) == 2 else 2])}{extra}", try_help=True)
    first = _set(p, sets[0])
    if "c" in flags:
        members = set(first)
        first = [char for char in map(chr, range(256)) if char not in members]
    data = read(p, "-")
    p.tick(1 + (len(data) >> 8))
    if "d" in flags:
        data = data.translate({ord(char): None for char in first})
        p.out(_squeezed(p, data, set(_set(p, sets[1]))) if "s" in flags else data)
        return
    if len(sets) == 1:
        p.out(_squeezed(p, data, set(first)))
        return
    second = _set(p, sets[1])
    if not second and "t" not in flags:
        raise Fail("when not truncating set1, string2 must be non-empty")
    if len(second) < len(first) and "t" not in flags:
        second += second[-1:] * (len(first) - len(second))
    data = data.translate({ord(a): b for a, b in zip(first, second, strict=False)})
    p.out(_squeezed(p, data, set(second)) if "s" in flags else data)


def _squeezed(p: Process, data: str, members: set[str]) -> str:
    p.tick(len(data) >> 5)
    return "".join(char if char in members else "".join(run) for char, run in groupby(data))


def _set(p: Process, spec: str) -> list[str]:
    """Return the characters of tr's set."""
    chars = _literals(spec)
    p.tick(1 + (len(chars) >> 2))
    plain = "".join(char for char, _ in chars)
    colon = plain.rfind(":]")  # behind it no class is closed
    found: list[str] = []
    at = 0
    while at < len(chars):
        char, literal = chars[at]
        opens = char == "[" and not literal
        if opens and plain.startswith("[:", at) and at + 2 <= colon:
            name = plain[at + 2 : plain.index(":]", at + 2)]
            if name not in CLASSES:
                raise Fail(f"invalid character class {quote_value(name)}")
            order = string.ascii_uppercase + string.ascii_lowercase
            found += order[:26] if name == "upper" else order[26:] if name == "lower" else sorted(CLASSES[name])
            at += len(name) + 4
        elif at + 2 < len(chars) and chars[at + 1] == ("-", False):
            low, high = char, chars[at + 2][0]
            if low > high:
                raise Fail(f"range-endpoints of {quote_value(f'{low}-{high}')} are in reverse collating sequence order")
            found += map(chr, range(ord(low), ord(high) + 1))
            at += 3
        else:
            found.append(char)
            at += 1
    return found


def _literals(spec: str) -> list[tuple[str, bool]]:
    """Return the characters of a set, and whether each was escaped."""
    names = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f", "a": "\a", "b": "\b"}
    found = []
    for octal, escaped, plain in re.findall(r"\\([0-7]{1,3})|\\(.)|(.)", spec, re.DOTALL):
        char = chr(int(octal, 8) & 255) if octal else names.get(escaped, escaped)
        found.append((plain or char, not plain))
    return found


def uniq(p: Process) -> None:
    long = {"count": "c", "repeated": "d", "unique": "u", "ignore-case": "i", "zero-terminated": "z"}
    chosen, files = getopt(p.argv, "cduiz", long, most=2)
    shown, end = [], "\0" if "z" in chosen else "\n"
    for _, equal in groupby(lines(read(p, (files or ["-"])[0]), end), str.lower if "i" in chosen else str):
        group = list(equal)
        p.tick(len(group))
        if (len(group) == 1 and "d" in chosen) or (len(group) > 1 and "u" in chosen):
            continue
        shown.append((f"{len(group):7} " if "c" in chosen else "") + group[0] + end)
    if len(files) == 2 and files[1] != "-":
        p.write(files[1], raw("".join(shown)))
    else:
        p.out("".join(shown))


def comm(p: Process) -> int:
    chosen, files = getopt(p.argv, "123", {"output-delimiter:": "O"}, least=2, most=2)
    flags = set(chosen)
    sides = [lines(read(p, name)) for name in files]
    tab = chosen.get("O", "\t")
    indent = ["", "" if "1" in flags else tab, tab * (2 - len(flags & {"1", "2"}))]
    at, unpaired, unsorted = [0, 0], False, set()

    def passed(side: int) -> None:
        """Go on in one file, and say once where it is not sorted, if that has led to lines without a pair."""
        here, rest = at[side], sides[side]
        at[side] += 1
        if unpaired and here + 1 < len(rest) and rest[here] > rest[here + 1] and side not in unsorted:
            unsorted.add(side)
            p.fail(f"file {side + 1} is not in sorted order")

    while at[0] < len(sides[0]) or at[1] < len(sides[1]):
        p.tick()
        left, right = (side[i : i + 1] for side, i in zip(sides, at, strict=True))
        column = 0 if not right or (left and left < right) else 1 if not left or right < left else 2
        unpaired = unpaired or column < 2
        if str(column + 1) not in flags:
            p.out(indent[column] + (left if column != 1 else right)[0] + "\n")
        for side in (0, 1) if column == 2 else (column,):
            passed(side)
    return p.fail("input is not in sorted order") if unsorted else 0


def fold(p: Process) -> None:
    chosen, files = getopt(p.argv, "bsw:", {"bytes": "b", "spaces": "s", "width:": "w"})
    width = number(chosen.get("w", "80"), "number of columns")
    if not width:
        raise Fail(f"invalid number of columns: {quote_value(chosen['w'])}")
    for _, data in inputs(p, files):
        p.tick(len(data) >> 4)
        p.out("\n".join(_folded(line, width, "s" in chosen, "b" in chosen) for line in data.split("\n")))


def _folded(line: str, width: int, at_blanks: bool, count_bytes: bool) -> str:
    """Return a line broken to a width, with tabs counted by their width."""
    parts, start, column, blank = [], 0, 0, 0
    at = 0
    while at < len(line):
        wider = column // 8 * 8 + 8 if line[at] == "\t" and not count_bytes else column + 1
        if wider > width and column:
            cut = blank if at_blanks and blank > start else at
            parts.append(line[start:cut])
            start = blank = at = cut
            column = 0
            continue
        column = wider
        at += 1
        if line[at - 1] in " \t":
            blank = at
    return "\n".join([*parts, line[start:]])


COMMANDS = {"cut": cut, "paste": paste, "tr": tr, "uniq": uniq, "comm": comm, "fold": fold}
