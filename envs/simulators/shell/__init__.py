"""A shell of our own over an in-memory Linux: what bash and coreutils would print, and nothing real is ever touched.

    machine = base_machine()                            # a small Ubuntu
    result = Shell(machine).run("mkdir -p /a && ls /")  # one fresh `bash -c`: Result(output, status, timed_out)

files.py       nodes, the machine, system calls with rights     process.py     streams, and a running command
base.py        the folders and users of a fresh machine         parse.py       text -> tree
arithmetic.py  $(( )) and (( ))                                 patterns.py    globs and braces
expand.py      words -> arguments                               variables.py   values and attributes
run.py         the interpreter                                  builtins.py, declaring.py, printing.py, conditions.py
commands/      what lies in /usr/bin: COMMANDS, by name
tree.py, words.py, compound.py                                  parts of the parser
braces.py, transform.py                                         parts of the expansion
state.py, launch.py, control.py                                 parts of the interpreter
declaring.py, reading.py, places.py                             parts of the builtins

The language is that of bash 5 without a terminal, in the C locale: tests/parity runs more than 2,000 scripts in both.
Known differences:
- The stages of a pipeline run one after another, so their messages come in that order; what prints without end is
  cut off. /dev/zero and its like end after 64 KiB, but for `head -c`, which gets up to 4 MiB; all they give is zeros.
  A command with & runs at once, to its end, and takes no time on the machine's clock; no job can be signalled.
- Not there: select, coproc, extended globs, globstar, namerefs, aliases, `>(...)`, history, pushd, popd, dirs, colours,
  `ulimit`'s limits, traps of DEBUG and of signals, `set -n` and `-v`. sh, dash and rbash are bash. `type` and
  `declare -f` show a function as it was written.
- A syntax error in $(...), backticks or [[ ]] ends with status 2 or 127, in bash now and then with 0 or 1. Messages
  from a $(...) of several lines give the line where they are; bash counts from its last line.
- In arithmetic like `a b.c` bash looks two tokens ahead and names the later error.
- A script has so many steps and bytes of output (MAX_STEPS, MAX_OUTPUT), 150 levels of functions and subshells, and 60
  of commands inside one another; a machine so many bytes and nodes, beyond which the disk is full.
"""

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass

from envs.simulators.shell.base import base_machine
from envs.simulators.shell.files import Frozen, Hangup, Machine, Node, Timeout, text
from envs.simulators.shell.process import Process, Stream, pipe
from envs.simulators.shell.run import start
from envs.simulators.shell.state import MAX_NESTING

__all__ = ["Machine", "Node", "Process", "Result", "Shell", "base_machine"]

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_STEPS = 150_000  # of a script: about a second at most, whatever it does
MAX_OUTPUT = 1 << 20  # bytes
DEEPEST = 300 * MAX_NESTING  # calls of Python's inside one another: a level takes up to 60 commands' calls
_lock, _running = threading.Lock(), []  # the limit on such calls that held before the first of the running scripts


@contextmanager
def _deep_calls():
    """Room for a script's calls. The limit is the whole process's, and is put back when no script runs: others rely on
    it."""
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
    """What a script did."""

    output: str  # what it printed, output and errors as they came
    status: int  # exit status; 124 where it timed out
    timed_out: bool  # it used up its steps or its output


def _bytewise(said: str) -> str:
    """A text with a character for each of its bytes; no argument can hold a NUL."""
    return text(said.encode("utf-8", "replace").replace(b"\0", b""))


class Shell:
    """Runs scripts on a machine, each in a fresh bash: files stay, variables and the folder do not."""

    strict = False  # whether a fault of ours comes out; else bash crashes, as the script sees it

    def __init__(self, machine: Machine, user: str = "root", cwd: str = "/"):
        self.machine, self.user, self.cwd = machine, user, cwd

    def run(self, script: str, stdin: bytes = b"", args: tuple = (), max_steps: int = MAX_STEPS) -> Result:
        """Run a script as `bash -c SCRIPT bash ARGS`. Any text is answered, in time that `max_steps` bounds.

        On a frozen machine it raises Frozen instead of the first change.
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
        except (Timeout, RecursionError, MemoryError):
            status, timed_out = 124, True
        except Hangup:
            status = 141
        except Frozen:
            raise
        except Exception:  # a fault of ours must not end a training run
            if self.strict:
                raise
            out.node.data += b"Segmentation fault (core dumped)\n"
            status = 139
        return Result(bytes(out.node.data).decode("utf-8", "replace"), status, timed_out)
