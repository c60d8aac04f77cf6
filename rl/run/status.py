"""How a program ends: with one line for what a person can mend, and with its exit status. Imports nothing heavy."""

import io
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from signal import SIGINT
from typing import NoReturn

import envs
import envs.refusal
from rl import ranks
from rl.config import arguments
from rl.config.refusals import Refusal
from rl.run import signals

# Errors whose text somebody wrote for people; exits.py adds those of lora and models, which need torch. Any other
# ValueError is a mistake in the code.
WORDED = (Refusal, envs.refusal.Refusal, OSError, FloatingPointError, envs.EnvironmentFailed, json.JSONDecodeError)


@contextmanager
def ends_in_one_line(program: str) -> Iterator[None]:
    """End the process with one line for an error that a person can mend: with status 2 for a wrong word, with status 1
    for a refusal or an error of files, environments or memory; with a signal's usual status for a signal. A mistake in
    a program, such as int("x") in an environment or a wrong number of values in a loss, keeps its traceback.
    Characters that the encoding of stdout lacks are escaped, as Python does for stderr.
    """
    signals.restore()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a notebook's is another, and closed it is None
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except arguments.ArgumentError as error:
        arguments.fail(program, error)
    except BrokenPipeError as error:
        closed = "the program that read its output, such as head, has closed the pipe"
        with suppress(OSError, AttributeError):  # Python would write what is left once more, and end with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail(program, "; ".join([closed, *getattr(error, "__notes__", [])]))
    except WORDED as error:
        fail(program, error)
    except ranks.AnotherRankFailed:
        raise SystemExit(ranks.SILENT) from None
    except MemoryError:
        fail(program, "out of memory")
    except signals.Interrupted as signal:
        signals.leave(signal, program)
    except KeyboardInterrupt:  # of a program that has nothing to save
        print(file=sys.stderr)  # the terminal shows ^C
        raise SystemExit(128 + SIGINT) from None


def fail(program: str, error: object) -> NoReturn:
    """Print one line and exit with status 1. Of several ranks that fail one speaks: 0, or one that names itself."""
    if not ranks.is_first():
        program = f"{program}: rank {ranks.here.rank}"
        time.sleep(0.5)
    if not ranks.speaks():
        raise SystemExit(ranks.SILENT) from None
    arguments.fail(program, error, status=1)
