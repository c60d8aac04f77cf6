"""How a program ends: with one line for what a person can mend, and with a run's state saved."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT
from typing import Any

import envs
from rl import arguments
from rl.guard import signals


@contextmanager
def exits_cleanly(program: str, cfg: Any = None, needs: str = "") -> Iterator[None]:
    """End the process with one line for an error that a person can mend: with status 2 for a wrong word, with status 1
    for an error of files, environments or memory; with a signal's usual status for a signal.

    cfg: the settings of train.py or eval.py, from which a line about memory advises.
    needs: that advice where there are no such settings.
    """
    try:
        yield
    except arguments.ArgumentError as error:
        arguments.fail(program, error)
    except (OSError, ValueError, FloatingPointError, envs.EnvironmentFailed) as error:
        arguments.fail(program, error, status=1)
    except (RuntimeError, MemoryError) as error:
        from rl.out_of_memory import explained

        arguments.fail(program, explained(error, cfg, needs), status=1)
    except signals.Interrupted as signal:
        signals.leave(signal, program)
    except KeyboardInterrupt:  # of a program that has nothing to save
        print(file=sys.stderr)  # the terminal shows ^C
        raise SystemExit(128 + SIGINT) from None


@contextmanager
def saved(state: Any, run: Path) -> Iterator[None]:
    """Save the state of a run that is interrupted between two saves."""
    try:
        yield
    except KeyboardInterrupt:
        from rl.resume import save_unsaved

        save_unsaved(state, run)
        raise
