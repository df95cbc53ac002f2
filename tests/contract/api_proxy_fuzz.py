# SPDX-License-Identifier: Apache-2.0
"""Requests that are none, or are more than one, by raw connections.

``python tests/contract/api_proxy_fuzz.py --count 10000 --seed 1`` runs as many against the role's proxy; the tests run
a few hundred, or ``RACKWELL_PROXY_FUZZ``.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from api_proxy_place import ALICE, LISTED, Place, place, read_all, status_of

#: what the engine is told, whoever asks
TOLD = {"connection", "host", "content-type", "authorization", "x-request-id", "user-agent", "content-length"}
_METHODS = ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "TRACE", "CONNECT", "get", "G\x00T", "", "POST\t", "PRI"]
_PATHS = [
    "/v1/models",
    "/v1/chat/completions",
    "/v1/completions",
    "/health",
    "/server_info",
    "/generate",
    "/flush_cache",
    "*",
    "//v1/models",
    "/v1//models",
    "/v1/./models",
    "/v1/x/../models",
    "/v1/..;/server_info",
    "/v1/%2e%2e/server_info",
    "/%76%31/models",
    "/v1%2fmodels",
    "/V1/Models",
    "/v1/models.",
    "/v1/models/",
    "/v1/models%00",
    "/v1/models%20",
    "/v1/models;x=1",
    "/v1/models#/../../server_info",
    "/v1/models?/../../server_info",
    "/v1/models\\..\\server_info",
    "http://localhost/server_info",
    "http://localhost/v1/models",
    "https://localhost:1/v1/models",
    "//localhost/v1/models",
    "/v1/models HTTP/1.1\r\nX: /server_info",
    "/.rackwell/401",
    "/.rackwell/refused",
    "/v1/models\xff",
    "/v1/models\x7f",
    "/health/../server_info",
    "/health%2f..%2fserver_info",
    "/health?a b",
    "v1/models",
    "/" + "a" * 20000,
    "",
]
_VERSIONS = [
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/2.0",
    "HTTP/0.9",
    "HTTP/1.1 ",
    "HTTP/11",
    "http/1.1",
    "HTTP/1.2",
    "HTTP/9.9",
    "",
    "X",
]
_HEADERS = [
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: identity",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding:\tchunked",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: CHUNKED",
    "Content-Length: 0",
    "Content-Length: 5",
    "Content-Length: +5",
    "Content-Length: -1",
    "Content-Length: 5, 5",
    "Content-Length: 5\r\nContent-Length: 6",
    "Content-Length: 99999999999999999999",
    "Content-Length: 0x5",
    "Content-Length : 3",
    "Host: evil",
    "Host: localhost\r\nHost: evil",
    "Host: a b",
    "Host:",
    "Host: localhost:0/server_info",
    "X-Original-URL: /server_info",
    "X-Rewrite-URL: /server_info",
    "X-HTTP-Method-Override: PUT",
    "X-Forwarded-Host: evil",
    "X-Accel-Redirect: /server_info",
    "Expect: 100-continue",
    "Expect: x",
    "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nConnection: Upgrade, HTTP2-Settings",
    "Upgrade: websocket\r\nConnection: Upgrade",
    "Connection: Authorization",
    "Connection: Content-Length",
    "Range: bytes=0-18446744073709551615",
    "X: " + "y" * 30000,
    "\x00: x",
    " folded",
    "no colon",
    ": nothing",
    "X\x01Y: z",
    "Content-Type: a\x00b",
    "Content-Encoding: gzip",
    "X-Data-Parallel-Rank: 1",
    "Authorization: Basic eDp5",
    "Cookie: " + "a=b; " * 500,
    "Trailer: Authorization",
    "TE: trailers",
]
_BODIES = [
    b"",
    b"hello",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;x=\x00\r\nhello\r\n0\r\n\r\n",
    b"fffffffffffffffff\r\n",
    b"-1\r\n\r\n",
    b"0\r\n\r\nGET /server_info HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /server_info HTTP/1.1\r\nHost: x\r\n\r\n",
    b"5\r\nhello\r\n0\r\nX: y\r\n\r\nPOST /flush_cache HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\n\r\n\r\n",
    b"\xff" * 100,
    b"5\nhello\n0\n\n",
]


def malformed(rng: random.Random, key: str) -> bytes:
    """One request, or what is to pass for one."""
    if rng.random() < 0.04:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
    line = rng.choice([" ", " ", " ", "  ", "\t"]).join(
        [rng.choice(_METHODS), rng.choice(_PATHS), rng.choice(_VERSIONS)]
    )
    if rng.random() < 0.3:
        method, path = rng.choice(sorted(LISTED))
        line = f"{method} {path} HTTP/1.1"
    headers = ["Host: localhost"] if rng.random() < 0.9 else []
    if key:
        headers.append(f"Authorization: Bearer {key}")
    headers += rng.sample(_HEADERS, rng.choice([0, 0, 1, 1, 2, 3]))
    rng.shuffle(headers)
    if rng.random() < 0.85:
        headers.append("Connection: close")
    end = rng.choice(["\r\n"] * 8 + ["\n", "\r"])
    data = end.join([line, *headers, "", ""]).encode("latin-1") + rng.choice(_BODIES)
    if rng.random() < 0.15:
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        data = bytes(changed)
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data))]
    return data


def run(here: Place, count: int, seed: int, tell: Callable[[str], None] = lambda _: None) -> Counter[int]:
    """Send `count` of them, half of them without a key, and hold what the engine saw against what it may see.

    Returns:
        Answers by status; 0 for none.
    """
    workers = here.nginx.workers()
    assert workers
    statuses: Counter[int] = Counter()

    def one(data: bytes) -> int:
        for _ in range(3):
            with contextlib.suppress(ConnectionError, TimeoutError), here.connect() as stream:
                with contextlib.suppress(OSError):
                    stream.sendall(data)
                return status_of(read_all(stream, 0.15))
        raise AssertionError("no connection to the proxy")

    for phase, key in enumerate(["", ALICE]):
        here.engine.forget()
        rng = random.Random(seed * 2 + phase)
        with ThreadPoolExecutor(12) as pool:
            for number, status in enumerate(pool.map(one, (malformed(rng, key) for _ in range(count // 2))), 1):
                statuses[status] += 1
                if number % 500 == 0:
                    tell(f"{number + phase * (count // 2)} of {count}")
        held = {f"{method} {path} HTTP/1.1" for method, path in LISTED}
        for request in here.engine.seen:
            assert key, f"without a key: {request}"
            assert request.line in held, request
            assert set(request.headers) <= TOLD, request
            assert request.headers.get("authorization", "") == here.told, request
            assert request.headers["host"] == "rackwell-engine", request
        assert here.engine.odd == []
        # each request that the engine saw is one that was answered by it
        tell(f"the engine saw {len(here.engine.seen)}: {dict(Counter(r.line for r in here.engine.seen))}")
    assert here.nginx.workers() == workers, "a worker died"
    assert not [line for line in here.log if "exited on signal" in line]
    assert here.door.ask("GET", "/v1/models", ALICE).status == 200
    return statuses


def main() -> None:
    """Run as many as asked for."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began = time.monotonic()
    with place() as here:
        here.start()
        statuses = run(here, arguments.count, arguments.seed, lambda text: print(text, flush=True))
    print(f"{arguments.count} in {time.monotonic() - began:.0f} s: {dict(sorted(statuses.items()))}")


if __name__ == "__main__":
    main()
