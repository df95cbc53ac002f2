# SPDX-License-Identifier: Apache-2.0
"""Power, utilisation, memory, temperature, clocks and energy of each GPU, through NVML.

NVML can hang like the rest of the driver, so :class:`Sampler` reads in a child process. Times are the machine's
monotonic clock, which all processes share.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rackwell.probe import child, surroundings

#: how long the sampler may take for its first sample and for its end, seconds
START_DEADLINE = 30.0
STOP_DEADLINE = 10.0


class NvmlUnavailableError(Exception):
    """NVML cannot be used here; ``code`` is its error number, None when the library did not load."""

    def __init__(self, why: str, code: int | None = None) -> None:
        super().__init__(why)
        self.code = code


class Nvml:
    """The readings of all GPUs. What a GPU or driver does not offer reads as None."""

    def __init__(self, api: Any = None) -> None:
        """Start NVML. ``api`` stands in for ``pynvml`` in a test. Raises NvmlUnavailableError."""
        try:
            self._api = api or importlib.import_module("pynvml")
        except ImportError as error:
            raise NvmlUnavailableError(f"nvidia-ml-py is not installed: {error}") from None
        try:
            self._api.nvmlInit()
            count = self._api.nvmlDeviceGetCount()
            self._handles = [self._api.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except self._api.NVMLError as error:
            raise NvmlUnavailableError(f"NVML: {error}", getattr(error, "value", None)) from None

    def driver_version(self) -> str | None:
        version = self._read(self._api.nvmlSystemGetDriverVersion)
        return None if version is None else _text(version)

    def devices(self) -> list[dict[str, Any]]:
        """What does not change: names, and the power limit in watts."""
        found = []
        for index, handle in enumerate(self._handles):
            pci = self._read(self._api.nvmlDeviceGetPciInfo, handle)
            limit = self._read(self._api.nvmlDeviceGetEnforcedPowerLimit, handle)
            memory = self._read(self._api.nvmlDeviceGetMemoryInfo, handle)
            found.append(
                {
                    "index": index,
                    "uuid": _text(self._read(self._api.nvmlDeviceGetUUID, handle)),
                    "bus_id": _bus_id(pci),
                    "name": _text(self._read(self._api.nvmlDeviceGetName, handle)),
                    "power_limit_w": None if limit is None else limit / 1000,
                    "memory_total_mib": None if memory is None else int(memory.total) >> 20,
                }
            )
        return found

    def sample(self) -> list[dict[str, Any]]:
        """One reading of each GPU; the energy counter runs since the driver was loaded, in millijoules."""
        return [self._sample(handle) for handle in self._handles]

    def _sample(self, handle: Any) -> dict[str, Any]:
        api = self._api
        power, instant = self._power(handle)
        use = self._read(api.nvmlDeviceGetUtilizationRates, handle)
        memory = self._read(api.nvmlDeviceGetMemoryInfo, handle)
        limit = self._read(api.nvmlDeviceGetEnforcedPowerLimit, handle)
        return {
            "power_w": power,
            "power_instant": instant,
            "power_limit_w": None if limit is None else limit / 1000,
            "utilization_pct": None if use is None else int(use.gpu),
            "memory_utilization_pct": None if use is None else int(use.memory),
            "memory_used_mib": None if memory is None else int(memory.used) >> 20,
            "temperature_c": self._read(api.nvmlDeviceGetTemperature, handle, api.NVML_TEMPERATURE_GPU),
            "sm_clock_mhz": self._read(api.nvmlDeviceGetClockInfo, handle, api.NVML_CLOCK_SM),
            "memory_clock_mhz": self._read(api.nvmlDeviceGetClockInfo, handle, api.NVML_CLOCK_MEM),
            "energy_mj": self._read(api.nvmlDeviceGetTotalEnergyConsumption, handle),
            "throttle_reasons": self._read(api.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        }

    def _power(self, handle: Any) -> tuple[float | None, bool]:
        """Watts, and whether they are of this instant; otherwise they are the driver's average of about a second."""
        values = self._read(self._api.nvmlDeviceGetFieldValues, handle, [self._api.NVML_FI_DEV_POWER_INSTANT])
        if values and values[0].nvmlReturn == 0 and values[0].value.uiVal:
            return values[0].value.uiVal / 1000, True
        average = self._read(self._api.nvmlDeviceGetPowerUsage, handle)
        return (None if average is None else average / 1000), False

    def _read(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except self._api.NVMLError:
            return None


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else str(value)


def _bus_id(pci: Any) -> str | None:
    """As sysfs names it: NVML writes the domain with eight digits, in capitals."""
    if pci is None:
        return None
    domain, _, rest = str(_text(pci.busId)).lower().partition(":")
    return f"{domain[-4:]}:{rest}"


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


def sample_loop(emit: child.Emit, nvml: Nvml, hz: float, requests: int) -> None:
    """Emit samples at ``hz`` and one more for each line on file descriptor ``requests``, until that is closed."""
    emit({"devices": nvml.devices(), "driver_version": nvml.driver_version()})
    period = 1.0 / hz
    due = time.monotonic()
    busy, count = 0.0, 0
    while True:
        began = time.monotonic()
        readings = nvml.sample()
        ended = time.monotonic()
        busy, count = busy + ended - began, count + 1
        # between both clock reads: the error of the time is then at most half of the reading's duration
        emit({"t": (began + ended) / 2, "took": round(ended - began, 6), "gpus": readings})
        due = max(due + period, ended) if due + period < ended else due + period
        ready, _, _ = select.select([requests], [], [], max(0.0, due - time.monotonic()))
        if ready and not os.read(requests, 4096):
            break
    emit(
        {
            "overhead": {
                "samples": count,
                "reading_seconds": round(busy, 4),
                "cpu_seconds": round(time.process_time(), 4),
            }
        }
    )


def main(argv: list[str]) -> int:
    """The child's side: ``CHANNEL HZ``, requests on stdin."""
    emit = child.emitter(int(argv[0]))
    try:
        nvml = Nvml()
    except NvmlUnavailableError as error:
        emit({"unavailable": str(error)})
        return 1
    sample_loop(emit, nvml, float(argv[1]), sys.stdin.fileno())
    return 0


class Sampler:
    """Samples in a child process from :meth:`start` to :meth:`stop`; never raises for the lack of NVML.

    Attributes:
        unavailable: why there is no telemetry, "" when there is.
        devices: as :meth:`Nvml.devices` tells. samples: ``{"t": monotonic seconds, "took": s, "gpus": [...]}``.
        overhead: what sampling itself cost: ``samples``, ``reading_seconds``, ``cpu_seconds``.
    """

    def __init__(self, hz: float) -> None:
        self.hz = hz
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
            [sys.executable, "-m", "rackwell.probe.telemetry", str(writer), str(self.hz)],
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
                    self.samples.append(event)
                    self._first.set()
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
