"""--help: every key of a program's dataclasses with its default and the comment behind it."""

import ast
import errno
import inspect
import io
import os
import sys
import tokenize
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


def key_lines(cls: type, group: str = "", skip: Collection[str] = ()) -> list[str]:
    """Return a line `  key=default   meaning` for each field whose key is not in `skip`."""
    meanings, kinds, lines = comments(cls), get_type_hints(cls), []
    for key, f in zip(keys_of(cls, group), fields(cls), strict=True):
        if key in skip:
            continue
        default = "" if f.default is MISSING else word(f.default)  # without one it must be given
        meaning, choices = meanings.get(f.name, ""), get_args(kinds[f.name])
        if get_origin(kinds[f.name]) is Literal and not all(choice in meaning for choice in choices):
            meaning += f": {' | '.join(choices)}"
        lines.append(f"  {f'{key}={default}':36s} {meaning}")
    return lines


def comments(cls: type) -> dict[str, str]:
    """Return the comment behind each field of a dataclass and of the dataclasses it extends, read from their source."""
    inherited = {}
    for base in reversed(cls.__bases__):
        inherited |= comments(base) if is_dataclass(base) else {}
    source = inspect.cleandoc("\n" + inspect.getsource(cls))
    by_line = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0].body
    return inherited | {
        node.target.id: by_line.get(node.end_lineno, "") for node in body if isinstance(node, ast.AnnAssign)
    }
