# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct

import pytest

from rackwell.probe.data import WrongDataError, compare, fresh, further, pattern, word


def test_the_pattern_is_splitmix64() -> None:
    """Its published first outputs for the seed 1234567: the kernels, the laboratory and the host must agree on them."""
    step = 0x9E3779B97F4A7C15
    first = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [word(1234567 + step, index) for index in range(4)] == first


def test_a_part_of_a_pattern_is_a_pattern() -> None:
    whole = pattern(99, 100)
    assert pattern(99, 10, start=30) == whole[240:320]
    assert pattern(further(99, 240), 10) == whole[240:320]
    assert pattern(further((1 << 64) - 5, 8), 2) == pattern((1 << 64) - 5, 3)[8:]


def test_patterns_of_two_seeds_share_nothing() -> None:
    one, other = (set(struct.unpack("<2000Q", pattern(fresh(), 2000))) for _ in range(2))
    assert len(one) == 2000
    assert not one & other


def test_what_differs_is_told() -> None:
    data = pattern(1, 64)
    compare(data, bytearray(data))
    spoiled = bytearray(data)
    spoiled[100] ^= 1
    spoiled[300] ^= 255
    with pytest.raises(WrongDataError, match=r"^2 of 512 bytes are wrong, the first at offset 100$"):
        compare(data, spoiled)
    with pytest.raises(WrongDataError, match="all of them zero"):
        compare(b"\1" * 512, bytes(512))
    with pytest.raises(WrongDataError, match="511 bytes came back instead of 512"):
        compare(data, data[:-1])
