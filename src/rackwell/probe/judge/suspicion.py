# SPDX-License-Identifier: Apache-2.0
"""What looked slow in a first measurement, below its floor or below the baseline, and is worth a second one."""

from __future__ import annotations

from collections.abc import Iterator

from rackwell.probe import regression
from rackwell.probe.judge import bandwidth, collectives, compare, concurrent, pairs
from rackwell.probe.judge.context import Context
from rackwell.probe.topology import Pair


def suspicious_pairs(context: Context) -> set[Pair]:
    """Pairs to be timed again."""
    slow: set[Pair] = set(bandwidth.slow_pairs(context))
    slow |= {(target, source) for source, target in slow}  # is it the pair, or one direction of it?
    slow |= {pair for finding in pairs.latency(context) for pair in finding.pairs}
    for key in _keys(context, "p2p/", "latency/"):
        source, target = (context.index_of(uuid) for uuid in regression.ends_of(key) or ("", ""))
        if source is not None and target is not None:
            slow.add((source, target))
    return slow


def suspicious_patterns(context: Context) -> set[str]:
    """Patterns of concurrent copies to be run again."""
    slow = {str(entry["pattern"]) for entry in concurrent.slow_entries(context)}
    return slow | {key.split("/")[1] for key in _keys(context, "concurrent/")}


def suspicious_allreduce(context: Context) -> bool:
    """Whether the allreduce is to be timed again."""
    slow = any(finding.code == "allreduce-slow" for finding in collectives.allreduce(context))
    return slow or any(True for _ in _keys(context, "collectives/"))


def _keys(context: Context, *prefixes: str) -> Iterator[str]:
    for loss in compare.suspects(context, prefixes):
        yield from loss.keys
