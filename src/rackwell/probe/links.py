# SPDX-License-Identifier: Apache-2.0
"""The GPUs' PCIe links and health, before and after they were used, and while they are.

NVML tells of the GPU's own link, sysfs of each port on the way to it, with its error counters. An idle link runs at
generation 1 to save power, so what counts is the reading that :func:`reader` makes while copies run.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rackwell.probe import child
from rackwell.probe.child import Emit, Outcome
from rackwell.probe.nvml import NvmlError, Session

_DEVICES = "sys/bus/pci/devices"
_BDF = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: GT/s of a lane -> PCIe generation
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_AER = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}
_DEADLINE = 30.0


def before(topology: Any, deadline: float = _DEADLINE, root: Path = Path("/")) -> dict[str, Any]:
    """The state that :func:`after` is held against.

    Args:
        topology: what knows the GPUs: an object or dict with ``gpus``, each with ``index``, ``bus_id`` and ``path``
            (the ports from the root to the GPU); None = all that NVML shows, with their paths from sysfs.
        deadline: seconds after which NVML hangs.

    Returns:
        ``nvml`` (as in the report), ``gpus`` {bus id: readings}, ``ports`` {bdf: readings}, ``pairs``, ``topology``.
    """
    gpus = _known(topology)
    found = _look(gpus, deadline, root)
    if not gpus:
        by_index = sorted(found["gpus"].values(), key=lambda reading: str(reading["bus_id"]))
        gpus = [
            {"index": index, "bus_id": reading["bus_id"], "path": path_of(reading["bus_id"], root)}
            for index, reading in enumerate(by_index)
        ]
        found["ports"] = {bdf: port(bdf, root) for gpu in gpus for bdf in gpu["path"]}
    return {**found, "topology": gpus, "root": str(root)}


def after(
    state: Mapping[str, Any], load: Mapping[str, Any] | None = None, deadline: float = _DEADLINE
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """The report's ``links``, ``health`` and ``nvml``.

    Args:
        state: from :func:`before`. load: bus id -> what :func:`reader` read while copies ran.

    ``nvml.lost`` tells where NVML stopped answering, if it had answered before.
    """
    root = Path(state["root"])
    now = _look(state["topology"], deadline, root)
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
    ports = path_of(bus_id, root)

    def read() -> dict[str, Any]:
        speeds = {bdf: {key: port_now[key] for key in ("speed_gt_s", "width")} for bdf, port_now in _ports_now()}
        own = speeds.get(bus_id, {"speed_gt_s": None, "width": None})
        found = {"gen": _GENERATIONS.get(own["speed_gt_s"] or 0.0), "width": own["width"]}
        session, handles = _session()
        try:
            if session and bus_id in handles:
                told = session.link(handles[bus_id])
                found = {key: found[key] if told[key] is None else told[key] for key in found}
        except NvmlError:
            pass  # sysfs has said what it can; that NVML is gone comes out afterwards
        return {**found, "ports": speeds}

    def _ports_now() -> Iterable[tuple[str, dict[str, Any]]]:
        return ((bdf, _speed(root / _DEVICES / bdf)) for bdf in ports)

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


def path_of(bus_id: str, root: Path = Path("/")) -> list[str]:
    """The PCI devices on the way to a GPU, from the root port down to itself; empty where sysfs has no such device."""
    place = root / _DEVICES / bus_id
    if not place.exists():
        return []
    return [part for part in place.resolve().parts if _BDF.fullmatch(part)]


def port(bdf: str, root: Path = Path("/")) -> dict[str, Any]:
    """A port's link (GT/s of a lane, lanes) and error counters; None for what sysfs does not show."""
    place = root / _DEVICES / bdf
    counters = {kind: _total(place / f"aer_dev_{kind}", label) for kind, label in _AER.items()}
    return {
        **_speed(place),
        "max_speed_gt_s": _number(place / "max_link_speed"),
        "max_width": _whole(place / "max_link_width"),
        "aer": None if None in counters.values() else counters,
    }


def kind_of(place: int, length: int) -> str:
    """What a device is by its place in a path: below the root each switch has an upstream and a downstream port."""
    if place == length - 1:
        return "gpu"
    if place == 0:
        return "root"
    return "upstream" if place % 2 else "downstream"


def work(emit: Emit, arguments: dict[str, Any]) -> None:
    """The child's part: emits ``port`` for each device, then ``nvml``, a ``gpu`` each, ``pairs``, and ``lost``."""
    for bdf in arguments["ports"]:
        emit({"port": bdf, "reading": port(bdf, Path(arguments["root"]))})
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


