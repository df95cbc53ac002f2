# SPDX-License-Identifier: Apache-2.0
"""Copies that run at once: is what arrives in proportion to what the links carry?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rackwell.probe.expectation import CONCURRENT_COLLAPSE, CONCURRENT_SLOW
from rackwell.probe.findings import FLOOR, Finding, listed, make, pair_names
from rackwell.probe.judge.context import Context
from rackwell.probe.judge.pairs import pair_of
from rackwell.probe.regression import concurrent_name


def concurrent(context: Context) -> Iterator[Finding]:
    """The worst pattern gives the code: a collapse is one finding, whichever patterns it shows in."""
    entries = context.p2p.get("concurrent") or ()
    yield from _wrong(context, entries)
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


def _wrong(context: Context, entries: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Bytes that do not arrive under concurrency, of pairs that were right alone."""
    wrong = [entry for entry in entries if entry.get("verified") is False]
    if not wrong:
        return
    known = {pair_of(entry) for entry in context.p2p.get("data") or () if not entry["ok"]}
    rows = [row for row in (context.p2p.get("concurrent_run") or {}).get("data") or () if not row["ok"]]
    flows = {pair_of(row) for row in rows} or {(int(f[0]), int(f[1])) for entry in wrong for f in entry["flows"]}
    pairs = sorted(flows - known)
    if pairs and not (known and not rows):
        names = listed(list(dict.fromkeys(str(entry["pattern"]) for entry in wrong)))
        what = f"data of GPU {pair_names(pairs)} arrives wrong when several GPUs copy at once: {names}"
        why = "alone the pairs are right; under load the bytes are not there, and no call says so"
        yield make("p2p-corrupt", what, context.pairs(pairs), pairs=pairs, why=why, check="p2p.concurrent")


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
