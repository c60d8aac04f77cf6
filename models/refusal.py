"""The error of models that somebody worded for the user: programs print its line; other errors keep their traceback."""

from functools import cache


class Refusal(ValueError):
    """Something that the user gave cannot be used. The text says what, where, and what to do."""


@cache
def say(line: str) -> None:
    """Print a line about what the user gave, once: programs read a model's files several times."""
    print(line, flush=True)
