# SPDX-License-Identifier: Apache-2.0
"""What lies in an initramfs: the options that modprobe reads there, before the host's own files are seen.

An image is made when somebody makes it, and keeps what was in /etc/modprobe.d on that day: a module that it loads gets
yesterday's options, and ``/etc/modprobe.d`` looks right all the same. So the image itself is read: parts of cpio
(newc), the first ones plain (microcode), the last one compressed.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import gzip
import lzma
import os
import re
import subprocess
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Optional

_NEWC = (b"070701", b"070702")
#: first bytes -> what unpacks it: of Python, or a program
_PACKED: tuple[tuple[bytes, Any], ...] = (
    (b"\x28\xb5\x2f\xfd", ("zstd", "-dcq")),
    (b"\x1f\x8b", gzip.open),
    (b"\xfd7zXZ\x00", lzma.open),
    (b"\x5d\x00\x00", lzma.open),
    (b"BZh", bz2.open),
    (b"\x02\x21\x4c\x18", ("lz4", "-dcq")),
    (b"\x04\x22\x4d\x18", ("lz4", "-dcq")),
    (b"\x89LZO", ("lzop", "-dcq")),
)
_OPTIONS = re.compile(r"(?:usr/)?(?:etc|lib)/modprobe\.d/[^/]+\.conf$")
_MODULE = re.compile(r"/((?:nvidia|nouveau|nova|vfio)[a-z0-9_-]*)\.ko(?:\.[a-z0-9]+)?$")
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Image:
    """An initramfs: the options' files joined, the GPU drivers in it, or why it could not be read."""

    text: str = ""
    modules: tuple[str, ...] = ()
    problem: str = ""


class _UnreadError(Exception):
    """Why an image cannot be read."""


def read(path: str, tool: Callable[[str], Optional[str]]) -> Image:
    """Read an image.

    Args:
        tool: where a program is, or None.
    """
    texts, modules = [], set()
    try:
        for name, content in _entries(path, tool):
            if _OPTIONS.fullmatch(name):
                texts.append(content().decode("utf-8", "replace"))
            found = _MODULE.search("/" + name)
            if found:
                modules.add(found.group(1).replace("-", "_"))
    except OSError as error:
        return Image(problem=error.strerror or str(error))
    except (_UnreadError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        return Image(problem=str(error))
    return Image("\n".join(texts), tuple(sorted(modules)))


def _entries(path: str, tool: Callable[[str], Optional[str]]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    with open(path, "rb") as stream:
        some = False
        while True:
            head = _skip_zeros(stream)
            if not head:
                break
            some = True
            start = stream.tell()
            if head[:6] in _NEWC:
                yield from _archive(stream)
                continue
            with _unpacked(stream, start, head, tool) as inner:
                while True:
                    within = _skip_zeros_of(inner)
                    if not within:
                        return
                    if within[:6] not in _NEWC:
                        raise _UnreadError("it holds no cpio archive")
                    yield from _archive(_Ahead(inner, within))
        if not some:
            raise _UnreadError("it is empty")


@contextlib.contextmanager
def _unpacked(stream: IO[bytes], start: int, head: bytes, tool: Callable[[str], Optional[str]]) -> Iterator[Any]:
    how = next((how for magic, how in _PACKED if head.startswith(magic)), None)
    if how is None:
        raise _UnreadError("it is of no form that is known: begins with %s" % head[:6].hex())
    if not isinstance(how, tuple):
        with how(stream) as inner:
            yield inner
        return
    program = tool(how[0])
    if program is None:
        raise _UnreadError("%s is not installed" % how[0])
    os.lseek(stream.fileno(), start, os.SEEK_SET)
    with subprocess.Popen(
        [program, *how[1:]], stdin=stream.fileno(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process.stdout
        finally:
            # nobody reads on
            process.kill()


class _Ahead:
    """A stream of which some bytes were read already."""

    def __init__(self, stream: Any, ahead: bytes) -> None:
        self._stream, self._ahead = stream, ahead

    def read(self, size: int) -> bytes:
        """As many bytes, or fewer at the end."""
        out = self._ahead[:size]
        self._ahead = self._ahead[size:]
        while len(out) < size:
            more = self._stream.read(min(size - len(out), _CHUNK))
            if not more:
                break
            out += more
        return out


def _skip_zeros(stream: IO[bytes]) -> bytes:
    """The first bytes that are no padding, not taken; empty at the end."""
    while True:
        at = stream.tell()
        block = stream.read(512)
        if not block:
            return b""
        bare = block.lstrip(b"\0")
        if bare:
            stream.seek(at + len(block) - len(bare))
            head = stream.read(8)
            stream.seek(at + len(block) - len(bare))
            return head


def _skip_zeros_of(stream: Any) -> bytes:
    """The same of a stream that cannot go back: taken."""
    while True:
        block = _Ahead(stream, b"").read(4)
        if not block.strip(b"\0"):
            if len(block) < 4:
                return b""
            continue
        return block + _Ahead(stream, b"").read(2)


def _archive(stream: Any) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Names of one archive, each with a way to its content, which has to be asked for before the next name."""
    while True:
        head = stream.read(110)
        if len(head) < 110 or head[:6] not in _NEWC:
            raise _UnreadError("the archive in it is cut off")
        size, length = int(head[54:62], 16), int(head[94:102], 16)
        name = stream.read(length + -(110 + length) % 4)[: length - 1].decode("utf-8", "replace")
        if name == "TRAILER!!!":
            return
        taken: list[bytes] = []

        def content(size: int = size, taken: list[bytes] = taken) -> bytes:
            taken.append(stream.read(size + -size % 4))
            return taken[0][:size]

        yield name.lstrip("./"), content
        left = 0 if taken else size + -size % 4
        while left:
            block = stream.read(min(left, _CHUNK))
            if not block:
                raise _UnreadError("the archive in it is cut off")
            left -= len(block)
