# SPDX-License-Identifier: Apache-2.0
"""The GPUs of one process with a communicator each: timed all-reduces, and checked ones."""

from __future__ import annotations

import array
import secrets
import sys
from collections.abc import Sequence
from typing import Any

from rackwell.probe.driver import Driver
from rackwell.probe.nccl import BFLOAT16, FLOAT32, AllReduce, Nccl, Rank

#: bytes: 8 KiB, four times that, and so on to 128 MiB, and 256 MiB
SIZES = (*(8192 << 2 * step for step in range(8)), 256 << 20)
#: all-reduces of one timing, and timings of one size (their median counts)
ITERATIONS, SAMPLES = 20, 5
#: bytes that are written and read at once: bounds the host memory
_CHUNK = 16 << 20
#: elements after which a pattern repeats; a prime, so that no piece that NCCL works in falls on its own repetition
_PERIOD = 32749
_WIDTH = {BFLOAT16: 2}
#: the greatest value that a rank sends, so that no sum of eight is rounded: 24 and 8 bits hold it
_LARGEST_SUM = {BFLOAT16: 255}
_LARGEST_SUM_FLOAT32 = (1 << 24) - 1
_POISON = b"\xa5" * _PERIOD


class Machine:
    """All GPUs, each with a buffer to send from and one to receive into, ``size`` bytes each."""

    def __init__(self, nccl: Nccl, driver: Driver, count: int, size: int) -> None:
        self._nccl, self._driver, self._size = nccl, driver, size
        self._devices = [driver.device(index) for index in range(count)]
        self._contexts: list[Any] = []
        self._streams: list[Any] = []
        self._events: list[tuple[Any, Any]] = []
        self._send: list[int] = []
        self._receive: list[int] = []
        for device in self._devices:
            self._contexts.append(driver.retain(device))
            self._streams.append(driver.stream())
            self._events.append((driver.event(), driver.event()))
            self._send.append(driver.allocate(size))
            self._receive.append(driver.allocate(size))
        self._communicators: list[int] = []

    def connect(self) -> None:
        """Make the communicators."""
        self._communicators = self._nccl.communicators(range(len(self._devices)))

    def close(self) -> None:
        """Give everything back."""
        for communicator in self._communicators:
            self._nccl.destroy(communicator)
        for device, context, send, receive in zip(
            self._devices, self._contexts, self._send, self._receive, strict=True
        ):
            self._driver.use(context)
            self._driver.free(send)
            self._driver.free(receive)
            self._driver.release(device)

    def warm_up(self, size: int) -> None:
        """One all-reduce: NCCL connects and compiles on first use."""
        self._sum(size // 4, FLOAT32, in_place=False, offset=0).start()
        self._wait()

    def time(self, size: int, kind: int, in_place: bool, iterations: int) -> float:
        """Microseconds of one all-reduce of ``size`` bytes, the mean of ``iterations`` back to back.

        The streams are idle when it begins, as in nccl-tests: with work ahead of it 2 MiB would be 4 % faster.
        """
        count, places = size // _WIDTH.get(kind, 4), self._size // size
        sums = [self._sum(count, kind, in_place, size * (number % places)) for number in range(iterations)]
        driver = self._driver
        for context, stream, (start, _) in zip(self._contexts, self._streams, self._events, strict=True):
            driver.use(context)
            driver.record(start, stream)
        for timed in sums:
            timed.start()
        for context, stream, (_, end) in zip(self._contexts, self._streams, self._events, strict=True):
            driver.use(context)
            driver.record(end, stream)
        slowest = 0.0
        for context, (start, end) in zip(self._contexts, self._events, strict=True):
            driver.use(context)
            slowest = max(slowest, driver.milliseconds(start, end))
        self._nccl.check(self._communicators)
        return slowest * 1e3 / iterations

    def wrong(self, size: int, kind: int, in_place: bool) -> int:
        """How many elements, of all ranks together, are not the sum of what the ranks sent.

        What they send is new each time, another value for each rank and element, and small enough that the sum is
        exact in any order.
        """
        numbers = Numbers(len(self._devices), kind)
        inputs = self._receive if in_place else self._send
        for context, address, block, output in zip(self._contexts, inputs, numbers.blocks, self._receive, strict=True):
            self._driver.use(context)
            # what was received before must not pass for what is received now
            for offset, piece in [] if in_place else _pieces(_POISON, size):
                self._driver.write(output + offset, piece)
            for offset, piece in _pieces(block, size):
                self._driver.write(address + offset, piece)
        self._sum(size // _WIDTH.get(kind, 4), kind, in_place, 0).start()
        self._wait()
        return sum(self._count_wrong(rank, numbers, size) for rank in range(len(self._devices)))

    def _count_wrong(self, rank: int, numbers: Numbers, size: int) -> int:
        self._driver.use(self._contexts[rank])
        count = 0
        for offset, piece in _pieces(numbers.total, size):
            found = bytearray(len(piece))
            self._driver.read(self._receive[rank] + offset, found)
            if found != piece:
                count += differing(piece, found, numbers.width)
        return count

    def _sum(self, count: int, kind: int, in_place: bool, offset: int) -> AllReduce:
        ranks = [
            Rank((receive if in_place else send) + offset, receive + offset, communicator, int(stream))
            for send, receive, communicator, stream in zip(
                self._send, self._receive, self._communicators, self._streams, strict=True
            )
        ]
        return self._nccl.all_reduce(ranks, count, kind)

    def _wait(self) -> None:
        for context, stream in zip(self._contexts, self._streams, strict=True):
            self._driver.use(context)
            self._driver.wait(stream)
        self._nccl.check(self._communicators)


class Numbers:
    """What each rank sends, and the sums: random whole numbers as float32 or bfloat16, repeating after a prime.

    Attributes:
        blocks: one period of each rank's bytes. total: one period of the sums' bytes. width: bytes of an element.
    """

    def __init__(self, ranks: int, kind: int) -> None:
        self.width = _WIDTH.get(kind, 4)
        largest = _LARGEST_SUM.get(kind, _LARGEST_SUM_FLOAT32) // ranks
        # 1 and not 0 is the least: each rank must be seen in each element
        values = [[1 + word % largest for word in _random_words(_PERIOD)] for _ in range(ranks)]
        self.blocks = [encoded(rank, self.width) for rank in values]
        self.total = encoded([sum(together) for together in zip(*values, strict=True)], self.width)


def _random_words(count: int) -> array.array[int]:
    words = array.array("I")
    words.frombytes(secrets.token_bytes(count * words.itemsize))
    return words


def encoded(values: Sequence[int], width: int) -> bytes:
    """Little-endian floats; a bfloat16 is the upper half of a float32."""
    floats = array.array("f", values)
    if sys.byteorder == "big":  # pragma: no cover - no such machine has these GPUs
        floats.byteswap()
    data = floats.tobytes()
    if width == 4:
        return data
    halves = bytearray(len(data) // 2)
    halves[0::2], halves[1::2] = data[2::4], data[3::4]
    return bytes(halves)


def _pieces(block: bytes, size: int) -> list[tuple[int, bytes]]:
    """``size`` bytes of the repeating block, as (offset, bytes) of bounded length; whole pieces are one object."""
    whole = block * max(1, _CHUNK // len(block))
    pieces = [(offset, whole) for offset in range(0, size - len(whole) + 1, len(whole))]
    done = len(pieces) * len(whole)
    if done < size:
        pieces.append((done, whole[: size - done]))
    return pieces


def differing(expected: bytes, found: bytes | bytearray, width: int) -> int:
    """How many elements of ``width`` bytes (2 or 4) differ. Whole-buffer arithmetic: there are millions."""
    size = len(expected)
    bits = int.from_bytes(expected, "little") ^ int.from_bytes(found, "little")
    for shift in (8, 16)[: width // 2]:
        bits |= bits >> shift
    lowest = int.from_bytes((b"\xff" + b"\0" * (width - 1)) * (size // width), "little")
    return size - (bits & lowest).to_bytes(size, "little").count(0)
