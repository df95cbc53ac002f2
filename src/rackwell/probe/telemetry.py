# SPDX-License-Identifier: Apache-2.0
"""Power, utilisation, memory, temperature, clocks and energy of each GPU, through NVML.

NVML can hang like the rest of the driver, so :class:`Sampler` reads in a child process. Times are the machine's
monotonic clock, which all processes share.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from rackwell.probe import child, surroundings
from rackwell.probe.pace import Pace
from rackwell.probe.readings import Nvml, NvmlUnavailableError

#: how long the sampler may take for its first sample and for its end, seconds
START_DEADLINE = 30.0
#: between two looks at which processes use the GPUs
PROCESSES_PERIOD = 5.0
#: between two readings of PCIe throughput, which take 20 ms each (1 ms of a core) and are of one GPU and one way
LINK_PERIOD = 0.5
STOP_DEADLINE = 10.0


def overview() -> dict[str, Any]:
    """Whether NVML works, its driver version, and the version of the library that answered."""
    try:
        nvml = Nvml()
        found: dict[str, Any] = {"available": True, "driver_version": nvml.driver_version(), "devices": nvml.devices()}
    except NvmlUnavailableError as error:
        found = {"available": False, "why": str(error), "code": error.code}
    library = surroundings.loaded_library("libnvidia-ml.so")
    found["user_space_version"] = surroundings.version_of(library) if library else None
    return found


class Links:
    """PCIe throughput in a thread of its own, one GPU and one way after the other: each reading waits for 20 ms."""

    def __init__(self, nvml: Nvml, period: float) -> None:
        self.period = period
        self._nvml = nvml
        self._read: list[list[Any]] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        if self.period > 0 and self._nvml.count:
            self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def take(self) -> list[list[Any]]:
        """``[t, gpu, "tx" or "rx", MB/s]`` since the last time."""
        with self._lock:
            found, self._read = self._read, []
        return found

    def _run(self) -> None:
        ways = [(index, received) for index in range(self._nvml.count) for received in (False, True)]
        useful = False
        while True:
            for index, received in ways:
                if self._over.wait(self.period):
                    return
                began = time.monotonic()
                rate = self._nvml.link_rate(index, received)
                if rate is not None:
                    useful = True
                    with self._lock:
                        middle = round((began + time.monotonic()) / 2, 4)
                        self._read.append([middle, index, "rx" if received else "tx", round(rate, 1)])
            if not useful:  # none of the GPUs tells it
                return


def sample_loop(emit: child.Emit, nvml: Nvml, hz: float, requests: int, link_period: float = LINK_PERIOD) -> None:
    """Emit samples at ``hz`` and one more for each line on file descriptor ``requests``, until that is closed.

    The first one and those that were asked for are whole; the others hold what :class:`Pace` has room for. Now and then
    a sample brings what came aside: ``links`` (see :class:`Links`), and an event of its own tells the ``processes`` on
    the GPUs.
    """
    emit({"devices": nvml.devices(), "driver_version": nvml.driver_version()})
    links = Links(nvml, link_period)
    links.start()
    pace = Pace(nvml, hz)
    due = look = time.monotonic()
    busy, count, whole = 0.0, 0, True
    used = time.process_time()  # what starting cost is over
    while True:
        began = time.monotonic()
        readings = pace.full() if whole else pace.usual()
        ended = time.monotonic()
        busy, count = busy + ended - began, count + 1
        # between both clock reads: the error of the time is then at most half of the reading's duration
        sample = {"t": (began + ended) / 2, "took": round(ended - began, 6), "gpus": readings}
        link = links.take()
        emit({**sample, "links": link} if link else sample)
        if ended >= look:
            look = ended + PROCESSES_PERIOD
            emit({"processes": nvml.processes(), "t": round(ended, 4)})
        due = max(due + pace.pause(), ended)
        ready, _, _ = select.select([requests], [], [], max(0.0, due - time.monotonic()))
        if ready and not os.read(requests, 4096):
            break
        whole = bool(ready)
    links.stop()
    emit(
        {
            "overhead": {
                "samples": count,
                "reading_seconds": round(busy, 4),
                "cpu_seconds": round(time.process_time() - used, 4),
            }
        }
    )


def main(argv: list[str]) -> int:
    """The child's side: ``CHANNEL HZ LINK_PERIOD``, requests on stdin."""
    emit = child.emitter(int(argv[0]))
    try:
        nvml = Nvml()
    except NvmlUnavailableError as error:
        emit({"unavailable": str(error)})
        return 1
    sample_loop(emit, nvml, float(argv[1]), sys.stdin.fileno(), float(argv[2]))
    return 0


