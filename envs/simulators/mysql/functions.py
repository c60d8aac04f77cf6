"""MySQL functions that SQLite lacks or defines differently, in pure Python; NULL is None.

SIGNATURES lists the arguments of each function whose result has a fixed type: t text, n number, a any; arguments after
`?` are optional and `*` repeats the last. Functions whose type depends on their arguments are in expressions.py.
"""

import hashlib
import json
import math
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal

from envs.simulators.mysql.dates import DATES, ON_DATES
from envs.simulators.mysql.intervals import ON_INTERVALS
from envs.simulators.mysql.tokens import SPREADS

LONGEST = 1_000  # characters of a text that REPEAT, LPAD and their like may make; beyond, NULL
EXACT = Context(prec=80)

SIGNATURES = {  # name -> what it takes, the type of its result
    "ASCII": ("t", "int"),
    "CHAR_LENGTH": ("t", "int"),
    "CHARACTER_LENGTH": ("t", "int"),
    "CONCAT": ("t*", "text"),
    "CONCAT_WS": ("tt*", "text"),
    "EXP": ("n", "double"),
    "EXTRACT": ("tt", "int"),
    "FIELD": ("tt*", "int"),
    "FIND_IN_SET": ("tt", "int"),
    "FORMAT": ("nn", "text"),
    "INSERT": ("tnnt", "text"),
    "INSTR": ("tt", "int"),
    "ISNULL": ("a", "int"),
    "JSON_CONTAINS": ("tt?t", "int"),
    "JSON_EXTRACT": ("tt*", "json"),
    "JSON_KEYS": ("t?t", "json"),
    "JSON_LENGTH": ("t?t", "int"),
    "JSON_QUOTE": ("t", "text"),
    "JSON_REMOVE": ("tt*", "json"),
    "JSON_UNQUOTE": ("t", "text"),
    "JSON_VALID": ("t", "int"),
    "LCASE": ("t", "text"),
    "LEFT": ("tn", "text"),
    "LENGTH": ("t", "int"),
    "LN": ("n", "double"),
    "LOCATE": ("tt?n", "int"),
    "LOG": ("n?n", "double"),
    "LOG10": ("n", "double"),
    "LOG2": ("n", "double"),
    "LOWER": ("t", "text"),
    "LPAD": ("tnt", "text"),
    "LTRIM": ("t", "text"),
    "MD5": ("t", "text"),
    "MID": ("tn?n", "text"),
    "OCTET_LENGTH": ("t", "int"),
    "PI": ("", "double"),
    "POW": ("nn", "double"),
    "POWER": ("nn", "double"),
    "REPEAT": ("tn", "text"),
    "REPLACE": ("ttt", "text"),
    "REVERSE": ("t", "text"),
    "RIGHT": ("tn", "text"),
    "RPAD": ("tnt", "text"),
    "RTRIM": ("t", "text"),
    "SIGN": ("n", "int"),
    "SPACE": ("n", "text"),
    "SQRT": ("n", "double"),
    "STRCMP": ("tt", "int"),
    "SUBSTR": ("tn?n", "text"),
    "SUBSTRING": ("tn?n", "text"),
    "SUBSTRING_INDEX": ("ttn", "text"),
    "TIMESTAMPDIFF": ("ttt", "int"),
    "TRIM BOTH": ("tt", "text"),
    "TRIM LEADING": ("tt", "text"),
    "TRIM TRAILING": ("tt", "text"),
    "UCASE": ("t", "text"),
    "UPPER": ("t", "text"),
} | DATES


def decimal(value: float, scale: int, rounding: str = ROUND_HALF_UP) -> Decimal:
    """Return a number with so many decimal places; halves round away from zero, as in MySQL's exact arithmetic."""
    found = Decimal(repr(value)).quantize(Decimal(1).scaleb(-scale, EXACT), rounding, EXACT)
    return found or abs(found)  # without a negative 0


def decimal_text(value, scale: int) -> str:
    return f"{decimal(value, scale):f}"


def double_text(value) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def rounded(value, places: int, exact: int):
    """Return ROUND's result; halves of approximate numbers round to even."""
    places = max(-20, min(30, int(places)))
    found = decimal(value, places, ROUND_HALF_UP if exact else ROUND_HALF_EVEN)
    return int(found) if isinstance(value, int) else float(found)


def truncated(value, places: int):
    found = decimal(value, max(-20, min(30, int(places))), ROUND_DOWN)
    return int(found) if isinstance(value, int) else float(found)


def modulo(left, right):
    """Return the remainder, with the sign of the left operand."""
    if not right:
        return None
    rest = abs(left) % abs(right)
    return float(decimal(-rest if left < 0 else rest, 10)) if isinstance(rest, float) else -rest if left < 0 else rest


