# SPDX-License-Identifier: Apache-2.0
"""All-reduce over all GPUs through NCCL: its time, its bus bandwidth, and whether the sums are right.

The method is that of nccl-tests' ``all_reduce_perf -g N`` (2.19), so that the figures agree: a warm-up of each size,
then twenty all-reduces back to back, each at another place of one big buffer so that no cache holds it, timed by events
on each GPU's stream; the rank that ends last counts. bus bandwidth = 2(n-1)/n * bytes / time.

On two H200 the figures were within 1 % of nccl-tests' from 2 MiB on. Below 1 MiB both show how fast one thread starts
the kernels of all GPUs, 14 to 25 us from one run to the next; the GPUs themselves take less than half of that.

It runs in a child with a deadline, since an all-reduce between GPUs that do not reach each other never returns.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rackwell.probe import child
from rackwell.probe.allreduce import ITERATIONS, SAMPLES, SIZES, Machine
from rackwell.probe.child import Emit, Outcome
from rackwell.probe.driver import Driver, DriverError
from rackwell.probe.driver import load as load_driver
from rackwell.probe.nccl import BFLOAT16, FLOAT32, Nccl, NcclAbsentError, NcclError
from rackwell.probe.nccl import load as load_nccl

#: bytes that are also summed as bfloat16, what a server sums
BFLOAT16_BYTES = 2 << 20
#: of the full list, so that a quick figure can be held against the baseline; a full measurement does these in place too
QUICK_SIZES = (SIZES[0], SIZES[3], SIZES[6])


def measure(
    environment: Mapping[str, str], library: str | None, deadline: float, quick: bool, root: Path = Path("/")
) -> dict[str, Any]:
    """The report's ``measurements.collectives``.

    Args:
        environment: NCCL_* that the server will have; set before the library is loaded, over the machine's own.
        library: path of ``libnccl.so.2``; None = the active release's, else the loader's.
        deadline: seconds for all of it. quick: three sizes of nine, out of place only.
        root: where the release is looked for.
    """
    arguments = {"environment": dict(environment), "library": library, "quick": quick, "root": str(root)}
    return _report(child.run("rackwell.probe.collectives:work", arguments, deadline), library)


def skipped(why: str) -> dict[str, Any]:
    """The same shape for a measurement that was left out on purpose."""
    return {**_empty(), "state": "skipped", "why": why}


def work(emit: Emit, arguments: dict[str, Any]) -> None:
    """The child's part: emits ``begin`` before what may hang, ``point`` for each size, ``error`` for what failed."""
    # before the library is loaded: NCCL reads them once
    os.environ.update({str(name): str(value) for name, value in arguments["environment"].items()})
    try:
        emit({"begin": "load NCCL"})
        nccl = load_nccl(arguments["library"], Path(arguments["root"]))
        emit({"library": nccl.path() or arguments["library"], "nccl_version": nccl.version()})
        exercise(emit, nccl, load_driver(), bool(arguments["quick"]))
    except NcclAbsentError as error:
        emit({"absent": error.looked})
    except (NcclError, DriverError) as error:
        emit({"error": {"name": error.name, "code": error.code, "call": error.call, "detail": error.detail}})


def exercise(emit: Emit, nccl: Nccl, driver: Driver, quick: bool) -> None:
    """All sizes on all GPUs. Raises NcclError and DriverError."""
    sizes = QUICK_SIZES if quick else SIZES
    emit({"begin": "cuInit"})
    driver.init()
    count = driver.count()
    emit({"ranks": count})
    if count < 2:
        emit({"alone": True})
        return
    emit({"begin": "set up the GPUs"})
    machine = Machine(nccl, driver, count, max(sizes))
    emit({"begin": "ncclCommInitAll"})
    machine.connect()
    for size in sizes:
        emit({"begin": "warm-up", "bytes": size})
        machine.warm_up(size)
    for size in sizes:
        _point(emit, machine, size, FLOAT32, in_place=False)
        if not quick and size in QUICK_SIZES:
            _point(emit, machine, size, FLOAT32, in_place=True)
    if not quick:
        _point(emit, machine, BFLOAT16_BYTES, BFLOAT16, in_place=False)
    emit({"begin": "release the GPUs"})
    # all is measured; a fault of the tidying up would only hide it
    with contextlib.suppress(NcclError, DriverError):
        machine.close()


