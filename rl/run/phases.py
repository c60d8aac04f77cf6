"""The phase that a program is in: the line about memory that runs out and the line about a rank that hangs name it."""

from collections.abc import Iterator
from contextlib import contextmanager

from rl import ranks


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Context of a phase: load, trial, collect, score, learn, save, evaluate. An error that leaves it carries the name
    of the innermost phase in its attribute `phase`."""
    outer, ranks.here.phase = ranks.here.phase, name
    try:
        yield
    except Exception as error:
        error.phase = getattr(error, "phase", name)
        raise
    finally:
        ranks.here.phase = outer
