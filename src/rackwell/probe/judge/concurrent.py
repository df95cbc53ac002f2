# SPDX-License-Identifier: Apache-2.0
"""Copies that run at once: is what arrives in proportion to what the links carry?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rackwell.probe.expectation import CONCURRENT_COLLAPSE, CONCURRENT_SLOW
from rackwell.probe.findings import FLOOR, Finding, listed, make
from rackwell.probe.judge.context import Context
from rackwell.probe.regression import concurrent_name


def concurrent(context: Context) -> Iterator[Finding]:
    """The worst pattern gives the code: a collapse is one finding, whichever patterns it shows in."""
    entries = context.p2p.get("concurrent") or ()
    wrong = [entry for entry in entries if entry.get("verified") is False]
    if wrong:
        flows = sorted({(f[0], f[1]) for entry in wrong for f in entry["flows"]})
        what = f"data arrives wrong when several GPUs copy at once: {listed([e['pattern'] for e in wrong])}"
        why = "the driver reports success and the bytes are not there, under concurrency"
        yield make("p2p-corrupt", what, context.pairs(flows), pairs=flows, why=why, check="p2p.concurrent")
    shares = [(share, expected, entry) for entry in entries for share, expected in _share(context, entry)]
    slow = sorted((s for s in shares if s[0] < CONCURRENT_SLOW), key=lambda found: found[0])
    if not slow:
        return
    share, allowed, entry = slow[0]
    collapsed = share < CONCURRENT_COLLAPSE
    limit = allowed * (CONCURRENT_COLLAPSE if collapsed else CONCURRENT_SLOW)
    what = (
        f"{entry['pattern']} ({entry.get('op', 'write')}): {entry['gb_per_s']:.1f} GB/s together, "
        f"the links allow {allowed:.1f}"
    )
    if len(slow) > 1:
        others = ["{} ({})".format(e["pattern"], e.get("op", "write")) for _, _, e in slow[1:]]
        what += f"; also {listed(others)}"
    flows = sorted({(f[0], f[1]) for _, _, each in slow for f in each["flows"]})
    yield make(
        "p2p-concurrent-collapse" if collapsed else "p2p-concurrent-slow",
        what,
        context.pairs([(f[0], f[1]) for f in entry["flows"]]),
        pairs=flows,
        measured=round(float(entry["gb_per_s"]), 2),
        expected=round(limit, 2),
        unit="GB/s",
        basis=FLOOR,
    )


def slow_entries(context: Context) -> list[Mapping[str, Any]]:
    """The patterns that are below what they should be."""
    entries = context.p2p.get("concurrent") or ()
    return [entry for entry in entries if any(share < CONCURRENT_SLOW for share, _ in _share(context, entry))]


def _share(context: Context, entry: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """(share of what the flows' bottleneck allows, what it allows); nothing where that is not known."""
    if not entry.get("gb_per_s"):
        return
    flows = [(int(flow[0]), int(flow[1])) for flow in entry["flows"]]
    allowed = context.bottlenecks.allows(flows)
    if allowed:
        again = {concurrent_name(e): e.get("gb_per_s") or 0 for e in (context.repetition.get("concurrent") or ())}
        figure = max(float(entry["gb_per_s"]), float(again.get(concurrent_name(entry), 0.0)))
        yield figure / allowed, allowed
