"""Run Python programs that a model wrote and return what they print.

    execute("print(int(input()) * 2)", "21") -> Run(stdout="42\\n", stderr="", status=0)

Each program runs in a process of its own, forked from a worker of a small server process (jail.py) that starts with the
first program and ends with its parent. A program has
- only the system calls that plain Python needs (seccomp): no sockets, no other process or program, no devices;
- no files except the interpreter's libraries (read-only) and /tmp, a new 16 MB folder: a mount namespace, chroot and
  Landlock, without /proc, /dev or a shell, removed afterwards;
- no network and no view of other processes: network and PID namespaces;
- no privileges and no keys: no capabilities, no way to gain any, an empty session keyring;
- limits: 30 s of wall time, 10 s of CPU time and 512 MiB of memory in all; 8 threads; 1 MB of stdout, of stderr and of
  each file.

README.md says what a program can still do, and the minimum of layers below which no program runs.
"""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from typing import BinaryIO

from envs.linux import fcntl
from envs.refusal import Refusal
from envs.simulators.sandbox import jail


class SandboxFailed(RuntimeError):
    """The sandbox could not run a program: an error of the machine, which says nothing about the program."""


@dataclass(frozen=True)
class Limits:
    """The resources that one program may use."""

    wall: float = 30.0  # seconds from start to end
    cpu: int = 10  # seconds of CPU time
    memory: int = 512 * 2**20  # bytes of address space
    output: int = 1_000_000  # bytes of stdout, of stderr and of each file
    threads: int = 8


@dataclass(frozen=True)
class Run:
    """The output and the exit status of one program.

    stderr is blank only if the program ended well. Where the program did not write to stderr why it failed, the last
    line is [TIMEOUT], [OUTPUT LIMIT], [EXIT STATUS 3] or [KILLED BY SIGSEGV].
    """

    stdout: str  # at most Limits.output bytes of UTF-8
    stderr: str  # likewise, and that line
    status: int = 0  # minus the signal, if one ended the program

    @property
    def timed_out(self) -> bool:
        return self.stderr.endswith(TIMEOUT)


DEFAULT = Limits()
TIMEOUT = "\n[TIMEOUT]"  # the end of stderr of a program that took too long
PRINTED = "SANDBOX_LAYERS"  # environment variable: the line about layers that this process or its parent has printed
ISOLATED, UNSAFE = "isolated", "unsafe"  # the modes: refuse programs below the minimum of layers, or run them
SIGNALS = {number.value: number.name for number in signal.Signals}  # real-time signals have no names
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
    """Return the program in a reply: the last block fenced as Python, else the last fenced block, else the first
    fenced part of a line without its `python`, else the text."""
    for fence in (r"```python\s*\n(.*?)```", r"```\w*\s*\n(.*?)```"):
        if blocks := re.findall(fence, text, re.DOTALL):
            return blocks[-1].strip()
    inline = re.search(r"```(?:python)?(.*?)```", text, re.DOTALL | re.IGNORECASE)
    return (inline[1] if inline else text).strip()


def start(mode: str) -> None:
    """Start the sandbox and print its layers to stderr, once for this process and those that it starts. Raise
    ValueError if `mode` does not permit to use it.

    mode: the option `sandbox` of an environment that runs programs.
    """
    if mode not in (ISOLATED, UNSAFE):
        raise Refusal(f"sandbox must be {ISOLATED!r} or {UNSAFE!r}, not {mode!r}")
    try:
        server = _server(mode)
    except SandboxFailed as error:
        raise Refusal(f"sandbox={mode}: {error}") from error
    line = f"sandbox: {'' if server.safe else 'UNSAFE: '}{server.layers}"
    with _lock:
        if os.environ.get(PRINTED) != line:
            os.environ[PRINTED] = line
            print(line, file=sys.stderr)


def execute(source: str, stdin: str = "", limits: Limits = DEFAULT, mode: str = ISOLATED) -> Run:
    """Run a program and return its output.

    If it prints nothing, defines solve() and has no main guard, run it again with a call of solve() whose value is
    printed. Raises SandboxFailed.
    """
    ran = run(source, stdin, limits, mode)
    silent = not ran.stdout.strip() and not ran.stderr.strip()
    if silent and "def solve" in source and not MAIN_GUARD.search(source):
        ran = run(source + CALL_SOLVE, stdin, limits, mode)
    return ran


def run(source: str, stdin: str, limits: Limits = DEFAULT, mode: str = ISOLATED) -> Run:
    """Run a program once, unchanged, and return its output. Thread-safe.

    Raises SandboxFailed if it could not be run, or if the system has fewer layers than the minimum, unless `mode` is
    UNSAFE.
    """
    texts = [text.encode("utf-8", "replace") for text in (source, stdin)]
    status, streams = _server(mode).job(texts, limits)
    stdout, stderr = (stream[: limits.output].decode("utf-8", "replace") for stream in streams)
    if status == "timeout":
        return Run(stdout, stderr + TIMEOUT, -signal.SIGKILL)
    code = int(status)
    if max(map(len, streams)) > limits.output:
        stderr += "\n[OUTPUT LIMIT]"
    elif code and not stderr.strip():
        stderr += f"[EXIT STATUS {code}]" if code > 0 else f"[KILLED BY {SIGNALS.get(-code, f'SIGNAL {-code}')}]"
    return Run(stdout, stderr, code)


