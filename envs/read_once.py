"""Files that are read once: the many environments of a run share one reading, which the run keeps to its end."""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

Found = TypeVar("Found")
_readers: list = []


def read_once(reader: Callable[..., Found]) -> Callable[..., Found]:
    """Decorate a function of hashable arguments that reads a file. Its results are kept until `read_anew`, errors are
    not."""
    kept = lru_cache(maxsize=None)(reader)
    _readers.append(kept)
    return kept


def read_anew() -> None:
    """Drop what all readers keep, for the next run of one process, as in a notebook: files may have changed."""
    for kept in _readers:
        kept.cache_clear()
