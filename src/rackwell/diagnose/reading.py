# SPDX-License-Identifier: Apache-2.0
"""From whatever is given to blocks of whole lines: text in any encoding, compressed or not, or a journal's records."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
from collections.abc import Iterable, Iterator
from typing import IO, Any, cast

from rackwell.diagnose import journal
from rackwell.diagnose.blocks import BLOCK, CONTROL, LONGEST, Block, Reading, clean

Source = str | bytes | Iterable[str] | IO[bytes]
_MOST = 8 << 30
"""Bytes that are read at most, after decompression."""

_PACKED = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}


def blocks(source: Source, reading: Reading) -> Iterator[Block]:
    """The blocks of `source`; `reading` is filled in on the way."""
    raw = _bytes(source)
    head = b""
    for part in raw:
        head += part
        if len(head) >= 8192:
            break
    if not head:
        reading.kind = "empty"
        reading.note("the input is empty")
        return
    stream = _chained(head, raw)
    stream, head = _unpacked(stream, head, reading)
    decoder = _encoding(head, reading)
    if decoder is not None:
        stream = _decoded(stream, decoder)
        head = b""
    elif _binary(head):
        reading.kind = "binary"
        reading.note("the input is binary, not text: only what can be read as text in it is looked at")
    if re.match(rb"\s*\{\"", head) and (b'"MESSAGE"' in head or b'"log":"' in head[:64] or b'"__CURSOR"' in head):
        reading.kind = "journal, json"
        yield from journal.from_json(_whole_lines(stream, reading), reading)
    elif head.startswith((b"__CURSOR=", b"__REALTIME_TIMESTAMP=")):
        reading.kind = "journal, export"
        yield from journal.from_export(stream, reading)
    else:
        yield from _whole_lines(stream, reading)


def _bytes(source: Source) -> Iterator[bytes]:
    if isinstance(source, str):
        source = source.encode("utf-8", "surrogatepass")
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
        for start in range(0, len(data), BLOCK):
            yield data[start : start + BLOCK]
    elif hasattr(source, "read"):
        stream = cast("IO[bytes]", source)
        read = getattr(stream, "read1", stream.read)
        while data := read(BLOCK):
            yield data
    else:
        for line in source:
            text = line if isinstance(line, str) else str(line)
            yield (text if text.endswith("\n") else text + "\n").encode("utf-8", "surrogatepass")


class _Stream(io.RawIOBase):
    """A file of what an iterator gives, for the decompressors."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = part
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _chained(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from rest


def _unpacked(stream: Iterator[bytes], head: bytes, reading: Reading) -> tuple[Iterator[bytes], bytes]:
    opened: Any = next((how for magic, how in _PACKED.items() if head.startswith(magic)), None)
    if opened is None:
        if head.startswith(b"\x28\xb5\x2f\xfd"):
            reading.note("the input is compressed by zstd: give it as `zstdcat FILE | rackwell diagnose -`")
        return stream, head
    reading.note("the input was compressed")
    inner = _decompressed(opened(io.BufferedReader(_Stream(stream))), reading)
    first = next(inner, b"")
    return _chained(first, inner), first


def _decompressed(stream: Any, reading: Reading) -> Iterator[bytes]:
    done = 0
    try:
        while data := stream.read(BLOCK):
            yield data
            done += len(data)
            if done > _MOST:
                reading.note("the input is larger than 8 GiB: the rest was not read")
                return
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        reading.note(f"the compressed input ends early or is damaged: {error}")


def _encoding(head: bytes, reading: Reading) -> codecs.IncrementalDecoder | None:
    name = ""
    # logs in these encodings are full of zeros
    if head[:4096].count(0) * 5 < len(head[:4096]):
        return None
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        name = "utf-32"
    elif head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = "utf-16"
    elif len(head) >= 4:
        sample = head[:4096]
        even, odd = sample[0::2].count(0), sample[1::2].count(0)
        if odd > len(sample) * 0.3 and even < len(sample) * 0.05:
            name = "utf-16-le"
        elif even > len(sample) * 0.3 and odd < len(sample) * 0.05:
            name = "utf-16-be"
    if not name:
        return None
    reading.note(f"the input is {name.upper()}")
    return codecs.getincrementaldecoder(name)("replace")


def _decoded(stream: Iterator[bytes], decoder: codecs.IncrementalDecoder) -> Iterator[bytes]:
    for part in stream:
        yield decoder.decode(part).encode("utf-8", "replace")
    yield decoder.decode(b"", True).encode("utf-8", "replace")


def _binary(head: bytes) -> bool:
    sample = head[:8192]
    strange = len(sample) - len(sample.translate(None, CONTROL))
    return strange > len(sample) * 0.1


def _whole_lines(stream: Iterator[bytes], reading: Reading) -> Iterator[Block]:
    """Blocks that end where lines end; what is too long in a line is left out."""
    number, rest, skipping, begun = 1, b"", False, False
    for part in stream:
        # without byte order marks
        data = part if begun else part.lstrip(b"\xef\xbb\xbf")
        begun = True
        if skipping:
            _, newline, data = data.partition(b"\n")
            if not newline:
                continue
            data, skipping = b"\n" + data, False
        data = rest + data
        end = data.rfind(b"\n") + 1
        whole, rest = data[:end], data[end:]
        if len(rest) > LONGEST:
            _cut(reading, number + whole.count(b"\n"))
            rest, skipping = rest[:LONGEST], True
        if whole:
            lines = whole.count(b"\n")
            yield Block(clean(whole[:-1]), number)
            number += lines
            reading.lines = number - 1
    if rest:
        yield Block(clean(rest), number)
        reading.lines = number
        reading.complete = False


def _cut(reading: Reading, number: int) -> None:
    reading.cut += 1
    reading.first_cut = reading.first_cut or number
