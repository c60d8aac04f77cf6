"""Text environments behind one small interface.

    env = envs.make("textcraft", difficulty="1,2")
    messages = env.reset(seed=0, split="train")
    step = env.step(env.oracle())

To add an environment, write a module with `Config`, a dataclass, and `Env`, an Environment, and add it to NAMES.
"""

import ast
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from envs.base import Environment, EnvironmentFailed, Step
from envs.checked import checked, exit_refused, mistake_in
from envs.common import nearest
from envs.refusal import Refusal
from envs.scorer import described

__all__ = ["GROUPS", "NAMES", "Environment", "EnvironmentFailed", "Step"]
__all__ += ["config_class", "has_expert", "make", "pays_below_0"]

NAMES = {
    "textcraft": "envs.textcraft",
    "alfworld": "envs.alfworld",
    "babyai": "envs.babyai",
    "webshop": "envs.webshop",
    "sciworld": "envs.sciworld",
    "sat": "envs.affine.sat",
    "abd": "envs.affine.abd",
    "ded": "envs.affine.ded",
    "os_interaction": "envs.os_interaction",
    "db_bench": "envs.db_bench",
    "tau_retail": "envs.tau_retail",
    "planner": "envs.planner",
    "sums": "envs.sums",
    "qa": "envs.qa",
    "http": "envs.http",
}
GROUPS = {  # the names of groups of environments in env=
    "affine": ["sat", "abd", "ded"],
    "agentgym": ["webshop", "alfworld", "babyai", "sciworld", "textcraft"],
}
WITHOUT_TASKS = ("qa", "http")  # environments whose tasks a file or a server has
WITHOUT_MODEL = {"planner": {"worker": "rules"}}  # environment -> options for play where no model answers requests


def config_class(name: str) -> type:
    """Return the Config dataclass of an environment. Raise ValueError for an unknown name."""
    return _module(name).Config


def pays_below_0(name: str) -> bool:
    """Return whether an environment's own rewards may be negative. Raise ValueError for an unknown name."""
    return _module(name).Env.pays_below_0


def has_expert(name: str) -> bool:
    """Return whether an environment has a method `oracle`. Raise ValueError for an unknown name."""
    return _module(name).Env.oracle is not Environment.oracle


def make(name: str, **options) -> Environment:
    """Return an environment with these options, fields of its Config. Unless one says otherwise, none of them asks a
    model: the planner's worker then follows rules. Raise ValueError for an unknown name or option.

    Its methods raise EnvironmentFailed for a result that is not as envs/base.py says.
    """
    module = _module(name)
    options = WITHOUT_MODEL.get(name, {}) | options
    known = [field.name for field in fields(module.Config)]
    for key in options:
        if key not in known:
            raise Refusal(f"unknown option {key!r} of environment {name}; {nearest(key, known)}")
    with exit_refused(f"{name}.Env()"):
        return checked(module.Env, name)(module.Config(**options))


def _module(name: str) -> ModuleType:
    """Return an environment's module. Raise ValueError for an unknown name, and for a module that cannot be used."""
    if name in GROUPS:
        raise Refusal(f"{name!r} is a group of environments; choose one of: {', '.join(GROUPS[name])}")
    if name not in NAMES:
        raise Refusal(f"unknown environment {name!r}; {_forgotten(name) or nearest(name, [*NAMES, *GROUPS])}")
    try:
        module = import_module(NAMES[name])
    except (Exception, SystemExit) as error:
        if isinstance(error, ImportError) and error.name is None:
            raise  # worded for people, as that of envs/linux.py
        if isinstance(error, ModuleNotFoundError) and f"{NAMES[name]}.".startswith(f"{error.name}."):
            raise Refusal(f"environment {name!r}: NAMES names {NAMES[name]}, and there is no such file") from None
        path = getattr(find_spec(NAMES[name]), "origin", NAMES[name])
        raise Refusal(f"environment {name!r}: {described(error, path)}") from None
    if mistake := mistake_in(module):
        raise Refusal(f"environment {name!r}: {NAMES[name]} {mistake}")
    return module


def _forgotten(name: str) -> str:
    """Return the line to add to NAMES if envs/ has a module of this name with a class Env, else ""."""
    if not str(name).isidentifier():
        return ""
    for path in (place / file for place in map(Path, __path__) for file in (f"{name}.py", f"{name}/__init__.py")):
        try:
            defined = ast.parse(path.read_bytes()).body  # nothing of it runs
        except (OSError, SyntaxError, ValueError):
            continue
        if any(isinstance(part, ast.ClassDef) and part.name == "Env" for part in defined):
            return f'{path} has a class Env: add "{name}": "envs.{name}", to NAMES in {__file__}'
    return ""
