# SPDX-License-Identifier: Apache-2.0
"""What a check that found nothing says of itself: one line with the number and the expectation."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from rackwell.probe.baseline import ABSENT, USED
from rackwell.probe.expectation import CONCURRENT_SLOW
from rackwell.probe.findings import BASELINE, DECLARED, FLOOR, RULE
from rackwell.probe.judge import collectives as allreduce
from rackwell.probe.judge.context import Context, figures
from rackwell.probe.judge.host import acs_controls
from rackwell.probe.judge.start import expected_gpus
from rackwell.probe.topology import CLASSES


@dataclasses.dataclass(frozen=True)
class Summary:
    """The line, and the number that is nearest to its limit; ``seen`` False: there was nothing to look at."""

    text: str
    measured: float | None = None
    expected: float | None = None
    unit: str = ""
    basis: str | None = None
    seen: bool = True


def _unseen(why: str) -> Summary:
    return Summary(why, seen=False)


def _nodes(context: Context) -> Summary:
    nodes = context.surroundings.gpu_nodes
    return Summary(f"nvidiactl, nvidia-uvm and {len(nodes)} GPU nodes can be opened", basis=RULE)


def _driver(context: Context) -> Summary:
    kernel, user = context.surroundings.kernel_module_version, context.user_space
    return Summary(f"kernel module {kernel or 'unknown'}, user space {user or 'unknown'}", basis=RULE)


def _gpus(context: Context) -> Summary:
    found, wanted = context.cuda.get("count"), expected_gpus(context)
    if found is None:
        return _unseen("CUDA did not say how many there are")
    told = f"{found} GPUs" + (f", {wanted} expected" if wanted else "; how many there must be was not said")
    basis = DECLARED if context.declared else BASELINE if wanted else None
    return Summary(told, float(found), float(wanted) if wanted else None, "GPUs", basis)


def _cuda(context: Context) -> Summary:
    devices = context.cuda.get("devices") or ()
    verified = sum(1 for device in devices if device.get("kernel_verified"))
    if not devices:
        return _unseen("no GPU was tested")
    return Summary(
        f"{verified or len(devices)} GPUs wrote, read and computed right, CUDA {context.cuda.get('cuda_version')}",
        float(len(devices)),
        None,
        "GPUs",
        RULE,
    )


def _access(context: Context) -> Summary:
    entries = context.p2p.get("capability") or ()
    if not entries:
        return _unseen("no pair was asked")
    atomics = sum(1 for entry in entries if entry.get("atomics"))
    count = float(len(entries))
    return Summary(f"{len(entries)} ordered pairs, {atomics} with native atomics", count, count, "pairs", RULE)


def _data(context: Context) -> Summary:
    entries = context.p2p.get("data") or ()
    if not entries:
        return _unseen("no pair was tested")
    pairs = {(entry["src"], entry["dst"]) for entry in entries}
    total = len(context.topology.pairs())
    moved = sum(int(entry.get("bytes") or 0) for entry in entries)
    told = f"{len(pairs)} of {total} ordered pairs, {len(entries)} transfers, {moved / 1e9:.1f} GB compared"
    return Summary(told, 0.0, 0.0, "wrong bytes", RULE)


def _bandwidth(context: Context) -> Summary:
    found = figures(context.p2p.get("bandwidth") or ())
    by_class: dict[str, list[float]] = {}
    nearest: tuple[float, float, float] | None = None
    for (pair, engine, _, ways), rate in found.items():
        floor = context.floors.bandwidth(pair, engine, ways)
        if floor and (nearest is None or rate / floor < nearest[0]):
            nearest = (rate / floor, rate, floor)
        if ways == 1 and engine == "copy":
            by_class.setdefault(context.topology.link_class(*pair), []).append(rate)
    if not found:
        return _unseen("no pair was timed")
    told = [f"{statistics.median(by_class[name]):.1f} GB/s {name}" for name in CLASSES if name in by_class]
    text = ", ".join(told) or f"{len(found)} figures"
    if nearest is None:
        return Summary(text + "; nothing is known of the links, so there is no floor")
    return Summary(text, round(nearest[1], 2), round(nearest[2], 2), "GB/s", FLOOR)


def _latency(context: Context) -> Summary:
    reads = [entry for entry in context.p2p.get("latency") or () if entry.get("kind") == "remote-read"]
    if not reads:
        return _unseen("no remote read was timed")
    worst = max(reads, key=lambda entry: float(entry["us"]))
    limit = context.floors.latency((worst["src"], worst["dst"]))
    middle = statistics.median(float(entry["us"]) for entry in reads)
    text = f"remote read {middle:.2f} us, at most {worst['us']:.2f} us"
    return Summary(text, float(worst["us"]), limit, "us", FLOOR)


def _concurrent(context: Context) -> Summary:
    entries = [entry for entry in context.p2p.get("concurrent") or () if entry.get("gb_per_s")]
    if not entries:
        return _unseen("no pattern was timed")
    shares = []
    for entry in entries:
        flows = [(int(flow[0]), int(flow[1])) for flow in entry["flows"]]
        allowed = context.bottlenecks.allows(flows)
        if allowed:
            shares.append((entry["gb_per_s"] / allowed, entry, allowed))
    if not shares:
        return Summary(f"{len(entries)} patterns; nothing is known of the links, so there is no floor")
    share, entry, allowed = min(shares, key=lambda found: found[0])
    text = f"{entry['pattern']} ({entry.get('op', 'write')}) {entry['gb_per_s']:.0f} GB/s, {share:.0%} of the links"
    return Summary(text, round(entry["gb_per_s"], 2), round(CONCURRENT_SLOW * allowed, 2), "GB/s", FLOOR)


def _links(context: Context) -> Summary:
    links = [link for link in context.links if link.get("gen_load") or link.get("width_load") or link.get("ports")]
    if not links:
        return _unseen("neither NVML nor sysfs tells of the links")
    told: dict[str, int] = {}
    for link in links:
        generation = link.get("gen_load")
        width = link.get("width_load") or next((p.get("width") for p in link["ports"] if p["kind"] == "gpu"), None)
        name = f"Gen{generation or '?'} x{width or '?'}" + ("" if generation else " (not read under load)")
        told[name] = told.get(name, 0) + 1
    text = ", ".join(f"{count} of {name}" for name, count in told.items())
    nvlinks = {(link.get("nvlink") or {}).get("active") for link in links} - {None, 0}
    return Summary(text + (f", {max(n for n in nvlinks if n)} NVLinks each" if nvlinks else ""), basis=RULE)


def _health(context: Context) -> Summary:
    if not context.nvml.get("available"):
        return _unseen(str(context.nvml.get("why") or "NVML was not asked"))
    return Summary(f"{len(context.health)} GPUs: no uncorrected ECC error, no recovery asked for", basis=RULE)


def _collectives(context: Context) -> Summary:
    found = context.collectives
    if found.get("state") != "measured":
        return _unseen(str(found.get("why") or "not measured"))
    point, limit = allreduce.best(found), allreduce.floor(context)
    if point is None:
        return Summary(
            f"{len(found.get('points') or ())} sizes, sums right, NCCL {found.get('nccl_version')}", basis=RULE
        )
    least = min(found["points"], key=lambda entry: int(entry["bytes"]))
    text = (
        f"{point['busbw']:.1f} GB/s at {allreduce.size(point['bytes'])}, "
        f"{least['us']:.0f} us at {allreduce.size(least['bytes'])}, sums right"
    )
    return Summary(text, float(point["busbw"]), round(limit, 2) if limit else None, "GB/s", FLOOR if limit else None)


def _host(context: Context) -> Summary:
    facts: Mapping[str, Any] = context.host_facts or {}
    mode = (facts.get("iommu") or {}).get("mode") or context.surroundings.iommu
    controls = acs_controls(context)
    told = [f"IOMMU {mode}", f"HMM {'unknown' if context.hmm is None else 'on' if context.hmm else 'off'}"]
    told.append(f"ACS clear on {len(controls)} ports" if controls else "ACS not visible from here")
    if not facts:
        told.append("kernel log not visible from here")
    if not facts and mode == "unknown" and context.hmm is None and not controls:
        return _unseen("nothing of the host is visible from here")
    return Summary(", ".join(told), basis=RULE)


def _baseline(context: Context) -> Summary:
    if context.baseline.state == ABSENT:
        return _unseen("there is none: `rackwell baseline record CONTAINER`")
    if context.baseline.state != USED:
        return _unseen("it is not used")
    if context.beside_server:
        return _unseen("the server runs: no bandwidth was measured to compare")
    text = f"{len(context.baseline.values)} figures of {str(context.baseline.content.get('recorded'))[:10]}: none below"
    return Summary(text, basis=BASELINE)


SUMMARIES: dict[str, Callable[[Context], Summary]] = {
    "nodes": _nodes,
    "driver": _driver,
    "gpus": _gpus,
    "cuda": _cuda,
    "p2p.access": _access,
    "p2p.data": _data,
    "p2p.bandwidth": _bandwidth,
    "p2p.latency": _latency,
    "p2p.concurrent": _concurrent,
    "links": _links,
    "health": _health,
    "collectives": _collectives,
    "host": _host,
    "baseline": _baseline,
}
