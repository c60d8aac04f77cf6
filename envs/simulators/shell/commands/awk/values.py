"""awk's values: floats, strings, input strings that may compare as numbers, and the unset value."""

import re

from envs.simulators.regex.match import Regex, compile_regex
from envs.simulators.regex.syntax import RegexError
from envs.simulators.shell.commands.options import Fail
from envs.simulators.shell.files import MAX_TEXT, Timeout
from envs.simulators.shell.printing import conversion

LOOKS = re.compile(r"\s*[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|0[xX][0-9a-fA-F]+)\s*", re.ASCII)
PREFIX = re.compile(r"\s*([-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))", re.ASCII)
FORMAT = re.compile(r"%([-+ #0]*)(\*|\d*)(?:\.(\*|\d*))?[hlLqjzt]*([a-zA-Z%])", re.ASCII)
MAX_INT = 2147483647
MAX_FIELDS = 1 << 17  # of a record: more than the steps of a script allow


class Field(str):
    """A string from input: it compares as a number if it looks like one."""

    __slots__ = ()


class Nothing:
    """The value of an unset variable: both "" and 0."""

    __slots__ = ()


UNSET = Nothing()


def number(value) -> float:
    """Return a value as a number: the number it begins with, else 0."""
    if isinstance(value, float):
        return value
    if isinstance(value, Nothing):
        return 0.0
    found = PREFIX.match(value)
    if not found:
        return 0.0
    word = found[1]
    if "x" in word or "X" in word:
        return float(int(word[:200], 16))
    return float(word)


def whole(value) -> int:
    """Return a value as a 64-bit integer."""
    found = number(value)
    return int(max(-(2.0**63), min(2.0**63, found))) if found == found else 0


def text_of(value, form: str) -> str:
    """Return a value as a string; fractions in the format CONVFMT or OFMT."""
    if isinstance(value, str):
        return value
    if isinstance(value, Nothing):
        return ""
    if value == value and abs(value) <= MAX_INT and value == int(value):
        return str(int(value))
    return sprintf(str(form), [value])


def truth(value) -> bool:
    if isinstance(value, float):
        return value != 0
    if isinstance(value, Nothing):
        return False
    if isinstance(value, Field) and LOOKS.fullmatch(value):
        return number(value) != 0
    return value != ""


def numeric(value) -> bool:
    """Return whether a value compares as a number."""
    return isinstance(value, (float, Nothing)) or (isinstance(value, Field) and bool(LOOKS.fullmatch(value)))


def compare(a, b, form: str) -> int:
    """Return -1, 0 or 1: compared as numbers if both are numeric, else as strings."""
    if numeric(a) and numeric(b):
        left, right = number(a), number(b)
    else:
        left, right = text_of(a, form), text_of(b, form)
    return (left > right) - (left < right)


def key_order(keys) -> list[str]:
    """Return an array's keys in the order of mawk's hash table."""
    size = 64
    while len(keys) > 12 * size:
        size *= 2
    buckets: dict[int, list[str]] = {}
    for key in keys:
        code = 2166136261
        for char in key:
            code = (code ^ ord(char)) * 16777619 & 0xFFFFFFFF
        buckets.setdefault(code & (size - 1), []).append(key)
    return [key for bucket in sorted(buckets) for key in reversed(buckets[bucket])]


def compiled(pattern: str) -> Regex:
    """Return a compiled expression; Fail as mawk does for an invalid one."""
    try:
        return compile_regex(pattern, "awk")
    except RegexError as error:
        known = ("missing operand", "syntax error ^* or ^+")
        reason = str(error) if str(error) in known else "bad class -- [], [^] or ["
        raise Fail(f"line 1: regular expression compile failed ({reason})\n{pattern}", 2) from None


def split_fields(awk, subject: str, separator: str) -> list:
    """Return the fields of a string: split at blanks for " ", else at a character or an expression."""
    parts = _pieces(awk, subject, separator)
    awk.p.tick(len(parts))
    if len(parts) > MAX_FIELDS:
        raise Timeout
    return [Field(part) for part in parts]


def _pieces(awk, subject: str, separator: str) -> list[str]:
    """Return the pieces of a string between separators; the last of more than MAX_FIELDS pieces is the rest."""
    if separator == " ":
        return subject.split(None, MAX_FIELDS)
    if separator == "" or not subject:
        return list(subject)
    if len(separator) == 1 and separator not in "\\^$.[()*+?":
        return subject.split(separator, MAX_FIELDS)
    regex = compiled(separator if len(separator) > 1 else "\\" + separator)
    found, at, start = [], 0, 0
    while at <= len(subject):
        hit = regex.search(subject, at, awk.p.tick)
        if not hit:
            break
        if hit[1] == hit[0]:
            at = hit[1] + 1
            continue
        found.append(subject[start : hit[0]])
        start = at = hit[1]
    return [*found, subject[start:]]


def sprintf(form: str, arguments: list, missing=None) -> str:
    """Return a format filled in. `missing` is called, with the text so far, where an argument is missing."""
    shown: list[str] = []
    at, rest, size = 0, iter(arguments), 0

    def take():
        value = next(rest, None)
        if value is None:
            if missing is not None:
                missing("".join(shown))
            return UNSET
        return value

    for found in FORMAT.finditer(form):
        shown.append(form[at : found.start()])
        at = found.end()
        flags, width, precision, letter = found.groups()
        if letter == "%":
            shown.append("%")
            continue
        if letter not in "diouxXcseEfFgG":
            shown.append(found[0])
            continue
        width = whole(take()) if width == "*" else int((width or "0")[:9])
        if precision is not None:
            precision = whole(take()) if precision == "*" else int((precision or "0")[:9])
        if width < 0:
            flags, width = flags + "-", -width
        shown.append(_one(flags, min(width, 65536), precision, letter, take()))
        size += len(shown[-1])
        if size > MAX_TEXT:
            raise Timeout
    return "".join(shown) + form[at:]


def _one(flags: str, width: int, precision: int | None, letter: str, value) -> str:
    precision = None if precision is None or precision < 0 else min(precision, 1000)
    side = "-" if "-" in flags else ""
    if letter == "c":
        char = chr(whole(value) & 255) if isinstance(value, float) and value == value else text_of(value, "%.6g")[:1]
        return f"%{side}{width}s" % (char or "\0" * (not isinstance(value, float)))
    if letter == "s":
        word = text_of(value, "%.6g")
        return f"%{side}{width}s" % (word if precision is None else word[:precision])
    value = number(value)
    if value != value or value in (float("inf"), float("-inf")):
        word = "-nan" if value != value else "inf" if value > 0 else "-inf"
        return f"%{side}{width}s" % word
    value = max(-(2**63), min(2**63 - 1, int(value))) if letter in "di" else value
    return conversion(flags, width, precision, letter, value)
