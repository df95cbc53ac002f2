# SPDX-License-Identifier: Apache-2.0
"""NCCL, thinly, through ctypes: one process that holds a communicator for each GPU.

Numbers and signatures are those of NCCL's C interface, which has kept them since release 2.10 (bfloat16 came there).
The library itself is never shipped: it is the server's, or the system's.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rackwell.probe import surroundings

LIBRARY = "libnccl.so.2"
#: where the wheel puts it, below the environment of the release that serves
IN_RELEASE = "opt/rackwell/current/env/lib/python*/site-packages/nvidia/nccl/lib/" + LIBRARY
FLOAT32, BFLOAT16 = 7, 9
_SUM = 0
_NO_LIBRARY, _NO_FUNCTION = -1, -2
#: the names behind ncclResult_t
_RESULTS = (
    "ncclSuccess",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclInvalidArgument",
    "ncclInvalidUsage",
    "ncclRemoteError",
    "ncclInProgress",
)
_IN_PROGRESS = 7


class NcclError(Exception):
    """A call of NCCL failed.

    Attributes:
        name: as in its header, e.g. ``ncclSystemError``. code: its number, negative when it never reached NCCL.
        call: the function. detail: what NCCL said of it last.
    """

    def __init__(self, name: str, code: int, call: str, detail: str = "") -> None:
        super().__init__(f"{call}: {name} ({code})" + (f": {detail}" if detail else ""))
        self.name, self.code, self.call, self.detail = name, code, call, detail


class NcclAbsentError(Exception):
    """There is no NCCL here; ``looked`` says where it was looked for."""

    def __init__(self, looked: Sequence[str]) -> None:
        super().__init__("no " + LIBRARY + " in " + ", ".join(looked))
        self.looked = list(looked)


def find(library: str | None, root: Path = Path("/")) -> list[str]:
    """What to try to load, first the likeliest: the given path alone, else the release's, then the loader's own."""
    if library:
        return [library]
    return [*(str(path) for path in sorted(root.glob(IN_RELEASE))), LIBRARY]


def load(library: str | None, root: Path = Path("/")) -> Nccl:
    """The first that is there.

    Raises:
        NcclAbsentError: none is, and none was declared.
        NcclError: one is there and cannot be loaded, or the declared one is not there.
    """
    candidates = find(library, root)
    for candidate in candidates:
        if os.sep in candidate and not Path(candidate).exists():
            continue
        try:
            return Nccl(_typed(ctypes.CDLL(candidate)))
        except OSError as error:
            # the loader says "libnccl.so.2: cannot open …" for the library itself, and another name for one it needs
            if candidate == LIBRARY and str(error).startswith(LIBRARY + ": cannot open shared object file"):
                continue
            raise NcclError("LIBRARY_NOT_LOADABLE", _NO_LIBRARY, "dlopen", str(error)) from None
    if library:
        raise NcclError("LIBRARY_NOT_FOUND", _NO_LIBRARY, "dlopen", f"{library} does not exist")
    named = [name for name in candidates if name != LIBRARY] or ["/" + IN_RELEASE]
    raise NcclAbsentError([*named, "the loader's search path"])


def _typed(library: Any) -> Any:
    """The one function that does not return a code; it came with release 2.13."""
    if hasattr(library, "ncclGetLastError"):
        library.ncclGetLastError.restype = ctypes.c_char_p
    return library


class Nccl:
    """One method a call. ``api`` is the loaded library, or what stands in for it in a test."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def path(self) -> str | None:
        """Where this process has it from."""
        found = surroundings.loaded_library("libnccl.so")
        return str(found) if found else None

    def version(self) -> str:
        """As NCCL writes it: ``2.27.5``."""
        number = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(number))
        # 2.9 and newer: major * 10000 + minor * 100 + patch
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def communicators(self, devices: Sequence[int]) -> list[int]:
        """One communicator a GPU, by the indices of CUDA; rank = place in ``devices``."""
        count = len(devices)
        found = (ctypes.c_void_p * count)()
        self._call("ncclCommInitAll", found, ctypes.c_int(count), (ctypes.c_int * count)(*devices))
        return [int(handle or 0) for handle in found]

    def destroy(self, communicator: int) -> None:
        self._call("ncclCommDestroy", ctypes.c_void_p(communicator))

    def check(self, communicators: Sequence[int]) -> None:
        """Raise NcclError if something went wrong behind a call that had returned."""
        if not hasattr(self._api, "ncclCommGetAsyncError"):
            return
        for communicator in communicators:
            state = ctypes.c_int()
            self._call("ncclCommGetAsyncError", ctypes.c_void_p(communicator), ctypes.byref(state))
            if state.value != _IN_PROGRESS:
                self._raise_if(state.value, "ncclAllReduce")

    def all_reduce(self, ranks: Sequence[Rank], count: int, kind: int) -> AllReduce:
        """A sum over all ranks that can be started again and again; ``kind`` is FLOAT32 or BFLOAT16."""
        calls = [
            (
                ctypes.c_void_p(rank.send),
                ctypes.c_void_p(rank.receive),
                ctypes.c_size_t(count),
                ctypes.c_int(kind),
                ctypes.c_int(_SUM),
                ctypes.c_void_p(rank.communicator),
                ctypes.c_void_p(rank.stream),
            )
            for rank in ranks
        ]
        return AllReduce(self, calls)

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._api, name)
        except AttributeError:
            raise NcclError("FUNCTION_NOT_FOUND", _NO_FUNCTION, name) from None
        self._raise_if(function(*arguments), name)

    def _raise_if(self, code: int, name: str) -> None:
        if code:
            label = _RESULTS[code] if 0 < code < len(_RESULTS) else f"ncclResult {code}"
            raise NcclError(label, code, name, self._last_words())

    def _last_words(self) -> str:
        function = getattr(self._api, "ncclGetLastError", None)
        said = function(None) if function else None
        return said.decode(errors="replace").strip() if isinstance(said, bytes) else ""


class Rank:
    """Where one rank sends from and receives to: addresses on its GPU, its stream and its communicator."""

    __slots__ = ("communicator", "receive", "send", "stream")

    def __init__(self, send: int, receive: int, communicator: int, stream: int) -> None:
        self.send, self.receive, self.communicator, self.stream = send, receive, communicator, stream


class AllReduce:
    """A prepared sum. Its arguments are converted once: for small sizes the start is most of the time."""

    def __init__(self, nccl: Nccl, calls: Sequence[tuple[Any, ...]]) -> None:
        api = nccl._api
        self._nccl, self._calls = nccl, calls
        self._begin, self._end, self._reduce = api.ncclGroupStart, api.ncclGroupEnd, api.ncclAllReduce

    def start(self) -> None:
        """Put it on the streams of all ranks, as one group. Raises NcclError."""
        code = self._begin()
        for arguments in self._calls:
            code = code or self._reduce(*arguments)
        ended = self._end()
        if code or ended:
            self._nccl._raise_if(code or ended, "ncclAllReduce" if code else "ncclGroupEnd")
