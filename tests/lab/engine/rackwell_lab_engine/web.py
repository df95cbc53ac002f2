# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: as much HTTP/1.1 as its clients need: keep-alive, chunked bodies both ways, event streams."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from email.utils import formatdate
from typing import Any
from urllib.parse import urlsplit

from rackwell_lab_engine import log

_BODY_LIMIT = 64 * 1024 * 1024
_HEAD_LIMIT = 64 * 1024


class BadRequestError(Exception):
    """What came is not HTTP; the connection is closed."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One request; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is not.
        """
        return json.loads(self.body)


@dataclasses.dataclass(frozen=True)
class Response:
    """An answer: a body, or a stream of pieces."""

    status: int = 200
    body: bytes = b""
    content_type: str = ""
    stream: AsyncGenerator[bytes, None] | None = None


def json_response(content: Any, status: int = 200) -> Response:
    """A JSON answer, compact as the original's."""
    body = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    return Response(status, body, "application/json")


def event(content: Any) -> bytes:
    """One event of a stream; a string goes as it is."""
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return f"data: {text}\n\n".encode()


Handler = Callable[[Request], Awaitable[Response]]


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        parts = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
        await reader.readuntil(b"\r\n")
        return b"".join(parts)
    length = int(headers.get("content-length", "0"))
    if length > _BODY_LIMIT:
        raise BadRequestError("body too large")
    return await reader.readexactly(length)


async def _read(reader: asyncio.StreamReader) -> tuple[Request, str] | None:
    """The next request of a connection and its request line; ``None`` when the client closed it."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    request_line, *lines = head[:-4].split("\r\n")
    try:
        method, target, version = request_line.split(" ")
    except ValueError:
        raise BadRequestError(request_line[:80]) from None
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return Request(method, urlsplit(target).path, headers, await _body(reader, headers)), request_line


def _head(response: Response, *, close: bool) -> bytes:
    phrase = http.HTTPStatus(response.status).phrase
    lines = [f"HTTP/1.1 {response.status} {phrase}", f"date: {formatdate(usegmt=True)}", "server: uvicorn"]
    if response.content_type:
        lines.append(f"content-type: {response.content_type}")
    lines.append("transfer-encoding: chunked" if response.stream else f"content-length: {len(response.body)}")
    if close:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Server:
    """Serves one handler on one address.

    Attributes:
        connections: open connections; a drain waits for the requests in them, not for them.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> None:
        """Bind and listen.

        Raises:
            OSError: the address is taken or not this machine's; the text is asyncio's, as in the original.
        """
        self._server = await asyncio.start_server(self._connection, host, port, limit=_HEAD_LIMIT, backlog=2048)

    def close(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        client = f"{peer[0]}:{peer[1]}" if peer else "-"
        try:
            while (got := await _read(reader)) is not None:
                request, request_line = got
                close = request.headers.get("connection", "").lower() == "close"
                response = await self._handler(request)
                log.access(client, request_line, f"{response.status} {http.HTTPStatus(response.status).phrase}")
                await self._send(writer, response, head_only=request.method == "HEAD", close=close)
                if close:
                    break
        except (BadRequestError, ValueError, asyncio.LimitOverrunError):
            with contextlib.suppress(OSError):
                writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            # the client went away; a stream's generator has ended its request
            pass
        finally:
            writer.close()

    @staticmethod
    async def _send(writer: asyncio.StreamWriter, response: Response, *, head_only: bool, close: bool) -> None:
        writer.write(_head(response, close=close))
        if response.stream is None:
            if not head_only:
                writer.write(response.body)
            await writer.drain()
            return
        async with contextlib.aclosing(response.stream) as pieces:
            async for piece in pieces:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
