"""A stand-in for the model hub on loopback: repositories in memory, ranges, tokens, and ways to fail."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What it serves, and what it was asked.

    Attributes:
        files: by repository, then path.
        lies: sha256 told for a path instead of the right one.
        token: wanted in Authorization; None for none.
        gated: repositories whose files are refused.
        cut_after: the connection of a file's GET ends after so many bytes, once for each entry.
        ranges: Range header of every GET of a file, "" without one.
    """

    files: dict[str, dict[str, bytes]]
    lies: dict[str, str] = field(default_factory=dict)
    token: str | None = None
    gated: set[str] = field(default_factory=set)
    cut_after: list[int] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def hub(files: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    """Serves until the block ends."""
    served = Hub(files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            if served.token is not None and self.headers.get("Authorization") != f"Bearer {served.token}":
                self.say(401, {"X-Error-Code": "RepoNotFound"})
                return
            path = self.path.partition("?")[0]
            if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
                self.info(match[1])
            elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                self.file(match[1], match[2])
            else:
                self.say(404, {})

        def info(self, repository: str) -> None:
            if repository not in served.files:
                self.say(404, {"X-Error-Code": "RepoNotFound"})
                return
            siblings = [
                {
                    "rfilename": name,
                    "size": len(data),
                    "lfs": {"sha256": served.lies.get(name, sha256(data)), "size": len(data), "pointerSize": 134},
                }
                for name, data in served.files[repository].items()
            ]
            body = json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode()
            self.say(200, {"Content-Type": "application/json"}, body)

        def file(self, repository: str, name: str) -> None:
            data = served.files.get(repository, {}).get(name)
            if repository in served.gated:
                self.say(403, {"X-Error-Code": "GatedRepo"})
            elif data is None:
                self.say(404, {"X-Error-Code": "EntryNotFound"})
            else:
                self.content(data)

        def content(self, data: bytes) -> None:
            wanted = self.headers.get("Range") or ""
            if self.command == "GET":
                served.ranges.append(wanted)
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{sha256(data)}"'}
            first = int(match[1]) if (match := re.fullmatch(r"bytes=(\d+)-", wanted)) else 0
            if wanted:
                headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
            self.say(206 if wanted else 200, headers, data[first:])

        def say(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if "/resolve/" in self.path and served.cut_after:
                body = body[: served.cut_after.pop(0)]
                self.close_connection = True
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
