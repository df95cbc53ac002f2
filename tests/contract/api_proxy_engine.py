# SPDX-License-Identifier: Apache-2.0
"""An engine that takes down each byte that reaches it. Needs nothing but Python: it is also run in a container.

``python3 api_proxy_engine.py PORT FILE`` writes what reaches it to FILE, a JSON object a line.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Request(NamedTuple):
    """What the engine saw."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def route(self) -> tuple[str, str]:
        """Method and target."""
        method, _, rest = self.line.partition(" ")
        return method, rest.rpartition(" ")[0]


class Engine:
    """Takes down whatever arrives, byte for byte, and answers it."""

    def __init__(self, port: int = 0) -> None:
        self.seen: list[Request] = []
        self.odd: list[bytes] = []
        """What came on a connection after its first request, or was none, or not whole."""
        self.connections = 0
        self.answer: Callable[[Request, socket.socket], None] = self.plain
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Method and target of each request."""
        return [request.route for request in self.seen]

    def forget(self) -> None:
        """Begin anew."""
        self.seen, self.odd, self.answer, self.connections = [], [], self.plain, 0

    def took(self, what: Request | bytes) -> None:
        """Told of each request, and of what is none."""

    def _odd(self, data: bytes) -> None:
        self.odd.append(data)
        self.took(data)

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def plain(self, request: Request, connection: socket.socket) -> None:
        """An answer with a length."""
        body = json.dumps({"object": "list", "data": [], "saw": request.line}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(head.encode() + b"X-Request-Id: of-the-engine\r\nServer: uvicorn\r\n\r\n" + body)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            data = b""
            while b"\r\n\r\n" not in data:
                more = connection.recv(65536)
                if not more:
                    if data:
                        self._odd(data)
                    return
                data += more
            head, _, body = data.partition(b"\r\n\r\n")
            line, *rest = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in rest)}
            length = int(headers.get("content-length", 0))
            while len(body) < length:
                more = connection.recv(65536)
                if not more:
                    self._odd(data)
                    return
                body += more
            if body[length:]:
                self._odd(body[length:])
            request = Request(line, headers, body[:length])
            self.seen.append(request)
            self.took(request)
            self.answer(request, connection)


class Written(Engine):
    """One that writes down what it sees. A body with ``pieces`` is answered in pieces, each when FILE.N is there."""

    def __init__(self, port: int, path: str) -> None:
        self._path, self._lock = Path(path), threading.Lock()
        super().__init__(port)
        self.answer = self.pieces

    def took(self, what: Request | bytes) -> None:
        """Write it, on the disk before it is answered."""
        told: dict[str, Any] = {"odd": what.decode("latin-1")} if isinstance(what, bytes) else what._asdict()
        if isinstance(what, Request):
            told["body"] = what.body.decode("latin-1")
        with self._lock, self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(told) + "\n")

    def pieces(self, request: Request, connection: socket.socket) -> None:
        """A stream whose next piece is not made before somebody has asked for it."""
        if b'"pieces"' not in request.body:
            self.plain(request, connection)
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(3):
            while not Path(f"{self._path}.{number}").exists():
                time.sleep(0.02)
            piece = b"data: %d\n\n" % number
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        connection.sendall(b"0\r\n\r\n")


if __name__ == "__main__":
    Written(int(sys.argv[1]), sys.argv[2])
    threading.Event().wait()
