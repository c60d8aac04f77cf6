"""One HTTP exchange with a server that is not trusted. Every client sends its requests here.

One deadline holds for all of it: the look-up of the name, the connection, TLS, sending, and every byte of the reply.
The reply's size, nesting and number of values are bounded. Redirects are not followed, so a token reaches no other
host; proxy settings of the process are ignored. Another thread ends a running exchange by setting `cancelled`.
"""

import functools
import http.client
import io
import json
import os
import re
import reprlib
import selectors
import socket
import ssl
import time
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event, Thread
from urllib.parse import urlsplit

from envs.refusal import Refusal

MAX_HEAD = 65_536  # most bytes of a reply's status line and headers
MAX_BODY = 8 << 20  # most bytes of a reply's body
MAX_CHUNKS = 20_000  # most chunks of a chunked body
MAX_DEPTH = 64  # deepest nesting of arrays and objects in JSON
MAX_LISTS = 100_000  # most arrays and objects in JSON
MAX_QUOTES = 1_000_000  # most quotation marks in JSON
POLL = 0.2  # seconds after which a waiting exchange looks at `cancelled`

STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)(?: ([^\r\n]*))?\r?\n")
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # in JSON; the last one may lack its end
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
REPR = reprlib.Repr()
REPR.maxlevel, REPR.maxstring, REPR.maxlong = 3, 80, 80


class Lost(Exception):
    """A request has no usable answer; a retry may help."""


class Cancelled(Exception):
    """The exchange was given up, because `cancelled` was set."""


@dataclass(frozen=True)
class Reply:
    """A server's whole reply."""

    status: int
    reason: str  # the status line's text, or where a redirect points to; printable
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def permanent(self) -> bool:
        """Whether the same request would be refused again: a redirect, or an error of the client."""
        return 300 <= self.status < 500 and self.status not in (408, 425, 429)


def is_address(url: str) -> bool:
    """Return whether a URL is http://host:port/path or https://..., without a password, query or fragment."""
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:  # an invalid port or IPv6 address
        return False
    return bool(named and re.fullmatch(r"[!-~]+", url) and not set("?#") & set(url))


def bearer(variable: str) -> dict[str, str]:
    """Return the header that sends the token in an environment variable; none if it is unset.

    Raise ValueError if a header cannot carry the token.
    """
    token = os.environ.get(variable, "").strip()
    if not re.fullmatch(r"[!-~]*", token):
        raise Refusal(f"{variable} must consist of ASCII letters, digits and punctuation")
    return {"Authorization": f"Bearer {token}"} if token else {}


def exchange(url: str, body: bytes | None, headers: dict[str, str], timeout: float, cancelled: Event) -> Reply:
    """POST the body, or GET without one. Return the whole reply, whatever its status.

    timeout: most seconds of the whole exchange.
    Raise ConnectionError if there is no connection or it breaks, Cancelled if `cancelled` is set, and Lost for anything
    else.
    """
    parts = urlsplit(url)
    head = [f"{'GET' if body is None else 'POST'} {parts.path or '/'} HTTP/1.1", f"Host: {parts.netloc}"]
    head += ["Connection: close", "Accept-Encoding: identity", *(f"{name}: {value}" for name, value in headers.items())]
    head += [] if body is None else [f"Content-Length: {len(body)}"]
    try:
        with _Connection(time.monotonic() + timeout, cancelled) as connection:
            connection.open(parts)
            connection.send("\r\n".join([*head, "", ""]).encode("latin-1") + (body or b""))
            return _read_reply(connection)
    except ConnectionError:
        raise
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise Lost(plain(str(getattr(error, "strerror", None) or error)) or type(error).__name__) from None


