# SPDX-License-Identifier: Apache-2.0
"""A client of a container's proxy, in the network outside of it; and an engine that takes down what arrives."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import sys
from pathlib import Path

from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_probe import Door

from .conftest import inside

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
from api_proxy_engine import Request
from api_proxy_place import read_all

ENGINE = Path(__file__).parents[1] / "contract/api_proxy_engine.py"
SERVER = "rackwell-inference.service"
RECORDER = "rackwell-test-recorder"
#: root's files in the container
PROGRAM, TAKEN = "/run/rackwell-test-engine.py", "/run/rackwell-test-engine.jsonl"


class Recorded:
    """What reaches the engine's port in the container, whose server is stopped for that time."""

    def __init__(self, container: str) -> None:
        self._container = container

    def begin(self) -> None:
        """Put it in the server's place."""
        coded = base64.b64encode(ENGINE.read_bytes()).decode()
        inside(
            self._container,
            f"set -e; systemctl stop {SERVER}; echo {coded} | base64 -d >{PROGRAM}; rm -f {TAKEN}*; touch {TAKEN}; "
            f"systemd-run -q --unit {RECORDER} python3 {PROGRAM} 30000 {TAKEN}; "
            "for n in $(seq 300); do ss -Hltn 'sport = 30000' | grep -q 127.0.0.1 && exit 0; sleep 0.1; done; exit 1",
        )

    def end(self) -> None:
        """Have the server again, serving."""
        ask = "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/health')"
        inside(
            self._container,
            f"systemctl stop {RECORDER}; rm -f {PROGRAM} {TAKEN}*; systemctl start {SERVER}; "
            f'for n in $(seq 600); do python3 -c "{ask}" 2>/dev/null && exit 0; sleep 0.2; done; exit 1',
        )

    def forget(self) -> None:
        """Begin anew."""
        inside(self._container, f"truncate -s 0 {TAKEN}; rm -f {TAKEN}.*")

    def go(self, number: int) -> None:
        """Let a stream's piece be made."""
        inside(self._container, f"touch {TAKEN}.{number}")

    def _told(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in inside(self._container, f"cat {TAKEN}").splitlines()]

    @property
    def seen(self) -> list[Request]:
        """Each request."""
        return [
            Request(str(one["line"]), dict(one["headers"]), str(one["body"]).encode("latin-1"))  # type: ignore[call-overload]
            for one in self._told()
            if "line" in one
        ]

    @property
    def odd(self) -> list[str]:
        """What was none, or came after one."""
        return [str(one["odd"]) for one in self._told() if "odd" in one]


class Outside:
    """The proxy as a client in the network sees it. Has what `api_proxy_fuzz.run` asks of its place."""

    #: the engine asks for no key
    told = ""

    def __init__(self, container: str, address: str) -> None:
        self._container, self.address = container, address
        self.door, self.engine, self.nginx = Door(address, 443), Recorded(container), self
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # it trusts this one because it is told to
        self._context.load_verify_locations(
            cadata=inside(container, "cat /etc/rackwell/api-proxy/self-signed/certificate.pem")
        )

    def workers(self) -> set[int]:
        """The processes that handle requests."""
        told = inside(self._container, "pgrep -P $(cat /run/rackwell-api-proxy/nginx.pid)")
        return {int(word) for word in told.split()}

    @property
    def log(self) -> list[str]:
        """What nginx itself tells."""
        told = "journalctl -q --no-pager -o cat -u nginx | grep -av '^{' || true"
        return inside(self._container, told).splitlines()

    def connect(self, timeout: float = 30) -> ssl.SSLSocket:
        """A connection that holds the certificate against the container's name."""
        self._context.set_alpn_protocols(["http/1.1"])
        plain = socket.create_connection((self.address, 443), timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._context.wrap_socket(plain, server_hostname=self._container)

    def raw(self, data: bytes, quiet: float = 1.0) -> bytes:
        """Send bytes, and read until the other side has nothing more to say."""
        with self.connect() as stream:
            with contextlib.suppress(OSError):
                stream.sendall(data)
            return read_all(stream, quiet)
