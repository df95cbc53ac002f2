# SPDX-License-Identifier: Apache-2.0
"""Pairs of GPUs: access, data, calls that failed or never ended, latency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rackwell.probe.errors import HANG, choose, explain
from rackwell.probe.findings import FLOOR, Finding, make, pair_names
from rackwell.probe.judge.context import Context
from rackwell.probe.topology import Pair

#: cuCtxEnablePeerAccess: the driver will not do it
_NO_PEER_ACCESS = 217
_KINDS = {
    "dropped": "the target is as it was before the copy: the writes were dropped",
    "zero": "zeros arrived",
    "other": "other bytes arrived",
}


def pair_of(entry: Mapping[str, Any]) -> Pair:
    return (int(entry["src"]), int(entry["dst"]))


def access(context: Context) -> Iterator[Finding]:
    """Pairs for which the driver offers no access, or refuses it when asked."""
    refused = {pair_of(e) for e in context.p2p.get("capability") or () if not (e.get("read") and e.get("write"))}
    for entry in context.p2p.get("errors") or ():
        if (entry.get("error") or {}).get("code") == _NO_PEER_ACCESS and entry.get("src") is not None:
            refused.add(pair_of(entry))
    if refused:
        pairs = sorted(refused)
        total = len(context.topology.pairs())
        what = f"{len(pairs)} of {total} ordered pairs have no direct access: {pair_names(pairs)}"
        numbers: dict[str, Any] = {
            "measured": float(total - len(pairs)),
            "expected": float(total),
            "unit": "pairs",
            "basis": "rule",
        }
        yield make("p2p-no-access", what, context.pairs(pairs), pairs=pairs, **numbers)


def data(context: Context) -> Iterator[Finding]:
    """Bytes that did not arrive: both directions of a pair, or one."""
    wrong: dict[Pair, Mapping[str, Any]] = {}
    for entry in context.p2p.get("data") or ():
        if not entry["ok"]:
            wrong.setdefault(pair_of(entry), entry)
    for entry in context.p2p.get("errors") or ():
        if (entry.get("error") or {}).get("name") == "WRONG_DATA" and entry.get("src") is not None:
            wrong.setdefault(pair_of(entry), {"engine": "kernel", "op": "read", **entry})
    tested = {pair_of(entry) for entry in context.p2p.get("data") or ()}
    # one direction is only called so where the other was tested too: a quick check may have taken one of them
    one = [p for p in sorted(wrong) if (p[1], p[0]) not in wrong and (p[1], p[0]) in tested]
    both = [pair for pair in sorted(wrong) if pair not in one]
    for code, pairs in (("p2p-corrupt", both), ("p2p-corrupt-one-way", one)):
        if pairs:
            entry = wrong[pairs[0]]
            numbers: dict[str, Any] = {
                "measured": float(entry.get("wrong") or 0),
                "expected": 0.0,
                "unit": "bytes",
                "basis": "rule",
            }
            yield make(code, _told(pairs, entry), context.pairs(pairs), pairs=pairs, **numbers)


def _told(pairs: list[Pair], entry: Mapping[str, Any]) -> str:
    text = f"data of GPU {pair_names(pairs)} arrives wrong: {entry['engine']} {entry['op']}"
    if entry.get("wrong"):
        text += f", {entry['wrong']} of {entry.get('bytes')} bytes from offset {entry.get('first')} on"
    kind = _KINDS.get(entry.get("kind") or "")
    text += f"; {kind}" if kind else ""
    return text + ("; the source itself has changed" if entry.get("source_intact") is False else "")


def ended(context: Context) -> Iterator[Finding]:
    """A child that never came back, or that a library ended; both measurements of pairs may say so."""
    for part in (context.p2p, context.p2p.get("concurrent_run") or {}):
        state = part.get("state", "done")
        if state == "done":
            continue
        at = part.get("at") or {}
        pair = tuple(at["pair"]) if at.get("pair") else None
        step = at.get("step") or "start"
        of = f"GPU {pair[0]} -> {pair[1]}: " if pair else ""
        where = context.pair((pair[0], pair[1])) if pair else context.host
        pairs = [(pair[0], pair[1])] if pair else []
        if state == "crashed":
            what = f"{of}{step}: the process {part.get('describe') or 'ended by itself'}"
            yield make("p2p-failed", what, where, pairs=pairs, why="the driver's library ended the process")
        else:
            advice = choose(HANG, context.surroundings.findings)
            what = f"{of}{step} {part.get('describe') or 'did not return before the deadline'}"
            yield make("p2p-hang", what, where, pairs=pairs, why=advice.cause)


def failed(context: Context) -> Iterator[Finding]:
    """Calls that returned an error, each code of the driver once."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for part in (context.p2p, context.p2p.get("concurrent_run") or {}):
        for entry in part.get("errors") or ():
            error = entry.get("error") or {}
            told_elsewhere = error.get("code") == _NO_PEER_ACCESS and entry.get("src") is not None
            if not told_elsewhere and error.get("name") not in ("HANG", "HANG_IN_KERNEL", "CRASH", "WRONG_DATA"):
                groups.setdefault(f"{error.get('name')} ({error.get('code')})", []).append(entry)
    for name, entries in groups.items():
        pairs = sorted({pair_of(entry) for entry in entries if entry.get("src") is not None})
        of = f"GPU {pair_names(pairs)}: " if pairs else ""
        advice = explain(entries[0]["error"].get("code") or 0, context.surroundings.findings)
        what = f"{of}{entries[0]['step']}: {name}"
        where = context.pairs(pairs) if pairs else context.host
        yield make("p2p-failed", what, where, pairs=pairs, why=advice.cause, fix=advice.fix)


def latency(context: Context) -> Iterator[Finding]:
    """Remote reads that take longer than any direct way, in the measurement and in its repetition."""
    again = {pair_of(e): e["us"] for e in (context.repetition.get("p2p") or {}).get("latency") or () if _read(e)}
    slow: dict[Pair, float] = {}
    for entry in filter(_read, context.p2p.get("latency") or ()):
        pair = pair_of(entry)
        figure = min(entry["us"], again.get(pair, entry["us"]))
        if figure > context.floors.latency(pair):
            slow[pair] = figure
    if slow:
        worst = max(slow, key=lambda pair: slow[pair])
        limit = context.floors.latency(worst)
        pairs = sorted(slow)
        what = (
            f"remote reads of GPU {worst[0]} -> {worst[1]} take {slow[worst]:.2f} us, {limit:g} us at most are expected"
        )
        what += f" ({len(pairs)} pairs)" if len(pairs) > 1 else ""
        numbers: dict[str, Any] = {"measured": slow[worst], "expected": limit, "unit": "us", "basis": FLOOR}
        yield make("p2p-latency", what, context.pairs(pairs), pairs=pairs, **numbers)


def _read(entry: Mapping[str, Any]) -> bool:
    return entry.get("kind") == "remote-read" and bool(entry.get("us"))
