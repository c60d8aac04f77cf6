"""From words `key=value` to dataclasses: for train.py and eval.py (words.py) and for the other programs (program.py).

A field's type says what it takes: bool, int, float, str, Literal["a", "b"], Positive[int], NotNegative[float], and any
of them `| None`. The comment behind a field is its help text. A __post_init__ may raise ValueError for values that do
not go together. Imports nothing but the standard library and rl/config/refusals.py, which does the same.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from rl.config.refusals import RECIPES, Refusal, hint, not_key_value, one_line

T = TypeVar("T")
Positive = Annotated[T, "be positive"]
NotNegative = Annotated[T, "not be negative"]
LARGEST = {int: sys.float_info.max, float: 1e15}  # sums and squares of such floats are finite in float32
MOST_CHARACTERS = 4096  # of a text
ALIASES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "half": "float16", "4bit": "nf4", "8bit": "int8"}


class ArgumentError(Refusal):
    """A wrong word; the message is one line that says what to write."""


def folders_and_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (words that name no key, the others). A folder may have = in its name."""
    named = [word for word in words if wants_help([word]) or ("=" in word and not Path(word).is_dir())]
    return [word for word in words if word not in named], named


def wants_help(words: list[str]) -> bool:
    return not {"-h", "--help", "help"}.isdisjoint(words)


def split(words: list[str]) -> dict[str, str]:
    """Return the value of each key. A later word wins over an earlier one; dashes before a key are dropped."""
    given = {}
    for argument in words:
        _, equals, value = argument.partition("=")
        if not equals:
            raise ArgumentError(not_key_value(argument))
        given[key_of(argument)] = value
    return given


def key_of(word: str) -> str:
    """Return the key of a word key=value, without the dashes that guides write before it."""
    return word.partition("=")[0].lstrip("-")


def keys_of(cls: type, group: str = "") -> list[str]:
    """Return a dataclass's keys as they are written on the command line."""
    return [f"{group}.{f.name}" if group else f.name for f in fields(cls)]


def build(cls: type[T], given: dict[str, Any], group: str = "") -> T:
    """Return an instance with the values in `given`, words or TOML values, that belong to this dataclass."""
    kinds, named = get_type_hints(cls, include_extras=True), zip(keys_of(cls, group), fields(cls), strict=True)
    values = {f.name: convert(key, given[key], kinds[f.name]) for key, f in named if key in given}
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
    kind, bound = get_args(kind) if get_origin(kind) is Annotated else (kind, "")
    converted = _choice(key, value, get_args(kind)) if get_origin(kind) is Literal else _as_type(key, value, kind)
    if bound and (converted < 0 or (bound == "be positive" and converted == 0)):
        raise ArgumentError(f"{key}={converted} must {bound}{', or none' if none else ''}")
    return converted


def _choice(key: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        near = hint(str(value).lower(), choices)  # the db_bench guide writes AdamW
        if key == "algo" and (RECIPES / f"{value}.toml").is_file():
            near = f"; did you mean recipe={value}?"
        near = f"; did you mean {ALIASES[value]}?" if ALIASES.get(str(value)) in choices else near
        raise ArgumentError(f"{key}={value} is not one of {', '.join(choices)}{near}")
    return value


def _as_type(key: str, value: Any, kind: type) -> Any:
    text = str(value).strip()
    if kind is str:
        text = ",".join(map(str, value)) if isinstance(value, list) else text
        if len(text) > MOST_CHARACTERS or not text.isprintable():
            raise ArgumentError(f"{key}={text} must be at most {MOST_CHARACTERS:,} printable characters")
        return text
    if kind is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ArgumentError(f"{key}={text} must be true or false")
        return text.lower() in ("true", "1")
    try:
        if kind is int and re.fullmatch(r"[+-]?\d+", text):
            return int(text)  # exactly, where a float would round
        number = float(text)
        if not abs(number) <= LARGEST[kind] or (kind is int and not number.is_integer()):
            raise Refusal
    except ValueError:
        wanted = "a whole number" if kind is int else "a number from -1e15 to 1e15"
        raise ArgumentError(f"{key}={text} must be {wanted}") from None
    return kind(number)  # 1e6 is a whole number


def word(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one table with dotted keys."""
    flat = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def fail(program: str, error: object, status: int = 2) -> NoReturn:
    """Print one line, the error and its notes, and exit. Of several ranks the first says what was wrong with words."""
    if status != 2 or os.environ.get("RANK", "0") == "0":
        print(one_line("; ".join([f"{program}: {error}", *getattr(error, "__notes__", [])])), file=sys.stderr)
    raise SystemExit(status) from None
