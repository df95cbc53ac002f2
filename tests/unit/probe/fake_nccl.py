# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - the names are NVIDIA's
"""GPUs that are host memory, and an NCCL that really sums between them in one process: for tests of collectives."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any


class FakeDriver:
    """What collectives ask of :class:`rackwell.probe.driver.Driver`; time is counted by the sums, in milliseconds."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.current = -1
        self.memory: dict[int, bytearray] = {}
        self.clock = 0.0
        self.released: list[int] = []

    def init(self) -> None: ...

    def count(self) -> int:
        return self.gpus

    def device(self, index: int) -> int:
        return index

    def retain(self, device: int) -> int:
        self.current = device
        return device

    def use(self, context: int) -> None:
        self.current = context

    def release(self, device: int) -> None:
        self.released.append(device)

    def stream(self) -> int:
        return 100 + self.current

    def wait(self, stream: int) -> None:
        assert stream == 100 + self.current, "a stream is waited for in its own context"

    def event(self) -> dict[str, float]:
        return {}

    def record(self, event: dict[str, float], stream: int) -> None:
        event["t"] = self.clock

    def milliseconds(self, start: dict[str, float], end: dict[str, float]) -> float:
        return end["t"] - start["t"]

    def allocate(self, size: int) -> int:
        address = 1 << 40 | (len(self.memory) + 1) << 32
        self.memory[address] = bytearray(size)
        return address

    def free(self, address: int) -> None:
        del self.memory[address]

    def _place(self, address: int) -> tuple[bytearray, int]:
        base = address & ~0xFFFFFFFF
        return self.memory[base], address - base

    def write(self, address: int, data: bytes) -> None:
        memory, offset = self._place(address)
        memory[offset : offset + len(data)] = data

    def read(self, address: int, buffer: bytearray) -> None:
        memory, offset = self._place(address)
        buffer[:] = memory[offset : offset + len(buffer)]


class FakeNccl:
    """The library's functions, as ctypes would offer them. ``spoil`` may change what a rank receives."""

    def __init__(self, driver: FakeDriver, microseconds: float = 10.0) -> None:
        self.driver, self.microseconds = driver, microseconds
        self.errors: dict[str, int] = {}
        self.spoil: Callable[[int, bytearray], None] = lambda rank, data: None
        self.group: list[tuple[Any, ...]] = []
        self.calls: list[tuple[int, int, int, int]] = []  # send, receive, count, kind of rank 0

    def ncclGetVersion(self, number: Any) -> int:
        number._obj.value = 22705
        return self.errors.get("ncclGetVersion", 0)

    def ncclGetLastError(self, communicator: Any) -> bytes:
        return b"the cable is out\n"

    def ncclCommInitAll(self, found: Any, count: Any, devices: Any) -> int:
        for rank in range(count.value):
            found[rank] = 500 + devices[rank]
        return self.errors.get("ncclCommInitAll", 0)

    def ncclCommDestroy(self, communicator: Any) -> int:
        return 0

    def ncclCommGetAsyncError(self, communicator: Any, state: Any) -> int:
        state._obj.value = self.errors.get("async", 0)
        return 0

    def ncclGroupStart(self) -> int:
        self.group = []
        return 0

    def ncclAllReduce(self, *arguments: Any) -> int:
        self.group.append(tuple(argument.value for argument in arguments))
        return self.errors.get("ncclAllReduce", 0)

    def ncclGroupEnd(self) -> int:
        if self.errors.get("ncclGroupEnd"):
            return self.errors["ncclGroupEnd"]
        if self.errors.get("ncclAllReduce"):
            return 0
        assert [call[5:] for call in self.group] == [(500 + rank, 100 + rank) for rank in range(self.driver.gpus)]
        count, kind = self.group[0][2:4]
        self.calls.append(self.group[0][:4])
        width = 2 if kind == 9 else 4
        parts = []
        for send, *_ in self.group:
            data = bytearray(count * width)
            self.driver.read(send, data)
            parts.append(decoded(bytes(data), width))
        total = [sum(together) for together in zip(*parts, strict=True)]
        for rank, (_, receive, *_) in enumerate(self.group):
            result = bytearray(raw(total, width))
            self.spoil(rank, result)
            self.driver.write(receive, result)
        self.driver.clock += self.microseconds / 1e3
        return 0


def decoded(data: bytes, width: int) -> array.array[float]:
    if width == 2:
        whole = bytearray(len(data) * 2)
        whole[2::4], whole[3::4] = data[0::2], data[1::2]
        data = bytes(whole)
    values = array.array("f")
    values.frombytes(data)
    return values


def raw(values: list[float], width: int) -> bytes:
    data = array.array("f", values).tobytes()
    return data if width == 4 else b"".join(data[place + 2 : place + 4] for place in range(0, len(data), 4))
