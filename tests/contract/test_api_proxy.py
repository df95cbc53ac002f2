# SPDX-License-Identifier: Apache-2.0
"""What reaches the engine through the proxy, what clients get: real nginx, the role's template, an engine to ask."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rackwell import shipped
from rackwell.build.routes import Inventories

sys.path.insert(0, str(Path(__file__).parent))
import api_proxy_fuzz
from api_proxy_engine import Request
from api_proxy_place import (
    ALICE,
    BOB,
    ENGINE,
    KEYS,
    LISTED,
    NGINX,
    Place,
    eventually,
    place,
    read_all,
    request,
    status_of,
)

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "QUERY")


@pytest.fixture(scope="module")
def shared() -> Iterator[Place]:
    with place() as made:
        made.start()
        yield made


@pytest.fixture
def here(shared: Place) -> Place:
    shared.engine.forget()
    return shared


@pytest.fixture(scope="module")
def narrow() -> Iterator[Place]:
    """One with small limits."""
    limits: dict[str, Any] = {
        "api_proxy_rate": 3,
        "api_proxy_rate_address": 1000,
        "api_proxy_connections": 2,
        "api_proxy_body_mib": 1,
        "api_proxy_header_timeout": 2,
        "api_proxy_body_timeout": 2,
        "api_proxy_answer_timeout": 1,
        "api_proxy_routes": [
            {"path": "/v1/completions", "methods": ["POST"]},
            {"path": "/v1/models", "methods": ["GET"]},
            {"path": "/health", "methods": ["GET"], "key": False},
        ],
    }
    with place() as made:
        made.start(**limits)
        yield made


def error_of(body: bytes) -> dict[str, Any]:
    """The error in a body, which must have the form of OpenAI's."""
    told = json.loads(body)
    assert set(told) == {"error"}
    assert set(told["error"]) == {"message", "type", "param", "code"}
    assert isinstance(told["error"]["message"], str)
    return dict(told["error"])


class Client:
    """Many requests over one connection, byte for byte what was meant."""

    def __init__(self, where: Place) -> None:
        self._where = where
        self._stream: ssl.SSLSocket | None = None

    def ask(self, method: str, path: str, key: str = ALICE) -> tuple[int, dict[str, str], bytes]:
        for attempt in (1, 2):
            self._stream = self._stream or self._where.connect()
            body = b"{}" if method in {"POST", "PUT", "PATCH"} else b""
            try:
                self._stream.sendall(request(f"{method} {path} HTTP/1.1", key=key, body=body, close=False))
                answer = http.client.HTTPResponse(self._stream, method=method)
                answer.begin()
                found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
            except (OSError, http.client.HTTPException):
                # nginx closes a connection after so many requests
                self._stream = None
                if attempt == 2:
                    raise
                continue
            if answer.will_close:
                self._stream = None
            return found
        raise AssertionError


@pytest.mark.parametrize("version", Inventories(shipped.catalog()).versions())
def test_of_all_routes_of_a_release_only_the_listed_ones_reach_it(here: Place, version: str) -> None:
    inventory = Inventories(shipped.catalog()).get(version)
    assert inventory is not None
    client = Client(here)
    answered = set()
    for path in {re.sub(r"\{.*?\}", "x", route.path.replace("$", "/")) for route in inventory.routes}:
        for method in METHODS:
            status, headers, body = client.ask(method, path)
            if status == 200:
                answered.add((method, path))
            else:
                assert status == 404, (method, path, status)
                assert headers["content-type"] == "application/json"
                assert method == "HEAD" or error_of(body)["code"] == "not_found"
    assert answered == LISTED
    assert set(here.engine.routes) == LISTED
    assert len(here.engine.seen) == len(LISTED)


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {ALICE[:-1]}",
        f"Bearer {ALICE}x",
        f"Bearer {ALICE.lower()}",
        f"Bearer {ALICE.upper()}",
        f"Bearer {ALICE} {BOB}",
        f"Bearer {ALICE},Bearer {BOB}",
        f"Bearer  {ALICE}",
        f"Bearer\t{ALICE}",
        f"Basic {ALICE}",
        ALICE,
        f"Bearer {ENGINE}",
        "Bearer alice",
        "Bearer .*",
        f"Bearer {ALICE[:10]}.*",
    ],
)
def test_without_the_very_key_nothing_reaches_the_engine(here: Place, authorization: str | None) -> None:
    headers = [] if authorization is None else [f"Authorization: {authorization}"]
    line = f"GET /v1/models?api_key={ALICE} HTTP/1.1"
    more = [f"X-Api-Key: {ALICE}", f"Cookie: {ALICE}", f"Proxy-Authorization: Bearer {ALICE}"]
    # guesses are slowed down, see below: this asks for the answer to one
    answer = eventually(
        lambda: (found := here.raw(request(line, *headers, *more, key=""))) and status_of(found) != 429 and found, "429"
    )
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status_of(answer) == 401
    assert b"WWW-Authenticate: Bearer" in head
    assert error_of(body)["code"] == "invalid_api_key"
    assert here.engine.seen == []


