# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - the names are NVIDIA's
"""Stands in for cuda.bindings.driver in unit tests: GPUs whose memory is host memory, with faults on order.

The kernels are done here by their names, so the PTX itself is not looked at. Each stream has a clock of its own, which
the copies move on by what their rate says: no time passes.

Faults come as JSON in RACKWELL_FAKE_CUDA:
    gpus: how many (2)
    free: free bytes of each GPU
    errors: {"cuMemAlloc": 2, "cuMemAlloc@1": 2}      result code of a call; a GPU, pair or kernel after the @
    hang: "cuMemcpyAsync@0>1"                         this call never returns; a pair after the @ for copies of peers,
                                                      a kernel for launches: "cuLaunchKernel@copy"
    crash: "cuInit"                                   this call ends the process by SIGSEGV
    no_access: [[0, 1]]
    atomics: true                                     what the driver says of all pairs
    lossy_atomics: true                               additions from afar are lost
    corrupt: {"0>1": "zero" | "drop" | "flip" | "late"}   what a copy does instead, "0>1/kernel" for kernels only;
                                                      late = from the third one on
    bad_source: {"0>1": true}                         a copy also spoils what it was made from
    readback: {"1": "flip"}                           what a read from that GPU gives
    kernels: {"1": "idle" | "blind" | "wrong"}        of that GPU's: do nothing; compare finds nothing; fill writes else
    gb_per_s: {"default": 50, "0>1": 8}
    us: {"default": 1.3, "0>1": 14}                   a read of memory of 0 by 1
"""

import ctypes
import json
import os
import signal
import struct
import threading
import types
from typing import ClassVar

FAKE = {"gpus": 2, **json.loads(os.environ.get("RACKWELL_FAKE_CUDA", "{}"))}
NAMES = {0: "CUDA_SUCCESS", 2: "CUDA_ERROR_OUT_OF_MEMORY", 3: "CUDA_ERROR_NOT_INITIALIZED", 100: "CUDA_ERROR_NO_DEVICE"}
NAMES[600] = "CUDA_ERROR_NOT_READY"
MASK = (1 << 64) - 1

