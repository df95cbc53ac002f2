# SPDX-License-Identifier: Apache-2.0
"""NVML's readings of each GPU's link and health. What a GPU, driver or binding does not offer reads as None.

NVML may hang, so this runs in a child; :mod:`rackwell.probe.links` starts it.
"""

from __future__ import annotations

import importlib
from typing import Any

#: codes that mean that NVML or the GPU is gone, whatever was asked; other errors are about the one reading
_GONE = {
    1: "NVML_ERROR_UNINITIALIZED",
    9: "NVML_ERROR_DRIVER_NOT_LOADED",
    15: "NVML_ERROR_GPU_IS_LOST",
    16: "NVML_ERROR_RESET_REQUIRED",
    18: "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    28: "NVML_ERROR_GPU_NOT_FOUND",
}
_OTHERS = {
    3: "NVML_ERROR_NOT_SUPPORTED",
    4: "NVML_ERROR_NO_PERMISSION",
    10: "NVML_ERROR_TIMEOUT",
    12: "NVML_ERROR_LIBRARY_NOT_FOUND",
    13: "NVML_ERROR_FUNCTION_NOT_FOUND",
    17: "NVML_ERROR_OPERATING_SYSTEM",
    999: "NVML_ERROR_UNKNOWN",
}
#: nvmlDeviceGpuRecoveryAction_t in nvidia-smi's words
_RECOVERY = {
    0: "None",
    1: "GPU Reset Required",
    2: "Node Reboot Required",
    3: "Drain P2P",
    4: "Drain and Reset",
    5: "GPU Reset Required (bus)",
}
_UNCORRECTED, _VOLATILE = 1, 0
_P2P_NVLINK, _P2P_OK = 2, 0
_LINKS = 18


class NvmlError(Exception):
    """NVML failed.

    Attributes:
        code: its number, None when the library or the binding is not there. name: its name. at: what was asked.
    """

    def __init__(self, at: str, code: int | None, detail: str = "") -> None:
        self.at, self.code = at, code
        self.name = "NVML_NOT_FOUND" if code is None else _GONE.get(code) or _OTHERS.get(code) or f"NVML_ERROR {code}"
        super().__init__(f"{at}: {self.name}" + (f": {detail}" if detail else ""))

    def as_dict(self) -> dict[str, Any]:
        return {"at": self.at, "code": self.code, "name": self.name}