def test_keys_are_told_apart_and_never_handed_on(here: Place) -> None:
    for key, scheme in ((ALICE, "Bearer"), (BOB, "bearer"), (ALICE, "BEARER")):
        answer = here.raw(request("GET /v1/models HTTP/1.1", f"Authorization: {scheme} {key}", key=""))
        assert status_of(answer) == 200, answer
    assert [seen.headers["authorization"] for seen in here.engine.seen] == [f"Bearer {ENGINE}"] * 3
    clients = eventually(
        lambda: (found := [t for t in here.log if '"route":"/v1/models"' in t and '"status":200' in t]) and found[-3:],
        "no access log",
    )
    assert [re.search(r'"client":"(\w*)"', line)[1] for line in clients] == ["alice", "bob", "alice"]  # type: ignore[index]


TRICKS = [
    "//v1/models",
    "/v1//models",
    "/v1/./models",
    "/x/../v1/models",
    "/v1/models/..",
    "/v1/models/",
    "/v1/models/.",
    "/v1/models.",
    "/v1/models%20",
    "/v1/models%00",
    "/v1/models%2f..%2fserver_info",
    "/v1/models/..%2f..%2fserver_info",
    "/v1/models/%2e%2e/%2e%2e/server_info",
    "/v1/..;/server_info",
    "/v1/models;/../../server_info",
    "/v1/models\\..\\..\\server_info",
    "/v1/%6dodels",
    "/%2576%2531/models",
    "/v1%2fmodels",
    "/V1/models",
    "/v1/MODELS",
    "/server_info?/v1/models",
    "/server_info#/v1/models",
    "/server_info;/v1/models",
    "http://localhost/v1/models",
    "http://localhost/server_info",
    "https://127.0.0.1:30000/server_info",
    "http://x@localhost/v1/models",
    "//localhost/v1/models",
    "*",
    "localhost:443",
    "v1/models",
    "/v1/models HTTP/1.1 HTTP/1.1",
    "/v1/models\x0b",
    "/v1/models\xc0\xaf",
    "/.rackwell/401",
    "/.rackwell/refused",
]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("target", TRICKS)
def test_another_spelling_is_no_route(here: Place, target: str, method: str) -> None:
    answer = here.raw(request(f"{method} {target} HTTP/1.1", body=b"{}" if method == "POST" else b""))
    assert status_of(answer) in {400, 404, 405}, answer
    error_of(answer.partition(b"\r\n\r\n")[2])
    assert here.engine.seen == []


def test_what_comes_after_a_question_mark_stays_here(here: Place) -> None:
    for rest in ("?a=b", "?", "?/../../server_info", "?x=%0d%0aGET%20/server_info", "?#/server_info"):
        assert status_of(here.raw(request(f"GET /v1/models{rest} HTTP/1.1"))) == 200
    assert {seen.line for seen in here.engine.seen} == {"GET /v1/models HTTP/1.1"}


