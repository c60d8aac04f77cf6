"""watch=true: the page of runs at an address of this machine, made anew when their files have changed.

The page asks for /version every two seconds, and loads itself again once that differs (rl/report/page.js).
"""

import hashlib
import html
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from envs.serve.access import Access, BadRequest
from rl.report.page import DATA, HELD_OUT

FILES = ("config.json", "metrics.jsonl", DATA, HELD_OUT)  # what a page is made of


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def do_GET(self) -> None:
        try:
            self.server.access.check(self.headers)  # another page's name may have been made to point here
        except BadRequest as error:
            status, line = error.args
            self.reply(status, line.partition(";")[0])  # without the advice, which is for a server with keys of its own
            return
        path = self.path.partition("?")[0]
        if path == "/version":
            self.reply(200, self.server.version())
        elif path == "/":
            self.reply(200, self.server.page(), "text/html")
        else:
            self.reply(404, "only / and /version are here")

    def reply(self, status: int, text: str, kind: str = "text/plain") -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        for name, value in (("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", len(body))):
            self.send_header(name, str(value))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args) -> None:
        pass  # a line every two seconds


class Server(ThreadingHTTPServer):
    """A server of the page of runs. build(version) makes it; what it cannot read yet is waited for."""

    def __init__(self, folders: list[Path], build: Callable[[str], str], port: int):
        self.folders, self.build, self.access = folders, build, Access()
        self.lock, self.made = threading.Lock(), ("", "")
        super().__init__(("127.0.0.1", port), Handler)

    def version(self) -> str:
        """Return a digest of the times and sizes of the runs' files."""
        found = [folder / name for folder in self.folders for name in FILES]
        stats = [(path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None for path in found]
        return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]

    def page(self) -> str:
        with self.lock:
            version = self.version()  # before the files are read: what changes meanwhile makes another page
            if self.made[0] != version:
                if lines := waiting(self.folders):
                    return waiting_page(lines)
                try:
                    self.made = version, self.build(version)
                except (OSError, ValueError, LookupError, TypeError) as error:
                    return waiting_page([f"cannot be read now: {error}"])
            return self.made[1]

    def handle_error(self, request, client_address) -> None:
        pass  # a browser that went away


def waiting(folders: list[Path]) -> list[str]:
    """Return a line for each run that has no metrics yet."""
    return [
        f"{folder}: {'no metrics yet' if folder.is_dir() else 'not there yet'}; the page waits for the first line"
        for folder in folders
        if not (folder / "metrics.jsonl").is_file()
    ]


def waiting_page(lines: list[str]) -> str:
    head = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>waiting</title>'
    return head + "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def serve(folders: list[Path], server: Server) -> None:
    """Print where the page is, and serve it until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which rl/run/early_interrupt.py has replaced
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    address = f"http://127.0.0.1:{server.server_port}/"
    print(f"{address} follows {', '.join(map(str, folders))}; Ctrl-C ends it", *waiting(folders), sep="\n", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("ended")
    finally:
        server.server_close()
