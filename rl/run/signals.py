"""SIGINT, SIGTERM and SIGHUP end a run in good order: what must not be cut short is finished first.

    with signals.handled():      # in a program, around everything
        ...                      # Interrupted is raised here, or
        with signals.held():     # at the end of this block, which is not cut short,
            signals.check()      # or here

A second signal ends the process at once. Statuses are the shell's: 128 and the number of the signal.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rl import ranks

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 2.0  # seconds that threads of environments have to end before the process leaves them


class Interrupted(KeyboardInterrupt):
    """A signal came. `status` is the exit status: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class _State:
    """What this process knows of signals. A handler gets no argument of ours, so it must be found by name."""

    depth: int = 0  # of `held` blocks
    number: int | None = None  # of the signal that came
    second_leaves: bool = True  # a second signal ends the process


def restore() -> None:
    """Let SIGINT raise KeyboardInterrupt again, undoing rl/run/early_interrupt.py."""
    main_thread = threading.current_thread() is threading.main_thread()  # the others cannot
    if main_thread and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def handled(numbers: Iterable[int] = SIGNALS, second_leaves: bool = True) -> Iterator[None]:
    """Handle the signals during the block. A signal that the parent process ignores (nohup) stays ignored.

    second_leaves: a second signal ends the process; else it is ignored, because the process goes on after the run.
    """
    restore()
    main_thread = threading.current_thread() is threading.main_thread()  # the others cannot
    handlers = {number: signal.getsignal(number) for number in numbers} if main_thread else {}
    _State.second_leaves = second_leaves
    _State.depth, _State.number, ranks.here.interrupt = 0, None, check_own
    for number, before in handlers.items():
        if before is not signal.SIG_IGN:
            signal.signal(number, _handle)
    try:
        yield
    finally:
        for number, before in handlers.items():
            signal.signal(number, before)
        _State.number = None


def _handle(number: int, frame) -> None:
    if _State.number is not None and not _State.second_leaves:
        return
    if _State.number is not None:
        os._exit(128 + number)  # the second one: whoever sends it does not want to wait for a save
    _State.number = number
    first = "the step under way is finished and saved; " if _State.depth else ""
    second = "a second signal stops at once" if _State.second_leaves else "the run can go on afterwards"
    if ranks.here.world == 1:  # else the process that started the ranks says it
        print(f"\nstopping: {first}{second}", file=sys.stderr)
    if not _State.depth:
        raise Interrupted(number)


@contextmanager
def held() -> Iterator[None]:
    """Finish the block before a signal interrupts; then raise Interrupted."""
    _State.depth += 1
    try:
        yield
    finally:
        _State.depth -= 1
    if not _State.depth:
        check()


def check() -> None:
    """Raise Interrupted if a signal has come, to this rank or to another: all call this at the same places."""
    number = max(ranks.gathered(_State.number or 0))
    if number:
        raise Interrupted(number)


def check_own() -> None:
    """Raise Interrupted if a signal has come to this process."""
    if _State.number is not None:
        raise Interrupted(_State.number)


def leave(interrupted: Interrupted, program: str) -> None:
    """Print how to go on and end the process with the signal's status, also if threads still wait for an answer."""
    line = "; ".join([f"{program}: stopped by {interrupted}", *getattr(interrupted, "__notes__", [])])
    if ranks.speaks():
        print(line, file=sys.stderr)
    deadline = time.monotonic() + PATIENCE
    waiting = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    waiting = [thread for thread in waiting if not thread.daemon]
    for thread in waiting:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in waiting):
        # sys.exit would wait for the threads, and a server that hangs may never answer them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(interrupted.status)
    sys.exit(interrupted.status)
