"""--help: every key of a program's dataclasses with its value and the comment behind it."""

import errno
import inspect
import os
import re
import sys
from collections.abc import Collection
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from typing import Literal, NoReturn, get_args, get_origin, get_type_hints

from rl.config.arguments import keys_of, word


def print_and_exit(text: str) -> NoReturn:
    with quiet_on_closed_pipe():
        print(text)
    raise SystemExit(0)


@contextmanager
def quiet_on_closed_pipe():
    """Context for printing that ends without a traceback if the reader closed the pipe (| head) or the disk is full."""
    try:
        yield
        if sys.stdout:  # None: the program was started without
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit would fail again
        if error.errno == errno.ENOSPC:
            sys.exit(f"cannot print: {error.strerror}")


def page(program: str, about: str, blocks: list[list[str]], positional: str = "") -> str:
    """Return usage, the text `about`, and blocks of lines with an empty line before each."""
    command = f"python {program}" if program.endswith(".py") else f"python -m {program}"
    usage = f"usage: {command} {f'[{positional}] ' if positional else ''}[key=value ...]"
    lines = [usage, "", *about.strip().splitlines()]
    for block in blocks:
        lines += ["", *block]
    return "\n".join(lines)


def key_lines(
    cls: type, group: str = "", wanted: Collection[str] | None = None, values: object | None = None, width: int = 36
) -> list[str]:
    """Return a line `  key=value   meaning` for each field, or for those with a key in `wanted`.

    values: an instance of cls; None: the defaults. width: columns of key=value, which a longer one exceeds.
    """
    meanings, kinds, lines = comments(cls), get_type_hints(cls), []
    for key, f in zip(keys_of(cls, group), fields(cls), strict=True):
        if wanted is not None and key not in wanted:
            continue
        value = getattr(values, f.name, f.default)
        shown = "" if value is MISSING else word(value)  # without one it must be given
        meaning, choices = meanings.get(f.name, ""), get_args(kinds[f.name])
        if get_origin(kinds[f.name]) is Literal and not all(choice in meaning for choice in choices):
            meaning += f": {' | '.join(choices)}"
        lines.append(f"  {f'{key}={shown}':{width}s} {meaning}")
    return lines


def comments(cls: type) -> dict[str, str]:
    """Return the comment behind each field of a dataclass and of the dataclasses it extends, read from their source."""
    behind = {}
    for base in filter(is_dataclass, reversed(cls.__mro__)):
        behind |= dict(re.findall(r"^ +(\w+): .*?  # (.*)", inspect.getsource(base), re.MULTILINE))
    return behind
