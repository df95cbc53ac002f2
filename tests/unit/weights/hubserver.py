# SPDX-License-Identifier: Apache-2.0
"""A hub on this machine: what huggingface_hub asks for a repository at a commit, with faults. Standard library only.

    python hubserver.py --port 8000 [--bind 127.0.0.1] [--token T] [--daemon PIDFILE] [--lifetime S]

Large files are redirected to another host name with a signed address, as the real hub does: who sends the token there
is told so in `leaks`. Faults are attributes of `Hub`, changed while it serves.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import re
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
BRANCH_LIKE_A_COMMIT = "f" * 40
REPOSITORY = "toy/model"
_PAGE = 3


def content(seed: int, size: int) -> bytes:
    """Bytes that repeat nowhere near."""
    blocks = (hashlib.sha256(b"%d/%d" % (seed, number)).digest() for number in range(size // 32 + 1))
    return b"".join(blocks)[:size]


def toy(shard: int = 200_000) -> dict[str, bytes]:
    """A repository with two shards, their index, small files, and what nobody wants."""
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    return {
        ".gitattributes": b"*.safetensors filter=lfs\n",
        "README.md": b"# toy\n",
        "config.json": b'{"model_type": "toy"}\n',
        "model-00001-of-00002.safetensors": content(1, shard),
        "model-00002-of-00002.safetensors": content(2, shard + 1),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "original/consolidated.bin": content(3, 1000),
        "tokenizer/tokenizer.json": b"{}\n",
    }


def is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin"))


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclasses.dataclass
class Faults:
    """What is wrong, by path of the repository.

    cut: path -> bytes after which the connection breaks, each time as many further on; `cuts` how often at most.
    corrupt: path -> how often its content is wrong. stall: path -> bytes after which it waits for `go`.
    busy: path -> how often the hub has no time for it.
    """

    cut: dict[str, int] = dataclasses.field(default_factory=dict)
    cuts: int = 1_000_000
    corrupt: dict[str, int] = dataclasses.field(default_factory=dict)
    stall: dict[str, int] = dataclasses.field(default_factory=dict)
    token: str = ""
    gated: bool = False
    busy: dict[str, int] = dataclasses.field(default_factory=dict)
    echo_token: bool = False
    no_ranges: bool = False


class Hub:
    """The server and what it was asked."""

    def __init__(self, bind: str = "127.0.0.1", port: int = 0, files: dict[str, bytes] | None = None) -> None:
        self.files = toy() if files is None else files
        self.faults = Faults()
        self.go = threading.Event()
        self.gone = False
        self.rate = 0
        self.stalled = threading.Event()
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.leaks: list[str] = []
        hub = self

        class Handler(_Handler):
            owner = hub

        self.server = ThreadingHTTPServer((bind, port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.bind = bind
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://{self.bind}:{self.port}"

    @property
    def cdn(self) -> str:
        """Another host by its name, where that can be had."""
        return f"http://localhost:{self.port}" if self.bind == "127.0.0.1" else self.endpoint

    def stop(self) -> None:
        self.gone = True
        self.go.set()
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, url = self.owner, urlsplit(self.path)
        path = unquote(url.path)
        hub.requests[f"{self.command} {path}"] += 1
        if path.startswith("/cdn/"):
            self._cdn(path.removeprefix("/cdn/"))
            return
        if not self._allowed():
            return
        name = re.escape(REPOSITORY)
        if found := re.fullmatch(rf"/api/models/{name}/revision/(.+)", path):
            self._revision(found[1])
        elif found := re.fullmatch(rf"/api/models/{name}/tree/([^/]+)", path):
            self._tree(found[1], url.query)
        elif found := re.fullmatch(rf"/{name}/resolve/([^/]+)/(.+)", path):
            self._resolve(found[1], found[2])
        elif path.startswith((f"/api/models/{REPOSITORY}", f"/{REPOSITORY}/")):
            self._answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        else:
            self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

    def _allowed(self) -> bool:
        faults = self.owner.faults
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if faults.token and given != faults.token:
            if given:
                said = f"Invalid credentials in Authorization header{': ' + given if faults.echo_token else ''}"
                self._answer(401, {"error": said}, {"X-Error-Message": said})
            else:
                said = "Invalid username or password."
                self._answer(401, {"error": said}, {"X-Error-Code": "RepoNotFound", "X-Error-Message": said})
            return False
        if faults.gated:
            said = f"Access to model {REPOSITORY} is restricted and you are not in the authorized list."
            self._answer(403, {"error": said}, {"X-Error-Code": "GatedRepo", "X-Error-Message": said})
            return False
        return True

    def _commit(self, revision: str) -> str | None:
        found = {COMMIT: COMMIT, "main": COMMIT, BRANCH_LIKE_A_COMMIT: COMMIT, OTHER_COMMIT: OTHER_COMMIT}.get(revision)
        if found is None:
            said = f"Invalid rev id: {revision}"
            self._answer(404, {"error": said}, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": said})
        return found

    def _revision(self, revision: str) -> None:
        if (commit := self._commit(revision)) is not None:
            siblings = [{"rfilename": path} for path in self.owner.files]
            self._answer(200, {"id": REPOSITORY, "modelId": REPOSITORY, "sha": commit, "siblings": siblings})

    def _tree(self, revision: str, query: str) -> None:
        if self._commit(revision) is None:
            return
        start = int(parse_qs(query).get("cursor", ["0"])[0])
        rows: list[dict[str, Any]] = []
        folders = sorted({path.rsplit("/", 1)[0] for path in self.owner.files if "/" in path})
        rows += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": folder} for folder in folders]
        for path, data in sorted(self.owner.files.items()):
            row: dict[str, Any] = {"type": "file", "oid": git_sha1(data), "size": len(data), "path": path}
            if is_large(path):
                sha256 = hashlib.sha256(data).hexdigest()
                row["oid"] = git_sha1(f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\n".encode())
                row["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 134}
            rows.append(row)
        headers = {}
        if start + _PAGE < len(rows):
            again = (
                f"{self.owner.endpoint}/api/models/{REPOSITORY}/tree/{revision}?recursive=True&cursor={start + _PAGE}"
            )
            headers["Link"] = f'<{again}>; rel="next"'
        self._answer(200, rows[start : start + _PAGE], headers)

    def _resolve(self, revision: str, path: str) -> None:
        commit = self._commit(revision)
        if commit is None:
            return
        data = self.owner.files.get(path)
        if data is None:
            self._answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        if self.owner.faults.busy.get(path, 0) > 0:
            self.owner.faults.busy[path] -= 1
            self._answer(503, {"error": "busy"})
            return
        if not is_large(path):
            self._bytes(path, data, {"ETag": f'"{git_sha1(data)}"', "X-Repo-Commit": commit})
            return
        sha256 = hashlib.sha256(data).hexdigest()
        headers = {
            "Location": f"{self.owner.cdn}/cdn/{quote(path)}?signature=x",
            "X-Repo-Commit": commit,
            "X-Linked-Etag": f'"{sha256}"',
            "X-Linked-Size": str(len(data)),
        }
        self._answer(302, {}, headers)

    def _cdn(self, path: str) -> None:
        if self.headers.get("Authorization") and self.owner.cdn != self.owner.endpoint:
            self.owner.leaks.append(path)
        headers = {"ETag": f'"{hashlib.sha256(self.owner.files[path]).hexdigest()}"'}
        if self.owner.cdn == self.owner.endpoint:
            # huggingface_hub follows a redirect within one host, and reads the last answer
            headers["X-Repo-Commit"] = COMMIT
        self._bytes(path, self.owner.files[path], headers)

    def _bytes(self, path: str, data: bytes, headers: dict[str, str]) -> None:
        faults = self.owner.faults
        first = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and not faults.no_ranges:
            first = int(asked[1])
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        if self.command == "GET" and faults.corrupt.get(path, 0) > 0:
            faults.corrupt[path] -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        body = data[first:]
        self.send_response(206 if "Content-Range" in headers else 200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if path in faults.stall and first < faults.stall[path]:
            self._send(path, body[: faults.stall[path] - first])
            self.owner.stalled.set()
            self.owner.go.wait()
            if self.owner.gone:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self._send(path, body[faults.stall[path] - first :])
            return
        if path in faults.cut and faults.cuts > 0 and len(body) > faults.cut[path]:
            faults.cuts -= 1
            self._send(path, body[: faults.cut[path]])
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self._send(path, body)

    def _send(self, path: str, data: bytes) -> None:
        try:
            rate = self.owner.rate
            pieces = [data[start : start + rate // 10] for start in range(0, len(data), rate // 10)] if rate else [data]
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()
                self.owner.sent[path] += len(piece)
                if rate:
                    time.sleep(0.1)
        except OSError:
            self.close_connection = True

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bind", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", default="")
    parser.add_argument("--files", help="directory whose files it serves instead of made ones")
    parser.add_argument("--rate", type=int, default=0, help="bytes a second of each file")
    parser.add_argument("--daemon", help="go on in the background; the file gets the process's number")
    parser.add_argument("--lifetime", type=float, default=3600, help="seconds until it ends by itself")
    arguments = parser.parse_args()
    if arguments.daemon:
        if os.fork():
            return
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(quiet, stream)
        Path(arguments.daemon).write_text(str(os.getpid()))
    base = Path(arguments.files) if arguments.files else None
    files = {path.name: path.read_bytes() for path in base.iterdir() if path.is_file()} if base else None
    hub = Hub(arguments.bind, arguments.port, files)
    hub.faults.token, hub.rate = arguments.token, arguments.rate
    print(hub.endpoint, flush=True)
    time.sleep(arguments.lifetime)


if __name__ == "__main__":
    main()
