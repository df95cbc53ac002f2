# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver, thinly: typed calls that return plain values and raise :class:`DriverError`.

Primary contexts are used throughout, as PyTorch does: what the probe proves is then what the server will do. They
also have the same signature in every release of the bindings, which ``cuCtxCreate`` has not.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
import uuid
from collections.abc import Sequence
from typing import Any

#: code of an error that is not the driver's own: the library or a function in it is missing
NO_DRIVER = -1
NO_FUNCTION = -2
UNKNOWN_CODE = -3

PEER_ACCESS_ALREADY_ENABLED = 704
NOT_READY = 600

#: after one of these the context is lost: whatever is called in it from then on fails with the same code
CONTEXT_LOST = frozenset({214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719})

_PORTABLE, _MAPPED = 1, 2
#: the default stream of the current context
DEFAULT_STREAM = 0


class DriverError(Exception):
    """A call of the driver failed.

    Attributes:
        name: the driver's own name, e.g. ``CUDA_ERROR_NOT_INITIALIZED``.
        code: its number; negative when the call never reached the driver.
        call: the function that failed, e.g. ``cuInit``.
    """

    def __init__(self, name: str, code: int, call: str, detail: str = "") -> None:
        super().__init__(f"{call}: {name} ({code})" + (f": {detail}" if detail else ""))
        self.name, self.code, self.call, self.detail = name, code, call, detail


def load() -> Driver:
    """The driver through cuda-bindings. Raises DriverError if the bindings cannot be imported."""
    try:
        return Driver(importlib.import_module("cuda.bindings.driver"))
    except ImportError as error:
        raise DriverError(
            "CUDA_BINDINGS_NOT_IMPORTABLE", NO_DRIVER, "import cuda.bindings.driver", str(error)
        ) from None


class HostMemory:
    """Pinned memory of the host: ``address`` for the host, ``device`` for the GPUs, ``size`` bytes."""

    def __init__(self, address: int, device: int, size: int) -> None:
        self.address, self.device, self.size = address, device, size
        self._flag = ctypes.c_uint32.from_address(address)

    def set(self, value: int) -> None:
        """Write the first 32 bits, which a kernel may be waiting for."""
        self._flag.value = value


