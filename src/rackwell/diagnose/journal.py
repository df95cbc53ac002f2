# SPDX-License-Identifier: Apache-2.0
"""Records of a journal (``journalctl -o json``, ``-o export``) or of docker's logs, as lines with their origin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rackwell.diagnose.blocks import BLOCK, LONGEST, Block, Origin, Reading, clean


def from_json(blocks: Iterator[Block], reading: Reading) -> Iterator[Block]:
    """One record a line."""
    for block in blocks:
        messages, origins, numbers = [], [], []
        for offset, raw in enumerate(block.data.split(b"\n")):
            try:
                record = json.loads(raw)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict):
                message, origin = _record(record)
            else:
                message, origin = raw.decode("utf-8", "replace"), Origin()
                if raw.strip():
                    reading.note("some lines are no records of a journal: they are taken as text")
            messages.append(_one_line(message))
            origins.append(origin)
            numbers.append(block.number + offset)
        yield Block(b"\n".join(messages), block.number, origins, numbers)


def _record(record: dict[str, Any]) -> tuple[str, Origin]:
    if "log" in record and "MESSAGE" not in record:
        return str(record["log"]).rstrip("\n"), Origin()
    kernel = record.get("_TRANSPORT") == "kernel"
    return _text(record.get("MESSAGE", "")), Origin(
        "kernel" if kernel else _text(record.get("SYSLOG_IDENTIFIER") or record.get("_COMM", "")),
        _text(record.get("UNIT") or record.get("_SYSTEMD_UNIT", "")),
        _text(record.get("_PID", "")),
        _text(record.get("INVOCATION_ID") or record.get("_SYSTEMD_INVOCATION_ID", "")),
        _text(record.get("_BOOT_ID", "")),
    )


def _text(value: Any) -> str:
    """A field: text, bytes as a list of numbers, or several of these."""
    if isinstance(value, list):
        if all(isinstance(each, int) and 0 <= each < 256 for each in value):
            return bytes(value).decode("utf-8", "replace")
        return _text(value[0]) if value else ""
    return str(value) if value is not None else ""


def _one_line(message: str) -> bytes:
    lines = message[:LONGEST].replace("\r\n", "\n").split("\n")
    return clean(b"\x0b".join(line.encode("utf-8", "replace") for line in lines)).replace(b"\n", b"\x0b")


def from_export(stream: Iterator[bytes], reading: Reading) -> Iterator[Block]:
    """Fields in lines, records separated by empty ones; a field that is no plain text comes with its size."""
    record: dict[str, Any] = {}
    messages: list[bytes] = []
    origins: list[Origin] = []
    numbers: list[int] = []
    size, at = 0, 1

    def flush() -> Block:
        block = Block(b"\n".join(messages), numbers[0], list(origins), list(numbers))
        messages.clear()
        origins.clear()
        numbers.clear()
        return block

    for number, name, value in _fields(stream, reading):
        if name:
            record[name] = value.decode("utf-8", "replace")
            if name == "MESSAGE":
                at = number
            continue
        if record:
            message, origin = _record(record)
            messages.append(_one_line(message))
            origins.append(origin)
            numbers.append(at)
            size += len(messages[-1])
            record = {}
        if size > BLOCK:
            size = 0
            yield flush()
    if record:
        message, origin = _record(record)
        messages.append(_one_line(message))
        origins.append(origin)
        numbers.append(at)
    if messages:
        yield flush()


def _fields(stream: Iterator[bytes], reading: Reading) -> Iterator[tuple[int, str, bytes]]:
    """(line, field, value); ("", b"") where a record ends."""
    rest, number = b"", 0

    def more() -> bool:
        nonlocal rest
        part = next(stream, None)
        if part is None:
            return False
        rest += part
        return True

    while True:
        while b"\n" not in rest and more():
            if len(rest) > 16 * BLOCK:
                rest = rest[:LONGEST] + b"\n"
        line, newline, rest = rest.partition(b"\n")
        if not newline and not line:
            return
        number += 1
        reading.lines = number
        name, equals, value = line.partition(b"=")
        if equals or not line:
            yield number, name.decode("ascii", "replace") if equals else "", value[:LONGEST]
            continue
        while len(rest) < 8 and more():
            pass
        length = int.from_bytes(rest[:8], "little")
        rest = rest[8:]
        if length > 64 << 20:
            reading.note("a field of the export is larger than 64 MiB or damaged: the rest was not read")
            return
        while len(rest) < length + 1 and more():
            pass
        value, rest = rest[:length], rest[length + 1 :]
        yield number, line.decode("ascii", "replace"), value[:LONGEST]
        number += value.count(b"\n") + 1
