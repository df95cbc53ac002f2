# SPDX-License-Identifier: Apache-2.0
"""What a client sees of the proxy, asked from beside it."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
from typing import NamedTuple

_PATIENCE = 30.0


class Answer(NamedTuple):
    """What came back; status 0 when nothing did, and `why`."""

    status: int
    body: bytes = b""
    why: str = ""


class Door(NamedTuple):
    """Where the proxy listens."""

    address: str
    port: int

    @property
    def near(self) -> str:
        """The address that reaches it from this machine."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address, self.address)  # noqa: S104

    def ask(self, method: str, path: str, key: str = "", timeout: float = _PATIENCE) -> Answer:
        """A request, by a client that takes any certificate: it knows whom it asks."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(self.near, self.port, timeout=timeout, context=context)
        return _ask(connection, method, path, key)

    def certificate(self) -> bytes:
        """The certificate that it shows, as DER; empty when it shows none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with contextlib.suppress(OSError):
            plain = socket.create_connection((self.near, self.port), _PATIENCE)
            with plain, context.wrap_socket(plain) as stream:
                return stream.getpeercert(binary_form=True) or b""
        return b""


def ask_engine(address: str, method: str, path: str, key: str = "") -> Answer:
    """A request past the proxy. `address`: ``HOST:PORT``."""
    return _ask(http.client.HTTPConnection(address, timeout=_PATIENCE), method, path, key)


def running_set(run: str) -> str:
    """Which set of files nginx runs with, by itself; empty when it does not run, or is not the proxy."""

    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(5)
            self.sock.connect(os.path.join(run, "status.sock"))

    answer = _ask(Connection("localhost"), "GET", "/", "")
    return answer.body.decode("ascii", "replace").strip() if answer.status == 200 else ""


def _ask(connection: http.client.HTTPConnection, method: str, path: str, key: str) -> Answer:
    headers = {"Authorization": "Bearer " + key} if key else {}
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(1 << 20))
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, b"", str(error) or type(error).__name__)
    finally:
        connection.close()
