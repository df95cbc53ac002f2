# SPDX-License-Identifier: Apache-2.0
"""The GPUs while they are measured: context, kernels, two buffers each, streams, and who may reach whom."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from rackwell.probe import cuda_check
from rackwell.probe.child import Emit
from rackwell.probe.data import fresh
from rackwell.probe.driver import Driver, HostMemory
from rackwell.probe.kernels import SCRATCH, Kernels
from rackwell.probe.steps import step

MIB = 1 << 20
#: below this a figure says more about the start of a copy than about the link, bytes
SMALLEST = MIB
#: at most this part of a GPU's free memory is taken, for both buffers together: a server may want to grow
SHARE = 1 / 4
#: the driver lets a context reach no more peers than this at a time
MAX_PEERS = 8


class NotMeasurableError(Exception):
    """Nothing can be measured here, and that is no fault: a GPU has too little free memory, or there is none."""


@dataclasses.dataclass
class Lane:
    """A stream with the two events that enclose what is timed in it."""

    stream: Any
    start: Any
    end: Any


class Gpu:
    """One GPU with its context, which must be current wherever its memory or streams are used.

    Attributes:
        source: device memory that holds the pattern of ``seed``.
        target: device memory that others write to.
        counter: 8 bytes for the atomics.
    """

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver, self.index = driver, index
        self.device = driver.device(index)
        self.identity = cuda_check.identity(driver, self.device, index)
        self.context = driver.retain(self.device)
        self.source = self.target = self.counter = 0
        self.seed = 0
        self._scratch = 0
        self._kernels: Kernels | None = None
        self._lanes: list[Lane] = []

    @property
    def kernels(self) -> Kernels:
        if self._kernels is None:
            raise RuntimeError(f"GPU {self.index} has not been prepared")
        return self._kernels

    def use(self) -> None:
        """Make its context current."""
        self.driver.use(self.context)

    def prepare(self, size: int, released: HostMemory) -> None:
        """Take the memory, load the kernels, write a pattern; ``released`` is a flag that is set."""
        self.use()
        self.source = self.driver.allocate(size)
        self.target = self.driver.allocate(size)
        self._scratch = self.driver.allocate(SCRATCH + 8)
        self.counter = self._scratch + SCRATCH
        self._kernels = Kernels(self.driver, self.device, self._scratch)
        self._kernels.warm_up(released)
        self.renew(size)

    def renew(self, size: int) -> None:
        """A new pattern in ``source``, of a seed that was never used."""
        self.use()
        self.seed = fresh()
        self.kernels.fill(self.source, size, self.seed)
        self.driver.synchronize()

    def lane(self, number: int) -> Lane:
        """Streams are made once and used again: the context must be current."""
        while len(self._lanes) <= number:
            self._lanes.append(Lane(self.driver.stream(), self.driver.event(), self.driver.event()))
        return self._lanes[number]

    def close(self) -> None:
        """Give everything back."""
        self.use()
        for lane in self._lanes:
            self.driver.destroy_stream(lane.stream)
            self.driver.destroy_event(lane.start)
            self.driver.destroy_event(lane.end)
        if self._kernels:
            self._kernels.unload()
        for address in (self.source, self.target, self._scratch):
            if address:
                self.driver.free(address)
        self.driver.release(self.device)


class Machine:
    """All GPUs with buffers of ``size`` bytes, and the flag in host memory that lets the streams go."""

    def __init__(self, driver: Driver, gpus: Sequence[Gpu], size: int, flag: HostMemory) -> None:
        self.driver, self.gpus, self.size, self.flag = driver, gpus, size, flag
        self._peers: dict[tuple[int, int], None] = {}

    def can_reach(self, one: Gpu, other: Gpu) -> bool:
        return self.driver.can_access_peer(one.device, other.device)

    def connect(self, one: Gpu, other: Gpu) -> None:
        """Let each reach the other's memory; with more peers than the driver allows the oldest one goes."""
        for near, far in ((one, other), (other, one)):
            if (near.index, far.index) in self._peers:
                continue
            near.use()
            mine = [pair for pair in self._peers if pair[0] == near.index]
            if len(mine) >= MAX_PEERS:
                self.driver.disable_peer(self.gpus[mine[0][1]].context)
                del self._peers[mine[0]]
            self.driver.enable_peer(far.context)
            self._peers[near.index, far.index] = None


@contextlib.contextmanager
def opened(emit: Emit, driver: Driver, wanted: int) -> Iterator[Machine]:
    """Start CUDA on all GPUs with buffers of ``wanted`` bytes, or of less where memory is short.

    Emits an ``identity`` a GPU and the ``size`` that it came to. Raises NotMeasurableError, StepFailedError.
    """
    with step(emit, "cuInit", pair=None):
        driver.init()
    gpus: list[Gpu] = []
    with step(emit, "open the GPUs", pair=None):
        for index in range(driver.count()):
            gpus.append(Gpu(driver, index))
            emit({"identity": gpus[-1].identity})
        free = {gpu.index: _free(gpu) for gpu in gpus}
    size = fitting(wanted, free)
    emit({"size": size})
    with step(emit, "prepare the GPUs", pair=None):
        flag = driver.allocate_host(64)
        flag.set(1)
        for gpu in gpus:
            gpu.prepare(size, flag)
    yield Machine(driver, gpus, size, flag)
    with step(emit, "release the GPUs", pair=None):
        gpus[-1].use()
        driver.free_host(flag)  # before its context goes
        for gpu in gpus:
            gpu.close()


def fitting(wanted: int, free: dict[int, int]) -> int:
    """Bytes of one buffer: as wanted, or what all GPUs have room for, in whole MiB. Raises NotMeasurableError."""
    if not free:
        raise NotMeasurableError("CUDA finds no GPU")
    index, least = min(free.items(), key=lambda item: item[1])
    room = int(least * SHARE / 2) // MIB * MIB
    if room >= wanted:
        return wanted
    if room < SMALLEST:
        raise NotMeasurableError(
            f"GPU {index} has {least // MIB} MiB free, at least {round(2 * SMALLEST / SHARE) // MIB} MiB are needed"
        )
    return room


def _free(gpu: Gpu) -> int:
    gpu.use()
    return gpu.driver.memory()[0]
