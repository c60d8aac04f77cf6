"""Servers that send what they should not, for the tests of the clients: raw bytes, slowly, or nothing at all."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

OK = b"HTTP/1.1 200 OK\r\n"


@dataclass
class Raw:
    """A server that runs `say(connection)` for each connection and keeps what it was sent."""

    say: Callable[[socket.socket], None]
    port: int = 0
    heard: list[bytes] = field(default_factory=list)  # what each connection sent first

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def raw_server(say: Callable[[socket.socket], None] | bytes) -> Iterator[Raw]:
    """Run a server that sends these bytes on each connection and closes it, or runs `say`; yield it."""
    server = Raw((lambda connection: connection.sendall(say)) if isinstance(say, bytes) else say)

    def play(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(30)
            server.heard.append(connection.recv(65_536))
            server.say(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=play, args=[listener.accept()[0]], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        server.port = listener.getsockname()[1]
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def drip(start: bytes, part: bytes, seconds: float = 0.02) -> Callable[[socket.socket], None]:
    """Return what sends `start`, then `part` again and again with pauses, without end."""

    def say(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(part)
            time.sleep(seconds)

    return say


def silent(connection: socket.socket) -> None:
    """Send nothing until the client leaves."""
    while connection.recv(65_536):
        pass


def is_plain(text: str, most: int = 700) -> bool:
    """Return whether a message is one short line that cannot change the terminal."""
    return text.isprintable() and len(text) <= most


@contextlib.contextmanager
def modest(seconds: float = 2.0, megabytes: float = 300) -> Iterator[None]:
    """Assert that the block takes at most this processor time, and that the process grows by at most so much.

    The memory is measured where the system resets the peak of a process (Linux).
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    before, start = _megabytes("VmHWM"), time.process_time()
    yield
    took, grew = time.process_time() - start, _megabytes("VmHWM") - before
    assert took < seconds, f"took {took:.1f} s"
    assert grew < megabytes, f"took {grew:.0f} MiB"


def _megabytes(field: str) -> float:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    return int(status.split(f"{field}:")[1].split()[0]) / 1024
