"""A running command: its arguments, environment and streams, and how it runs another command.

A command is a function of its Process that returns an exit status, or None for `p.failed`. It reaches files through the
system calls of Caller (`p.read(path)`, `p.lookup(path)`, `p.mkdir(path)`), prints with `p.out(...)` and `p.fail(...)`,
calls `p.tick(n)` in loops, and runs other commands with `p.run(argv)`.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

from envs.simulators.shell.files import ENDLESS, Caller, Machine, Node, bytes_of, fault, raw

PIPE_SIZE = 1 << 22  # bytes that a command may print into a pipe before it is taken for endless


class Stream:
    """An open file with a position: reads and writes continue where the last one ended.

    Pipes, here-documents and the output of a script are nodes without a name, whose data is a bytearray.
    """

    __slots__ = ("append", "ending", "limit", "machine", "node", "path", "pos", "readable", "writable")

    def __init__(self, machine: Machine, node: Node, readable=True, writable=False, append=False, path=""):
        self.machine, self.node, self.path = machine, node, path
        self.readable, self.writable, self.append = readable, writable, append
        self.pos = 0
        self.limit, self.ending = 0, None  # bytes, and the exception once they are exceeded; only of pipes

    def _left(self, most: int = ENDLESS) -> bytes:
        if not self.readable:
            raise fault(errno.EBADF)
        return bytes_of(self.node, most)

    def read(self, most: int = ENDLESS) -> bytes:
        """Return the rest, `most` bytes of an endless device; OSError EISDIR for a folder."""
        data = bytes(self._left(self.pos + most)[self.pos :])
        self.machine.tick(len(data) >> 12)
        self.pos += len(data)
        return data

    def readline(self, end: bytes = b"\n", most: int | None = None) -> bytes:
        """Return the next line with its end, b"" if there is none; no more than `most` bytes of it."""
        data = self._left()
        last = len(data) if most is None else min(self.pos + most, len(data))
        stop = data.find(end, self.pos, last) if end else -1
        line = bytes(data[self.pos : stop + 1 if stop >= 0 else last])
        self.machine.tick(len(line) >> 12)
        self.pos += len(line)
        return line

    def write(self, data: bytes | str) -> None:
        """Write; OSError EBADF where the stream is for reading, ENOSPC where the disk is full."""
        if isinstance(data, str):
            data = raw(data)
        node = self.node
        self.machine.tick(len(data) >> 12)
        if not self.writable:
            raise fault(errno.EBADF)
        if node.kind == "device":
            if node.data == "full":
                raise fault(errno.ENOSPC)
            return
        if isinstance(node.data, bytearray):
            node.data += data
            if self.limit and len(node.data) > self.limit:
                del node.data[self.limit :]
                raise self.ending
            return
        start = len(node.data) if self.append else self.pos
        if start == len(node.data):
            self.machine.store(node, node.data + data)
        else:
            hole = bytes(max(0, start - len(node.data)))
            self.machine.store(node, node.data[:start] + hole + data + node.data[start + len(data) :])
        self.pos = start + len(data)


def pipe(machine: Machine, limit: int = PIPE_SIZE, ending: Exception | None = None, data: bytes = b"") -> Stream:
    """Return a stream that stores what is written to it; `ending` is raised beyond `limit` bytes."""
    stream = Stream(machine, Node("file", 0o600, bytearray(data)), writable=True)
    stream.limit, stream.ending = limit, ending
    return stream


@dataclass
class Process(Caller):
    """The environment of a command: a copy of its own, except for the machine and the streams."""

    argv: list[str] = field(default_factory=list)  # with the command's own name first
    env: dict[str, str] = field(default_factory=dict)  # exported variables
    fds: dict[int, Stream] = field(default_factory=dict)  # 0, 1 and 2 unless they were closed, and others
    launch: Callable | None = None  # set by the interpreter: run() goes through it
    failed: int = 0  # the exit status of a command that returns None: above 0 once something failed
    killed, pid = "", 0  # of a bash that a signal ended: the signal, and its number

    @property
    def stdin(self) -> bytes:
        """Return the rest of standard input; a second call finds it empty."""
        return self.stream(0).read()

    @property
    def stderr(self) -> Stream:
        """Return the stream for messages."""
        return self.stream(2)

    def stream(self, fd: int) -> Stream:
        """Return an open stream by its number; OSError EBADF if it is closed."""
        if fd not in self.fds:
            raise fault(errno.EBADF)
        return self.fds[fd]

    def is_set(self, name: str) -> bool:
        """Return whether a shell variable is set; only a shell (State) has any."""
        return False

    def out(self, data: bytes | str) -> None:
        self.stream(1).write(data)

    def fail(self, message: str, status: int = 1) -> int:
        """Print `name: message` with a line end to the standard error, and return the status."""
        if 2 in self.fds:
            self.fds[2].write(f"{self.argv[0]}: {message}\n")
        return status

    def tick(self, steps: int = 1) -> None:
        """Use up steps of the script's budget: one per few microseconds of work."""
        self.machine.tick(steps)

    def read(self, path: str, most: int = ENDLESS) -> bytes:
        """Return the bytes of a file, `most` of an endless device; /dev/stdin is the standard input."""
        node = self.lookup(path)
        if node.kind == "device" and node.data == "stdin":
            return self.stream(0).read(most)
        self.require(node, 4)
        return bytes_of(node, most)

    def write(self, path: str, data: bytes, append: bool = False, mode: int = 0o666) -> Node:
        """Put bytes into a file; /dev/stdout and /dev/stderr are the streams."""
        node = super().write(path, data, append, mode)
        if node.kind == "device" and node.data in ("stdout", "stderr"):
            self.stream(1 if node.data == "stdout" else 2).write(data)
        return node

    def run(self, argv: list[str], stdin: bytes | None = None, stdout: Stream | None = None, **changes) -> int:
        """Run another command with this one's environment and return its status, as xargs, env and find do.

        `stdin` are the bytes it reads (None: this one's input), `stdout` a stream (`pipe(p.machine)` keeps the output:
        `text(stream.read())`), `changes` fields of Process to set, such as env=, cwd=, uid=, gid=, groups=, umask=.
        Raises OSError ENOENT if there is no such command, EACCES if it may not be run: the caller prints the message.
        """
        return self.launch(self, argv, stdin, stdout, **changes)
