"""A scorer of the user's, named as FILE.py:FUNCTION: `def score(reply: str, row: dict) -> float`, from 0 to 1."""

import sys
import traceback
from collections.abc import Callable
from copy import deepcopy
from importlib.util import module_from_spec, spec_from_file_location
from numbers import Real
from pathlib import Path

from envs.base import EnvironmentFailed
from envs.common import check_file, nearest
from envs.read_once import read_once
from envs.refusal import Refusal

DIGITS = 6  # of a score: 0.7 + 0.2 + 0.1 is 1


def file_of(scorer: str) -> str:
    """Return the file of FILE.py:FUNCTION, "" for any other text."""
    path, _, name = scorer.rpartition(":")
    return path if path.endswith(".py") and name else ""


@read_once
def load(scorer: str) -> Callable[[str, dict], float]:
    """Return the function. Raise ValueError if its file is missing, fails, or has no such function."""
    path, name = file_of(scorer), scorer.rpartition(":")[2]
    check_file("FILE.py:FUNCTION", path, "match")
    spec = spec_from_file_location(f"scorer {path}", Path(path).resolve())
    module = sys.modules[spec.name] = module_from_spec(spec)  # registered, because dataclasses in it look there
    try:
        # Not from Python's cache, which takes a file for unchanged that was written twice in a second.
        exec(compile(spec.loader.get_source(spec.name), spec.origin, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise Refusal(f"match: {described(error, path)}") from None
    if not callable(function := getattr(module, name, None)):
        known = [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]
        raise Refusal(f"match={scorer}: no function {name!r} in the file; {nearest(name, known)}")
    return function


def score(scorer: str, reply: str, row: dict) -> float:
    """Return the score of a reply. Raise EnvironmentFailed if the function fails or returns no number from 0 to 1."""
    try:
        found = load(scorer)(reply, deepcopy(row))
        rounded = round(float(found), DIGITS) if isinstance(found, Real) else None
    except (Exception, SystemExit) as error:
        raise EnvironmentFailed(described(error, file_of(scorer))) from error
    if rounded is None or not 0 <= rounded <= 1:
        raise EnvironmentFailed(f"{scorer} returned {repr(found)[:80]}; it must return a number from 0 to 1")
    return rounded


def described(error: BaseException, path: str) -> str:
    """Return an error as one line, with its place in the file."""
    file = str(Path(path).resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = lines[-1] if lines else getattr(error, "lineno", None)  # of a SyntaxError
    return f"{path}{f', line {line}' * bool(line)}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
