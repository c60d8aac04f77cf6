"""expr: arithmetic, comparisons and matches on its arguments."""

import re

from envs.simulators.regex.match import compile_regex
from envs.simulators.regex.syntax import RegexError
from envs.simulators.shell.commands.options import Fail, quote_value
from envs.simulators.shell.process import Process


def expr(p: Process) -> int:
    words = p.argv[2:] if p.argv[1:2] == ["--"] else p.argv[1:]
    if not words:
        raise Fail("missing operand", 2, try_help=True)
    value, rest = _expr(p, words, 0, 0)
    if rest < len(words):
        raise Fail(f"syntax error: unexpected argument {quote_value(words[rest])}", 2)
    p.out(f"{value}\n")
    return int(_null(value))


def _null(value: str) -> bool:
    return re.fullmatch("-?0+|", value) is not None


LEVELS = [("|",), ("&",), ("<", "<=", "=", "==", "!=", ">=", ">"), ("+", "-"), ("*", "/", "%"), (":",)]


def _expr(p: Process, words: list[str], at: int, level: int) -> tuple[str, int]:
    """Return the value of the words from an index on, and the index of the rest."""
    if level == len(LEVELS):
        return _operand(p, words, at)
    left, at = _expr(p, words, at, level + 1)
    while at < len(words) and words[at] in LEVELS[level]:
        p.tick()
        op = words[at]
        right, at = _expr(p, words, at + 1, level + 1)
        left = _applied(p, op, left, right)
    return left, at


def _operand(p: Process, words: list[str], at: int, depth: int = 0) -> tuple[str, int]:
    if at >= len(words):
        raise Fail(f"syntax error: missing argument after {quote_value(words[-1])}", 2)
    word = words[at]
    if word == "(":
        if words.count("(") > 60:
            raise Fail("syntax error: too deeply nested", 2)
        value, at = _expr(p, words, at + 1, 0)
        if at >= len(words):
            raise Fail(f"syntax error: expecting ')' after {quote_value(words[-1])}", 2)
        if words[at] != ")":
            raise Fail(f"syntax error: expecting ')' instead of {quote_value(words[at])}", 2)
        return value, at + 1
    if word == ")":
        raise Fail("syntax error: unexpected ')'", 2)
    if word == "length" and at + 1 < len(words):
        value, at = _operand(p, words, at + 1)
        return str(len(value)), at
    if word == "substr" and at + 3 < len(words):
        value, at = _operand(p, words, at + 1)
        start, at = _operand(p, words, at)
        size, at = _operand(p, words, at)
        if not (start.isdecimal() and size.isdecimal() and int(start[:9])):
            return "", at
        return value[int(start[:9]) - 1 :][: int(size[:9])], at
    return word, at + 1


def _applied(p: Process, op: str, left: str, right: str) -> str:
    numbers = [int(side) if re.fullmatch(r"-?\d{1,400}", side) else None for side in (left, right)]
    if op == "|":
        return right or "0" if _null(left) else left
    if op == "&":
        return "0" if _null(left) or _null(right) else left
    if op == ":":
        try:
            regex = compile_regex(right, "basic")
        except RegexError as error:
            raise Fail(str(error), 2) from None
        found = regex.search(left, 0, p.tick)
        found = found if found and found[0] == 0 else None
        if regex.groups:
            return left[found[2] : found[3]] if found and found[2] >= 0 else ""
        return str(found[1] if found else 0)
    if op in LEVELS[2]:
        a, b = (left, right) if None in numbers else numbers
        holds = {"<": a < b, "<=": a <= b, "=": a == b, "==": a == b, "!=": a != b, ">=": a >= b, ">": a > b}
        return str(int(holds[op]))
    if None in numbers:
        raise Fail("non-integer argument", 2)
    a, b = numbers
    if op in "/%" and b == 0:
        raise Fail("division by zero", 2)
    if op in "/%":
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return str(quotient if op == "/" else a - b * quotient)
    return str(a + b if op == "+" else a - b if op == "-" else a * b)


COMMANDS = {"expr": expr}
