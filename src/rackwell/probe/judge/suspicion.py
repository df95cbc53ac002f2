# SPDX-License-Identifier: Apache-2.0
"""What looked slow in a first measurement, and is worth a second one."""

from __future__ import annotations

import dataclasses

from rackwell.probe import regression
from rackwell.probe.judge import bandwidth, collectives, compare, concurrent, pairs
from rackwell.probe.judge.context import Context
from rackwell.probe.topology import Pair


@dataclasses.dataclass(frozen=True)
class Suspicion:
    """Pairs to be timed again, concurrent patterns to be run again, and whether the allreduce is."""

    pairs: frozenset[Pair]
    patterns: frozenset[str]
    collectives: bool


def suspicious(context: Context) -> Suspicion:
    """Below a floor, or below the baseline by more than noise."""
    slow: set[Pair] = set(bandwidth.slow_pairs(context))
    slow |= {pair for finding in pairs.latency(context) for pair in finding.pairs}
    patterns = {entry["pattern"] for entry in concurrent.slow_entries(context)}
    reduce = any(finding.code == "allreduce-slow" for finding in collectives.allreduce(context))
    for loss in compare.suspects(context):
        for key in loss.keys:
            ends = regression.ends_of(key)
            if ends:
                source, target = (context.index_of(uuid) for uuid in ends)
                if source is not None and target is not None:
                    slow.add((source, target))
            elif key.startswith("concurrent/"):
                patterns.add(key.split("/")[1])
            else:
                reduce = True
    return Suspicion(frozenset(slow), frozenset(patterns), reduce)
