# SPDX-License-Identifier: Apache-2.0
"""What an answer is taken for."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_client import Client, Reply, judge, served_names


def completion(text: str, logprobs: list[Any] | None = None) -> Reply:
    choice: dict[str, Any] = {"text": text}
    if logprobs is not None:
        choice["logprobs"] = {"token_logprobs": logprobs}
    return Reply(200, json.dumps({"choices": [choice]}))


def test_the_right_answer_is_sane() -> None:
    assert judge(completion(" Paris.", [-0.1, -0.2]), "Paris") == (" Paris.", "")
    assert judge(completion(" Paris."), "Paris").problem == ""


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (completion(" Rome."), "does not hold 'Paris'"),
        (completion("!!!!!!!!"), "one character repeated"),
        (completion("  "), "empty"),
        (completion(" Paris.", [-0.1, None]), "not finite"),
        (Reply(200, '{"choices":[{"text":" Paris","logprobs":{"token_logprobs":[NaN]}}]}'), "not finite"),
        (Reply(200, "<html>"), "not a completion"),
        (Reply(200, '{"choices":[]}'), "not a completion"),
        (Reply(500, "Internal"), "HTTP 500"),
        (Reply(0, "Connection refused"), "no answer"),
    ],
)
def test_anything_else_is_not(reply: Reply, problem: str) -> None:
    assert problem in judge(reply, "Paris").problem


@pytest.mark.parametrize(
    "choice", [{"text": "Paris", "logprobs": {"token_logprobs": ["low"]}}, {"text": "Paris", "logprobs": ["x"]}]
)
def test_an_answer_of_another_shape_is_a_verdict_and_no_exception(choice: dict[str, object]) -> None:
    """An exception would leave the host between two releases."""
    reply = Reply(200, json.dumps({"choices": [choice]}))
    assert judge(reply, "Paris").problem.startswith("not a completion")


def test_model_names() -> None:
    assert served_names(Reply(200, '{"data":[{"id":"glm-5"}]}')) == ["glm-5"]
    assert served_names(Reply(401, '{"error":"Unauthorized"}')) == []
    assert served_names(Reply(0, "")) == []


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was asked; drops the connection at /drop."""

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self) -> None:
        if self.path == "/drop":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        length = int(self.headers.get("content-length") or 0)
        seen = {
            "method": self.command,
            "key": self.headers.get("authorization"),
            "body": self.rfile.read(length).decode(),
        }
        body = json.dumps(seen).encode()
        self.send_response(503 if self.path == "/health_generate" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_outcome_of_a_request_is_a_reply(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:1")
    client = Client("0.0.0.0", port, "k")
    assert client.healthy().status == 503
    seen = json.loads(client.complete("p", 3, 5.0).text)
    assert (seen["method"], seen["key"]) == ("POST", "Bearer k")
    assert json.loads(seen["body"])["max_tokens"] == 3
    assert client.ask("/drop").status == 0


def test_nobody_there_is_a_reply_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    reply = Client("127.0.0.1", port).healthy()
    assert reply.status == 0
    assert "refused" in reply.text


@pytest.mark.parametrize("host", ["", "a..b", "\0", "é" * 70, "a b", "127.0.0.1\n"])
def test_a_host_that_is_none_is_a_reply_too(host: str) -> None:
    assert Client(host, 1).ask("/x", timeout=5).status == 0


@pytest.mark.parametrize("key", ["€", "a\nb"])
def test_a_key_that_no_header_can_carry_is_a_reply_too(key: str) -> None:
    assert Client("127.0.0.1", 1, key).ask("/x", timeout=5).status == 0


@pytest.mark.parametrize(
    "text",
    ["", "[" * 100_000, "null", "[]", '{"choices": [{}]}', '{"data": 5, "choices": 5}', '{"data": [1], "choices": [1]}',
     '{"choices": [{"text": "Paris", "logprobs": {"token_logprobs": [1' + "0" * 400 + "]}}]}",
     '{"choices": [{"text": "Paris", "logprobs": {"token_logprobs": 5}}]}',
     '{"choices": [{"text": "Paris", "logprobs": [1]}]}'],
)  # fmt: skip
def test_an_answer_of_another_shape_serves_nothing(text: str) -> None:
    assert judge(Reply(200, text), "Paris").problem
    assert served_names(Reply(200, text)) == []


@pytest.mark.parametrize(
    "raw",
    [b"", b"\0", b"SSH-2.0-x\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500],
    ids=range(7),
)  # fmt: skip
def test_whatever_a_port_sends_is_a_reply(raw: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(raw)

        thread = threading.Thread(target=speak)
        thread.start()
        reply = Client("127.0.0.1", server.getsockname()[1]).healthy()
        thread.join()
    assert reply.status == 0
    assert reply.text
