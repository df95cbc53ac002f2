# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - the names are NVIDIA's
"""Stands in for pynvml in unit tests: two GPUs at 250 and 100 W whose energy counters grow by a joule a reading.

Faults come as JSON in RACKWELL_FAKE_NVML:
    init_error: 18            nvmlInit fails with that code
    hang: "nvmlInit"          this call never returns
    no_instant: true          no instant power, the average only (1 W less)
    missing: ["nvmlDeviceGetClockInfo"]     these calls are not supported
"""

import json
import os
import threading
import types

FAKE = json.loads(os.environ.get("RACKWELL_FAKE_NVML", "{}"))
NVML_FI_DEV_POWER_INSTANT = 186
NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
_POWER = [250_000, 100_000]
_ENERGY = [0, 0]


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"fake error {value}")
        self.value = value


def _call(name):
    if FAKE.get("hang") == name:
        threading.Event().wait()
    if name in FAKE.get("missing", []):
        raise NVMLError(3)


def nvmlInit():
    _call("nvmlInit")
    if FAKE.get("init_error"):
        raise NVMLError(FAKE["init_error"])


def nvmlDeviceGetCount():
    return 2


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlSystemGetDriverVersion():
    return "595.58.03"


def nvmlDeviceGetPciInfo(handle):
    return types.SimpleNamespace(busId=f"00000000:{handle + 1:02X}:00.0")


def nvmlDeviceGetUUID(handle):
    return f"GPU-{handle}"


def nvmlDeviceGetName(handle):
    return b"Fake GPU"


def nvmlDeviceGetEnforcedPowerLimit(handle):
    return 600_000


def nvmlDeviceGetMemoryInfo(handle):
    return types.SimpleNamespace(total=96 << 30, used=10 << 20)


def nvmlDeviceGetFieldValues(handle, fields):
    value = types.SimpleNamespace(uiVal=_POWER[handle])
    return [types.SimpleNamespace(nvmlReturn=3 if FAKE.get("no_instant") else 0, value=value)]


def nvmlDeviceGetPowerUsage(handle):
    return _POWER[handle] - 1000


def nvmlDeviceGetUtilizationRates(handle):
    return types.SimpleNamespace(gpu=90 - handle * 80, memory=20)


def nvmlDeviceGetTemperature(handle, sensor):
    return 40


def nvmlDeviceGetClockInfo(handle, clock):
    _call("nvmlDeviceGetClockInfo")
    return 2400 if clock == NVML_CLOCK_SM else 12000


def nvmlDeviceGetTotalEnergyConsumption(handle):
    _ENERGY[handle] += 1000
    return _ENERGY[handle]


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return 0


def nvmlDeviceGetComputeRunningProcesses(handle):
    return [types.SimpleNamespace(pid=4242 + handle, usedGpuMemory=1 << 30)]


def nvmlDeviceGetPcieThroughput(handle, counter):
    return 12_000 + counter