class Session:
    """NVML, started. ``api`` stands in for ``pynvml`` in a test. Raises NvmlError.

    Attributes:
        driver_version: the kernel module's. count: GPUs.
    """

    def __init__(self, api: Any = None) -> None:
        try:
            self._api = api or importlib.import_module("pynvml")
        except ImportError as error:
            raise NvmlError("import pynvml", None, str(error)) from None
        self.must("nvmlInit")
        version = self.read("nvmlSystemGetDriverVersion")
        self.driver_version = None if version is None else text(version)
        self.count = int(self.must("nvmlDeviceGetCount"))

    def must(self, name: str, *args: Any, of: str = "") -> Any:
        """A call whose failure means that NVML is not usable, or the GPU is gone. Raises NvmlError."""
        try:
            return getattr(self._api, name)(*args)
        except self._api.NVMLError as error:
            raise NvmlError(name + of, int(error.value), str(error)) from None
        except AttributeError:
            raise NvmlError(name, None, "the binding lacks it") from None

    def read(self, name: str, *args: Any, of: str = "") -> Any:
        """A reading, None when it is not offered. Raises NvmlError when the GPU or NVML is gone."""
        try:
            return getattr(self._api, name)(*args)
        except AttributeError:
            return None
        except self._api.NVMLError as error:
            code = int(error.value)
            if code in _GONE:
                raise NvmlError(name + of, code, str(error)) from None
            return None

    def handle(self, index: int) -> Any:
        """Raises NvmlError, which names the GPU by NVML's index."""
        return self.must("nvmlDeviceGetHandleByIndex", index, of=f" of GPU {index}")

    def bus_id(self, handle: Any, of: str = "") -> str:
        """As sysfs names it: ``0000:06:00.0``."""
        domain, _, rest = str(text(self.must("nvmlDeviceGetPciInfo", handle, of=of).busId)).lower().partition(":")
        return f"{domain[-4:]}:{rest}"

    def link(self, handle: Any, of: str = "") -> dict[str, Any]:
        """``gen`` and ``width`` of the link now: an idle one runs slowly to save power."""
        return {
            "gen": self.read("nvmlDeviceGetCurrPcieLinkGeneration", handle, of=of),
            "width": self.read("nvmlDeviceGetCurrPcieLinkWidth", handle, of=of),
        }

    def gpu(self, index: int) -> dict[str, Any]:
        """All readings of one GPU, sizes in bytes. Raises NvmlError when it is gone."""
        of = f" of GPU {index}"
        handle = self.handle(index)
        bus_id = self.bus_id(handle, of)
        of += f" at {bus_id}"
        bar1 = self.read("nvmlDeviceGetBAR1MemoryInfo", handle, of=of)
        memory = self.read("nvmlDeviceGetMemoryInfo", handle, of=of)
        use = self.read("nvmlDeviceGetUtilizationRates", handle, of=of)
        rows = self.read("nvmlDeviceGetRemappedRows", handle, of=of)
        processes = self.read("nvmlDeviceGetComputeRunningProcesses", handle, of=of)
        return {
            "nvml_index": index,
            "bus_id": bus_id,
            "uuid": text(self.read("nvmlDeviceGetUUID", handle, of=of)),
            "gen_gpu_max": self.read("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle, of=of),
            "gen_max": self.read("nvmlDeviceGetMaxPcieLinkGeneration", handle, of=of),
            "width_max": self.read("nvmlDeviceGetMaxPcieLinkWidth", handle, of=of),
            **self.link(handle, of),
            "replays": self.read("nvmlDeviceGetPcieReplayCounter", handle, of=of),
            "bar1_total": None if bar1 is None else int(bar1.bar1Total),
            "ecc_uncorrected": self.read("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE, of=of),
            "recovery_action": self._recovery(handle, of),
            "remapped_pending": None if rows is None else bool(rows[2]),
            "processes": None if processes is None else len(processes),
            "memory_used": None if memory is None else int(memory.used),
            "memory_total": None if memory is None else int(memory.total),
            "utilization": None if use is None else int(use.gpu),
            "nvlink": self._nvlink(handle, of),
        }

    def nvlink_pairs(self) -> list[list[bool]]:
        """Which ordered pairs reach each other through NVLink, by NVML's indices. Raises NvmlError."""
        handles = [self.handle(index) for index in range(self.count)]
        return [
            [
                one is not two and self.read("nvmlDeviceGetP2PStatus", one, two, _P2P_NVLINK) == _P2P_OK
                for two in handles
            ]
            for one in handles
        ]

    def _field(self, handle: Any, name: str, scope: int, of: str) -> int | None:
        number = getattr(self._api, name, None)
        if number is None:
            return None
        values = self.read("nvmlDeviceGetFieldValues", handle, [(number, scope)], of=of)
        if not values or values[0].nvmlReturn != 0:
            return None
        # a kind of 0 is a double; these two are whole numbers of 32 bits, lowest in the union
        return int(values[0].value.uiVal)

    def _recovery(self, handle: Any, of: str) -> str | None:
        action = self._field(handle, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", 0, of)
        return None if action is None else _RECOVERY.get(action, f"action {action}")

    def _nvlink(self, handle: Any, of: str) -> dict[str, Any] | None:
        """None where there is no NVLink; GB/s (1e9 bytes) in one direction over all active links."""
        states = []
        for link in range(getattr(self._api, "NVML_NVLINK_MAX_LINKS", _LINKS)):
            state = self.read("nvmlDeviceGetNvLinkState", handle, link, of=of)
            if state is None:
                break  # the first link that the GPU has not
            states.append(bool(state))
        if not states:
            return None
        active = [link for link, up in enumerate(states) if up]
        version = self.read("nvmlDeviceGetNvLinkVersion", handle, active[0], of=of) if active else None
        speeds = [self._field(handle, "NVML_FI_DEV_NVLINK_GET_SPEED", link, of) for link in active]
        known = [speed for speed in speeds if speed]
        return {
            "active": len(active),
            "links": len(states),
            "version": None if version is None else int(version),
            "gb_per_s_one_way": round(sum(known) / 1e3, 1) if known and len(known) == len(active) else None,
        }


def text(value: Any) -> str | None:
    """NVML's texts are bytes in old bindings."""
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
