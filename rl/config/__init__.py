"""The settings of a run: fields, the words key=value, recipes, help and refusals."""

from importlib import import_module
from typing import Any


def parse(words: list[str], program: str = "train.py") -> Any:
    """Return the Config of key=value words (rl/config/words.py), which is loaded here: lower rooms import this package
    for its refusals alone."""
    return import_module("rl.config.words").parse(words, program)
