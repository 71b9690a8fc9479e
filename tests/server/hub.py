"""A small hub on loopback: serves checkpoint folders as huggingface.co's API does, as far as a download asks for it."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(slots=True)
class Hub:
    """Repositories by name, and what was asked. Use as a context manager.

    gated      names whose files answer 403 to whoever brings no token
    cut        files that break off in the middle, each as often as its number says
    stalled    files that break off nowhere, but never come to an end, until `resumed` is set
    """

    repositories: dict[str, Path]
    gated: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)
    stalled: set[str] = field(default_factory=set)
    resumed: threading.Event = field(default_factory=threading.Event)
    requests: list[str] = field(default_factory=list)  # method and path
    url: str = ""
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        hub = self

        class Handler(_Handler):
            def do_GET(self) -> None:
                self.answer(hub, has_body=True)

            def do_HEAD(self) -> None:
                self.answer(hub, has_body=False)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._server is not None
        self.resumed.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Silence: what was asked is in `Hub.requests`."""

    def answer(self, hub: Hub, *, has_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            self.describe(hub, "/".join(parts[2:4]), parts[4:])
        elif len(parts) >= 5 and parts[2] == "resolve":
            self.send_file(hub, "/".join(parts[:2]), "/".join(parts[4:]), has_body=has_body)
        else:
            self.fail(404, "EntryNotFound")

    def describe(self, hub: Hub, name: str, rest: list[str]) -> None:
        if name not in hub.repositories:
            self.fail(404, "RepoNotFound")
            return
        files = sorted(file for file in hub.repositories[name].rglob("*") if file.is_file())
        paths = [str(file.relative_to(hub.repositories[name])) for file in files]
        if rest[:1] == ["tree"]:
            self.send_json(
                [
                    {"type": "file", "path": path, "size": file.stat().st_size, "oid": _digest(file)}
                    for path, file in zip(paths, files, strict=True)
                ]
            )
        else:
            self.send_json({"id": name, "sha": COMMIT, "siblings": [{"rfilename": path} for path in paths]})

    def send_file(self, hub: Hub, name: str, path: str, *, has_body: bool) -> None:
        if name not in hub.repositories:
            self.fail(404, "RepoNotFound")
            return
        if name in hub.gated and "authorization" not in self.headers:
            self.fail(403, "GatedRepo")
            return
        file = hub.repositories[name] / path
        if not file.is_file():
            self.fail(404, "EntryNotFound")
            return
        content = file.read_bytes()
        first = 0
        if has_body and (asked := self.headers.get("range")) is not None:
            first = int(asked.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{_digest(file)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if has_body:
            self.send_body(hub, path, content[first:])

    def send_body(self, hub: Hub, path: str, content: bytes) -> None:
        half = len(content) // 2
        if hub.cut.get(path, 0) > 0:
            hub.cut[path] -= 1
            self.wfile.write(content[:half])
            self.close_connection = True
        elif path in hub.stalled:
            self.wfile.write(content[:half])
            self.wfile.flush()
            hub.resumed.wait()
            self.close_connection = True
        else:
            self.wfile.write(content)

    def send_json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", f"{code} {self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()


def _digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()
