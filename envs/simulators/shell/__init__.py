"""bash and the usual Debian commands on an in-memory Linux, in pure Python: no process, no file, no host is touched.

    machine = base_machine()                            # a small Ubuntu
    result = Shell(machine).run("mkdir -p /a && ls /")  # one fresh `bash -c`: Result(output, status, timed_out)

README.md: the files, the dialect, the differences from bash and Debian, and how it is tested.
"""

import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf

from envs.simulators.shell.base import base_machine
from envs.simulators.shell.files import Frozen, Hangup, Machine, Node, Timeout, text
from envs.simulators.shell.jobs import Expired, end_all, settle
from envs.simulators.shell.process import Process, Stream, pipe
from envs.simulators.shell.run import start
from envs.simulators.shell.state import MAX_NESTING

__all__ = ["Machine", "Node", "Process", "Result", "Shell", "base_machine"]

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_STEPS = 750_000  # per script: some seconds at most, whatever it does
MAX_OUTPUT = 1 << 20  # bytes per script
DEEPEST = 300 * MAX_NESTING  # nested Python calls: each level of nesting takes up to 60 commands' calls
_lock, _running = threading.Lock(), []  # per running script, Python's recursion limit before the first of them


@contextmanager
def _deep_calls():
    """Raise Python's recursion limit while scripts run. It is the whole process's, so the last script restores it."""
    with _lock:
        _running.append(_running[0] if _running else sys.getrecursionlimit())
        sys.setrecursionlimit(max(_running[0], DEEPEST))
    try:
        yield
    finally:
        with _lock:
            before = _running.pop()
            if not _running:
                sys.setrecursionlimit(before)


@dataclass(frozen=True)
class Result:
    """The outcome of a script."""

    output: str  # stdout and stderr together, in the order printed
    status: int  # exit status; 124 if it timed out
    timed_out: bool  # whether it used up its steps or its output


def _bytewise(said: str) -> str:
    """Return a text as latin-1 characters, one per UTF-8 byte, without NUL, which no argument can hold."""
    return text(said.encode("utf-8", "replace").replace(b"\0", b""))


class Shell:
    """Run scripts on a machine, each in a fresh bash: files persist, variables and the working directory do not."""

    strict = False  # whether an exception of the simulator is raised; else the script sees bash crash (status 139)

    def __init__(self, machine: Machine, user: str = "root", cwd: str = "/"):
        self.machine, self.user, self.cwd = machine, user, cwd

    def run(self, script: str, stdin: bytes = b"", args: tuple = (), max_steps: int = MAX_STEPS) -> Result:
        """Run a script as `bash -c SCRIPT bash ARGS` and return its Result, in time that `max_steps` bounds.

        Any text is a valid script. On a frozen machine, raises Frozen instead of making the first change.
        """
        machine = self.machine
        machine.steps = max_steps
        record = machine.user(self.user) or ["", "", "0", "0", "", "/root", ""]
        out = pipe(machine, MAX_OUTPUT, Timeout())
        source = pipe(machine, data=stdin) if stdin else Stream(machine, Node("device", 0o666, "null"))
        process = Process(
            machine, self.cwd, int(record[2]), int(record[3]), machine.groups_of(self.user) or (0,), 0o022, ["bash"],
            {"PATH": PATH, "HOME": record[5], "HOSTNAME": machine.hostname, "PWD": self.cwd, "SHLVL": "1"},
            {0: source, 1: out, 2: out},
        )  # fmt: skip
        timed_out = False
        try:
            with _deep_calls():
                status = start(process, _bytewise(script), tuple(map(_bytewise, args)))
                if machine.jobs:
                    with suppress(Hangup):
                        settle(machine)
        except (Timeout, RecursionError, MemoryError, Expired):
            status, timed_out = 124, True
        except Hangup:
            status = 141
        except Frozen:
            raise
        except Exception:  # an error of the simulator must not end a training run
            if self.strict:
                raise
            out.node.data += b"Segmentation fault (core dumped)\n"
            status = 139
        finally:
            if machine.jobs:
                end_all(machine)
                machine.job, machine.deadline = None, inf
        return Result(bytes(out.node.data).decode("utf-8", "replace"), status, timed_out)