def int_divide(left, right):
    if not right:
        return None
    whole = int(abs(left) // abs(right))
    return whole if (left < 0) == (right < 0) else -whole


def unsigned(operator: str, one: int, bare: int, other: int = 0, other_bare: int = 0) -> int | None:
    """Return the bits of a result without a sign; an operand that is `bare` of a sign comes as bits too."""
    one, other = one % 2**64 if bare else one, other % 2**64 if other_bare else other
    if operator in ("%", "DIV"):
        found = int_divide(one, other) if operator == "DIV" else modulo(one, other)
    else:
        found = {"+": one + other, "-": one - other, "*": one * other, "negate": -one}[operator]
    if found is None:
        return None
    if not (-(2**63) if operator == "negate" else 0) <= found < 2**64:
        raise ArithmeticError
    return found - 2**64 if found >= 2**63 else found


def unsigned_number(bits: int) -> int | float:
    return bits if bits >= 0 else float(bits + 2**64)


def left(text: str, count) -> str:
    return text[: max(0, round(count))]


def right(text: str, count) -> str:
    return text[-round(count) :] if count >= 0.5 else ""


def substring(text: str, start, count=None) -> str:
    start = round(start)
    start = start - 1 if start > 0 else len(text) + start if start else len(text)
    return "" if start < 0 else text[start : None if count is None else start + max(0, round(count))]


def locate(part: str, text: str, start=1) -> int:
    """Return the position of a substring, from 1; 0 if absent."""
    return text.lower().find(part.lower(), round(start) - 1) + 1 if start >= 1 else 0


def padded(text: str, count, filling: str, before: bool) -> str | None:
    missing = round(count) - len(text)
    if count < 0 or count > LONGEST or (missing > 0 and not filling):
        return None
    if missing <= 0:
        return text[: round(count)]
    more = (filling * (missing // len(filling) + 1))[:missing]
    return more + text if before else text + more


def repeat(text: str, count) -> str | None:
    return text * round(count) if len(text) * max(0, count) <= LONGEST else None


def replace(text: str, old: str, new: str) -> str | None:
    if not old:
        return text
    return text.replace(old, new) if len(text) + text.count(old) * len(new) <= 10 * LONGEST else None


def substring_index(text: str, mark: str, count) -> str:
    parts, count = text.split(mark) if mark else [""], round(count)
    return mark.join(parts[:count] if count > 0 else parts[count:] if count else [])


def trimmed(text: str, what: str) -> str:
    while what and text.startswith(what):
        text = text[len(what) :]
    return text


def trimmed_end(text: str, what: str) -> str:
    while what and text.endswith(what):
        text = text[: -len(what)]
    return text


def inserted(text: str, start, count, new: str) -> str:
    start, count = round(start) - 1, round(count)
    if not 0 <= start < len(text):
        return text
    return text[:start] + new + (text[start + count :] if count >= 0 else "")


def logarithm(number, base=math.e) -> float | None:
    if number <= 0 or base <= 0 or base == 1:
        return None
    return math.log10(number) if base == 10 else math.log2(number) if base == 2 else math.log(number) / math.log(base)


def concat_ws(mark, *texts):
    return None if mark is None else mark.join(text for text in texts if text is not None)


def field(wanted, *texts) -> int:
    """Return the position of a string among others, from 1; 0 if absent."""
    lowered = [None if text is None else text.lower() for text in texts]
    return lowered.index(wanted.lower()) + 1 if wanted is not None and wanted.lower() in lowered else 0


def find_in_set(wanted: str, listed: str) -> int:
    return field(wanted, *listed.split(",")) if listed else 0


def formatted(number, places) -> str:
    """Return a number with commas between its thousands."""
    return f"{decimal(number, max(0, min(30, round(places)))):,f}"


def compared(one: str, other: str) -> int:
    one, other = one.lower(), other.lower()
    return (one > other) - (one < other)


def power(base, exponent) -> float | None:
    try:
        found = float(base) ** exponent
    except (OverflowError, ZeroDivisionError):
        return None
    return found if isinstance(found, float) else None


def if_known(function):
    """Return the function wrapped to give NULL if any argument is NULL."""
    return lambda *values: None if None in values else function(*values)


def md5(text: str) -> str:
    return hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()


def key_of(*values) -> str:
    """Return one string for several values, equal for strings that MySQL compares as equal: COUNT(DISTINCT a, b)."""
    return json.dumps([value.lower() if isinstance(value, str) else value for value in values])


STRICT = (
    {  # NULL for any NULL
        "ASCII": lambda text: text.encode("utf-8", "replace")[0] if text else 0,
        "CHAR_LENGTH": len,
        "CHARACTER_LENGTH": len,
        "CONCAT": lambda *texts: "".join(texts),
        "FIND_IN_SET": find_in_set,
        "FORMAT": formatted,
        "INSTR": lambda text, part: locate(part, text),
        "LEFT": left,
        "LENGTH": lambda text: len(text.encode("utf-8", "replace")),
        "LOCATE": locate,
        "LPAD": lambda text, count, filling: padded(text, count, filling, before=True),
        "LTRIM": lambda text: text.lstrip(" "),
        "MD5": md5,
        "POWER": power,
        "REPEAT": repeat,
        "REPLACE": replace,
        "REVERSE": lambda text: text[::-1],
        "RIGHT": right,
        "RPAD": lambda text, count, filling: padded(text, count, filling, before=False),
        "RTRIM": lambda text: text.rstrip(" "),
        "SIGN": lambda number: (number > 0) - (number < 0),
        "SPACE": lambda count: repeat(" ", count),
        "SQRT": lambda number: number**0.5 if number >= 0 else None,
        "STRCMP": compared,
        "SUBSTRING": substring,
        "SUBSTRING_INDEX": substring_index,
        "TRIM_BOTH": lambda text, what: trimmed_end(trimmed(text, what), what),
        "TRIM_LEADING": trimmed,
        "TRIM_TRAILING": trimmed_end,
        "EXP": lambda number: math.exp(number) if number < 709 else None,
        "INSERT": inserted,
        "LN": logarithm,
        "LOG": lambda base, number=None: logarithm(base) if number is None else logarithm(number, base),
        "LOG10": lambda number: logarithm(number, 10),
        "LOG2": lambda number: logarithm(number, 2),
        "LOWER": str.lower,
        "PI": lambda: math.pi,
        "UPPER": str.upper,
        "decimal_text": decimal_text,
        "double_text": double_text,
        "rounded": rounded,
        "truncated": truncated,
        "modulo": modulo,
        "int_divide": int_divide,
        "ceiling": lambda number: -int(-number // 1),
        "floored": lambda number: int(number // 1),
        "key_of": key_of,
        "time_number": lambda text: int(text.replace(":", "")),
        "unsigned": unsigned,
        "unsigned_number": unsigned_number,
        "unsigned_text": lambda bits: str(bits % 2**64),
    }
    | ON_DATES
    | ON_INTERVALS
)
OTHERS = {"CONCAT_WS": concat_ws, "FIELD": field, "ISNULL": lambda value: int(value is None)}
ALSO = {"TRIM BOTH": "TRIM_BOTH", "TRIM LEADING": "TRIM_LEADING", "TRIM TRAILING": "TRIM_TRAILING"}
ALSO |= {
    "LCASE": "LOWER",
    "UCASE": "UPPER",
    "SUBSTR": "SUBSTRING",
    "MID": "SUBSTRING",
    "OCTET_LENGTH": "LENGTH",
    "POW": "POWER",
}
FUNCTIONS = {name: if_known(function) for name, function in STRICT.items()} | OTHERS


class Spread:
    """An aggregate of the variance, by Welford's method. sample, root: as in SPREADS."""

    sample, root = False, False

    def __init__(self):
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def step(self, value) -> None:
        if value is None:
            return
        self.count += 1
        difference = value - self.mean
        self.mean += difference / self.count
        self.squares += difference * (value - self.mean)

    def finalize(self) -> float | None:
        if self.count <= self.sample:
            return None
        variance = self.squares / (self.count - self.sample)
        return math.sqrt(variance) if self.root else variance


SPREAD = {name: type(name, (Spread,), {"sample": sample, "root": root}) for name, (sample, root) in SPREADS.items()}


class GroupConcat:
    """The aggregate GROUP_CONCAT: called with the separator, whether DISTINCT, the text, and the sort keys,
    each followed by whether it descends."""

    LONGEST = 1024  # MySQL's group_concat_max_len

    def __init__(self):
        self.rows, self.seen, self.mark = [], None, ","

    def step(self, mark: str, distinct: int, text: str | None, *order) -> None:
        self.mark = mark
        if distinct and self.seen is None:
            self.seen = set()
        if text is None or (distinct and text.lower() in self.seen):
            return
        if distinct:
            self.seen.add(text.lower())
        self.rows.append((text, order))

    def finalize(self) -> str | None:
        if self.seen is not None:
            self.rows.sort(key=lambda row: row[0].lower())
        for i in reversed(range(0, len(self.rows[0][1]) if self.rows else 0, 2)):
            self.rows.sort(key=lambda row: sort_key(row[1][i]), reverse=bool(self.rows[0][1][i + 1]))
        return self.mark.join(text for text, _ in self.rows)[: self.LONGEST] if self.rows else None


def sort_key(value) -> tuple:
    """Return a sort key: NULL first, numbers by size, strings without case."""
    return (0, 0) if value is None else (1, value.lower()) if isinstance(value, str) else (1, value)