CUdevice_attribute = types.SimpleNamespace(
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
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
    copies = 0
    pinned: ClassVar = {}  # address of host memory -> the GPU in whose context it was made
    peers: ClassVar = set()  # (GPU, the peer that it may reach)
    memory: ClassVar = {}  # address -> (gpu or None for the host, ctypes buffer)


class Stream:
    def __init__(self):
        self.clock = 0.0  # milliseconds


def _fault(call, *keys):
    """The result of a call; None = it may go on."""
    for name in (call, *(f"{call}@{key}" for key in keys)):
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


def _new(gpu, size):
    buffer = (ctypes.c_char * (size + 16))()
    address = (ctypes.addressof(buffer) + 15) & ~15
    State.memory[address] = (gpu, size, buffer)
    return address


def _owner(address, size=0):
    for start, (gpu, length, _) in State.memory.items():
        if start <= address and address + size <= start + length:
            return gpu
    raise AssertionError(f"{size} bytes at {address:#x} are not allocated")


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
    return _ok({75: 12, 76: 0, 16: 8}[attribute])


def cuDevicePrimaryCtxRetain(device):
    return _fault("cuDevicePrimaryCtxRetain", device) or _ok(("context", device))


def cuDevicePrimaryCtxRelease(device):
    left = [address for address, (gpu, _, _) in State.memory.items() if gpu == device]
    for address in [address for address, of in State.pinned.items() if of == device]:
        del State.pinned[address], State.memory[address]
    return (CUresult(1 if left else 0), None)  # the real one frees it; the probe is to do so itself


def cuCtxSetCurrent(context):
    State.current = context[1]
    return _ok()


def cuCtxSynchronize():
    return _fault("cuCtxSynchronize", State.current) or _ok()


def cuMemGetInfo():
    return _ok(FAKE.get("free", 90 << 30), 96 << 30)


def cuMemAlloc(size):
    return _fault("cuMemAlloc", State.current) or _ok(_new(State.current, size))


def cuMemFree(address):
    assert State.memory.pop(address)[0] == State.current
    return _ok()


def cuMemHostAlloc(size, flags):
    fault = _fault("cuMemHostAlloc")
    if fault:
        return fault
    address = _new(None, size)
    State.pinned[address] = State.current
    return _ok(address)


def cuMemHostGetDevicePointer(address, flags):
    return _ok(address)


def cuMemFreeHost(address):
    if address not in State.pinned:
        return (CUresult(1), None)
    del State.pinned[address], State.memory[address]
    return _ok()


def cuMemcpyHtoD(address, data, size):
    assert _owner(address, size) == State.current
    ctypes.memmove(address, bytes(data), size)
    return _fault("cuMemcpyHtoD", State.current) or _ok()


def cuMemcpyDtoH(buffer, address, size):
    gpu = _owner(address, size)
    buffer[:] = ctypes.string_at(address, size)
    if FAKE.get("readback", {}).get(str(gpu)) == "flip" and size > 64:
        buffer[7] ^= 1
    return _fault("cuMemcpyDtoH", State.current) or _ok()


def cuMemsetD8(address, value, size):
    assert _owner(address, size) == State.current
    ctypes.memset(address, value, size)
    return _ok()


def cuDeviceCanAccessPeer(device, peer):
    return _ok(int([device, peer] not in FAKE.get("no_access", [])))


def cuDeviceGetP2PAttribute(attribute, source, target):
    return _ok({1: 0, 2: 1, 3: int(bool(FAKE.get("atomics")))}[attribute])


def cuCtxEnablePeerAccess(context, flags):
    pair = (State.current, context[1])
    if pair in State.peers:
        return (CUresult(704), None)
    if sum(one == State.current for one, _ in State.peers) == 8:
        return (CUresult(711), None)
    fault = _fault("cuCtxEnablePeerAccess", f"{pair[0]}>{pair[1]}")
    if not fault:
        State.peers.add(pair)
    return fault or _ok()


def cuCtxDisablePeerAccess(context):
    State.peers.remove((State.current, context[1]))
    return _ok()


def cuStreamCreate(flags):
    return _ok(Stream())


def cuStreamSynchronize(stream):
    return _ok()


def cuStreamQuery(stream):
    return (CUresult(FAKE.get("query", 0)),)


def cuStreamDestroy(stream):
    return _ok()


def cuEventCreate(flags):
    return _ok({})


def cuEventRecord(event, stream):
    event["t"] = stream.clock
    return _ok()


def cuEventSynchronize(event):
    return _ok()


def cuEventElapsedTime(start, end):
    return _ok(end["t"] - start["t"])


def cuEventDestroy(event):
    return _ok()


def cuMemcpyAsync(target, source, size, stream):
    return _move("cuMemcpyAsync", "copy", target, source, size, 1, stream)


def cuModuleLoadData(image):
    assert image.endswith(b"\0")
    return _fault("cuModuleLoadData", State.current) or _ok(image)


def cuModuleUnload(module):
    return _ok()


def cuModuleGetFunction(module, name):
    assert b".entry " + name + b"(" in module, name
    return _ok(name.decode().removeprefix("rackwell_"))


def cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
    values, types_ = parameters
    assert types_ == (ctypes.c_uint64,) * len(values)
    stream = stream or Stream()
    kind = FAKE.get("kernels", {}).get(str(State.current))
    if kind == "idle" and function != "spin":
        return _ok()
    fault = _fault("cuLaunchKernel", function)
    if fault:
        return fault
    return globals()[f"_{function}"](kind, gx * bx, stream, *values) or _ok()


def _move(call, engine, target, source, size, repeat, stream):
    ends = (_owner(source, size), _owner(target, size))
    pair = f"{ends[0]}>{ends[1]}"
    fault = _fault(call, pair)
    if fault:
        return fault
    if None not in ends and any((State.current, end) not in State.peers for end in ends if end != State.current):
        return (CUresult(700), None)
    State.copies += 1
    speeds = FAKE.get("gb_per_s", {})
    rate = 1400 if ends[0] == ends[1] else speeds.get(f"{pair}/{engine}", speeds.get(pair, speeds.get("default", 50)))
    stream.clock += repeat * size / rate / 1e6
    corrupt = FAKE.get("corrupt", {})
    kind = corrupt.get(f"{pair}/{engine}", corrupt.get(pair))
    if kind == "drop":
        return _ok()
    ctypes.memmove(target, bytes(size) if kind == "zero" else ctypes.string_at(source, size), size)
    if kind == "flip" or (kind == "late" and State.copies > 2):
        _spoil(target + size // 2)
    if FAKE.get("bad_source", {}).get(pair):
        _spoil(source + size // 4)
    return _ok()


def _spoil(address):
    byte = ctypes.c_ubyte.from_address(address)
    byte.value ^= 0x10


def _word(seed, index):
    z = (seed + index * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def _fill(kind, threads, stream, target, words, seed):
    seed ^= kind == "wrong"
    ctypes.memmove(target, struct.pack(f"<{words}Q", *[_word(seed, i) for i in range(words)]), 8 * words)


def _poison(kind, threads, stream, target, words, value):
    ctypes.memmove(target, value.to_bytes(8, "little") * words, 8 * words)


def _compare(kind, threads, stream, source, words, seed, poison, result):
    if kind == "blind" or not words:
        return
    found = struct.unpack(f"<{words}Q", ctypes.string_at(source, 8 * words))
    wrong = [i for i in range(words) if found[i] != _word(seed, i)]
    if wrong:
        then = struct.unpack("<4Q", ctypes.string_at(result, 32))
        now = (
            then[0] + len(wrong),
            min(then[1], *wrong[:1]),
            then[2] + sum(found[i] == poison for i in wrong),
            then[3] + sum(found[i] == 0 for i in wrong),
        )
        ctypes.memmove(result, struct.pack("<4Q", *now), 32)


def _copy(kind, threads, stream, target, source, vectors, repeat):
    if vectors:
        return _move("kernel", "kernel", target, source, 16 * vectors, repeat, stream)
    return None


def _chain(kind, threads, stream, base, nodes, stride):
    for i in range(nodes):
        ctypes.c_uint64.from_address(base + i * stride).value = base + (i + 1) % nodes * stride


def _chase(kind, threads, stream, start, steps, result):
    times = FAKE.get("us", {})
    at = start
    for _ in range(steps):
        at = ctypes.c_uint64.from_address(at).value
    stream.clock += steps * times.get(f"{_owner(start)}>{State.current}", times.get("default", 1.3)) / 1e3
    ctypes.memmove(result, struct.pack("<2Q", 2 * steps, at), 16)


def _add(kind, threads, stream, counter, times):
    if times and not (FAKE.get("lossy_atomics") and _owner(counter) != State.current):
        ctypes.c_uint64.from_address(counter).value += threads * times


def _spin(kind, threads, stream, flag):
    pass
