# SPDX-License-Identifier: Apache-2.0
"""Links and health: generation and lanes under load, error counters, BAR1, ECC, NVML."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from rackwell.probe.findings import RULE, Finding, make
from rackwell.probe.judge.context import Context
from rackwell.probe.topology import GENERATIONS, LANE_GB_PER_S, NVLINK

#: correctable errors and replays that a good link may make while it retrains from its idle generation
TOLERATED = 2
_FINE = ("none", "0", "")
_MISMATCH = 18


def generation(context: Context) -> Iterator[Finding]:
    """GPUs whose link runs below what both ends can do while copies run; then the links above the switches."""
    for link in context.links:
        expected = _both_ends(link.get("gen_gpu_max"), link.get("gen_host_max"))
        if link.get("gen_load") and expected and link["gen_load"] < expected and not _disproved(context, link):
            yield _trained_down(context, link, link["bus_id"], link["gen_load"], expected, [link["gpu"]])
    for upper, lower, gpus in _uplinks(context):
        now, expected = (
            _generation(lower.get("speed_gt_s")),
            _both_ends(*(_generation(port.get("max_speed_gt_s")) for port in (upper, lower))),
        )
        if now and expected and now < expected:
            yield _trained_down(context, lower, lower["bdf"], now, expected, gpus)


def width(context: Context) -> Iterator[Finding]:
    """Lanes do not change at idle, so this needs no load."""
    for link in context.links:
        ports: list[Mapping[str, Any]] = list(link.get("ports") or ())
        own: Mapping[str, Any] = next((port for port in ports if port["kind"] == "gpu"), {})
        above: Mapping[str, Any] = ports[-2] if len(ports) > 1 else {}
        now = link.get("width_load") or own.get("width")
        expected = _both_ends(link.get("width_max") or own.get("max_width"), above.get("max_width"))
        if now and expected and now < expected:
            yield _narrow(context, link["bus_id"], now, expected, [link["gpu"]])
    for upper, lower, gpus in _uplinks(context):
        now, expected = lower.get("width"), _both_ends(upper.get("max_width"), lower.get("max_width"))
        if now and expected and now < expected:
            yield _narrow(context, lower["bdf"], now, expected, gpus)


def errors(context: Context) -> Iterator[Finding]:
    """Counters that grew while the check copied, one finding for all links."""
    grown: dict[str, tuple[str, list[int]]] = {}
    for link in context.links:
        replays = link.get("replays")
        if replays and replays[1] - replays[0] > TOLERATED:
            grown[link["bus_id"]] = (f"{replays[1] - replays[0]} replays", [link["gpu"]])
        for port in link.get("ports") or ():
            told = _aer(port.get("aer") or {})
            if told:
                before = grown.get(port["bdf"], ("", []))
                text = f"{before[0]}, {told}" if before[0] and told not in before[0] else told
                grown[port["bdf"]] = (text, sorted({*before[1], link["gpu"]}))
    if grown:
        what = "; ".join(f"{bdf}: {told}" for bdf, (told, _) in sorted(grown.items())[:3]) + " during the check"
        gpus = sorted({gpu for _, of in grown.values() for gpu in of})
        yield make("link-errors", what, ", ".join(sorted(grown)), gpus=gpus, basis=RULE)


def bar1(context: Context) -> Iterator[Finding]:
    sizes = {gpu["index"]: gpu.get("memory_total") for gpu in context.cuda.get("devices") or ()}
    small = [
        link["gpu"]
        for link in context.links
        if link.get("bar1_total") and sizes.get(link["gpu"]) and link["bar1_total"] < sizes[link["gpu"]]
    ]
    if small and context.through_pcie:
        link = next(entry for entry in context.links if entry["gpu"] == small[0])
        size, memory = link["bar1_total"] >> 20, sizes[small[0]] >> 20
        what = f"BAR1 of {len(small)} GPUs holds {size} MiB of {memory} MiB"
        numbers: dict[str, Any] = {"measured": float(size), "expected": float(memory), "unit": "MiB", "basis": RULE}
        yield make("bar1-small", what, context.names(small), gpus=small, **numbers)


def health(context: Context) -> Iterator[Finding]:
    """ECC and what the driver asks for."""
    for entry in context.health:
        gpu = entry["gpu"]
        fill = {"bus_id": context.bus_id(gpu)}
        if entry.get("ecc_uncorrected"):
            count = entry["ecc_uncorrected"]
            what = f"GPU {gpu}: {count} uncorrected ECC errors since the driver was loaded"
            numbers: dict[str, Any] = {"measured": float(count), "expected": 0.0, "unit": "errors", "basis": RULE}
            yield make("ecc-uncorrected", what, context.name(gpu), gpus=[gpu], fill=fill, **numbers)
        action = entry.get("recovery_action")
        pending = entry.get("remapped_pending")
        if pending or (action is not None and str(action).strip().lower() not in _FINE):
            told = "a row remapping waits for a reset" if pending else f"it asks for: {action}"
            yield make("recovery-action", f"GPU {gpu}: {told}", context.name(gpu), gpus=[gpu], fill=fill)


def nvml(context: Context) -> Iterator[Finding]:
    """NVML that does not answer, or not any more."""
    state = context.nvml
    if not state:
        return
    lost = state.get("lost")
    if lost:
        name = f": {lost['name']}" if lost.get("name") else ""
        yield make("nvml-lost", f"NVML stopped answering at {lost.get('at')}{name}", context.host)
    elif not state.get("available") and state.get("code") != _MISMATCH:
        yield make("nvml-failed", f"NVML: {state.get('why') or 'not available'}", context.host)


def _disproved(context: Context, link: Mapping[str, Any]) -> bool:
    """Whether more went over the link than the generation read can carry: then it was read while the link slept.

    Without NVML, which one lost GPU takes from all, a reading is sysfs's alone.
    """
    lanes = link.get("width_load") or link.get("width_max") or 16
    most = LANE_GB_PER_S.get(link["gen_load"], 0.0) * lanes
    pairs = context.bottlenecks.capacity
    carried = [
        rate for pair, rate in pairs.items() if link["gpu"] in pair and context.topology.link_class(*pair) != NVLINK
    ]
    return bool(carried) and max(carried) > most


def _trained_down(
    context: Context, entry: Mapping[str, Any], bdf: str, now: int, expected: int, gpus: list[int]
) -> Finding:
    lanes = entry.get("width_load") or entry.get("width")
    what = (
        f"the link of {bdf} runs at Gen{now}" + (f" x{lanes}" if lanes else "") + f" under load, Gen{expected} is due"
    )
    return make(
        "link-generation",
        what,
        context.names(gpus),
        gpus=gpus,
        fill={"bus_id": bdf},
        measured=float(now),
        expected=float(expected),
        unit="PCIe generation",
        basis=RULE,
    )


def _narrow(context: Context, bdf: str, now: int, expected: int, gpus: list[int]) -> Finding:
    return make(
        "link-width",
        f"the link of {bdf} has {now} lanes, {expected} are due",
        context.names(gpus),
        gpus=gpus,
        fill={"bus_id": bdf},
        measured=float(now),
        expected=float(expected),
        unit="lanes",
        basis=RULE,
    )


def _uplinks(context: Context) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], list[int]]]:
    """(port above, port below, GPUs behind) of each link between a root port and a switch, or two switches.

    A port below a switch and its GPU are the GPU's own link, which is judged by itself. Only where a GPU behind it was
    seen under load is its speed that of a link at work.
    """
    found: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], list[int]]] = {}
    for link in context.links:
        ports = list(link.get("ports") or ())
        for upper, lower in itertools.pairwise(ports):
            if lower["kind"] == "upstream" and link.get("gen_load"):
                found.setdefault(lower["bdf"], (upper, lower, []))[2].append(link["gpu"])
    yield from found.values()


def _aer(counters: Mapping[str, Any]) -> str:
    parts = []
    for kind in ("correctable", "nonfatal", "fatal"):
        first_last = counters.get(kind)
        if first_last:
            grown = first_last[1] - first_last[0]
            if grown > (TOLERATED if kind == "correctable" else 0):
                parts.append(f"{grown} {kind} errors")
    return ", ".join(parts)


def _both_ends(*numbers: int | None) -> int | None:
    told = [number for number in numbers if number]
    return min(told) if told else None


def _generation(speed: float | None) -> int | None:
    return GENERATIONS.get(speed) if speed else None
