"""n=0 of eval.py: every task of a data set's own split, each once, in its order."""

from dataclasses import replace
from typing import Any

from envs.own_splits import OwnSplits
from rl.arguments import ArgumentError
from rl.tasks import make_env, mixture

HINT = "env=planner planner.data=gsm8k planner.splits=own"


def with_every_task(cfg: Any, keys: Any) -> tuple[Any, Any]:
    """Return the settings and eval.py's keys with n=0 replaced by the number of tasks, which play in order.

    Raise ArgumentError unless env= names one environment that plays a data set's own splits.
    """
    if keys.n:
        return cfg, keys
    names = list(mixture(cfg.env))
    env = make_env(cfg, names[0])
    try:
        count = env.count(keys.split) if len(names) == 1 and isinstance(env, OwnSplits) else 0
    except ValueError as error:  # the data set has no such split
        raise ArgumentError(str(error)) from None
    if not count:
        raise ArgumentError(f"n=0 needs one environment with tasks of a file, such as {HINT}, not env={cfg.env}")
    return replace(cfg, order="sequential"), replace(keys, n=count)