class _Connection(io.RawIOBase):
    """A connection whose every wait ends at one deadline, or when `cancelled` is set. Reads at most `room` bytes."""

    sock = None
    room = MAX_HEAD

    def __init__(self, deadline: float, cancelled: Event):
        self.deadline, self.cancelled = deadline, cancelled

    def readable(self) -> bool:
        return True

    def open(self, parts) -> None:
        """Connect to the host of a URL, and shake hands if it is https."""
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        places = self._addresses(parts.hostname, port)
        for number, (family, *_, address) in enumerate(places):
            share = (self.deadline - time.monotonic()) / (len(places) - number)
            try:
                self._connect(family, address, time.monotonic() + share)
                break
            except OSError:
                self._disconnect()
                if number == len(places) - 1:
                    raise
        if parts.scheme == "https":
            self.sock = _tls().wrap_socket(self.sock, server_hostname=parts.hostname, do_handshake_on_connect=False)
            self._when_ready(self.sock.do_handshake, selectors.EVENT_READ)

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._when_ready(functools.partial(self.sock.send, view), selectors.EVENT_WRITE) :]

    def readinto(self, buffer) -> int:
        view = memoryview(buffer)[: self.room]
        if not view:
            raise Lost("the reply is too long")
        count = self._when_ready(functools.partial(self.sock.recv_into, view), selectors.EVENT_READ)
        self.room -= count
        return count

    def close(self) -> None:
        self._disconnect()
        super().close()

    def _addresses(self, host: str, port: int) -> list[tuple]:
        """Return the host's addresses. A name is looked up in a thread, because nothing interrupts a look-up."""
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:  # a name
            found = Future()

        def look_up() -> None:
            try:
                found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except Exception as error:  # raised in the waiting thread
                found.set_exception(error)

        Thread(target=look_up, daemon=True).start()
        while not found.done():
            pause = self._pause(self.deadline)
            try:
                found.result(pause)
            except TimeoutError:
                continue
        return found.result()

    def _connect(self, family: int, address: tuple, deadline: float) -> None:
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.sock.connect(address)
        except BlockingIOError:
            self._wait(selectors.EVENT_WRITE, deadline)
            if error := self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, os.strerror(error)) from None  # of the subclass that the number has

    def _disconnect(self) -> None:
        if self.sock:
            self.sock.close()
            self.sock = None

    def _when_ready(self, act, event: int):
        """Return act(), called again after each wait for `event` or for what TLS needs."""
        while True:
            self._pause(self.deadline)
            try:
                return act()
            except BlockingIOError:
                self._wait(event, self.deadline)
            except ssl.SSLWantReadError:
                self._wait(selectors.EVENT_READ, self.deadline)
            except ssl.SSLWantWriteError:
                self._wait(selectors.EVENT_WRITE, self.deadline)

    def _wait(self, event: int, deadline: float) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self.sock, event)
            while not ready.select(self._pause(deadline)):
                pass

    def _pause(self, deadline: float) -> float:
        """Return the seconds until the next look at `cancelled`. Raise Cancelled if it is set, TimeoutError at the
        deadline."""
        if self.cancelled.is_set():
            raise Cancelled
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("timed out")
        return min(seconds, POLL)


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()  # reads the system's certificates, which takes tens of milliseconds


def _read_reply(connection: _Connection) -> Reply:
    file, status = io.BufferedReader(connection, 65_536), 100
    while status == 100:  # "continue": the reply is still to come
        line = file.readline(MAX_HEAD)
        if not line:
            raise ConnectionResetError("the connection was closed without a reply")
        found = STATUS.fullmatch(line)
        if not found:
            raise Lost(f"{short(line)} is not HTTP")
        status, headers = int(found[1]), http.client.parse_headers(file)
    connection.room += MAX_BODY
    reason = (found[2] or b"").decode("latin-1")
    if 300 <= status < 400 and headers["Location"]:
        reason = f"{reason}, a redirect to {headers['Location']}"
    return Reply(status, plain(reason), b"" if status in (204, 304) else _read_body(file, headers))


def _read_body(file: io.BufferedReader, headers) -> bytes:
    length, coding = headers.get("Content-Length"), headers.get("Transfer-Encoding", "identity").strip().lower()
    if coding == "chunked":
        return b"".join(_chunks(file))
    if coding != "identity":
        raise Lost(f"the transfer encoding {short(coding)} is unknown")
    if length is None:
        data = file.read()
        if len(data) > MAX_BODY:
            raise Lost(f"a reply of more than {MAX_BODY} bytes is too long")
        return data
    return _exactly(file, length.strip(), 10)


def _chunks(file: io.BufferedReader):
    for _ in range(MAX_CHUNKS):
        line = file.readline(1000)
        part = _exactly(file, line.partition(b";")[0].strip().decode("latin-1"), 16)
        if not part:
            return
        yield part
        file.readline(3)
    raise Lost(f"the reply has more than {MAX_CHUNKS} chunks")


def _exactly(file: io.BufferedReader, length: str, base: int) -> bytes:
    """Return as many bytes as the number says. Raise ConnectionResetError if there are fewer."""
    if not re.fullmatch("[0-9]{1,15}" if base == 10 else "[0-9a-fA-F]{1,15}", length):
        raise ConnectionResetError("the connection broke") if not length else Lost(f"{short(length)} is no length")
    size = int(length, base)
    if size > MAX_BODY:
        raise Lost(f"a reply of {size} bytes is too long")
    data = file.read(size)
    if len(data) < size:
        raise ConnectionResetError(f"the connection broke after {len(data)} of {size} bytes")
    return data


def parse_json(data: bytes):
    """Return the value of JSON in UTF-8. Raise ValueError if it is something else, or nested too deep or too large."""
    text = data.decode("utf-8-sig")
    if data.count(b'"') > MAX_QUOTES:
        raise Refusal(f"more than {MAX_QUOTES // 2} strings")
    brackets = STRING.sub(b"", data).translate(None, NOT_BRACKETS)
    if brackets.count(b"[") + brackets.count(b"{") > MAX_LISTS:
        raise Refusal(f"more than {MAX_LISTS} arrays and objects")
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise Refusal(f"nested more than {MAX_DEPTH} levels deep")
    return json.loads(text)


def plain(text: str, most: int = 200) -> str:
    """Return text as one line of at most `most` characters, all printable: no escape code reaches a terminal."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * most]).split())
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 3] + "..."


def short(value) -> str:
    """Return a value's repr, shortened to 80 characters of one line."""
    if isinstance(value, bytes | str):
        text = repr(value[:80])
    else:
        text = REPR.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
