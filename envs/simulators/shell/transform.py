"""The operators of ${name#pattern}, ${name%pattern}, ${name/pattern/new} and ${name^}."""

from collections.abc import Callable

from envs.simulators.shell import patterns

LOWER = {ord(a): a.lower() for a in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
UPPER = {ord(a): a.upper() for a in "abcdefghijklmnopqrstuvwxyz"}


def transform(op: str, values: list[str], glob: str, new: str, tick: Callable[[int], None]) -> list[str]:
    """Apply the operator of ${name op glob} to each value; NUL in `new`, the replacement of /, marks the match."""
    if op[0] == "#":
        ends = [patterns.prefix(glob, value, op == "##") for value in values]
        return [value[end or 0 :] for value, end in zip(values, ends, strict=True)]
    if op[0] == "%":
        starts = [patterns.suffix(glob, value, op == "%%") for value in values]
        return [value if start is None else value[:start] for value, start in zip(values, starts, strict=True)]
    if op[0] == "/":
        return [_replace(op, glob, value, new, tick) for value in values]
    table = UPPER if op[0] == "^" else LOWER
    return [_change_case(table, op, glob or "?", value) for value in values]


def _replace(op: str, glob: str, value: str, new: str, tick: Callable[[int], None]) -> str:
    if op == "/" and glob[:1] == "#":
        end = patterns.prefix(glob[1:], value, longest=True)
        return value if end is None else new.replace("\0", value[:end]) + value[end:]
    if op == "/" and glob[:1] == "%":
        start = patterns.suffix(glob[1:], value, longest=True)
        return value if start is None else value[:start] + new.replace("\0", value[start:])
    return patterns.substitute(glob, value, new, op == "//", tick) if glob else value


def _change_case(table: dict, op: str, glob: str, value: str) -> str:
    if glob != "?":
        table = {code: other for code, other in table.items() if patterns.matches(glob, chr(code))}
    return value.translate(table) if len(op) == 2 else value[:1].translate(table) + value[1:]


def quote(value: str) -> str:
    """Return a text between single quotes."""
    return "'" + value.replace("'", "'\\''") + "'"