class Driver:
    """One method a call. ``api`` is the module ``cuda.bindings.driver`` or what stands in for it in a test.

    Sizes are bytes, device memory is an integer address, contexts, streams and events are opaque.
    """

    def __init__(self, api: Any) -> None:
        self._api = api

    def _call(self, name: str, *args: Any) -> Any:
        try:
            status, *values = getattr(self._api, name)(*args)
        except ValueError as error:  # a driver newer than the bindings returned a code that they do not know
            raise DriverError("CUDA_ERROR_UNKNOWN_TO_BINDINGS", UNKNOWN_CODE, name, str(error)) from None
        except RuntimeError as error:
            missing = (
                NO_FUNCTION if "ound" in type(error).__name__ and "Function" in type(error).__name__ else NO_DRIVER
            )
            label = "FUNCTION_NOT_FOUND" if missing == NO_FUNCTION else "LIBCUDA_NOT_FOUND"
            raise DriverError(label, missing, name, str(error)) from None
        if int(status) != 0:
            raise DriverError(self._name_of(status), int(status), name)
        if len(values) > 1:
            return tuple(values)
        return values[0] if values else None

    def _name_of(self, status: Any) -> str:
        known = getattr(status, "name", None)
        return str(known) if known else f"CUDA_ERROR_{int(status)}"

    def init(self) -> None:
        self._call("cuInit", 0)

    def version(self) -> str:
        """The newest CUDA that the driver supports, e.g. ``13.0``."""
        number = int(self._call("cuDriverGetVersion"))
        return f"{number // 1000}.{number % 1000 // 10}"

    def count(self) -> int:
        return int(self._call("cuDeviceGetCount"))

    def device(self, index: int) -> Any:
        return self._call("cuDeviceGet", index)

    def name(self, device: Any) -> str:
        return bytes(self._call("cuDeviceGetName", 128, device)).split(b"\0")[0].decode()

    def uuid(self, device: Any) -> str:
        """As nvidia-smi prints it: ``GPU-…``."""
        # release 13 of the bindings has the plain name only
        name = "cuDeviceGetUuid_v2" if hasattr(self._api, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        return f"GPU-{uuid.UUID(bytes=bytes(self._call(name, device).bytes))}"

    def bus_id(self, device: Any) -> str:
        """As sysfs names it, in lower case: ``0000:06:00.0``."""
        return bytes(self._call("cuDeviceGetPCIBusId", 32, device)).split(b"\0")[0].decode().lower()

    def memory_total(self, device: Any) -> int:
        return int(self._call("cuDeviceTotalMem", device))

    def memory(self) -> tuple[int, int]:
        """Free and all memory of the current context's GPU, bytes."""
        free, total = self._call("cuMemGetInfo")
        return int(free), int(total)

    def multiprocessors(self, device: Any) -> int:
        return int(self._attribute("MULTIPROCESSOR_COUNT", device))

    def _attribute(self, name: str, device: Any) -> Any:
        attribute = getattr(self._api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return self._call("cuDeviceGetAttribute", attribute, device)

    def compute_capability(self, device: Any) -> str:
        parts = ("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR")
        return ".".join(str(int(self._attribute(part, device))) for part in parts)

    def retain(self, device: Any) -> Any:
        """The device's primary context, made current for this thread."""
        context = self._call("cuDevicePrimaryCtxRetain", device)
        self.use(context)
        return context

    def release(self, device: Any) -> None:
        self._call("cuDevicePrimaryCtxRelease", device)

    def use(self, context: Any) -> None:
        self._call("cuCtxSetCurrent", context)

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    def allocate(self, size: int) -> int:
        return int(self._call("cuMemAlloc", size))

    def free(self, address: int) -> None:
        self._call("cuMemFree", address)

    def write(self, address: int, data: bytes) -> None:
        """Host to device, and wait: from pageable memory the call returns before the last bytes are there."""
        self._call("cuMemcpyHtoD", address, data, len(data))
        self.synchronize()

    def read(self, address: int, buffer: bytearray) -> None:
        """Device to host, as much as the buffer holds."""
        self._call("cuMemcpyDtoH", buffer, address, len(buffer))

    def fill(self, address: int, value: int, size: int) -> None:
        """Set every byte, and wait until it is done."""
        self._call("cuMemsetD8", address, value, size)
        self.synchronize()

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """That many 64-bit words of device memory."""
        buffer = bytearray(8 * count)
        self.read(address, buffer)
        return struct.unpack(f"<{count}Q", buffer)

    def allocate_host(self, size: int) -> HostMemory:
        """Pinned host memory that every GPU can reach."""
        address = int(self._call("cuMemHostAlloc", size, _PORTABLE | _MAPPED))
        return HostMemory(address, int(self._call("cuMemHostGetDevicePointer", address, 0)), size)

    def free_host(self, memory: HostMemory) -> None:
        self._call("cuMemFreeHost", memory.address)

    def module(self, source: bytes) -> Any:
        """Load PTX into the current context; the driver compiles it for the GPU."""
        return self._call("cuModuleLoadData", source + b"\0")

    def unload(self, module: Any) -> None:
        self._call("cuModuleUnload", module)

    def function(self, module: Any, name: str) -> Any:
        return self._call("cuModuleGetFunction", module, name.encode())

    def launch(
        self, function: Any, blocks: int, threads: int, arguments: Sequence[int], stream: Any = DEFAULT_STREAM
    ) -> None:
        """Start a kernel all of whose parameters are 64-bit integers."""
        parameters = (tuple(arguments), (ctypes.c_uint64,) * len(arguments))
        self._call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, 0)

    def can_access_peer(self, device: Any, peer: Any) -> bool:
        return bool(self._call("cuDeviceCanAccessPeer", device, peer))

    def p2p_attributes(self, source: Any, target: Any) -> dict[str, int | None]:
        """``access``, ``native_atomics`` (1 or 0) and ``performance_rank`` (0 is best); None where it is not told."""
        names = {
            "access": "CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED",
            "native_atomics": "CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED",
            "performance_rank": "CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK",
        }
        found: dict[str, int | None] = {}
        for key, name in names.items():
            try:
                attribute = getattr(self._api.CUdevice_P2PAttribute, name)
                found[key] = int(self._call("cuDeviceGetP2PAttribute", attribute, source, target))
            except DriverError:
                found[key] = None
        return found

    def enable_peer(self, peer_context: Any) -> None:
        """Let the current context reach the peer's memory; harmless if it already does."""
        try:
            self._call("cuCtxEnablePeerAccess", peer_context, 0)
        except DriverError as error:
            if error.code != PEER_ACCESS_ALREADY_ENABLED:
                raise

    def disable_peer(self, peer_context: Any) -> None:
        self._call("cuCtxDisablePeerAccess", peer_context)

    def stream(self) -> Any:
        return self._call("cuStreamCreate", int(self._api.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def wait(self, stream: Any) -> None:
        self._call("cuStreamSynchronize", stream)

    def busy(self, stream: Any) -> bool:
        """Whether something in the stream is still to be done."""
        try:
            self._call("cuStreamQuery", stream)
        except DriverError as error:
            if error.code != NOT_READY:
                raise
            return True
        return False

    def destroy_stream(self, stream: Any) -> None:
        self._call("cuStreamDestroy", stream)

    def event(self) -> Any:
        return self._call("cuEventCreate", int(self._api.CUevent_flags.CU_EVENT_DEFAULT))

    def record(self, event: Any, stream: Any) -> None:
        self._call("cuEventRecord", event, stream)

    def milliseconds(self, start: Any, end: Any) -> float:
        """Time between two recorded events; waits for the later one."""
        self._call("cuEventSynchronize", end)
        return float(self._call("cuEventElapsedTime", start, end))

    def destroy_event(self, event: Any) -> None:
        self._call("cuEventDestroy", event)

    def copy(self, target: int, source: int, size: int, stream: Any) -> None:
        """Start a copy; the addresses tell where it is from and to, the stream which GPU's engine does it."""
        self._call("cuMemcpyAsync", target, source, size, stream)