def layers() -> str:
    """Return the layers around each program, as the start line names them. Raises SandboxFailed."""
    return _server(UNSAFE).layers


def programs_at_a_time() -> int:
    """Return how many programs run side by side: the ranks of a run on this machine share jail.WORKERS."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, jail.WORKERS // int(ranks)) if re.fullmatch("[1-9][0-9]{0,5}", ranks) else jail.WORKERS


class _Server:
    """Client of the server process (jail.py) that runs the programs."""

    def __init__(self):
        if sys.platform != "linux":
            raise SandboxFailed(f"the sandbox runs programs on Linux only, not on {sys.platform}")
        workers = programs_at_a_time()
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", jail.__file__, str(theirs.fileno()), str(workers)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={"PYTHONHASHSEED": "0"},  # the same output each time
            cwd="/",
            start_new_session=True,  # an interrupt at the keyboard must reach only the parent
        )
        theirs.close()
        enough, _, self.layers = self.socket.recv(1000).decode().partition(" ")
        if not enough:
            raise SandboxFailed("the sandbox's server process did not start")
        self.safe = enough == "1"
        self.workers = threading.Semaphore(workers)

    def usable(self) -> bool:
        """Return whether the server is alive and our child: a process forked from ours needs a server of its own."""
        return self.socket.fileno() >= 0 and self.process.poll() is None

    def job(self, texts: list[bytes], limits: Limits) -> tuple[str, list[bytes]]:
        """Run one program on (source, stdin). Return its exit status or "timeout", and (stdout, stderr).

        A stream that is longer than limits.output is cut one byte later.
        """
        with self.workers, ExitStack() as stack:
            status, *streams = "", b"", b""
            try:
                with ExitStack() as theirs:
                    files = [theirs.enter_context(_sealed(text)) for text in texts]
                    ends = [os.pipe() for _ in range(3)]
                    pipes = [stack.enter_context(open(reader, "rb", buffering=0)) for reader, _ in ends]
                    files += [theirs.enter_context(open(writer, "wb", buffering=0)) for _, writer in ends]
                    fds = [file.fileno() for file in files]
                    socket.send_fds(self.socket, [jail.LIMITS.pack(*astuple(limits))], fds)
                *streams, last = _read(pipes, limits.output + 1, limits.wall + 10)  # later than the server's own limit
                status = last.decode()
            except OSError as error:
                status = str(error)
        if not status.startswith(("over", "timeout")):
            self.socket.close()  # which ends the server and every program it runs
            raise SandboxFailed(f"a program could not be run: {status or 'the server process is gone'}")
        return status.removeprefix("over "), streams


def _sealed(text: bytes) -> BinaryIO:
    """Return an open file in memory that nobody can change."""
    file = open(os.memfd_create("text", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b", buffering=0)  # noqa: SIM115
    file.write(text)
    file.seek(0)
    fcntl.fcntl(
        file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    )
    return file


def _read(pipes: list[BinaryIO], most: int, seconds: float) -> list[bytes]:
    """Return the contents of the pipes once the last of them has ended, or `seconds` are over.

    A pipe with more than `most` bytes is closed, so that writing to it fails.
    """
    texts = {pipe.fileno(): (pipe, bytearray(), most) for pipe in pipes[:-1]}
    texts[pipes[-1].fileno()] = pipes[-1], bytearray(), 1000
    watched, deadline = select.poll(), time.monotonic() + seconds
    for fd in texts:
        watched.register(fd, select.POLLIN)
    while ready := watched.poll(0 if pipes[-1].closed else max(0, 1000 * (deadline - time.monotonic()))):
        for fd, _ in ready:
            pipe, text, room = texts[fd]
            chunk = pipe.read(min(65_536, room - len(text)))
            text += chunk
            if not chunk or len(text) == room:
                watched.unregister(fd)
                pipe.close()
    return [bytes(text) for _, text, _ in texts.values()]


_lock = threading.Lock()
_current: _Server | None = None


def _server(mode: str) -> _Server:
    """Return this process's server. Raises SandboxFailed if it has fewer layers than `mode` permits."""
    global _current
    with _lock:
        if _current is None or not _current.usable():
            _current = _Server()
        server = _current
    if not (server.safe or mode == UNSAFE):
        raise SandboxFailed(
            f"programs cannot be isolated here ({server.layers}): the least is seccomp, and namespaces or Landlock; "
            "sandbox=unsafe runs them all the same (envs/simulators/sandbox/README.md)"
        )
    return server
