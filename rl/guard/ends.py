"""How a program ends: with one line for what a person can mend, and with a run's state saved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import envs
from rl import arguments
from rl.guard import signals


@contextmanager
def one_line(program: str, cfg: Any) -> Iterator[None]:
    """End the process with one line, and status 1, for an error of the settings, files, environments or memory; with
    a signal's usual status for a signal."""
    try:
        yield
    except (OSError, ValueError, FloatingPointError, envs.EnvironmentFailed) as error:
        arguments.fail(program, error, status=1)
    except (RuntimeError, MemoryError) as error:
        from rl.out_of_memory import explained

        arguments.fail(program, explained(error, cfg), status=1)
    except signals.Interrupted as signal:
        signals.leave(signal, program)


@contextmanager
def saved(state: Any, run: Path) -> Iterator[None]:
    """Save the state of a run that is interrupted between two saves."""
    try:
        yield
    except KeyboardInterrupt:
        from rl.resume import save_unsaved

        save_unsaved(state, run)
        raise
