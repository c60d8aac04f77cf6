"""Run Python programs that a model wrote and return what they print.

    execute("print(int(input()) * 2)", "21") -> Run(stdout="42\\n", stderr="")

Each program runs in a process of its own, forked from a small server process (jail.py) that starts with the first
program and ends with its parent. A program has
- no network: an empty network namespace, in which even the loopback is down;
- no files except the interpreter's libraries (read-only) and /tmp, a new 16 MB folder: a mount namespace and chroot,
  without /proc, /dev or a shell, removed afterwards;
- no view of other processes: a PID namespace, which ends with the program;
- no privileges: no capabilities and no way to gain any;
- limits: 30 s of wall time; 10 s of CPU time and 512 MiB of memory per process; 8 processes or threads; 1 MB of stdout,
  of stderr and of each file.

README.md says what a program can still do, and what happens where the system offers no namespaces.
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

from envs.simulators.sandbox import jail


class SandboxFailed(RuntimeError):
    """The sandbox could not run a program: an error of the machine, which says nothing about the program."""


@dataclass(frozen=True)
class Limits:
    """The resources that one program may use."""

    wall: float = 30.0  # seconds from start to end
    cpu: int = 10  # seconds of CPU time per process
    memory: int = 512 * 2**20  # bytes of address space per process
    output: int = 1_000_000  # bytes of stdout, of stderr and of each file
    processes: int = 8  # processes and threads


@dataclass(frozen=True)
class Run:
    """The output of one program."""

    stdout: str  # at most Limits.output bytes of UTF-8
    stderr: str  # likewise; ends with "[TIMEOUT]" if a time limit stopped the program


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
    """Return the program in a reply: the last block fenced as Python, else the last fenced block, else the text."""
    for fence in (r"```python\s*\n(.*?)```", r"```\w*\s*\n(.*?)```", r"```(.*?)```"):
        if blocks := re.findall(fence, text, re.DOTALL):
            return blocks[-1].strip()
    return text.strip()


def execute(source: str, stdin: str = "", limits: Limits = DEFAULT) -> Run:
    """Run a program and return its output.

    If it prints nothing, defines solve() and has no main guard, run it again with a call of solve() whose value is
    printed. Raises SandboxFailed.
    """
    ran = run(source, stdin, limits)
    silent = not ran.stdout.strip() and not ran.stderr.strip()
    if silent and "def solve" in source and not MAIN_GUARD.search(source):
        ran = run(source + CALL_SOLVE, stdin, limits)
    return ran


def run(source: str, stdin: str, limits: Limits = DEFAULT) -> Run:
    """Run a program once, unchanged, and return its output. Thread-safe. Raises SandboxFailed if it cannot be run."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(4)]
        for file, text in zip(files, (source, stdin), strict=False):
            file.write(text.encode("utf-8", "replace"))
            file.seek(0)
        status = _server().job(files, limits)
        stdout, stderr = (os.pread(file.fileno(), limits.output, 0).decode("utf-8", "replace") for file in files[2:])
    return Run(stdout, stderr + "\n[TIMEOUT]" if status == "timeout" else stderr)


def isolation() -> str:
    """Return "namespaces" if programs are fully isolated, else "limits: " and the reason. Raises SandboxFailed."""
    weakness = _server().weakness
    return f"limits: {weakness}" if weakness else "namespaces"


class _Server:
    """Client of the server process (jail.py) that forks and runs the programs."""

    def __init__(self):
        if sys.platform != "linux":
            raise SandboxFailed(f"the sandbox runs programs on Linux only, not on {sys.platform}")
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", jail.__file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={"PYTHONHASHSEED": "0"},  # the same output each time
            cwd="/",
            start_new_session=True,  # an interrupt at the keyboard must reach only the parent
        )
        theirs.close()
        hello = self.socket.recv(1000).decode()
        if not hello:
            raise SandboxFailed("the sandbox's server process did not start")
        self.weakness = hello.removeprefix("ready").strip()
        if self.weakness and os.geteuid() and os.environ.get("SANDBOX") != "limits":
            self.socket.close()
            raise SandboxFailed(
                f"the sandbox cannot isolate programs here, so it runs none: {self.weakness}; run as root, or set "
                "SANDBOX=limits to run them with your rights (envs/simulators/sandbox/README.md)"
            )
        if self.weakness:
            warnings.warn(f"programs run with limits only and can reach files and the network: {self.weakness}")

    def usable(self) -> bool:
        """Return whether the server is alive and our child: a process forked from ours needs a server of its own."""
        return self.socket.fileno() >= 0 and self.process.poll() is None

    def job(self, files: list, limits: Limits) -> str:
        """Run one program on its open files (source, stdin, stdout, stderr) and return "over" or "timeout"."""
        reader, writer = os.pipe()
        try:
            try:
                fds = [*(file.fileno() for file in files), writer]
                socket.send_fds(self.socket, [jail.LIMITS.pack(*astuple(limits))], fds)
            finally:
                os.close(writer)
            answered, *_ = select.select([reader], [], [], limits.wall + 10)  # longer than the server's own limit
            status = os.read(reader, 1000).decode() if answered else ""
        except OSError as error:
            status = str(error)
        finally:
            os.close(reader)
        if status not in ("over", "timeout"):
            self.socket.close()  # which ends the server and every program it runs
            raise SandboxFailed(f"a program could not be run: {status or 'the server process is gone'}")
        return status


_lock = threading.Lock()
_current: _Server | None = None


def _server() -> _Server:
    global _current
    with _lock:
        if _current is None or not _current.usable():
            _current = _Server()
        return _current