class Sampler:
    """Samples in a child process from :meth:`start` to :meth:`stop`; never raises for the lack of NVML.

    Attributes:
        unavailable: why there is no telemetry, "" when there is.
        devices: as :meth:`Nvml.devices` tells. samples: ``{"t": monotonic seconds, "took": s, "gpus": [...]}``.
        links: ``[t, gpu, "tx" or "rx", MB/s]`` of PCIe. processes: ``{"t", "processes": [...]}``, every few seconds.
        overhead: what sampling itself cost: ``samples``, ``reading_seconds``, ``cpu_seconds``.
    """

    def __init__(self, hz: float, link_period: float = LINK_PERIOD) -> None:
        self.hz = hz
        self.link_period = link_period
        self.links: list[list[Any]] = []
        self.processes: list[dict[str, Any]] = []
        self.unavailable = ""
        self.driver_version: str | None = None
        self.devices: list[dict[str, Any]] = []
        self.samples: list[dict[str, Any]] = []
        self.overhead: dict[str, Any] | None = None
        self._first = threading.Event()

    def start(self) -> None:
        """Start, and wait for the first sample: the command must not run before its telemetry does."""
        reader, writer = os.pipe()
        asked, self._requests = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rackwell.probe.telemetry", str(writer), str(self.hz), str(self.link_period)],
            stdin=asked,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(writer,),
            start_new_session=True,  # ctrl-C is for the command; the sampler stays until the end is recorded
            env=child.environment(),
        )
        os.close(writer)
        os.close(asked)
        self._thread = threading.Thread(target=self._receive, args=(reader,), daemon=True)
        self._thread.start()
        if not self._first.wait(START_DEADLINE):
            self.unavailable = "NVML did not answer" + _state(self._process.pid)
            child.kill(self._process)

    def mark(self) -> None:
        """Ask for a sample now: so that the edge of a window has one."""
        with contextlib.suppress(OSError):
            os.write(self._requests, b"now\n")

    def stop(self) -> None:
        """Take the last sample's word and end the child, by force if it hangs."""
        os.close(self._requests)
        try:
            self._process.wait(STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            self.unavailable = self.unavailable or "NVML stopped answering" + _state(self._process.pid)
            if not child.kill(self._process):
                return  # stuck in the kernel: leave it, the reader thread is a daemon
        self._thread.join(STOP_DEADLINE)

    def _receive(self, reader: int) -> None:
        with os.fdopen(reader, "rb") as channel:
            for event in _events(channel):
                if "gpus" in event:
                    self.links += event.pop("links", [])
                    self.samples.append(event)
                    self._first.set()
                elif "processes" in event:
                    self.processes.append(event)
                elif "devices" in event:
                    self.devices, self.driver_version = event["devices"], event["driver_version"]
                elif "overhead" in event:
                    self.overhead = event["overhead"]
                elif "unavailable" in event:
                    self.unavailable = event["unavailable"]
        if not self.samples and not self.unavailable:
            self.unavailable = "the sampler ended before its first sample"
        self._first.set()


def _events(channel: Any) -> Iterator[dict[str, Any]]:
    for line in channel:
        if line.endswith(b"\n"):  # a killed child may leave half a line
            yield json.loads(line)


def _state(pid: int) -> str:
    where = child.kernel_function(pid)
    return f" ({where})" if where else ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
