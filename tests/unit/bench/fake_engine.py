# SPDX-License-Identifier: Apache-2.0
"""As much of a server as the module talks to itself: health, completions, the flush of its cache."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any


class Engine:
    """Answers on a free port of the loopback until it is closed.

    Attributes:
        asked: ``(path, body)`` of each request. flush_status, health_status: what these two are answered with.
        answer: text of each completion; an integer is a status instead.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.flush_status = self.health_status = 200
        self.answer: str | int = " Paris."
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._do(None)

            def do_POST(self) -> None:
                self._do(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null"))

            def _do(self, body: Any) -> None:
                engine.asked.append((self.path, body))
                status, text = engine.reply(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def reply(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        if path == "/flush_cache":
            return self.flush_status, b"Cache flushed."
        if path == "/health":
            return self.health_status, b""
        if isinstance(self.answer, int):
            return self.answer, b"no"
        return 200, json.dumps({"choices": [{"text": self.answer}]}).encode()

    def close(self) -> None:
        """The port closes."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
