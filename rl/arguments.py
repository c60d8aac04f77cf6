"""The one parser of `key=value` for every program: dataclasses in, instances out.

Imports the standard library alone, and rl.help for --help.

    [keys] = arguments.parse(sys.argv[1:], "merge.py", Keys, about=__doc__)
    keys, options = arguments.parse(words, "envs.serve", Keys, textcraft=Config)      # Config's keys are textcraft.NAME

A field's type says what it takes: bool, int, float, str, Literal["a", "b"], Positive[int], NotNegative[float], and any
of them `| None`. A field without a default must be given. The comment behind a field is its help text. A __post_init__
may raise ValueError for values that do not go together. A wrong word ends the program with one line and status 2.
"""

import difflib
import math
import re
import sys
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
Positive = Annotated[T, "positive"]
NotNegative = Annotated[T, "not negative"]


class ArgumentError(ValueError):
    """A wrong word; the message is one line that says what to write."""


def parse(
    words: list[str], program: str, *classes: type, about: str = "", positional: str = "", **groups: type
) -> list:
    """Return an instance of each dataclass, those of `groups` last. Print the help and exit with 0 on --help; print one
    line and exit with 2 on a wrong word.

    positional: the key that a first word without "=" sets.
    about: text above the keys in the help.
    """
    if wants_help(words):
        from rl import help

        help.print_and_exit(help.help_text(program, about, classes, groups, positional))
    try:
        given, owners = split(words, positional), [("", cls) for cls in classes] + list(groups.items())
        known = [key for group, cls in owners for key in keys_of(cls, group)]
        for key in given:
            if key not in known:
                raise unknown_key(key, known)
        return [build(cls, given, group) for group, cls in owners]
    except ArgumentError as error:
        fail(program, error)


def wants_help(words: list[str]) -> bool:
    return any(word in ("-h", "--help", "help") for word in words)


def split(words: list[str], positional: str = "") -> dict[str, str]:
    """Return the value of each key. A later word wins over an earlier one; dashes before a key are dropped."""
    given = {}
    for n, word in enumerate(words):
        key, equals, value = word.partition("=")
        if not equals and positional and n == 0:
            key, value = positional, word
        elif not equals:
            raise ArgumentError(f"{word!r} is not key=value; --help lists the keys")
        given[key.lstrip("-")] = value
    return given


def keys_of(cls: type, group: str = "") -> list[str]:
    """Return a dataclass's keys as they are written on the command line."""
    return [f"{group}.{f.name}" if group else f.name for f in fields(cls)]


def build(cls: type, given: dict[str, Any], group: str = "") -> Any:
    """Return an instance with the values in `given`, words or TOML values, that belong to this dataclass."""
    kinds, values = get_type_hints(cls, include_extras=True), {}
    for key, f in zip(keys_of(cls, group), fields(cls), strict=True):
        if key in given:
            values[f.name] = convert(key, given[key], kinds[f.name])
        elif f.default is MISSING and f.default_factory is MISSING:
            raise ArgumentError(f"{key}= is missing; --help lists the keys")
    try:
        return cls(**values)
    except ValueError as error:
        raise ArgumentError(f"{group}.{str(error).removeprefix(group + '.')}" if group else str(error)) from None


def convert(key: str, value: Any, kind: Any) -> Any:
    """Return a word or a TOML value as a value of the field's type."""
    options = [option for option in get_args(kind) if option is not type(None)]
    none = len(options) < len(get_args(kind))  # X | None
    if none and (value is None or str(value).lower() == "none"):
        return None
    kind = options[0] if none else kind
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ArgumentError(f"{key}={value} is not one of {', '.join(get_args(kind))}{hint(value, get_args(kind))}")
        return value
    kind, bound = get_args(kind) if get_origin(kind) is Annotated else (kind, "")
    try:
        converted = _as_type(value, kind)
    except (ValueError, KeyError):
        wanted = {bool: "true or false", int: "a whole number", float: "a finite number"}[kind]
        raise ArgumentError(f"{key}={str(value).strip()} must be {wanted}") from None
    if (bound == "positive" and not converted > 0) or (bound == "not negative" and converted < 0):
        rule = "be positive" if bound == "positive" else "not be negative"
        raise ArgumentError(f"{key}={converted} must {rule}{', or none' if none else ''}")
    return converted


def _as_type(value: Any, kind: type) -> Any:
    text = str(value).strip()
    if kind is str:
        return ",".join(map(str, value)) if isinstance(value, list) else text
    if kind is bool:
        return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
    if kind is int and re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    number = float(text)
    if not math.isfinite(number) or (kind is int and not number.is_integer()):
        raise ValueError
    return kind(number)  # 1e6 is a whole number


def unknown_key(key: str, known: list[str]) -> ArgumentError:
    in_groups = [other for other in known if other.endswith(f".{key}")]
    near = hint(key, in_groups, 0) or hint(key, known, 0.5)
    return ArgumentError(f"unknown key {key!r}{near or '; --help lists the keys'}")


def hint(word: Any, known, cutoff: float = 0.6) -> str:
    """Return "; did you mean X?" for the nearest known word, or nothing if none is near."""
    near = difflib.get_close_matches(str(word), known, 1, cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def fail(program: str, error: object) -> NoReturn:
    """Print one line and exit with 2."""
    print(f"{program}: {error}", file=sys.stderr)
    raise SystemExit(2) from None