@pytest.mark.parametrize("host", ["evil.example", "localhost:1", "127.0.0.1/server_info", "x y", "", "localhost, evil"])
def test_the_engine_is_told_one_host_whatever_the_client_names(here: Place, host: str) -> None:
    status = status_of(here.raw(request("GET /v1/models HTTP/1.1", host=host)))
    assert status in {200, 400}
    assert [seen.headers["host"] for seen in here.engine.seen] == ["rackwell-engine"] * (status == 200)


@pytest.mark.parametrize(
    ("headers", "body", "statuses"),
    [
        (["Transfer-Encoding: chunked", "Content-Length: 4"], b"0\r\n\r\nGET /server_info HTTP/1.1\r\n\r\n", {400}),
        (["Content-Length: 4", "Transfer-Encoding: chunked"], b"0\r\n\r\nGET /server_info HTTP/1.1\r\n\r\n", {400}),
        (["Content-Length: 2", "Content-Length: 44"], b"{}GET /server_info HTTP/1.1\r\n\r\n", {400}),
        (["Content-Length: 2, 44"], b"{}GET /server_info HTTP/1.1\r\n\r\n", {400}),
        (["Content-Length: +2"], b"{}GET /server_info HTTP/1.1\r\n\r\n", {400}),
        (["Transfer-Encoding: chunked, identity"], b"0\r\n\r\nGET /server_info HTTP/1.1\r\n\r\n", {400, 501}),
        (["Transfer-Encoding: identity"], b"2\r\n{}\r\n0\r\n\r\nGET /server_info HTTP/1.1\r\n\r\n", {400, 501}),
        (["Transfer-Encoding : chunked"], b"0\r\n\r\nGET /server_info HTTP/1.1\r\n\r\n", {200, 400}),
        (["Transfer-Encoding:\x0bchunked"], b"0\r\n\r\nGET /server_info HTTP/1.1\r\n\r\n", {400, 501}),
        (["X: y\nTransfer-Encoding: chunked"], b"0\r\n\r\nGET /server_info HTTP/1.1\r\n\r\n", {200, 400}),
        (["Content-Length: 0"], b"GET /server_info HTTP/1.1\r\nHost: x\r\n\r\n", {200}),
        (["Transfer-Encoding: chunked"], b"2\r\n{}\r\n0\r\n\r\nGET /server_info HTTP/1.1\r\nHost: x\r\n\r\n", {200}),
        (["Transfer-Encoding: chunked"], b"2;a=b\r\n{}\r\n0\r\nHost: evil\r\n\r\n", {200, 400}),
        (["Transfer-Encoding: chunked"], b"-2\r\n{}\r\n0\r\n\r\n", {400}),
        (["Transfer-Encoding: chunked"], b"2\r\n{}GET /server_info HTTP/1.1\r\n\r\n", {400}),
        (["Expect: 100-continue", "Content-Length: 2"], b"{}GET /server_info HTTP/1.1\r\n\r\n", {100, 200}),
        (["Connection: Content-Length", "Content-Length: 2"], b"{}GET /server_info HTTP/1.1\r\n\r\n", {200}),
        (["Upgrade: h2c", "Connection: Upgrade", "Content-Length: 2"], b"{}PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {200}),
    ],
)
def test_one_request_cannot_carry_another(here: Place, headers: list[str], body: bytes, statuses: set[int]) -> None:
    data = request("POST /v1/completions HTTP/1.1", "Content-Type: application/json", *headers, close=False) + body
    answer = here.raw(data)
    assert status_of(answer) in statuses, answer
    # what follows is a request of its own, without a key and to what is not listed
    assert {seen.line for seen in here.engine.seen} <= {"POST /v1/completions HTTP/1.1"}
    assert len(here.engine.seen) <= 1
    assert all(seen.body in {b"", b"{}"} for seen in here.engine.seen)
    assert here.engine.odd == []
    assert answer.count(b'"saw"') == len(here.engine.seen)


# ---- HTTP/2, by hand: what libraries refuse to send ------------------------------------------------------------


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header as it is, without compression."""

    def text(of: str) -> bytes:
        data = of.encode("latin-1")
        assert len(data) < 127
        return bytes([len(data)]) + data

    return b"\x00" + text(name) + text(value)


def ask_h2(here: Place, headers: list[tuple[str, str]], body: bytes = b"") -> tuple[list[str], bytes]:
    """What came back: the kinds of frames, and the data."""
    kinds, data = [], b""
    with here.connect("h2") as stream:
        assert stream.selected_alpn_protocol() == "h2"
        block = b"".join(literal(name, value) for name, value in headers)
        flags = 0x4 if body else 0x5
        stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, flags, 1, block))
        if body:
            stream.sendall(frame(0, 1, 1, body))
        stream.settimeout(2)
        buffer = b""
        with contextlib.suppress(OSError):
            while more := stream.recv(65536):
                buffer += more
                while len(buffer) >= 9 and len(buffer) >= 9 + int.from_bytes(buffer[:3], "big"):
                    length, kind, flag = int.from_bytes(buffer[:3], "big"), buffer[3], buffer[4]
                    names = {0: "data", 1: "headers", 3: "reset", 7: "goaway"}
                    kinds.append(names.get(kind, "other"))
                    data += buffer[9 : 9 + length] if kind == 0 else b""
                    buffer = buffer[9 + length :]
                    if kind in {3, 7} or (kind in {0, 1} and flag & 1):
                        return kinds, data
    return kinds, data


def pseudo(method: str = "GET", path: str = "/v1/models", **more: str) -> list[tuple[str, str]]:
    return [
        (":method", method),
        (":scheme", "https"),
        (":path", path),
        (":authority", more.get("authority", "localhost")),
        ("authorization", f"Bearer {ALICE}"),
    ]


def test_http2_is_served(here: Place) -> None:
    _, data = ask_h2(here, pseudo())
    assert b'"saw": "GET /v1/models HTTP/1.1"' in data
    _, data = ask_h2(here, [*pseudo("POST", "/v1/completions"), ("content-type", "application/json")], b'{"a": 1}')
    assert b'"saw": "POST /v1/completions HTTP/1.1"' in data
    assert here.engine.seen[-1].body == b'{"a": 1}'


@pytest.mark.parametrize(
    "headers",
    [
        *(pseudo(path=target) for target in TRICKS if len(target) < 100),
        pseudo(path="/v1/models HTTP/1.1\r\nX: y"),
        pseudo(path="/server_info HTTP/1.1\r\n\r\nGET /v1/models"),
        pseudo(path="/v1/models\x00"),
        pseudo(path=""),
        pseudo(method="GET /v1/models HTTP/1.1\r\nX:", path="/server_info"),
        pseudo(method="POST"),
        pseudo(method=""),
        pseudo(method="get"),
        pseudo(method="CONNECT"),
        [(":path", "/server_info"), *pseudo()],
        [*pseudo(), (":path", "/server_info")],
        [*pseudo(), ("transfer-encoding", "chunked"), (":path", "/server_info")],
        [(":method", "GET"), (":path", "/v1/models")],
        [("authorization", f"Bearer {ALICE}")],
        [*pseudo(path="/server_info"), ("x-original-url", "/v1/models"), ("x-http-method-override", "GET")],
    ],
)
def test_pseudo_headers_play_no_tricks(here: Place, headers: list[tuple[str, str]]) -> None:
    _, data = ask_h2(here, headers)
    assert b'"saw"' not in data
    assert here.engine.seen == []


def test_headers_of_http2_reach_nobody(here: Place) -> None:
    more = [("transfer-encoding", "chunked"), ("host", "evil"), ("x-data-parallel-rank", "1"), ("content-length", "2")]
    ask_h2(here, [*pseudo("POST", "/v1/completions"), *more], b"{}GET /server_info HTTP/1.1\r\n\r\n")
    assert {seen.line for seen in here.engine.seen} <= {"POST /v1/completions HTTP/1.1"}
    assert here.engine.odd == []
    assert all(set(seen.headers) <= api_proxy_fuzz.TOLD for seen in here.engine.seen)


# ---- what goes through, and how --------------------------------------------------------------------------------


def test_tokens_come_one_by_one(here: Place) -> None:
    got = threading.Semaphore(0)

    def stream(seen: Request, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(5):
            piece = b"data: %d\n\n" % number
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            # the next one is made only when this one has arrived: what is held back would never come
            assert got.acquire(timeout=30)
        connection.sendall(b"0\r\n\r\n")

    here.engine.answer = stream
    with here.connect() as client:
        client.sendall(request("POST /v1/chat/completions HTTP/1.1", body=b'{"stream": true}', close=False))
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.getheader("content-type") == "text/event-stream"
        for number in range(5):
            assert answer.readline() == b"data: %d\n" % number
            assert answer.readline() == b"\n"
            got.release()
        assert answer.read() == b""


def test_requests_have_ids_and_the_engine_only_what_it_needs(here: Place) -> None:
    client = Client(here)
    ids = set()
    for _ in range(3):
        status, headers, _ = client.ask("POST", "/v1/completions")
        assert status == 200
        ids.add(headers["x-request-id"])
        assert "uvicorn" not in headers["server"]
    assert ids == {seen.headers["x-request-id"] for seen in here.engine.seen}
    assert len(ids) == 3
    steering = ["X-Request-Id: mine", "X-Data-Parallel-Rank: 3", "X-SMG-Routing-Key: x", "Origin: https://evil"]
    answer = here.raw(request("GET /v1/models HTTP/1.1", *steering, "Content-Type: application/json", "Accept: a/b"))
    last = here.engine.seen[-1]
    assert set(last.headers) <= api_proxy_fuzz.TOLD
    assert last.headers["content-type"] == "application/json"
    assert last.headers["x-request-id"] != "mine"
    assert answer.lower().count(b"x-request-id:") == 1
    eventually(lambda: any(last.headers["x-request-id"] in line for line in here.log), "its id is not in the log")


def test_a_large_body_arrives_whole_and_the_engine_sees_it_as_one_piece(here: Place) -> None:
    body = os.urandom(3 << 20)
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[: 1 << 20], body[1 << 20 :])) + b"0\r\n\r\n"
    assert status_of(here.raw(request("POST /v1/completions HTTP/1.1", body=body))) == 200
    data = request("POST /v1/completions HTTP/1.1", "Transfer-Encoding: chunked") + chunks
    assert status_of(here.raw(data)) == 200
    assert [seen.body == body for seen in here.engine.seen] == [True, True]
    # a prompt has no name on the disk
    assert [path for path in (here.path / "cache").rglob("*") if path.is_file()] == []


def test_what_the_engine_answers_goes_through_but_steers_nothing(here: Place) -> None:
    def refuse(seen: Request, connection: socket.socket) -> None:
        body = b'{"error": "of the engine"}'
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(body)}\r\nContent-Type: application/json\r\n"
        connection.sendall(head.encode() + b"X-Accel-Redirect: /.rackwell/401\r\n\r\n" + body)

    here.engine.answer = refuse
    answer = here.raw(request("POST /v1/completions HTTP/1.1", body=b"{}"))
    assert status_of(answer) == 400
    assert answer.endswith(b'{"error": "of the engine"}')


def test_an_engine_that_is_not_there_is_told_in_the_same_form() -> None:
    with place() as alone:
        alone.start()
        alone.engine.close()
        # a listener that somebody is accepting on lives on until its next client
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", alone.engine.port), 1).close()
        answer = eventually(
            lambda: (found := alone.raw(request("GET /v1/models HTTP/1.1"))) and status_of(found) == 502 and found,
            "502",
        )
        assert error_of(answer.partition(b"\r\n\r\n")[2])["code"] == "engine_unavailable"
        assert b"Retry-After: 5" in answer
        # nginx would tell of it, with the request line, where it was started: in the journal
        assert status_of(alone.raw(request(f"GET /v1/models?key={ALICE} HTTP/1.1"))) == 502
        assert (alone.path / "stderr").read_text() == ""


# ---- limits ----------------------------------------------------------------------------------------------------


def test_limits_of_size(narrow: Place) -> None:
    narrow.engine.forget()
    for data, status in (
        (request("POST /v1/completions HTTP/1.1", "Content-Length: 1048577"), 413),
        (request("POST /v1/completions HTTP/1.1", "Transfer-Encoding: chunked") + b"200000\r\n" + b"x" * 0x200000, 413),
        (request("POST /v1/completions HTTP/1.1", "X: " + "y" * 40000), 431),
        (request("GET /v1/models?" + "y" * 40000 + " HTTP/1.1"), 414),
    ):
        answer = narrow.raw(data)
        assert status_of(answer) == status, answer[:200]
        assert error_of(answer.partition(b"\r\n\r\n")[2])["code"] == "request_too_large"
    assert narrow.engine.seen == []


def test_limits_of_a_key_are_its_own(narrow: Place) -> None:
    client = Client(narrow)
    statuses = [client.ask("GET", "/v1/models") for _ in range(30)]
    refused = next(found for found in statuses if found[0] == 429)
    assert error_of(refused[2])["code"] == "rate_limit_exceeded"
    assert refused[1]["retry-after"] == "1"
    assert sum(status == 200 for status, _, _ in statuses) >= 6
    assert client.ask("GET", "/v1/models", BOB)[0] == 200
    # asks for no key, and has none to be counted by
    assert client.ask("GET", "/health", "")[0] == 200


def test_who_guesses_keys_is_slowed_down(narrow: Place) -> None:
    client = Client(narrow)
    statuses = {client.ask("GET", "/v1/models", f"{ALICE[:-4]}{number:04}")[0] for number in range(60)}
    assert statuses == {401, 429}


def test_requests_under_way_are_limited_by_key(narrow: Place) -> None:
    narrow.engine.forget()
    ended = threading.Event()

    def wait(seen: Request, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n.")
        ended.wait(30)
        connection.sendall(b".")

    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(narrow.connect()) for _ in range(2)]
        data = request("POST /v1/completions HTTP/1.1", key=BOB, body=b"{}", close=False)

        def held(stream: ssl.SSLSocket) -> bool:
            narrow.engine.answer = wait
            stream.sendall(data)
            return status_of(stream.recv(4096)) == 200

        for stream in streams:
            eventually(lambda stream=stream: held(stream), "the rate does not allow it")
        eventually(
            lambda: status_of(narrow.raw(request("GET /v1/models HTTP/1.1", key=BOB))) == 429, "a third is let through"
        )
        assert status_of(narrow.raw(request("GET /health HTTP/1.1", key=""))) in {200, 0}
        ended.set()


def test_slow_clients_block_nobody_and_are_let_go(narrow: Place) -> None:
    narrow.engine.forget()
    with contextlib.ExitStack() as stack:
        slow = []
        for number in range(120):
            stream = stack.enter_context(narrow.connect())
            # of the one kind headers never end, of the other bodies; the last say nothing at all
            if number % 3 == 0:
                stream.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-A: ")
            elif number % 3 == 1:
                stream.sendall(request("GET /health HTTP/1.1", "Content-Length: 100", key="", close=False) + b"{")
            slow.append(stream)
        assert status_of(narrow.raw(request("GET /health HTTP/1.1", key=""))) == 200
        # no body that has not come whole is the engine's business
        assert (len(narrow.engine.seen), narrow.engine.connections, narrow.engine.odd) == (1, 1, [])

        def drip() -> bool:
            for stream in slow[::3]:
                with contextlib.suppress(OSError):
                    stream.sendall(b"z")
            return all(gone(stream) for stream in slow[::3] + slow[1::3])

        eventually(drip, "slow clients are held for ever")
        assert status_of(narrow.raw(request("GET /health HTTP/1.1", key=""))) == 200


def gone(stream: ssl.SSLSocket) -> bool:
    """Whether the other side has closed."""
    stream.settimeout(0.01)
    try:
        return stream.recv(4096) == b"" or gone(stream)
    except (TimeoutError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True


def test_a_silent_engine_is_given_up(narrow: Place) -> None:
    narrow.engine.forget()
    ended = threading.Event()
    narrow.engine.answer = lambda seen, connection: ended.wait(30) and None
    answer = narrow.raw(request("GET /health HTTP/1.1", key=""), quiet=30)
    ended.set()
    assert status_of(answer) == 504
    assert error_of(answer.partition(b"\r\n\r\n")[2])["code"] == "engine_timeout"


def test_plain_http_and_old_tls_are_refused(here: Place) -> None:
    with socket.create_connection(("127.0.0.1", here.port), 10) as plain:
        plain.sendall(request("GET /v1/models HTTP/1.1"))
        answer = plain.recv(65536)
    assert status_of(answer) == 400
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", here.port), 10) as old, pytest.raises(OSError):  # noqa: PT011
        context.wrap_socket(old)
    assert here.engine.seen == []


# ---- secrets ---------------------------------------------------------------------------------------------------


def test_keys_are_in_one_file_of_one_owner_and_in_no_log(here: Place) -> None:
    here.raw(request(f"GET /v1/models?key={ALICE} HTTP/1.1"))
    here.raw(request(f"GET /{ALICE} HTTP/1.1", f"X-{ALICE}: {ALICE}", "Content-Length: 1" + ALICE))
    here.raw(f"{ALICE}\r\n{ALICE}: {ALICE}\r\n\r\n".encode())
    here.raw(request("POST /v1/completions HTTP/1.1", body=f'{{"prompt": "MARKED {ALICE}"}}'.encode()))
    here.raw(request("POST /v1/completions HTTP/1.1", f"Content-Type: {ALICE}", key=ALICE + "x", body=ALICE.encode()))
    eventually(lambda: len(here.log) > 4, "no log")
    assert "MARKED" not in "\n".join(here.log)
    holding = [
        path
        for path in here.path.rglob("*")
        if path.is_file() and any(key.encode() in path.read_bytes() for key in (*KEYS.values(), ENGINE))
    ]
    assert [path.name for path in holding] == ["keys.conf"]
    assert holding[0].stat().st_mode & 0o777 == 0o600
    assert holding[0].parent.stat().st_mode & 0o777 == 0o700
    for pid in (here.nginx.pid, *here.nginx.workers()):
        for name in ("cmdline", "environ"):
            assert b"MARKED" not in Path(f"/proc/{pid}/{name}").read_bytes()


# ---- requests that are none ------------------------------------------------------------------------------------


def test_malformed_requests_neither_reach_the_engine_nor_end_the_proxy(here: Place) -> None:
    count = int(os.environ.get("RACKWELL_PROXY_FUZZ", "300"))
    statuses = api_proxy_fuzz.run(here, count, seed=1)
    assert statuses[400] > count // 10
    assert statuses[200] > 0


def test_http2_frames_that_are_none(here: Place) -> None:
    import random

    rng = random.Random(3)
    workers = here.nginx.workers()
    block = b"".join(literal(name, value) for name, value in pseudo(path="/server_info"))
    for _ in range(40):
        data = bytearray(
            frame(4, 0, 0, b"") + frame(1, 5, 1, block) + frame(rng.randrange(12), rng.randrange(256), 1, b"x")
        )
        for _ in range(rng.randrange(6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with here.connect("h2") as stream, contextlib.suppress(OSError):
            stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(data))
            read_all(stream, 0.05)
    assert here.engine.seen == []
    assert here.nginx.workers() == workers


def test_the_program_is_nginx() -> None:
    assert Path(NGINX).name == "nginx"
