"""A scorer of the user's, named as FILE.py:FUNCTION: `def score(reply: str, row: dict) -> float`, from 0 to 1."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """Return the function. Raise ValueError if its file is missing, fails, or has no such function.

    While the file runs, it can import the modules beside it.
    """
    path, name = file_of(scorer), scorer.rpartition(":")[2]
    check_file("FILE.py:FUNCTION", path, "match")
    spec = spec_from_file_location(f"scorer {path}", Path(path).resolve())
    module = sys.modules[spec.name] = module_from_spec(spec)  # registered, because dataclasses in it look there
    try:
        # Not from Python's cache, which takes a file for unchanged that was written twice in a second.
        with torch_restored(), importable(str(Path(path).resolve().parent)):
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
        with torch_restored():
            found = load(scorer)(reply, deepcopy(row))
        rounded = round(float(found), DIGITS) if isinstance(found, Real) else None
    except (Exception, SystemExit) as error:
        raise EnvironmentFailed(described(error, file_of(scorer))) from error
    if rounded is None or not 0 <= rounded <= 1:
        raise EnvironmentFailed(f"{scorer} returned {repr(found)[:80]}; it must return a number from 0 to 1")
    return rounded


@contextmanager
def importable(folder: str) -> Iterator[None]:
    """Context in which a folder's modules can be imported. Their names are free again at its end, because another
    scorer may have other modules of these names beside it."""
    if folder in sys.path:
        yield
        return
    before = set(sys.modules)
    sys.path.append(folder)  # last, so that no file in it hides a module of Python or of this project
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in sys.modules.keys() - before:
            place = f"{folder}{os.sep}{name.partition('.')[0]}"
            if (getattr(sys.modules[name], "__file__", None) or "").startswith((f"{place}.py", f"{place}{os.sep}")):
                del sys.modules[name]


@contextmanager
def torch_restored() -> Iterator[None]:
    """Context of a scorer's code: torch's global settings, which a file of a notebook may change, are as before it."""
    if (torch := sys.modules.get("torch")) is None:  # not imported here: it costs a second
        yield
        return
    grad, dtype, device = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:  # a default that is set, even the CPU, slows every call of torch
            torch.set_default_device(None if device.type == "cpu" else device)


def described(error: BaseException, path: str) -> str:
    """Return an error as one line, with its place in the file."""
    file = str(Path(path).resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = lines[-1] if lines else getattr(error, "lineno", None)  # of a SyntaxError
    return f"{path}{f', line {line}' * bool(line)}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
