"""Text environments behind one small interface.

    env = envs.make("textcraft", difficulty="1,2")
    messages = env.reset(seed=0, split="train")
    step = env.step(env.oracle())

To add an environment, write a module with `Config`, a dataclass, and `Env`, an Environment, and add it to NAMES.
"""

from dataclasses import fields
from importlib import import_module

from envs.base import Environment, EnvironmentFailed, Step
from envs.common import nearest
from envs.refusal import Refusal

__all__ = ["GROUPS", "NAMES", "Environment", "EnvironmentFailed", "Step", "config_class", "make", "pays_below_0"]

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


def make(name: str, **options) -> Environment:
    """Return an environment with these options, fields of its Config. Unless one says otherwise, none of them asks a
    model: the planner's worker then follows rules. Raise ValueError for an unknown name or option."""
    module = _module(name)
    options = WITHOUT_MODEL.get(name, {}) | options
    known = [field.name for field in fields(module.Config)]
    for key in options:
        if key not in known:
            raise Refusal(f"unknown option {key!r} of environment {name}; {nearest(key, known)}")
    return module.Env(module.Config(**options))


def _module(name: str):
    if name in GROUPS:
        raise Refusal(f"{name!r} is a group of environments; choose one of: {', '.join(GROUPS[name])}")
    if name not in NAMES:
        raise Refusal(f"unknown environment {name!r}; {nearest(name, [*NAMES, *GROUPS])}")
    return import_module(NAMES[name])
