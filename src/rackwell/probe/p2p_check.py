# SPDX-License-Identifier: Apache-2.0
"""Do the GPUs copy to each other, do the bytes arrive, and how fast: every ordered pair.

What the driver says about a pair proves nothing: there are machines where it offers access, reports success and drops
the bytes. So each copy is of fresh random data to a poisoned target, and is compared on the host byte for byte.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import statistics
from collections.abc import Iterator
from typing import Any

from rackwell.probe import child, cuda_check, surroundings
from rackwell.probe.child import Emit, Outcome
from rackwell.probe.data import WrongDataError
from rackwell.probe.driver import UNKNOWN_CODE, Driver, DriverError, load
from rackwell.probe.errors import DATA_MISMATCH_GPU, DATA_MISMATCH_PEER, NO_ACCESS, SLOW, choose, explain
from rackwell.probe.report import StepFailedError, failures, gpu_name, host, problem, step, steps_of, verdict

_MARK = bytes([0, *[255] * 255])  # 0 stays 0, everything else becomes 255


class Patterns:
    """Random bytes, for each test others at every place: nothing left over from an earlier copy can pass for them.

    They are random once and then turned by a random distance, since the kernel's random bytes are slower to get than
    a GPU's memory is to read.
    """

    def __init__(self, size: int) -> None:
        self._bytes = memoryview(os.urandom(size))

    def fresh(self) -> bytes:
        """One pattern; each byte differs from that of the pattern before with a chance of 255 in 256."""
        turn = secrets.randbelow(len(self._bytes))
        return b"".join((self._bytes[turn:], self._bytes[:turn]))


class Buffer:
    """Host memory to read into, used again and again: fresh pages cost more time than the copies."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self._memory = (ctypes.c_char * size).from_buffer(self.data)

    def cleared(self) -> bytearray:
        """The buffer, without what an earlier read left in it."""
        ctypes.memset(self._memory, 0, len(self.data))
        return self.data


def compare(expected: bytes, found: bytes | bytearray, poison: int | None = None) -> None:
    """Byte for byte; ``poison`` is the value that the whole target held before.

    Raises WrongDataError, which says how many bytes are wrong, where they begin and what stands there instead.
    """
    if found == expected:
        return
    size = len(expected)
    if len(found) != size:
        raise WrongDataError(f"{len(found)} bytes came back instead of {size}")
    # whole-buffer arithmetic: a loop over 64 MiB would take longer than all copies together
    there = int.from_bytes(found, "little")
    differ = (int.from_bytes(expected, "little") ^ there).to_bytes(size, "little")
    count = size - differ.count(0)
    first = size - len(differ.lstrip(b"\0"))
    mask = int.from_bytes(differ.translate(_MARK), "little")

    def all_hold(value: int) -> bool:
        return (there ^ int.from_bytes(bytes([value]) * size, "little")) & mask == 0

    kind = ""
    if poison is not None and all_hold(poison):
        kind = ", all of them as they were before the copy: the writes were dropped"
    elif all_hold(0):
        kind = ", all of them zero"
    raise WrongDataError(f"{count} of {size} bytes are wrong, the first at offset {first}{kind}")


SCHEMA = "rackwell.p2p/1"
REPETITIONS = 5  # timings of a pair, of which the median counts
COPIES = 4  # copies in one timing
_POISON = 0xA5


def check(timeout: float, size: int, min_bandwidth: float = 0.0, gpus: int | None = None) -> dict[str, Any]:
    """The report of all ordered pairs.

    Args:
        timeout: seconds for everything; the pair that has not answered by then hangs.
        size: bytes that each copy moves.
        min_bandwidth: floor in GB/s (1e9 bytes) that each pair must reach; 0 = none.
        gpus: how many GPUs there must be; None = as many as there are.
    """
    findings = surroundings.look().findings
    outcome = child.run("rackwell.probe.p2p_check:work", {"size": size}, timeout)
    devices = [event["identity"] for event in outcome.events if "identity" in event]
    steps = steps_of(outcome, {"pair": None}, findings, DATA_MISMATCH_GPU)
    pairs = _pairs(outcome, devices, findings)
    problems = failures(steps, host(), "p2p")
    for pair in pairs:
        problems += _problems_of(pair, devices, min_bandwidth)
    if outcome.state != "done" and not problems:
        why = outcome.stderr.strip()[-300:]
        problems.append(problem("p2p-crash", f"the check {outcome.describe()}", host(), why, explain(0).fix))
    if gpus is not None and not problems and len(devices) != gpus:
        what = f"CUDA finds {len(devices)} GPUs, {gpus} are expected"
        problems.append(problem("gpu-count", what, host(), "", "`python -m rackwell.probe cuda` says which is missing"))
    return {
        "schema": SCHEMA,
        "verdict": verdict(problems),
        "host": host(),
        "size": size,
        "repetitions": REPETITIONS,
        "copies_per_repetition": COPIES,
        "min_bandwidth": min_bandwidth,
        "devices": devices,
        "pairs": pairs,
        "bandwidth": _spread([pair["gb_per_s"] for pair in pairs if pair["gb_per_s"] is not None]),
        "steps": steps,
        "problems": problems,
    }


