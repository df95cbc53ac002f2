# SPDX-License-Identifier: Apache-2.0
"""The GPUs' PCIe links and health, before and after they were used, and while they are.

NVML tells of the GPU's own link, sysfs of each port on the way to it, with its error counters. An idle link runs at
generation 1 to save power, so what counts is the reading that :func:`reader` makes while copies run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rackwell.probe import child, sysfs
from rackwell.probe.child import Emit, Outcome
from rackwell.probe.nvml import NvmlError, Session
from rackwell.probe.topology import GENERATIONS, Topology

_DEADLINE = 30.0
_COUNTERS = ("correctable", "nonfatal", "fatal")


def before(topology: Topology | None, deadline: float = _DEADLINE, root: Path = Path("/")) -> dict[str, Any]:
    """The state that :func:`after` is held against.

    Args:
        topology: the GPUs and their paths; None = those that sysfs shows.
        deadline: seconds after which NVML hangs.

    Returns:
        ``nvml`` (as in the report), ``gpus`` {bus id: readings}, ``ports`` {bdf: readings}, ``bus_ids`` in the order of
        the topology and ``nvlink``, the numbers of links between those.
    """
    known = (topology or sysfs.read(root)).gpus
    found = _look([gpu.bus_id for gpu in known], deadline, root)
    gpus: list[dict[str, Any]] = [{"index": gpu.index, "bus_id": gpu.bus_id, "path": list(gpu.path)} for gpu in known]
    if not gpus:
        gpus = [{"index": index, "bus_id": bus_id, "path": []} for index, bus_id in enumerate(sorted(found["gpus"]))]
    bus_ids = [gpu["bus_id"] for gpu in gpus]
    return {
        **found,
        "topology": gpus,
        "root": str(root),
        "bus_ids": bus_ids,
        "nvlink": nvlink_matrix(found, bus_ids),
    }


def after(
    state: Mapping[str, Any], load: Mapping[str, Any] | None = None, deadline: float = _DEADLINE
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """The report's ``links``, ``health`` and ``nvml``.

    Args:
        state: from :func:`before`. load: bus id -> what :func:`reader` read while copies ran.

    ``nvml.lost`` tells where NVML stopped answering, if it had answered before.
    """
    root = Path(state["root"])
    now = _look(state["bus_ids"], deadline, root)
    links, health = [], []
    for gpu in state["topology"]:
        bus_id = gpu["bus_id"]
        first, last = state["gpus"].get(bus_id, {}), now["gpus"].get(bus_id, {})
        under_load = (load or {}).get(bus_id) or {}
        links.append(_link(gpu, first, last, under_load, state["ports"], now["ports"]))
        if first:
            health.append(_health(gpu, first, last))
    return links, health, _nvml(state["nvml"], now["nvml"])


def nvlink_matrix(state: Mapping[str, Any], bus_ids: Sequence[str]) -> list[list[int]]:
    """How many NVLinks lead from one GPU to another; behind a switch all of a GPU's links do. 0 = none."""
    place = {reading["bus_id"]: reading["nvml_index"] for reading in state["gpus"].values()}
    active = {bus_id: (state["gpus"].get(bus_id, {}).get("nvlink") or {}).get("active", 0) for bus_id in bus_ids}

    def count(one: str, two: str) -> int:
        if one == two or one not in place or two not in place or not state["pairs"]:
            return 0
        return int(min(active[one], active[two])) if state["pairs"][place[one]][place[two]] else 0

    return [[count(one, two) for two in bus_ids] for one in bus_ids]


def reader(bus_id: str, root: Path = Path("/")) -> Callable[[], dict[str, Any]]:
    """What reads the link of one GPU quickly, for a process that keeps it busy meanwhile. Never raises.

    It gives ``gen`` and ``width`` (None when they cannot be told) and ``ports`` {bdf: speed_gt_s, width}.
    """
    path = sysfs.read(root, [bus_id]).gpus[0].path

    def read() -> dict[str, Any]:
        ports = sysfs.read(root, [bus_id]).ports
        speeds = {bdf: {"speed_gt_s": ports[bdf].speed_gt_s, "width": ports[bdf].width} for bdf in path}
        own = speeds[bus_id]
        found = {"gen": GENERATIONS.get(own["speed_gt_s"] or 0.0), "width": own["width"]}
        session, handles = _session()
        # when NVML is gone sysfs has said what it can; the reading afterwards tells that it is
        with contextlib.suppress(NvmlError):
            if session and bus_id in handles:
                told = session.link(handles[bus_id])
                found = {key: found[key] if told[key] is None else told[key] for key in found}
        return {**found, "ports": speeds}

    return read


@functools.cache
def _session() -> tuple[Session | None, dict[str, Any]]:
    """One for this process: to start NVML takes longer than all readings."""
    try:
        session = Session()
        handles = [session.handle(index) for index in range(session.count)]
        return session, {session.bus_id(handle): handle for handle in handles}
    except NvmlError:
        return None, {}


def work(emit: Emit, arguments: dict[str, Any]) -> None:
    """The child's part: emits ``ports``, then ``nvml``, a ``gpu`` each, ``pairs``, and ``lost``."""
    ports = sysfs.read(Path(arguments["root"]), arguments["bus_ids"]).ports
    emit({"ports": {bdf: dataclasses.asdict(port) for bdf, port in ports.items()}})
    try:
        session = Session()
    except NvmlError as error:
        emit({"unavailable": {**error.as_dict(), "why": str(error)}})
        return
    emit({"nvml": {"driver_version": session.driver_version, "count": session.count}})
    for index in range(session.count):
        try:
            emit({"gpu": session.gpu(index)})
        except NvmlError as error:
            emit({"lost": error.as_dict()})
    try:
        emit({"pairs": session.nvlink_pairs()})
    except NvmlError as error:
        emit({"lost": error.as_dict()})


