"""Replace a function by a wrong one in every module that has it, for tests/mutants.py and test_mutations.py."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

PACKAGES = ("rl", "models", "lora", "envs", "train", "eval", "merge", "test_")


def plant(patch: pytest.MonkeyPatch, owner: Any, function: str, wrong: Callable[[Callable], Callable]) -> None:
    """Replace owner.function by wrong(owner.function), also where a module has it under any name.

    owner: a module, a class or an object.
    """
    right = getattr(owner, function)
    replaced = wrong(right)
    static = isinstance(getattr(owner, "__dict__", {}).get(function), staticmethod)
    patch.setattr(owner, function, staticmethod(replaced) if static else replaced)
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES):
            for alias in [alias for alias, value in vars(module).items() if value is right]:
                patch.setattr(module, alias, replaced)
