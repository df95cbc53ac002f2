# SPDX-License-Identifier: Apache-2.0

"""Stands in for pynvml in the tests of links: two GPUs on PCIe, idle at generation 1.

Faults come as JSON in RACKWELL_FAKE_NVML, anew for each process:
    errors: {"nvmlDeviceGetUUID": 3, "nvmlDeviceGetHandleByIndex@1": 15}    this call fails, of that GPU after the @
    hang: "nvmlInit"                  this call never returns
    lacks: ["nvmlDeviceGetRemappedRows"]    the binding has no such function
    values: {"nvmlDeviceGetPcieReplayCounter": 4}    what a call gives
    nvlinks: 18                       links that are up on each GPU
"""

import json
import os
import threading
import types

FAKE = json.loads(os.environ.get("RACKWELL_FAKE_NVML", "{}"))
NVML_NVLINK_MAX_LINKS = 18
NVML_FI_DEV_NVLINK_GET_SPEED = 164
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"fake error {value}")
        self.value = value


def _pci(handle):
    return types.SimpleNamespace(busId=f"00000000:0{handle + 6}:00.0")


def _fields(handle, wanted):
    values = {NVML_FI_DEV_NVLINK_GET_SPEED: 26562, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: FAKE.get("recovery", 0)}
    return [
        types.SimpleNamespace(nvmlReturn=0, value=types.SimpleNamespace(uiVal=values[field])) for field, scope in wanted
    ]


def _nvlink_state(handle, link):
    if "nvlinks" not in FAKE:
        raise NVMLError(3)
    return int(link < FAKE["nvlinks"])


_CALLS = {
    "nvmlInit": lambda: None,
    "nvmlDeviceGetCount": lambda: FAKE.get("gpus", 2),
    "nvmlSystemGetDriverVersion": lambda: b"595.58.03",
    "nvmlDeviceGetHandleByIndex": lambda index: index,
    "nvmlDeviceGetPciInfo": _pci,
    "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": lambda handle: 5,
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: 5,
    "nvmlDeviceGetMaxPcieLinkWidth": lambda handle: 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda handle: 1,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 16,
    "nvmlDeviceGetPcieReplayCounter": lambda handle: 0,
    "nvmlDeviceGetBAR1MemoryInfo": lambda handle: types.SimpleNamespace(bar1Total=131072 << 20),
    "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 0,
    "nvmlDeviceGetRemappedRows": lambda handle: (0, 0, 0, 0),
    "nvmlDeviceGetComputeRunningProcesses": lambda handle: [object()],
    "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(total=96 << 30, used=1 << 30),
    "nvmlDeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu=7, memory=1),
    "nvmlDeviceGetNvLinkState": _nvlink_state,
    "nvmlDeviceGetNvLinkVersion": lambda handle, link: 4,
    "nvmlDeviceGetP2PStatus": lambda one, two, index: 0 if "nvlinks" in FAKE else 5,
    "nvmlDeviceGetFieldValues": _fields,
}


def _function(name):
    def call(*args):
        if FAKE.get("hang") == name:
            threading.Event().wait()
        errors = FAKE.get("errors", {})
        code = errors.get(name) or (errors.get(f"{name}@{args[0]}") if args else None)
        if code:
            raise NVMLError(code)
        values = FAKE.get("values", {})
        return values[name] if name in values else _CALLS[name](*args)

    return call


for _name in _CALLS:
    if _name not in FAKE.get("lacks", []):
        globals()[_name] = _function(_name)
