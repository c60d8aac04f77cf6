"""Runs Python programs that a model wrote, and says what they printed. What that is worth, the caller decides.

    execute("print(int(input()) * 2)", "21") -> Run(stdout="42\\n", stderr="")

A program runs in a process of its own, a copy of a small one (jail.py) that starts with the first program and ends
with its parent, of which it has no memory, no environment and no files. A program has
- no network: an empty namespace, in which even the loopback is down;
- no files but the interpreter's libraries, read-only, and /tmp, a new folder of its own of 16 MB: a mount namespace and
  chroot. There is no /proc, no /dev, no shell, and nothing of it remains;
- no sight of other processes: a namespace that ends with the program, and whatever it left running with it;
- no privileges: no capabilities and no way to get any;
- limits: 30 s of wall time, 10 s of CPU and 512 MiB of memory for each process, 8 processes or threads, 1 MB of stdout,
  of stderr, and of each file.

What it can still do: use all that up, tell the time, see which kernel it runs on, and, where an ordinary user runs it
on a Linux before 6.9, fill memory that System V shares. And it talks to that kernel, so that a hole there is a hole
here: for programs of people who mean harm, put a virtual machine around it all.

Namespaces need root, or a Linux of 5.12 or later that lets users make them; many containers do not, nor do some
distributions. There, root's programs run as a user who is no one: the limits hold, a program can start no process or
thread, but it can read what everyone may (which must include the interpreter's libraries, or it can import little),
write to /tmp and reach the network. A warning says so, and `isolation()`.
Anyone else's programs would have all the rights of that user, and are refused, unless the environment variable SANDBOX
is "limits".
"""

import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from contextlib import ExitStack
from dataclasses import astuple, dataclass

from envs.base import EnvironmentFailed
from envs.simulators.sandbox import jail


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    wall: float = 30.0  # seconds from start to end
    cpu: int = 10  # seconds of computing, of each process
    memory: int = 512 * 2**20  # bytes of address space, of each process
    output: int = 1_000_000  # bytes of stdout, of stderr, of each file
    processes: int = 8  # processes and threads


@dataclass(frozen=True)
class Run:
    """What a program did."""

    stdout: str  # at most Limits.output bytes of UTF-8
    stderr: str  # likewise; ends with "[TIMEOUT]" if the program was stopped by a limit of time


DEFAULT = Limits()
MAIN_GUARD = re.compile(r"if\s+__name__\s*==\s*['\"]__main__['\"]")
CALL_SOLVE = """

if __name__ == "__main__":
    res = solve()
    if isinstance(res, (list, tuple)):
        print(*res)
    elif res is not None:
        print(res)
"""


def code_of(text: str) -> str:
    """The program in a reply: the last block fenced as Python, else the last fenced block, else the text."""
    for fence in (r"```python\s*\n(.*?)```", r"```\w*\s*\n(.*?)```", r"```(.*?)```"):
        if blocks := re.findall(fence, text, re.DOTALL):
            return blocks[-1].strip()
    return text.strip()


def execute(source: str, stdin: str = "", limits: Limits = DEFAULT) -> Run:
    """Run a program. One that says nothing at all, and defines solve() but has no main guard, is run again with a call
    of it, whose value is printed."""
    ran = run(source, stdin, limits)
    silent = not ran.stdout.strip() and not ran.stderr.strip()
    if silent and "def solve" in source and not MAIN_GUARD.search(source):
        ran = run(source + CALL_SOLVE, stdin, limits)
    return ran


def run(source: str, stdin: str, limits: Limits = DEFAULT) -> Run:
    """Run a program once, as it is; many threads may do so at once. EnvironmentFailed if it could not be run at all."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(4)]
        for file, text in zip(files, (source, stdin), strict=False):
            file.write(text.encode("utf-8", "replace"))
            file.seek(0)
        status = _server().job(files, limits)
        stdout, stderr = (os.pread(file.fileno(), limits.output, 0).decode("utf-8", "replace") for file in files[2:])
    return Run(stdout, stderr + "\n[TIMEOUT]" if status == "timeout" else stderr)


def isolation() -> str:
    """What holds the programs: "namespaces", or "limits: " and why nothing more."""
    weakness = _server().weakness
    return f"limits: {weakness}" if weakness else "namespaces"


class _Server:
    """The parent's end of the process that runs programs."""

    def __init__(self):
        if sys.platform != "linux":
            raise EnvironmentFailed(f"programs can be run on Linux only, not on {sys.platform}")
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", jail.__file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={"PYTHONHASHSEED": "0"},  # a program prints the same each time
            cwd="/",
            start_new_session=True,  # an interrupt at the keyboard is for the parent alone
        )
        theirs.close()
        hello = self.socket.recv(1000).decode()
        if not hello:
            raise EnvironmentFailed("the process that runs programs did not start")
        self.weakness = hello.removeprefix("ready").strip()
        if self.weakness and os.geteuid() and os.environ.get("SANDBOX") != "limits":
            self.socket.close()
            raise EnvironmentFailed(
                f"programs cannot be shut in here, so none is run: {self.weakness} (see envs/simulators/sandbox)"
            )
        if self.weakness:
            warnings.warn(f"programs are held by limits alone, and can reach files and the network: {self.weakness}")

    def usable(self) -> bool:
        """Whether it is there, and ours: a process forked from us, whose child it is not, needs its own."""
        return self.socket.fileno() >= 0 and self.process.poll() is None

    def job(self, files: list, limits: Limits) -> str:
        """Run one program over its open files: source, stdin, stdout, stderr. How it ended: "over" or "timeout"."""
        reader, writer = os.pipe()
        try:
            try:
                fds = [*(file.fileno() for file in files), writer]
                socket.send_fds(self.socket, [jail.LIMITS.pack(*astuple(limits))], fds)
            finally:
                os.close(writer)
            answered, *_ = select.select(
                [reader], [], [], limits.wall + 10
            )  # theirs is the clock; this is if they hang
            status = os.read(reader, 1000).decode() if answered else ""
        except OSError as error:
            status = str(error)
        finally:
            os.close(reader)
        if status not in ("over", "timeout"):
            self.socket.close()  # which ends it, and all that it runs
            raise EnvironmentFailed(f"a program could not be run: {status or 'the process for it is gone'}")
        return status


_lock = threading.Lock()
_current: _Server | None = None


def _server() -> _Server:
    global _current
    with _lock:
        if _current is None or not _current.usable():
            _current = _Server()
        return _current