def _known(topology: Any) -> list[dict[str, Any]]:
    gpus = (topology.get("gpus") if isinstance(topology, Mapping) else getattr(topology, "gpus", None)) or []

    def get(gpu: Any, key: str) -> Any:
        return gpu.get(key) if isinstance(gpu, Mapping) else getattr(gpu, key, None)

    found = [
        {"index": get(gpu, "index"), "bus_id": get(gpu, "bus_id"), "path": list(get(gpu, "path") or [])} for gpu in gpus
    ]
    for place, gpu in enumerate(sorted(found, key=lambda gpu: str(gpu["bus_id"]))):
        if gpu["index"] is None:
            gpu["index"] = place  # CUDA's order under CUDA_DEVICE_ORDER=PCI_BUS_ID
    return found


def _look(gpus: Sequence[Mapping[str, Any]], deadline: float, root: Path) -> dict[str, Any]:
    ports = list(dict.fromkeys(bdf for gpu in gpus for bdf in gpu["path"]))
    outcome = child.run("rackwell.probe.links:work", {"ports": ports, "root": str(root)}, deadline)
    events = outcome.events
    return {
        "nvml": _state(outcome),
        "gpus": {event["gpu"]["bus_id"]: event["gpu"] for event in events if "gpu" in event},
        "ports": {event["port"]: event["reading"] for event in events if "port" in event},
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
            _port(bdf, kind_of(place, len(path)), ports_first, ports_last, load.get("ports") or {})
            for place, bdf in enumerate(path)
        ],
        "nvlink": nvlink and {key: nvlink[key] for key in ("active", "version", "gb_per_s_one_way")},
    }


def _host_max(path: Sequence[str], ports: Mapping[str, Any], reading: Mapping[str, Any]) -> int | None:
    """The generation that the port above the GPU can do.

    Where sysfs has none (a virtual machine), NVML's figure for both ends tells it only if it is below the GPU's own.
    """
    above = ports.get(path[-2], {}) if len(path) > 1 else {}
    if above.get("max_speed_gt_s"):
        return _GENERATIONS.get(above["max_speed_gt_s"])
    both, own = reading.get("gen_max"), reading.get("gen_gpu_max")
    return both if both and own and both < own else None


def _width_max(path: Sequence[str], ports: Mapping[str, Any], reading: Mapping[str, Any]) -> int | None:
    """The lanes that the GPU itself has: NVML's figure may be that of the narrower slot or of the trained link."""
    own = ports.get(path[-1], {}).get("max_width") if path else None
    widths = [width for width in (own, reading.get("width_max")) if width]
    return max(widths) if widths else None


def _port(
    bdf: str, kind: str, first: Mapping[str, Any], last: Mapping[str, Any], load: Mapping[str, Any]
) -> dict[str, Any]:
    one, two = first.get(bdf) or {}, last.get(bdf) or {}
    now = {key: (load.get(bdf) or {}).get(key) or two.get(key) or one.get(key) for key in ("speed_gt_s", "width")}
    aer = None
    if one.get("aer") and two.get("aer"):
        aer = {counter: [one["aer"][counter], two["aer"][counter]] for counter in _AER}
    known = {key: one.get(key) for key in ("max_speed_gt_s", "max_width")}
    return {"bdf": bdf, "kind": kind, **now, **known, "aer": aer}


def _health(gpu: Mapping[str, Any], first: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """Faults as they are after the measurements, if they are told then; what else ran, as it was before them."""
    found = {"gpu": gpu["index"], "bus_id": gpu["bus_id"], "uuid": first.get("uuid")}
    for key in ("ecc_uncorrected", "recovery_action", "remapped_pending"):
        found[key] = first.get(key) if last.get(key) is None else last[key]
    for key in ("processes", "memory_used", "utilization"):
        found[key] = first.get(key)
    return found


def _speed(place: Path) -> dict[str, Any]:
    return {"speed_gt_s": _number(place / "current_link_speed"), "width": _whole(place / "current_link_width")}


def _number(path: Path) -> float | None:
    """``32.0 GT/s PCIe`` -> 32.0; ``Unknown`` -> None."""
    found = re.match(r"\d+(?:\.\d+)?", _text(path))
    return float(found.group()) if found else None


def _whole(path: Path) -> int | None:
    """A width; the kernel writes 0 or 255 for a link that is not there."""
    content = _text(path)
    value = int(content) if content.isdecimal() else 0
    return value if 0 < value < 255 else None


def _total(path: Path, label: str) -> int | None:
    """The last line of an AER file: ``TOTAL_ERR_COR 3``."""
    found = re.search(rf"^{label}\s+(\d+)\s*$", _text(path), re.MULTILINE)
    return int(found.group(1)) if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
