# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - the names are NVIDIA's
"""Stands in for cuda.bindings.driver in unit tests: GPUs whose memory is host memory, with faults on order.

Faults come as JSON in RACKWELL_FAKE_CUDA:
    gpus: how many (2)
    errors: {"cuMemAlloc": 2, "cuMemAlloc@1": 2}      result code of a call, of that GPU only after the @
    hang: "cuMemcpyPeerAsync@0>1"                     this call never returns; a pair after the @ for peer copies
    crash: "cuInit"                                   this call ends the process by SIGSEGV
    no_access: [[0, 1]]
    corrupt: {"0>1": "zero" | "drop" | "flip" | "late"}   what a peer copy does instead; late = from the third one on
    readback: {"1": "flip"}                           what a read from that GPU gives
    gb_per_s: {"default": 50, "0>1": 8}
"""

import ctypes
import json
import os
import signal
import threading
import types
from typing import ClassVar

FAKE = {"gpus": 2, **json.loads(os.environ.get("RACKWELL_FAKE_CUDA", "{}"))}
NAMES = {0: "CUDA_SUCCESS", 2: "CUDA_ERROR_OUT_OF_MEMORY", 3: "CUDA_ERROR_NOT_INITIALIZED", 100: "CUDA_ERROR_NO_DEVICE"}

CUdevice_attribute = types.SimpleNamespace(
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76
)
CUdevice_P2PAttribute = types.SimpleNamespace(
    CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK=1,
    CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED=2,
    CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED=3,
)
CUstream_flags = types.SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
CUevent_flags = types.SimpleNamespace(CU_EVENT_DEFAULT=0)


class CUresult(int):
    @property
    def name(self):
        return NAMES.get(int(self), "CUDA_ERROR_OTHER")


class State:
    current = None
    clock = 0.0  # milliseconds of all transfers
    copies = 0
    memory: ClassVar = {}  # address -> (gpu, bytearray)
    next_address = 0x1000


def _fault(call, key=None):
    """The result of a call; None = it may go on."""
    for name in (call, f"{call}@{key}"):
        if FAKE.get("hang") == name:
            threading.Event().wait()
        if FAKE.get("crash") == name:
            os.kill(os.getpid(), signal.SIGSEGV)
        code = FAKE.get("errors", {}).get(name)
        if code:
            return (CUresult(code), None)
    return None


def _ok(*values):
    return (CUresult(0), *values)


def cuInit(flags):
    return _fault("cuInit") or _ok()


def cuDriverGetVersion():
    return _fault("cuDriverGetVersion") or _ok(13020)


def cuDeviceGetCount():
    return _fault("cuDeviceGetCount") or _ok(FAKE["gpus"])


def cuDeviceGet(index):
    return _fault("cuDeviceGet", index) or _ok(index)


def cuDeviceGetName(length, device):
    return _ok(b"Fake GPU".ljust(length, b"\0"))


def cuDeviceGetUuid_v2(device):
    return _ok(types.SimpleNamespace(bytes=bytes([device + 1] * 16)))


def cuDeviceGetPCIBusId(length, device):
    return _ok(f"0000:{device + 1:02X}:00.0".encode().ljust(length, b"\0"))


def cuDeviceTotalMem(device):
    return _ok(96 << 30)


def cuDeviceGetAttribute(attribute, device):
    return _ok(12 if attribute == 75 else 0)


def cuDevicePrimaryCtxRetain(device):
    return _fault("cuDevicePrimaryCtxRetain", device) or _ok(("context", device))


def cuDevicePrimaryCtxRelease(device):
    return _ok()


def cuCtxSetCurrent(context):
    State.current = context[1]
    return _ok()


def cuCtxSynchronize():
    return _fault("cuCtxSynchronize", State.current) or _ok()


def cuMemAlloc(size):
    fault = _fault("cuMemAlloc", State.current)
    if fault:
        return fault
    State.next_address += 0x1000
    State.memory[State.next_address] = (State.current, bytearray(size))
    return _ok(State.next_address)


def cuMemFree(address):
    del State.memory[address]
    return _ok()


def cuMemcpyHtoD(address, data, size):
    State.memory[address][1][:] = data
    return _fault("cuMemcpyHtoD", State.current) or _ok()


def cuMemcpyDtoH(buffer, address, size):
    gpu, memory = State.memory[address]
    buffer[:] = memory
    if FAKE.get("readback", {}).get(str(gpu)) == "flip":
        buffer[7] ^= 1
    return _fault("cuMemcpyDtoH", State.current) or _ok()


def cuMemsetD8(address, value, size):
    ctypes.memset((ctypes.c_char * size).from_buffer(State.memory[address][1]), value, size)
    return _ok()


def cuDeviceCanAccessPeer(device, peer):
    return _ok(int([device, peer] not in FAKE.get("no_access", [])))


def cuDeviceGetP2PAttribute(attribute, source, target):
    return _ok({1: 0, 2: 1, 3: 0}[attribute])


def cuCtxEnablePeerAccess(context, flags):
    return _fault("cuCtxEnablePeerAccess", f"{State.current}>{context[1]}") or _ok()


def cuCtxDisablePeerAccess(context):
    return _ok()


def cuStreamCreate(flags):
    return _ok("stream")


def cuStreamSynchronize(stream):
    return _ok()


def cuStreamDestroy(stream):
    return _ok()


def cuEventCreate(flags):
    return _ok({})


def cuEventRecord(event, stream):
    event["t"] = State.clock
    return _ok()


def cuEventSynchronize(event):
    return _ok()


def cuEventElapsedTime(start, end):
    return _ok(end["t"] - start["t"])


def cuEventDestroy(event):
    return _ok()


def cuMemcpyPeerAsync(target, target_context, source, source_context, size, stream):
    pair = f"{source_context[1]}>{target_context[1]}"
    fault = _fault("cuMemcpyPeerAsync", pair)
    if fault:
        return fault
    State.copies += 1
    speeds = FAKE.get("gb_per_s", {})
    State.clock += size / speeds.get(pair, speeds.get("default", 50)) / 1e6
    place, data = State.memory[target][1], State.memory[source][1]
    kind = FAKE.get("corrupt", {}).get(pair)
    if kind == "drop":
        return _ok()
    place[:] = bytes(size) if kind == "zero" else data
    if kind == "flip" or (kind == "late" and State.copies > 2):
        place[size // 2] ^= 0x10
    return _ok()
