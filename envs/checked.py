"""Check an environment of one's own: its module when it is first used, and each result of its methods.

A mistake is named, and one in a result costs its episode alone: EnvironmentFailed.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache, partialmethod
from inspect import iscoroutinefunction
from pathlib import Path
from types import ModuleType
from typing import Any

from envs.base import Environment, EnvironmentFailed, Step

OUTCOMES = ("correct", "incorrect", "timeout", "unknown")


def is_text(value: Any) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str)


def is_numeric(value: Any) -> bool:
    """Return whether a value is a number, also one of NumPy or torch."""
    return hasattr(value, "__float__")  # a text has none


def is_bool(value: Any) -> bool:
    """Return whether a value is a bool, also one of NumPy."""
    return type(value).__name__ in ("bool", "bool_")


FIELDS = {  # of a step -> (its kind in words, the kind's test)
    "observation": ("a text", is_text),
    "reward": ("a number", is_numeric),
    "terminated": ("a bool", is_bool),
    "truncated": ("a bool", is_bool),
    "info": ("a dict", lambda value: isinstance(value, dict)),
}
ENTRIES = {  # of a step's info, if they are there
    "outcome": (f"one of {', '.join(OUTCOMES)}", lambda value: value in OUTCOMES),
    "success": ("a bool", is_numeric),  # 0 and 1 will do
    "shaped": ("a number", is_numeric),
}


def mistake_in(module: ModuleType) -> str:
    """Return what is wrong with the classes of an environment's module, "" if nothing is."""
    config, env = getattr(module, "Config", None), getattr(module, "Env", None)
    if not (isinstance(config, type) and is_dataclass(config)):
        return "needs a class Config, decorated with @dataclass(frozen=True)"
    if not (isinstance(env, type) and issubclass(env, Environment)):
        return "needs a class Env, a subclass of envs.Environment"
    if env.__init__ is object.__init__:
        return "needs `def __init__(self, config)` in its class Env"
    waiting = [method for method in CHECKS if iscoroutinefunction(getattr(env, method))]
    return f"has `async def {waiting[0]}`, which nothing awaits; write `def {waiting[0]}`" if waiting else ""


@cache
def checked(env: type[Environment], name: str) -> type[Environment]:
    """Return the class of an environment with the results of its methods checked. name: in messages.

    A class, because functions on its objects would keep each object, and its database, until a garbage collection.
    """
    methods = {of: partialmethod(_call, env, f"{name}.{of}", of, check) for of, check in CHECKS.items()}
    return type(env.__name__, (env,), {"__module__": env.__module__, "__doc__": env.__doc__, **methods})


def _call(self: Environment, env: type, what: str, method: str, check: Callable, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a method of the class `env`. Raise EnvironmentFailed for a wrong one."""
    with exit_refused(what):
        found = getattr(env, method)(self, *args, **kwargs)
    check(what, found)
    return found


@contextmanager
def exit_refused(what: str) -> Iterator[None]:
    """Context of code of an environment: sys.exit() in it raises EnvironmentFailed, or it would end the program."""
    try:
        yield
    except SystemExit as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}, line {frame.lineno}"
        raise EnvironmentFailed(f"{what} called sys.exit({error.code!r}) ({where})") from None


def check_messages(what: str, found: Any) -> None:
    """Raise EnvironmentFailed for anything but a list of at least one message."""
    if not (isinstance(found, list) and found and all(map(_is_message, found))):
        raise EnvironmentFailed(f'{what} returned {shown(found)}, not messages, [{{"role": "user", "content": "..."}}]')


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and is_text(value.get("role")) and is_text(value.get("content"))


def check_step(what: str, found: Any) -> None:
    """Raise EnvironmentFailed for anything but a Step whose values are of their FIELDS and ENTRIES."""
    if not isinstance(found, Step):
        wanted = "an envs.Step(observation, reward, terminated, truncated, info)"
        raise EnvironmentFailed(f"{what} returned {shown(found)}, not {wanted}")
    for kinds, values in ((FIELDS, vars(found)), (ENTRIES, found.info)):
        for key, (kind, is_one) in kinds.items():
            if key in values and not is_one(values[key]):
                raise EnvironmentFailed(f"{what}: its {key} is {shown(values[key])}, not {kind}")


def check_action(what: str, found: Any) -> None:
    """Raise EnvironmentFailed for anything but a text."""
    if not is_text(found):
        raise EnvironmentFailed(f"{what} returned {shown(found)}, not a text")


CHECKS = {"reset": check_messages, "step": check_step, "answer": check_step, "oracle": check_action}


def entry(info: dict, key: str) -> Any:
    """Return an entry of a step's info. Raise EnvironmentFailed if it lacks the entry."""
    if key not in info:
        raise EnvironmentFailed(f"its info lacks {key!r}")
    return info[key]


def shown(value: Any) -> str:
    """Return a value as it stands in a message, its end left out if it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
