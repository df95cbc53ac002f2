# SPDX-License-Identifier: Apache-2.0
"""The test pattern as the kernels write it, made on the host: it proves the kernels that prove the GPUs."""

from __future__ import annotations

import secrets
import struct

WORD = 8
ALL_ONES = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


class WrongDataError(Exception):
    """Bytes that were read are not the bytes that were written; the text says how they differ."""


def compare(expected: bytes, found: bytes | bytearray) -> None:
    """Byte for byte. Raises WrongDataError, which says how many bytes are wrong and where they begin."""
    if found == expected:
        return
    size = len(expected)
    if len(found) != size:
        raise WrongDataError(f"{len(found)} bytes came back instead of {size}")
    # whole-buffer arithmetic: a loop over megabytes would take seconds
    differ = (int.from_bytes(expected, "little") ^ int.from_bytes(found, "little")).to_bytes(size, "little")
    first = size - len(differ.lstrip(b"\0"))
    zeros = ", all of them zero" if not any(byte for byte, wrong in zip(found, differ, strict=True) if wrong) else ""
    raise WrongDataError(f"{size - differ.count(0)} of {size} bytes are wrong, the first at offset {first}{zeros}")


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
