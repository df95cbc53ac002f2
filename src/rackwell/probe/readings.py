# SPDX-License-Identifier: Apache-2.0
"""NVML's readings of each GPU: power, utilisation, memory, temperature, clocks, energy, PCIe traffic, processes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES
_TX, _RX = 0, 1


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
        #: bits; the older name is gone from bindings for CUDA 14
        self._reasons = getattr(self._api, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
            self._api, "nvmlDeviceGetCurrentClocksThrottleReasons", None
        )
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
        return [{**self.power(gpu), **self.use(gpu), **self.state(gpu)} for gpu in range(self.count)]

    def power(self, gpu: int) -> dict[str, Any]:
        """What moves fastest."""
        power, instant = self._power(self._handles[gpu])
        return {"power_w": power, "power_instant": instant}

    def use(self, gpu: int) -> dict[str, Any]:
        """What is summed up or averaged by the driver itself."""
        handle = self._handles[gpu]
        use = self._read(self._api.nvmlDeviceGetUtilizationRates, handle)
        return {
            "energy_mj": self._read(self._api.nvmlDeviceGetTotalEnergyConsumption, handle),
            "utilization_pct": None if use is None else int(use.gpu),
            "memory_utilization_pct": None if use is None else int(use.memory),
        }

    def state(self, gpu: int) -> dict[str, Any]:
        """What moves slowly."""
        api, handle = self._api, self._handles[gpu]
        memory = self._read(api.nvmlDeviceGetMemoryInfo, handle)
        limit = self._read(api.nvmlDeviceGetEnforcedPowerLimit, handle)
        return {
            "power_limit_w": None if limit is None else limit / 1000,
            "memory_used_mib": None if memory is None else int(memory.used) >> 20,
            "temperature_c": self._read(api.nvmlDeviceGetTemperature, handle, api.NVML_TEMPERATURE_GPU),
            "sm_clock_mhz": self._read(api.nvmlDeviceGetClockInfo, handle, api.NVML_CLOCK_SM),
            "memory_clock_mhz": self._read(api.nvmlDeviceGetClockInfo, handle, api.NVML_CLOCK_MEM),
            "throttle_reasons": self._read(self._reasons, handle),
        }

    def calls(self, gpu: int) -> dict[str, Callable[[], Any]]:
        """Each call by itself, to learn what it costs."""
        api, handle = self._api, self._handles[gpu]
        return {
            "power": lambda: self._power(handle),
            "energy": lambda: self._read(api.nvmlDeviceGetTotalEnergyConsumption, handle),
            "utilisation": lambda: self._read(api.nvmlDeviceGetUtilizationRates, handle),
            "power_limit": lambda: self._read(api.nvmlDeviceGetEnforcedPowerLimit, handle),
            "memory": lambda: self._read(api.nvmlDeviceGetMemoryInfo, handle),
            "temperature": lambda: self._read(api.nvmlDeviceGetTemperature, handle, api.NVML_TEMPERATURE_GPU),
            "sm_clock": lambda: self._read(api.nvmlDeviceGetClockInfo, handle, api.NVML_CLOCK_SM),
            "memory_clock": lambda: self._read(api.nvmlDeviceGetClockInfo, handle, api.NVML_CLOCK_MEM),
            "throttle_reasons": lambda: self._read(self._reasons, handle),
        }

    def processes(self) -> list[dict[str, Any]]:
        """What uses the GPUs: ``{"gpu", "pid", "mib", "cgroup", "name"}``; of a pid that is not ours to see, None."""
        found = []
        ask = getattr(self._api, "nvmlDeviceGetComputeRunningProcesses", None)
        for index, handle in enumerate(self._handles) if ask else ():
            for process in self._read(ask, handle) or []:
                used = getattr(process, "usedGpuMemory", None)
                found.append(
                    {
                        "gpu": index,
                        "pid": int(process.pid),
                        "mib": None if used is None else int(used) >> 20,
                        "cgroup": _of_process(process.pid, "cgroup"),
                        "name": _of_process(process.pid, "comm"),
                    }
                )
        return found

    def link_rate(self, index: int, received: bool) -> float | None:
        """MB/s over PCIe in the last 20 ms, for which the call waits."""
        ask = getattr(self._api, "nvmlDeviceGetPcieThroughput", None)
        rate = self._read(ask, self._handles[index], _RX if received else _TX) if ask else None
        return None if rate is None else rate / 1000

    @property
    def count(self) -> int:
        """GPUs."""
        return len(self._handles)

    def _power(self, handle: Any) -> tuple[float | None, bool]:
        """Watts, and whether they are of this instant; otherwise they are the driver's average of about a second."""
        values = self._read(self._api.nvmlDeviceGetFieldValues, handle, [self._api.NVML_FI_DEV_POWER_INSTANT])
        if values and values[0].nvmlReturn == 0 and values[0].value.uiVal:
            return values[0].value.uiVal / 1000, True
        average = self._read(self._api.nvmlDeviceGetPowerUsage, handle)
        return (None if average is None else average / 1000), False

    def _read(self, function: Callable[..., Any] | None, *args: Any) -> Any:
        if function is None:
            return None
        try:
            return function(*args)
        except self._api.NVMLError:
            return None


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else str(value)


def _of_process(pid: int, name: str) -> str | None:
    """A file of /proc; None when the process is over, or of another container."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace").strip()[:4096]
    except OSError:
        return None


def _bus_id(pci: Any) -> str | None:
    """As sysfs names it: NVML writes the domain with eight digits, in capitals."""
    if pci is None:
        return None
    domain, _, rest = str(_text(pci.busId)).lower().partition(":")
    return f"{domain[-4:]}:{rest}"
