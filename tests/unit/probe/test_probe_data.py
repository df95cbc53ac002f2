# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random

import pytest

from rackwell.probe.data import Buffer, Patterns, WrongDataError, compare


def test_equal_bytes_pass() -> None:
    compare(b"abc", bytearray(b"abc"))


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_count_and_first_offset_are_those_of_a_loop(size: int) -> None:
    chance = random.Random(size)
    for _ in range(50):
        expected = chance.randbytes(size)
        found = bytearray(expected)
        for _ in range(chance.randrange(1, size + 1)):
            found[chance.randrange(size)] ^= chance.randrange(1, 256)
        wrong = [i for i in range(size) if expected[i] != found[i]]
        if wrong:
            with pytest.raises(WrongDataError, match=f"^{len(wrong)} of {size} .* offset {wrong[0]}(,|$)"):
                compare(expected, found)


def test_dropped_writes_are_told_from_zeros_and_from_noise() -> None:
    expected = bytes(range(1, 101))
    poisoned = expected[:40] + b"\xa5" * 60
    with pytest.raises(WrongDataError, match="the writes were dropped"):
        compare(expected, poisoned, poison=0xA5)
    with pytest.raises(WrongDataError, match="all of them zero"):
        compare(expected, bytes(100), poison=0xA5)
    with pytest.raises(WrongDataError, match=r"offset 3$"):
        compare(expected, expected[:3] + b"\xa5\0" + expected[5:], poison=0xA5)


def test_a_short_answer_is_wrong_data() -> None:
    with pytest.raises(WrongDataError, match="2 bytes came back instead of 3"):
        compare(b"abc", b"ab")


def test_patterns_differ_at_nearly_every_place() -> None:
    patterns = Patterns(1 << 16)
    one, other = patterns.fresh(), patterns.fresh()
    assert len(one) == 1 << 16
    same = sum(a == b for a, b in zip(one, other, strict=True))
    assert same < len(one) // 64  # 1 in 256 is expected; equal patterns would give all


def test_buffer_forgets() -> None:
    buffer = Buffer(4)
    buffer.data[:] = b"left"
    assert buffer.cleared() == bytes(4)
