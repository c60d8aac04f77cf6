"""The HTTP server of all protocols: JSON in, JSON out. `python -m envs.serve --help` says how to start one."""

import json
import sys
import threading
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

MAX_BODY = 8 << 20  # most bytes of a request
CONNECTIONS = 64  # requests handled at once; others wait


class BadRequest(Exception):
    """An invalid request; its arguments are the HTTP status and a line."""


class Handler(BaseHTTPRequestHandler):
    """Handle one request: pass its JSON to the server's `answer` and send the result as JSON."""

    timeout = 30  # seconds to wait for each part of a request
    wbufsize = -1  # buffered, so that headers and body are sent together

    def do_POST(self) -> None:
        path, _, query = self.path.partition("?")
        try:
            body = _query(query) if self.command == "GET" else self._body()
            status, said = 200, self.server.answer(self.command, path, body)
        except BadRequest as bad:
            status, said = bad.args[0], {"detail": bad.args[1]}
        except Exception as error:  # must stop neither the server nor other requests
            traceback.print_exc()
            status, said = 500, {"detail": described(error)}
        self._say(status, said)

    do_GET = do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send http.server's own errors as JSON too."""
        self._say(code, {"detail": message or HTTPStatus(code).phrase})

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
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            raise BadRequest(411, "Length Required")
        if len(length) > 9 or int(length) > MAX_BODY:
            raise BadRequest(413, f"a request has at most {MAX_BODY} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)) or b"{}")
        except (ValueError, RecursionError):
            raise BadRequest(422, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise BadRequest(422, "the body is not a JSON object")
        return body

    def log_message(self, *args) -> None:
        pass  # a line per request would be thousands a minute


class Server(ThreadingHTTPServer):
    """A server whose `answer` returns the JSON of each reply. One thread per request, at most CONNECTIONS."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, host: str, port: int, answer: Callable[[str, str, dict], Any]):
        self.answer = answer
        self.free = threading.Semaphore(CONNECTIONS)
        super().__init__((host, port), Handler)

    def process_request(self, request, client_address) -> None:
        self.free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request, client_address) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that disconnects early is no error
            super().handle_error(request, client_address)


def _query(text: str) -> dict:
    """Return the fields of a URL's query, whole numbers as int."""
    return {name: int(value) if value.isdecimal() and len(value) < 20 else value for name, value in parse_qsl(text)}


def described(error: Exception) -> str:
    """Return an exception as one line."""
    return f"{type(error).__name__}: {error}"
