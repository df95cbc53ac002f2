# SPDX-License-Identifier: Apache-2.0
"""Test patterns, and how what came back differs from them."""

from __future__ import annotations

import ctypes
import os
import secrets
import struct

WORD = 8
ALL_ONES = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_MARK = bytes([0, *[255] * 255])  # 0 stays 0, everything else becomes 255


class WrongDataError(Exception):
    """Bytes that were read are not the bytes that were written; the text says how they differ."""


class Patterns:
    """Random bytes, for each test others at every place: nothing left over from an earlier copy can pass for them.

    They are random once and then turned by a random distance, since the kernel's random bytes are slower to get than
    a GPU's memory is to read.
    """

    def __init__(self, size: int) -> None:
        self._bytes = memoryview(os.urandom(size))

    def fresh(self) -> bytes:
        """One pattern; each byte differs from that of the pattern before with a chance of 255 in 256."""
        turn = secrets.randbelow(len(self._bytes))
        return b"".join((self._bytes[turn:], self._bytes[:turn]))


class Buffer:
    """Host memory to read into, used again and again: fresh pages cost more time than the copies."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self._memory = (ctypes.c_char * size).from_buffer(self.data)

    def cleared(self) -> bytearray:
        """The buffer, without what an earlier read left in it."""
        ctypes.memset(self._memory, 0, len(self.data))
        return self.data


def compare(expected: bytes, found: bytes | bytearray, poison: int | None = None) -> None:
    """Byte for byte; ``poison`` is the value that the whole target held before.

    Raises WrongDataError, which says how many bytes are wrong, where they begin and what stands there instead.
    """
    if found == expected:
        return
    size = len(expected)
    if len(found) != size:
        raise WrongDataError(f"{len(found)} bytes came back instead of {size}")
    # whole-buffer arithmetic: a loop over 64 MiB would take longer than all copies together
    there = int.from_bytes(found, "little")
    differ = (int.from_bytes(expected, "little") ^ there).to_bytes(size, "little")
    count = size - differ.count(0)
    first = size - len(differ.lstrip(b"\0"))
    mask = int.from_bytes(differ.translate(_MARK), "little")

    def all_hold(value: int) -> bool:
        return (there ^ int.from_bytes(bytes([value]) * size, "little")) & mask == 0

    kind = ""
    if poison is not None and all_hold(poison):
        kind = ", all of them as they were before the copy: the writes were dropped"
    elif all_hold(0):
        kind = ", all of them zero"
    raise WrongDataError(f"{count} of {size} bytes are wrong, the first at offset {first}{kind}")


def fresh() -> int:
    """A random 64-bit number, for a seed or a poison: nothing that is left from before can pass for what it gives."""
    return secrets.randbits(64)


def word(seed: int, index: int) -> int:
    """The pattern's 64-bit word at ``index``: the finaliser of splitmix64 over a counter."""
    z = (seed + index * _STEP) & ALL_ONES
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & ALL_ONES
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & ALL_ONES
    return z ^ (z >> 31)


def pattern(seed: int, words: int, start: int = 0) -> bytes:
    """That many words of the pattern from word ``start`` on, as they lie in memory."""
    return struct.pack(f"<{words}Q", *[word(seed, index) for index in range(start, start + words)])


def further(seed: int, size: int) -> int:
    """The seed of the pattern's rest behind its first ``size`` bytes: a part of a pattern is a pattern."""
    return (seed + size // WORD * _STEP) & ALL_ONES