def _look(bus_ids: Sequence[str], deadline: float, root: Path) -> dict[str, Any]:
    outcome = child.run("rackwell.probe.links:work", {"bus_ids": list(bus_ids), "root": str(root)}, deadline)
    events = outcome.events
    return {
        "nvml": _state(outcome),
        "gpus": {event["gpu"]["bus_id"]: event["gpu"] for event in events if "gpu" in event},
        "ports": next((event["ports"] for event in events if "ports" in event), {}),
        "pairs": next((event["pairs"] for event in events if "pairs" in event), []),
    }


def _state(outcome: Outcome) -> dict[str, Any]:
    """``nvml`` as one look gives it; ``lost`` is the first thing that NVML answered with an error."""
    told: dict[str, Any] = {"driver_version": None, "count": None}
    found: dict[str, Any] = {"available": False, "why": None, "code": None, "name": None, "lost": None}
    for event in outcome.events:
        if "nvml" in event:
            told, found["available"] = event["nvml"], True
        elif "unavailable" in event:
            found.update({key: event["unavailable"][key] for key in ("why", "code", "name")})
            found["lost"] = {key: event["unavailable"][key] for key in ("at", "code", "name")}
        elif "lost" in event:
            found["lost"] = found["lost"] or event["lost"]
    if outcome.state != "done":
        name = "HANG" if outcome.state in ("hung", "stuck") else "CRASH"
        found.update(available=False, why=f"NVML {outcome.describe()}", name=name)
        found["lost"] = {"at": "a reading", "code": None, "name": name}
    return {**found, **told}


def _nvml(first: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """The report's part: what NVML said at first, and ``lost`` when it did not say it again."""
    lost = first["lost"] if first["available"] else None
    if first["available"] and not lost:
        lost = last["lost"]
        if not lost and (last["count"] or 0) < (first["count"] or 0):
            lost = {"at": f"nvmlDeviceGetCount: {last['count']} of {first['count']} GPUs", "code": None, "name": None}
        if lost:
            lost = {**lost, "at": f"{lost['at']}, after the measurements"}
    return {**first, "lost": lost}


def _link(
    gpu: Mapping[str, Any],
    first: Mapping[str, Any],
    last: Mapping[str, Any],
    load: Mapping[str, Any],
    ports_first: Mapping[str, Any],
    ports_last: Mapping[str, Any],
) -> dict[str, Any]:
    path = gpu["path"]
    replays = [first.get("replays"), last.get("replays")]
    nvlink = first.get("nvlink")
    return {
        "gpu": gpu["index"],
        "bus_id": gpu["bus_id"],
        "gen_gpu_max": first.get("gen_gpu_max"),
        "gen_host_max": _host_max(path, ports_first, first),
        "gen_load": load.get("gen"),
        "width_max": _width_max(path, ports_first, first),
        "width_load": load.get("width"),
        "idle_gen": first.get("gen"),
        "replays": None if None in replays else replays,
        "bar1_total": first.get("bar1_total"),
        "ports": [
            _port(ports_first[bdf], ports_last.get(bdf) or {}, (load.get("ports") or {}).get(bdf) or {})
            for bdf in path
            if bdf in ports_first
        ],
        "nvlink": nvlink and {key: nvlink[key] for key in ("active", "version", "gb_per_s_one_way")},
    }


def _host_max(path: Sequence[str], ports: Mapping[str, Any], reading: Mapping[str, Any]) -> int | None:
    """The generation that the port above the GPU can do.

    Where sysfs has none (a virtual machine), NVML's figure for both ends tells it only if it is below the GPU's own.
    """
    above = ports.get(path[-2], {}) if len(path) > 1 else {}
    if above.get("max_speed_gt_s"):
        return GENERATIONS.get(above["max_speed_gt_s"])
    both, own = reading.get("gen_max"), reading.get("gen_gpu_max")
    return both if both and own and both < own else None


def _width_max(path: Sequence[str], ports: Mapping[str, Any], reading: Mapping[str, Any]) -> int | None:
    """The lanes that the GPU itself has: NVML's figure may be that of the narrower slot or of the trained link."""
    own = ports.get(path[-1], {}).get("max_width") if path else None
    widths = [width for width in (own, reading.get("width_max")) if width]
    return max(widths) if widths else None


def _port(first: Mapping[str, Any], last: Mapping[str, Any], load: Mapping[str, Any]) -> dict[str, Any]:
    now = {key: load.get(key) or last.get(key) or first[key] for key in ("speed_gt_s", "width")}
    counts = {key: [(first["aer"] or {}).get(key), (last.get("aer") or {}).get(key)] for key in _COUNTERS}
    known = {key: first[key] for key in ("bdf", "kind", "max_speed_gt_s", "max_width")}
    return {**known, **now, "aer": None if any(None in pair for pair in counts.values()) else counts}


def _health(gpu: Mapping[str, Any], first: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """Faults as they are after the measurements, if they are told then; what else ran, as it was before them."""
    found = {"gpu": gpu["index"], "bus_id": gpu["bus_id"], "uuid": first.get("uuid")}
    for key in ("ecc_uncorrected", "recovery_action", "remapped_pending"):
        found[key] = first.get(key) if last.get(key) is None else last[key]
    for key in ("processes", "memory_used", "utilization"):
        found[key] = first.get(key)
    return found
