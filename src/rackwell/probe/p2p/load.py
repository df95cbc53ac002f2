# SPDX-License-Identifier: Apache-2.0
"""The links while they work: an idle PCIe link runs slowly to save power, so only now its readings count."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from rackwell.probe.driver import HostMemory
from rackwell.probe.p2p.flows import timed
from rackwell.probe.p2p.gpus import Gpu, Lane, Machine

#: what reads one GPU's link: bus id -> a callable that gives ``{"gen", "width", ...}`` and does not raise
Readers = Callable[[str], Callable[[], dict[str, Any]]]
#: seconds that the links are to be busy, and how long after the start they are read: one that sleeps takes ms to wake
_BUSY, _AWAKE = 0.1, 0.02
# bytes of one copy, and seconds after which no more are started: a driver that copies while it is called never has
# any on their way
_SIZE, _PATIENCE = 8 << 20, 0.2
_TRIES = 2


def readings(machine: Machine, readers: Readers) -> dict[str, dict[str, Any]]:
    """``link_load``: what each GPU's link says while all of them copy to the host's memory.

    Such copies use a GPU's own PCIe link also where the GPUs reach each other by NVLink.
    """
    read = {gpu.index: readers(gpu.identity["bus_id"]) for gpu in machine.gpus}
    for reader in read.values():
        reader()  # the first reading starts NVML
    memory = machine.driver.allocate_host(min(machine.size, _SIZE))
    try:
        for _ in range(_TRIES):
            found, busy = _while_busy(machine, memory, read)
            if busy:
                break
        return found
    finally:
        machine.driver.free_host(memory)


def _while_busy(
    machine: Machine, memory: HostMemory, read: dict[int, Callable[[], dict[str, Any]]]
) -> tuple[dict[str, dict[str, Any]], bool]:
    """The readings, and whether all links were still busy after the last of them."""
    driver = machine.driver

    def send(gpu: Gpu, lane: Lane) -> None:
        driver.copy(memory.device, gpu.source, memory.size, lane.stream)

    times = timed(machine, [(gpu, functools.partial(send, gpu)) for gpu in machine.gpus])
    started = time.monotonic()
    for gpu, seconds in zip(machine.gpus, times, strict=True):
        gpu.use()
        for _ in range(max(1, round(_BUSY / seconds))):
            send(gpu, gpu.lane(0))
            if time.monotonic() - started > _PATIENCE:
                break
    time.sleep(_AWAKE)
    found = {gpu.identity["bus_id"]: read[gpu.index]() for gpu in machine.gpus}
    busy = True
    for gpu in machine.gpus:
        gpu.use()
        busy = driver.busy(gpu.lane(0).stream) and busy
    for gpu in machine.gpus:
        gpu.use()
        driver.wait(gpu.lane(0).stream)
    return found, busy