def work(emit: Emit, arguments: dict[str, Any]) -> None:
    """The child's part: emits an ``identity`` a GPU, steps, and a ``result`` a pair."""
    try:
        exercise(emit, arguments["size"])
    except StepFailedError:
        return


class Gpu:
    """One GPU with its context and its two buffers: what it sends, and where it receives."""

    def __init__(self, driver: Driver, index: int, size: int) -> None:
        self.index = index
        self.device = driver.device(index)
        self.context = driver.retain(self.device)
        self.source = driver.allocate(size)
        self.target = driver.allocate(size)


def exercise(emit: Emit, size: int, loader: Any = load) -> None:
    """Take every ordered pair through its steps; a pair that fails does not keep the next from its turn."""
    with step(emit, "cuInit", pair=None):
        driver: Driver = loader()
        driver.init()
    gpus = []
    with step(emit, "set up the GPUs", pair=None):
        for index in range(driver.count()):
            emit({"identity": cuda_check.identity(driver, driver.device(index), index)})
            gpus.append(Gpu(driver, index, size))
    patterns, buffer = Patterns(size), Buffer(size)
    for source in gpus:
        for target in gpus:
            if source is not target:
                with contextlib.suppress(StepFailedError):
                    _exercise_pair(emit, driver, source, target, patterns.fresh(), buffer)
    with step(emit, "release the GPUs", pair=None):
        for gpu in gpus:
            driver.use(gpu.context)
            driver.free(gpu.source)
            driver.free(gpu.target)
            driver.release(gpu.device)


def _exercise_pair(emit: Emit, driver: Driver, source: Gpu, target: Gpu, data: bytes, buffer: Buffer) -> None:
    pair, size = [source.index, target.index], len(data)
    with step(emit, "capability", pair=pair):
        can_access = driver.can_access_peer(source.device, target.device)
        attributes = driver.p2p_attributes(source.device, target.device)
        emit({"result": {"can_access": can_access, "attributes": attributes}, "pair": pair})
    with contextlib.ExitStack() as stack:
        if can_access:
            with step(emit, "enable peer access", pair=pair):
                stack.enter_context(_peer_access(driver, source, target))
        with step(emit, "copy and compare", pair=pair):
            driver.use(source.context)
            driver.write(source.source, data)
            driver.use(target.context)
            driver.fill(target.target, _POISON, size)
            driver.use(source.context)
            stream = driver.stream()
            stack.callback(_quietly, driver.destroy_stream, stream)
            _copy(driver, source, target, size, stream)
            driver.wait(stream)
            _compare(driver, source, target, data, buffer)
        with step(emit, "time the copies", pair=pair):
            driver.use(source.context)
            speeds = _time(driver, source, target, size, stream)
            emit({"result": {"gb_per_s": round(statistics.median(speeds), 2), "samples": speeds}, "pair": pair})
        with step(emit, "compare after timing", pair=pair):
            _compare(driver, source, target, data, buffer)
            emit({"result": {"verified": True}, "pair": pair})


@contextlib.contextmanager
def _peer_access(driver: Driver, source: Gpu, target: Gpu) -> Iterator[None]:
    """Both directions, and off again afterwards: a GPU takes eight peers at a time."""
    for one, other in ((source, target), (target, source)):
        driver.use(one.context)
        driver.enable_peer(other.context)
    try:
        yield
    finally:
        for one, other in ((source, target), (target, source)):
            _quietly(driver.use, one.context)
            _quietly(driver.disable_peer, other.context)