def _point(emit: Emit, machine: Machine, size: int, kind: int, in_place: bool) -> None:
    scope = {"bytes": size, "kind": kind, "in_place": in_place}
    emit({"begin": "time", **scope})
    samples = [machine.time(size, kind, in_place, ITERATIONS) for _ in range(SAMPLES)]
    emit({"begin": "check the sums", **scope})
    wrong = machine.wrong(size, kind, in_place)
    emit({"point": {"samples_us": samples, "wrong": wrong}, **scope})


def _report(outcome: Outcome, library: str | None) -> dict[str, Any]:
    events = outcome.events
    report = _empty()
    report["library"] = library
    for event in events:
        for key in ("library", "nccl_version", "ranks"):
            report[key] = event.get(key, report[key])
    report.update(_points(events, report["ranks"] or 0))
    begun = [event for event in events if "begin" in event]
    at = {"step": begun[-1]["begin"], "bytes": begun[-1].get("bytes")} if begun else {"step": "start", "bytes": None}
    absent = next((event["absent"] for event in events if "absent" in event), None)
    error = next((event["error"] for event in events if "error" in event), None)
    if absent is not None:
        report.update(state="absent", looked=absent, why="there is no NCCL: not in " + ", nor in ".join(absent))
    elif error:
        report.update(state="failed", at=at, error=error, detail=error["detail"])
        report["why"] = f"{error['name']} ({error['code']}) from {error['call']}{_where(at)}"
    elif outcome.state in ("hung", "stuck"):
        report.update(state="hung", at=at, detail=outcome.describe(), why=f"did not return{_where(at)}")
    elif outcome.state != "done":
        report.update(state="failed", at=at, detail=outcome.describe(), why=f"the process ended{_where(at)}")
        report["error"] = {"name": "CRASH", "code": None, "call": at["step"], "detail": outcome.describe()}
    elif any("alone" in event for event in events):
        report.update(state="skipped", why="there is one GPU: nothing to reduce over")
    else:
        report["state"] = "measured"
    return report


def _empty() -> dict[str, Any]:
    return {
        "state": "skipped",
        "why": "",
        "library": None,
        "nccl_version": None,
        "ranks": None,
        "points": [],
        "bfloat16": None,
        "wrong": 0,
        "detail": "",
        "error": None,
        "at": None,
        "looked": [],
    }


def _where(at: Mapping[str, Any]) -> str:
    size = at["bytes"]
    return f" in the step '{at['step']}'" + (f" at {size} bytes" if size else "")


def _points(events: Sequence[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """``points``, ``bfloat16`` and ``wrong``; a size whose out-of-place run never ended has no point."""
    points: dict[int, dict[str, Any]] = {}
    bfloat16: dict[str, Any] | None = None
    wrong = 0
    for event in events:
        if "point" not in event:
            continue
        size = event["bytes"]
        found = {**figures(size, ranks, event["point"]["samples_us"]), "wrong": event["point"]["wrong"]}
        wrong += found["wrong"]
        if event["kind"] == BFLOAT16:
            bfloat16 = {"bytes": size, **found}
        elif event["in_place"]:
            points[size]["inplace"] = found
        else:
            points[size] = {"bytes": size, **found, "inplace": None}
    return {"points": list(points.values()), "bfloat16": bfloat16, "wrong": wrong}


def figures(size: int, ranks: int, samples_us: Sequence[float]) -> dict[str, Any]:
    """Median time in microseconds, and the bandwidths in GB/s (1e9 bytes) that follow from it."""
    ordered = sorted(samples_us)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    bandwidth = size / median / 1e3
    return {
        "us": round(median, 2),
        "algbw": round(bandwidth, 3),
        "busbw": round(bandwidth * 2 * (ranks - 1) / ranks, 3),
        "samples_us": [round(sample, 2) for sample in samples_us],
    }
