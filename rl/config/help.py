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
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from rl.config.refusals import recipe_names


def help_text(
    program: str,
    about: str,
    classes: tuple[type, ...],
    groups: dict[str, type],
    positional: str = "",
    skip: Collection[str] = (),
) -> str:
    """Return usage, the text `about`, and one line for each key that is not in `skip`."""
    command = f"python {program}" if program.endswith(".py") else f"python -m {program}"
    lines = [
        f"usage: {command} {f'[{positional}] ' if positional else ''}[key=value ...]",
        "",
        *about.strip().splitlines(),
    ]
    for group, cls in [("", cls) for cls in classes] + list(groups.items()):
        lines += ["", *key_lines(cls, group, skip)]
    return "\n".join(lines)


def key_lines(cls: type, group: str = "", skip: Collection[str] = ()) -> list[str]:
    """Return a line `  key=default   meaning` for each field that is not in `skip`."""
    prefix, meanings, kinds, lines = f"{group}." if group else "", comments(cls), get_type_hints(cls), []
    for f in fields(cls):
        if prefix + f.name in skip:
            continue
        meaning, choices = meanings.get(f.name, ""), get_args(kinds[f.name])
        if get_origin(kinds[f.name]) is Literal and not all(choice in meaning for choice in choices):
            meaning += f": {' | '.join(choices)}"
        lines.append(f"  {prefix + f.name + '=' + shown_default(f):36s} {meaning}")
    return lines


def shown_default(f: Field) -> str:
    """Return a field's default as it is written on the command line; nothing for a field that must be given."""
    if f.default is MISSING:
        return ""
    return shown(f.default)


def shown(value: Any) -> str:
    """Return a value as it is written on the command line."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def comments(cls: type) -> dict[str, str]:
    """Return the comment behind each field of a dataclass and of the dataclasses it extends, read from their source."""
    found = {}
    for base in reversed(cls.__bases__):
        found |= comments(base) if is_dataclass(base) else {}
    source = inspect.cleandoc("\n" + inspect.getsource(cls))
    by_line = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0].body
    return found | {
        node.target.id: by_line.get(node.end_lineno, "") for node in body if isinstance(node, ast.AnnAssign)
    }


def print_and_exit(text: str) -> NoReturn:
    with quiet_on_closed_pipe():
        print(text)
    raise SystemExit(0)


@contextmanager
def quiet_on_closed_pipe():
    """Around printing: stop without a traceback when the reader has closed the pipe (| head) or the disk is full."""
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


READ_BY_EVAL = {
    "env",
    "system_prompt",
    "order",
    "model",
    "thinking",
    "recipe",
    "temperature",
    "max_new_tokens",
    "max_len",
    "max_turns",
    "sandbox",
}
READ_BY_EVAL |= {"rollout_batch_size", "dtype", "quant", "device", "exact", "threads", "products", "ranks", "shard"}


def settings_text(
    program: str, also: type | None, common: type, groups: dict[str, type], environments: list[str]
) -> str:
    """Return the help of train.py, or of eval.py with the keys that it reads, then the recipes and environments.

    also: the dataclass of keys that only this program has.
    """
    about = (
        "A word on the command line wins over recipe=NAME, a recipe over recipes/embedded.toml (which applies to the\n"
        "embedded model alone), and that over the defaults below. A run writes the result into its config.json."
    )
    skip = set()
    if program == "eval.py":
        about += "\nKeys that only training reads may be given too, as recipes do, and change nothing."
        groups = {name: cls for name, cls in groups.items() if name == "reward" or name in environments}
        skip = {f.name for f in fields(common)} - READ_BY_EVAL
    text = help_text(program, about, (also, common) if also else (common,), groups, skip=skip)
    return f"{text}\n\nrecipes: {', '.join(recipe_names())}; environments: {', '.join(environments)}"
