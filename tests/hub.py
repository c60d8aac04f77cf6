"""A stand-in for the Hugging Face hub: what huggingface_hub asks to push a folder, on a local port."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_right"


class Hub(ThreadingHTTPServer):
    """repos: of each repository whether it is private and its files. asked: the paths of all requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos, self.objects, self.asked, self.refuses_commits = {}, {}, [], False
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(b"")

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"] or 0)))

    do_PUT = do_POST

    def answer(self, body: bytes) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        hub.asked.append(path)
        if path.startswith("/lfs/"):
            hub.objects[path.removeprefix("/lfs/")] = body
            return self.send(200, {})
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.send(401, {"error": "Invalid credentials"})
        if path == "/api/whoami-v2":
            return self.send(200, {"type": "user", "name": "me", "orgs": []})
        if path == "/api/validate-yaml":
            return self.send(200, {})
        if path == "/api/repos/create":
            request = json.loads(body)
            name = f"{request.get('organization') or 'me'}/{request['name']}"
            private = request.get("private", request.get("visibility") == "private")
            if name in hub.repos:
                return self.send(409, {"error": "exists", "url": f"{hub.url}/{name}"})
            hub.repos[name] = {"private": bool(private), "files": {}}
            return self.send(200, {"url": f"{hub.url}/{name}"})
        if path.endswith("/objects/batch"):
            actions = [{**one, "actions": self.upload(one["oid"])} for one in json.loads(body)["objects"]]
            return self.send(200, {"transfer": "basic", "objects": actions})
        name = "/".join(path.removeprefix("/api/models/").split("/")[:2])
        if name not in hub.repos:
            return self.send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if "/preupload/" in path:
            files = json.loads(body)["files"]
            return self.send(200, {"files": [{**self.mode(one["path"]), "path": one["path"]} for one in files]})
        if "/commit/" in path:
            if hub.refuses_commits:
                return self.send(403, {"error": "this token may only read"})
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    hub.repos[name]["files"][value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.repos[name]["files"][value["path"]] = hub.objects[value["oid"]]
            return self.send(200, {"commitUrl": f"{hub.url}/{name}/commit/{'0' * 40}", "commitOid": "0" * 40})
        return self.send(200, {"id": name, "private": hub.repos[name]["private"], "sha": "0" * 40, "siblings": []})

    def upload(self, oid: str) -> dict:
        return {"upload": {"href": f"{self.server.url}/lfs/{oid}"}}

    def mode(self, path: str) -> dict:
        mode = "lfs" if path.endswith((".safetensors", ".bin")) else "regular"
        return {"uploadMode": mode, "shouldIgnore": False}

    def send(self, status: int, content: dict, headers: dict | None = None) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", "Content-Length": len(data), **(headers or {})}.items():
            self.send_header(key, str(value))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
