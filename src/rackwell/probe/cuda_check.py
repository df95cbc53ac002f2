# SPDX-License-Identifier: Apache-2.0
"""Does CUDA start here, does each GPU hold data and compute? Nothing less proves it: nvidia-smi works without CUDA."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import Any

from rackwell.probe import child, surroundings
from rackwell.probe.child import Emit, Outcome
from rackwell.probe.data import WORD, WrongDataError, compare, fresh, pattern
from rackwell.probe.driver import Driver, DriverError, load
from rackwell.probe.errors import DATA_MISMATCH_GPU
from rackwell.probe.kernels import SCRATCH, Kernels
from rackwell.probe.steps import StepFailedError, step, steps_of

#: bytes that are written to and read back from each GPU
SIZE = 16 << 20
# words of each of the three samples of a pattern that the host computes itself
_SAMPLE = 512
_PROOF = "fill, compare and prove both"


def measure(deadline: float, findings: Collection[str] = (), size: int = SIZE) -> dict[str, Any]:
    """``measurements["cuda"]`` of the report, and what CUDA says of itself.

    Args:
        deadline: seconds for the whole of CUDA; what has not returned by then hangs.
        findings: what was seen around the driver, see :mod:`rackwell.probe.surroundings`: it decides among causes.
        size: bytes to test with on each GPU.

    Returns:
        ``state`` (done, hung, stuck, crashed), ``describe`` (that in words), ``stderr`` (its end), ``steps`` (of no
        GPU), ``count`` (None when CUDA did not get that far), ``user_space_version``, ``cuda_version``, and
        ``devices``: for each GPU ``index``, ``uuid``, ``bus_id``, ``name``, ``compute_capability``, ``memory_total``
        (bytes), ``steps``, ``kernel_verified`` (None when a kernel was not reached). A step has ``step``, ``ok``,
        ``seconds``, ``error``: None or ``code``, ``name``, ``call``, ``detail``, ``cause``, ``fix``.
    """
    outcome = child.run("rackwell.probe.cuda_check:work", {"size": size}, deadline)
    start: dict[str, Any] = next((event["start"] for event in outcome.events if "start" in event), {})
    return {
        "state": outcome.state,
        "describe": outcome.describe(),
        "stderr": outcome.stderr,
        "steps": steps_of(outcome, {"device": None}, findings, DATA_MISMATCH_GPU),
        "count": next((event["count"] for event in outcome.events if "count" in event), None),
        "user_space_version": start.get("user_space_version"),
        "cuda_version": start.get("cuda_version"),
        "devices": _devices(outcome, findings),
    }


def _devices(outcome: Outcome, findings: Collection[str]) -> list[dict[str, Any]]:
    count = next((event["count"] for event in outcome.events if "count" in event), 0)
    identities = {event["device"]: event["identity"] for event in outcome.events if "identity" in event}
    devices = []
    for index in range(count):
        steps = steps_of(outcome, {"device": index}, findings, DATA_MISMATCH_GPU)
        proof = [entry["ok"] for entry in steps if entry["step"] == _PROOF]
        verified = proof[0] if proof else None
        devices.append({"index": index, **identities.get(index, {}), "steps": steps, "kernel_verified": verified})
    return devices


def work(emit: Emit, arguments: dict[str, Any]) -> None:
    """The child's part: emits steps, one ``start``, the ``count`` and an ``identity`` each."""
    try:
        exercise(emit, arguments["size"], load)
    except StepFailedError:
        return


def exercise(emit: Emit, size: int, loader: Callable[[], Driver]) -> None:
    """Start CUDA, then take each GPU through its steps; a GPU that fails does not keep the next from its turn."""
    with step(emit, "load", device=None):
        driver = loader()
        cuda_version = driver.version()  # loads the library, starts nothing
    library = surroundings.loaded_library("libcuda.so")
    version = surroundings.version_of(library) if library else None
    emit({"start": {"user_space_version": version, "cuda_version": cuda_version}})
    with step(emit, "cuInit", device=None):
        driver.init()
    with step(emit, "cuDeviceGetCount", device=None):
        count = driver.count()
    emit({"count": count})
    for index in range(count):
        try:
            _exercise_gpu(emit, driver, index, size)
        except StepFailedError:
            continue


def _exercise_gpu(emit: Emit, driver: Driver, index: int, size: int) -> None:
    with step(emit, "identify", device=index):
        device = driver.device(index)
        emit({"device": index, "identity": identity(driver, device, index)})
    with step(emit, "context", device=index):
        driver.retain(device)
    try:
        with step(emit, "allocate", device=index):
            address, scratch = driver.allocate(size), driver.allocate(SCRATCH)
        data = secrets.token_bytes(size)
        with step(emit, "copy to the GPU", device=index):
            driver.write(address, data)
        with step(emit, "copy back and compare", device=index):
            buffer = bytearray(size)
            driver.read(address, buffer)
            compare(data, buffer)
        with step(emit, "load the kernels", device=index):
            kernels = Kernels(driver, device, scratch)
        with step(emit, _PROOF, device=index):
            _prove(driver, kernels, address, size)
        with step(emit, "free", device=index):
            kernels.unload()
            driver.free(address)
            driver.free(scratch)
    finally:
        try:
            driver.release(device)
        except DriverError as error:  # the step that failed before it says why
            emit({"note": str(error)})


def _prove(driver: Driver, kernels: Kernels, address: int, size: int) -> None:
    """The kernel writes a pattern, the host computes parts of it, the comparing kernel finds all of it right, and then
    the one word that the host has spoiled. So neither kernel can pass by doing nothing. Raises WrongDataError.
    """
    seed, words = fresh(), size // WORD
    kernels.poison(address, size, fresh())
    kernels.fill(address, size, seed)
    driver.synchronize()
    length = min(_SAMPLE, words)
    for start in (0, secrets.randbelow(words - length + 1), words - length):
        buffer = bytearray(length * WORD)
        driver.read(address + start * WORD, buffer)
        try:
            compare(pattern(seed, length, start), buffer)
        except WrongDataError as error:
            raise WrongDataError(f"what a kernel wrote, from byte {start * WORD} on: {error}") from None
    found = kernels.compare(address, size, seed, 0)
    if not found.ok:
        raise WrongDataError(f"what a kernel wrote and a kernel read: {found.describe()}")
    place = secrets.randbelow(words)
    spoiled = bytes(byte ^ 0xFF for byte in pattern(seed, 1, place))
    driver.write(address + place * WORD, spoiled)
    found = kernels.compare(address, size, seed, int.from_bytes(spoiled, "little"))
    if (found.wrong, found.first, found.poisoned) != (1, place * WORD, 1):
        raise WrongDataError(
            f"the comparing kernel was to find the word at byte {place * WORD} wrong, and found: {found.describe()}"
        )


def identity(driver: Driver, device: Any, index: int) -> dict[str, Any]:
    """What names a GPU; memory in bytes."""
    return {
        "index": index,
        "uuid": driver.uuid(device),
        "bus_id": driver.bus_id(device),
        "name": driver.name(device),
        "compute_capability": driver.compute_capability(device),
        "memory_total": driver.memory_total(device),
    }