def _quietly(function: Any, *args: Any) -> None:
    """Clean up; the step that failed before has said why."""
    with contextlib.suppress(DriverError):
        function(*args)


def _copy(driver: Driver, source: Gpu, target: Gpu, size: int, stream: Any) -> None:
    driver.copy_peer(target.target, target.context, source.source, source.context, size, stream)


def _compare(driver: Driver, source: Gpu, target: Gpu, data: bytes, buffer: Buffer) -> None:
    driver.use(target.context)
    driver.read(target.target, buffer.cleared())
    try:
        compare(data, buffer.data, poison=_POISON)
    except WrongDataError as error:
        driver.use(source.context)
        driver.read(source.source, buffer.cleared())
        side = (
            "the source still holds the right data"
            if buffer.data == data
            else "the source itself no longer holds the data"
        )
        raise WrongDataError(f"{error}; {side}") from None


def _time(driver: Driver, source: Gpu, target: Gpu, size: int, stream: Any) -> list[float]:
    """GB/s of each repetition, by the GPU's own events."""
    start, end = driver.event(), driver.event()
    speeds = []
    try:
        for _ in range(REPETITIONS):
            driver.record(start, stream)
            for _ in range(COPIES):
                _copy(driver, source, target, size, stream)
            driver.record(end, stream)
            milliseconds = driver.milliseconds(start, end)
            if milliseconds > 0:
                speeds.append(round(COPIES * size / milliseconds / 1e6, 2))
    finally:
        _quietly(driver.destroy_event, start)
        _quietly(driver.destroy_event, end)
    if not speeds:
        raise DriverError("NO_TIME_MEASURED", UNKNOWN_CODE, "cuEventElapsedTime", "the copies took no time at all")
    return speeds


def _pairs(outcome: Outcome, devices: list[dict[str, Any]], findings: frozenset[str]) -> list[dict[str, Any]]:
    """All ordered pairs; one that was not reached has ``verified`` null and no steps."""
    pairs = []
    for source in devices:
        for target in devices:
            if source is target:
                continue
            key = [source["index"], target["index"]]
            results: dict[str, Any] = {}
            for event in outcome.events:
                if "result" in event and event["pair"] == key:
                    results.update(event["result"])
            steps = steps_of(outcome, {"pair": key}, findings, DATA_MISMATCH_PEER)
            failed = any(entry["error"] for entry in steps)
            pairs.append(
                {
                    "src": source["index"],
                    "dst": target["index"],
                    "src_uuid": source["uuid"],
                    "dst_uuid": target["uuid"],
                    "src_bus_id": source["bus_id"],
                    "dst_bus_id": target["bus_id"],
                    "can_access": results.get("can_access"),
                    "attributes": results.get("attributes"),
                    "verified": False if failed else results.get("verified"),
                    "gb_per_s": results.get("gb_per_s"),
                    "samples": results.get("samples", []),
                    "steps": steps,
                }
            )
    return pairs


def _problems_of(pair: dict[str, Any], devices: list[dict[str, Any]], floor: float) -> list[dict[str, str]]:
    by_index = {device["index"]: device for device in devices}
    where = f"{gpu_name(by_index[pair['src']])} -> {gpu_name(by_index[pair['dst']])}"
    found = failures(pair["steps"], where, "p2p", f"GPU {pair['src']} -> {pair['dst']}")
    if pair["can_access"] is False:
        advice = choose(NO_ACCESS)
        what = f"GPU {pair['src']} cannot reach the memory of GPU {pair['dst']}"
        found.append(problem("p2p-no-access", what, where, advice.cause, advice.fix))
    if pair["gb_per_s"] is not None and pair["gb_per_s"] < floor:
        advice = choose(SLOW)
        what = f"GPU {pair['src']} -> {pair['dst']}: {pair['gb_per_s']} GB/s, below the floor of {floor:g} GB/s"
        found.append(problem("p2p-slow", what, where, advice.cause, advice.fix))
    return found


def _spread(speeds: list[float]) -> dict[str, float] | None:
    if not speeds:
        return None
    return {"min": min(speeds), "median": round(statistics.median(speeds), 2), "max": max(speeds)}
