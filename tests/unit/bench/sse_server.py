# SPDX-License-Identifier: Apache-2.0
"""A server that streams completions, with the faults that clients have been seen to stumble over."""

from __future__ import annotations

import http.server
import json
import threading
import time
from typing import Any


class Streaming:
    """Streams ``max_tokens`` chunks, one each ``gap`` seconds, on a free port of the loopback.

    Attributes:
        padding: bytes that are added to each chunk. tail: a last event behind the tokens of every other request.
        prompts: of all requests, in order. most: requests that were open at once.
    """

    def __init__(self) -> None:
        self.gap, self.padding, self.tail = 0.01, 0, ""
        self.prompts: list[str] = []
        self.open = self.most = 0
        self._lock = threading.Lock()
        streaming = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._whole({"data": [{"id": "m"}], "version": "0.5.9", "api_key": "sk-secret"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
                if self.path.endswith("/completions"):
                    streaming.answer(self, body)
                else:
                    self._whole({})

            def _whole(self, content: Any) -> None:
                text = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 512

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def answer(self, handler: http.server.BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        """One stream."""
        with self._lock:
            self.prompts.append(body["prompt"])
            tail = self.tail if len(self.prompts) % 2 else ""
            self.open += 1
            self.most = max(self.most, self.open)
        try:
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            due = time.monotonic()
            for number in range(body["max_tokens"]):
                due += self.gap
                time.sleep(max(0.0, due - time.monotonic()))
                event = {
                    "choices": [{"index": 0, "text": " word"}],
                    "usage": {"completion_tokens": number + 1},
                    "padding": "x" * self.padding,
                }
                self._event(handler, json.dumps(event))
            if tail:
                self._event(handler, tail)
            self._event(handler, "[DONE]")
            handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            handler.close_connection = True  # the client went away
        finally:
            with self._lock:
                self.open -= 1

    @staticmethod
    def _event(handler: http.server.BaseHTTPRequestHandler, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        handler.wfile.flush()

    def close(self) -> None:
        """The port closes."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
