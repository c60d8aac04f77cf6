"""The HTTP server of all protocols: JSON in, JSON out. `python -m envs.serve --help` says how to start one.

An event loop reads requests and sends replies, so a slow client costs memory and no thread. Above MAX_WAITING of them
the one that came first is disconnected, above MAX_HELD bytes the one with the most. Whole requests are answered in
threads.
"""

import asyncio
import io
import json
import queue
import re
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl

from envs.http.exchange import parse_json, plain
from envs.serve.access import Access, BadRequest

MAX_HEAD = 65_537  # most bytes of a request line and headers; http.server refuses a line of 65,537
MAX_BODY = 8 << 20  # most bytes of a request's body
MAX_WAITING = 256  # most connections that the server reads from or sends to
MAX_HELD = 64 << 20  # most bytes of the requests and replies under way
BLOCK = 2**18  # bytes
THREADS = 64  # requests answered at once; others wait
SECONDS = 30.0  # most seconds to receive a request, and to send a reply
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
HEAD_END = re.compile(rb"\r?\n\r?\n")
LENGTH = re.compile(rb"^content-length:[ \t]*(\d{1,9})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class Stream:
    """A whole HTTP reply whose parts come later. All methods are called on the server's event loop.

    left: called if the client leaves before the end.
    """

    def __init__(self, left: Callable[[], None]):
        self.left, self.parts, self.ended, self.changed = left, [], False, asyncio.Event()

    def put(self, part: bytes, end: bool = False) -> None:
        self.parts.append(part)
        self.ended = end
        self.changed.set()


class Handler(BaseHTTPRequestHandler):
    """Answer one whole request: pass its JSON to the server's `answer` and write the result as JSON to `wfile`, or keep
    the `stream` that it is."""

    stream: Stream | None = None

    def setup(self) -> None:
        self.rfile, self.wfile = io.BytesIO(self.request), io.BytesIO()

    def finish(self) -> None:
        pass

    def do_POST(self) -> None:
        path, _, query = self.path.partition("?")
        try:
            self.server.access.check(self.headers)
            body = _query(query) if self.command == "GET" else self._body()
            status, said = 200, self.server.answer(self.command, path, body, self.client_address[0])
            if isinstance(said, Stream):
                self.stream = said
                return
        except BadRequest as bad:
            status, said = bad.args[0], {"detail": bad.args[1]}
        except Exception as error:  # must stop neither the server nor other requests
            report(error)
            status, said = 500, {"detail": described(error)}
        self._say(status, said)

    do_GET = do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send http.server's own errors as JSON too."""
        self._say(code, {"detail": plain(message or HTTPStatus(code).phrase)})

    def _say(self, status: int, said) -> None:
        text = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _body(self) -> dict:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not re.fullmatch(r"\d+", length, re.ASCII):
            raise BadRequest(411, "Length Required")
        if len(length) > 9 or int(length) > MAX_BODY:
            raise BadRequest(413, f"a request has at most {MAX_BODY} bytes")
        try:
            body = parse_json(self.rfile.read(int(length)) or b"{}")
        except UnicodeDecodeError:
            raise BadRequest(422, "the body is not UTF-8") from None
        except ValueError as error:
            raise BadRequest(422, f"the body is not JSON: {plain(str(error))}") from None
        if not isinstance(body, dict):
            raise BadRequest(422, "the body is not a JSON object")
        return body

    def log_message(self, *args) -> None:
        pass  # a line per request would be thousands a minute


class Server:
    """A server whose `answer(method, path, body, client's address)` returns the JSON of each reply, or a Stream."""

    handler = Handler

    def __init__(
        self, host: str, port: int, answer: Callable[[str, str, dict, str], Any], access: Access | None = None
    ):
        self.answer, self.access = answer, access or Access()
        self.waiting: dict[asyncio.Task, int] = {}  # connections that wait for their client, oldest first -> bytes
        self.held = self.busy = self.threads = 0  # requests being answered: their bytes, their number; and all threads
        self.jobs = queue.SimpleQueue()  # arguments of _answer for the next free thread; None ends one
        self.started, self.stop = threading.Event(), lambda: None
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(address)
            self.socket.listen(1024)
        except OSError:
            self.socket.close()
            raise
        self.server_address = self.socket.getsockname()[:2]

    def serve_forever(self) -> None:
        """Serve until `shutdown` is called, or an exception such as KeyboardInterrupt is raised here."""
        try:
            with suppress(asyncio.CancelledError):
                asyncio.run(self._serve())
        finally:
            for _ in range(self.threads):
                self.jobs.put(None)

    def shutdown(self) -> None:
        """End serve_forever, which runs in another thread."""
        self.started.wait()
        self.stop()

    def server_close(self) -> None:
        self.socket.close()

    async def _serve(self) -> None:
        self.loop, serving = asyncio.get_running_loop(), asyncio.current_task()
        self.free = asyncio.Semaphore(THREADS)
        self.stop = lambda: self.loop.call_soon_threadsafe(serving.cancel)
        self.started.set()
        self.socket.setblocking(False)
        while True:
            try:
                connection, address = self.socket.accept()
            except BlockingIOError:
                await self._client_comes()
                continue
            except OSError:  # too many open files, or the client has left
                await asyncio.sleep(0.05)
                continue
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._wait(self.loop.create_task(self._play(connection, address)), 0)
            await asyncio.sleep(0)  # let the other connections go on

    async def _client_comes(self) -> None:
        """Wait for a connection. The event loop's own sock_accept fails if it is cancelled when one has just come."""
        comes = self.loop.create_future()
        self.loop.add_reader(self.socket, settle, comes, None)
        try:
            await comes
        finally:
            self.loop.remove_reader(self.socket)

    async def _play(self, connection: socket.socket, address: tuple) -> None:
        """Read a request, answer it and close the connection."""
        task = asyncio.current_task()
        try:
            with connection, suppress(OSError):
                async with asyncio.timeout(SECONDS):
                    request = await self._read(task, connection)
                self.waiting.pop(task, None)
                reply = await self._answered(request, address) if request else b""
                if isinstance(reply, Stream):
                    await self._forward(connection, reply)
                    return
                self._wait(task, len(reply))
                async with asyncio.timeout(SECONDS):
                    await self.loop.sock_sendall(connection, reply)
                    if not reply.startswith(b"HTTP/1.0 200 "):
                        connection.shutdown(socket.SHUT_WR)
                        await self._drain(connection)
        finally:
            self.waiting.pop(task, None)
            request = reply = b""  # the frame of a cancelled task lives until the next garbage collection

    async def _forward(self, connection: socket.socket, stream: Stream) -> None:
        """Send the parts of a stream as they come, until it ends or the client has left."""
        gone = self.loop.create_task(self._until_closed(connection))
        try:
            while not (stream.ended and not stream.parts):
                more = self.loop.create_task(stream.changed.wait())
                await asyncio.wait((more, gone), return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    more.cancel()
                    return
                stream.changed.clear()
                part = b"".join(stream.parts)
                stream.parts.clear()
                async with asyncio.timeout(SECONDS):
                    await self.loop.sock_sendall(connection, part)
        finally:
            gone.cancel()
            if not (stream.ended and not stream.parts):
                stream.left()

    async def _until_closed(self, connection: socket.socket) -> None:
        """Return when the client closes the connection; what it sends before is ignored."""
        with suppress(OSError):
            while await self.loop.sock_recv(connection, 65_536):
                pass

    async def _read(self, task: asyncio.Task, connection: socket.socket) -> bytes:
        """Return a request: its head, and as much of a body as the head says. Nothing if the client leaves before."""
        head, end = bytearray(), None
        while not end and len(head) < MAX_HEAD:
            part = await self.loop.sock_recv(connection, 65_536)
            if not part:
                return b""
            head += part
            end = HEAD_END.search(head, max(0, len(head) - len(part) - 3))
        length = LENGTH.search(head, 0, end.end()) if end else None
        if not length or int(length[1]) > MAX_BODY:
            return bytes(head)
        size = end.end() + int(length[1])
        self._wait(task, size)
        blocks, missing = [head], size - len(head)  # in blocks, because a growing array leaves holes in the memory
        try:
            while missing > 0:
                part = await self.loop.sock_recv(connection, min(missing, 65_536))
                if not part:
                    return b""
                if len(blocks[-1]) > BLOCK:
                    blocks.append(bytearray())
                blocks[-1] += part
                missing -= len(part)
            return b"".join(blocks)
        finally:
            blocks.clear()  # as in _play

    async def _drain(self, connection: socket.socket) -> None:
        """Read what the client still sends of a refused request, because closing would take the reply from it."""
        for _ in range(4 * MAX_BODY // 65_536):
            if not await self.loop.sock_recv(connection, 65_536):
                return
            await asyncio.sleep(0)

    def _wait(self, task: asyncio.Task, size: int) -> None:
        """Note that a task waits for its client and holds `size` bytes. Disconnect others that are above the limits."""
        self.waiting[task] = size
        while len(self.waiting) > MAX_WAITING:
            self._disconnect(next(iter(self.waiting)))
        while sum(self.waiting.values()) > MAX_HELD and len(self.waiting) > 1:
            self._disconnect(max((other for other in self.waiting if other is not task), key=self.waiting.get))

    def _disconnect(self, task: asyncio.Task) -> None:
        del self.waiting[task]
        task.cancel()

    async def _answered(self, request: bytes, address: tuple) -> bytes | Stream:
        """Return the reply to a request, made in a thread."""
        size = len(request) + 65_536
        if self.held + size > MAX_HELD:
            return BUSY
        self.held += size
        try:
            async with self.free:
                return await self._in_thread(request, address)
        finally:
            self.held -= size

    async def _in_thread(self, request: bytes, address: tuple) -> bytes | Stream:
        self.busy += 1
        try:
            if self.busy > self.threads:
                threading.Thread(target=self._work, daemon=True).start()
                self.threads += 1
            done = self.loop.create_future()
            self.jobs.put((request, address, done))
            return await done
        except RuntimeError:  # no thread can be started
            return BUSY
        finally:
            self.busy -= 1

    def _work(self) -> None:
        while job := self.jobs.get():
            self._answer(*job)

    def _answer(self, request: bytes, address: tuple, done: asyncio.Future) -> None:
        try:
            handler = self.handler(request, address, self)
            reply = handler.stream or handler.wfile.getvalue()
        except Exception as error:  # a bug; the client gets no reply
            report(error)
            reply = b""
        with suppress(RuntimeError):  # the server has stopped
            self.loop.call_soon_threadsafe(settle, done, reply)


def settle(future: asyncio.Future, value: Any) -> None:
    """Set a future's value, unless it has one or was cancelled, which a signal may do at any time."""
    with suppress(asyncio.InvalidStateError):
        future.set_result(value)


def _query(text: str) -> dict:
    """Return the fields of a URL's query, whole numbers as int."""
    return {name: int(value) if value.isdecimal() and len(value) < 20 else value for name, value in parse_qsl(text)}


def described(error: Exception) -> str:
    """Return an exception as one line."""
    return plain(f"{type(error).__name__}: {error}")


def report(error: Exception) -> None:
    """Print an exception with its traceback, without characters that could change the terminal."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    print("\n".join(indent(line) + plain(line, 500) for line in lines), file=sys.stderr, flush=True)


def indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]
