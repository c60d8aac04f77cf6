"""What the programs share at a terminal."""

import errno
import os
import sys
from contextlib import contextmanager


@contextmanager
def reader_may_leave():
    """Around what prints: where nobody reads on (| head), it ends there without a word; on a full disk, with one."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end
        if error.errno == errno.ENOSPC:
            sys.exit(f"cannot print: {error.strerror}")


def typed(key: str, text: str, kind: type):
    """Return the value of a word, as the type of its key's default."""
    if kind is bool and text not in ("true", "false"):
        raise ValueError(f"{key} must be true or false, not {text!r}")
    try:
        return text == "true" if kind is bool else kind(text)
    except ValueError:
        raise ValueError(f"{key} must be a {'whole ' if kind is int else ''}number, not {text!r}") from None
