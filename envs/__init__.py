"""Text environments behind one small interface. A new one is a file with `Config` and `Env`, and a line in NAMES; a
GROUPS name stands for several.

env = envs.make("textcraft", difficulty="1,2")
messages = env.reset(seed=0, split="train")
step = env.step(env.oracle())
"""

from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module

from envs.base import Environment, EnvironmentFailed, Request, Result, Step

__all__ = ["GROUPS", "NAMES", "Environment", "EnvironmentFailed", "Request", "Result", "Step", "config_class", "make"]

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
    "http": "envs.http",
}
GROUPS = {  # what env= takes for several at once
    "affine": ["sat", "abd", "ded"],
    "agentgym": ["webshop", "alfworld", "babyai", "sciworld", "textcraft"],
}


def config_class(name: str) -> type:
    """The Config dataclass of an environment."""
    return _module(name).Config


def make(name: str, **options):
    """Return an environment by its name; the options are the fields of its Config.

    Options that are not given and would need a model take the values of Config.without_model, if it has any.
    """
    module = _module(name)
    options = getattr(module.Config, "without_model", {}) | options
    known = [f.name for f in fields(module.Config)]
    for key in options:
        if key not in known:
            raise ValueError(f"env {name} has no option {key!r}; {_nearest(key, known)}")
    return module.Env(module.Config(**options))


def _module(name: str):
    if name in GROUPS:
        raise ValueError(f"env {name!r} stands for several: name one of {', '.join(GROUPS[name])}")
    if name not in NAMES:
        raise ValueError(f"no env {name!r}; {_nearest(name, [*NAMES, *GROUPS])}")
    return import_module(NAMES[name])


def _nearest(word: str, known) -> str:
    close = get_close_matches(str(word), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"there is: {', '.join(known)}"
