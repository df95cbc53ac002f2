# SPDX-License-Identifier: Apache-2.0
"""All rules in order, what they found folded, and a row for each check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rackwell.probe.codes import CHECKS, NOT_MEASURED, PASS, worst
from rackwell.probe.findings import Finding, make
from rackwell.probe.judge import bandwidth, collectives, compare, concurrent, host, links, pairs, start
from rackwell.probe.judge.context import Context
from rackwell.probe.judge.fold import fold
from rackwell.probe.judge.summaries import SUMMARIES

Rule = Callable[[Context], Iterator[Finding]]


def _floors(context: Context) -> Iterator[Finding]:
    faulty = {gpu for rule in (links.generation, links.width) for found in rule(context) for gpu in found.gpus}
    yield from bandwidth.below_floor(context, faulty)


def _silent(context: Context) -> Iterator[Finding]:
    """Nothing may pass because it was not measured and nobody said why."""
    if "cuda" not in context.skipped and not context.cuda:
        yield make("cuda-failed", "CUDA was not tested, and nothing says why", context.host)
    tested = context.p2p.get("data") or context.p2p.get("errors") or context.p2p.get("state", "done") != "done"
    if "p2p.data" not in context.skipped and not tested and not context.p2p.get("capability"):
        yield make("p2p-failed", "the pairs were not tested, and nothing says why", context.host)


#: in the order in which findings are told
RULES: tuple[Rule, ...] = (
    start.nodes,
    start.driver,
    start.cuda,
    start.gpus,
    pairs.access,
    pairs.data,
    pairs.ended,
    pairs.failed,
    links.generation,
    links.width,
    _floors,
    pairs.latency,
    concurrent.concurrent,
    links.errors,
    links.bar1,
    links.health,
    links.nvml,
    collectives.allreduce,
    host.iommu,
    host.acs,
    host.hmm,
    host.registry_keys,
    host.xids,
    compare.fit,
    compare.below,
    _silent,
)
#: what a running server disturbs: not judged beside it
_UNDISTURBED: tuple[Rule, ...] = (_floors, pairs.latency, concurrent.concurrent, collectives.allreduce, compare.below)


def judge(context: Context) -> tuple[list[dict[str, Any]], list[Finding]]:
    """(rows of checks, top-level findings in order)."""
    rules = [rule for rule in RULES if not (context.beside_server and rule in _UNDISTURBED)]
    found = [finding for rule in rules for finding in rule(context)]
    order = list(CHECKS)
    top = sorted(fold(found, context), key=lambda finding: order.index(finding.check))
    return [_row(check, context, top) for check in CHECKS], top


def _row(check: str, context: Context, top: Sequence[Finding]) -> dict[str, Any]:
    owners = [(owner, finding) for owner in top for finding in flat(owner) if finding.check == check]
    own = [(owner, finding) for owner, finding in owners if owner is finding]
    row: dict[str, Any] = {"id": check, "title": CHECKS[check]}
    if owners:
        owner, first = (own or owners)[0]
        summary = first.what if owner is first else f"{first.what} (follows from {owner.code})"
        more = len(owners) - 1
        verdict = worst((finding.verdict for _, finding in owners), NOT_MEASURED)
        return {
            **row,
            "verdict": verdict,
            "code": owner.code,
            "summary": summary + (f"; and {more} more" if more else ""),
            "measured": first.measured,
            "expected": first.expected,
            "unit": first.unit,
            "basis": first.basis,
        }
    if check in context.skipped:
        return {**row, "verdict": NOT_MEASURED, "code": NOT_MEASURED, "summary": context.skipped[check], **_EMPTY}
    told = SUMMARIES[check](context)
    return {
        **row,
        "verdict": PASS if told.seen else NOT_MEASURED,
        "code": "ok" if told.seen else NOT_MEASURED,
        "summary": told.text,
        "measured": told.measured,
        "expected": told.expected,
        "unit": told.unit,
        "basis": told.basis,
    }


_EMPTY: Mapping[str, Any] = {"measured": None, "expected": None, "unit": "", "basis": None}


def flat(finding: Finding) -> Iterator[Finding]:
    """A finding and all that follows from it."""
    yield finding
    for consequence in finding.consequences:
        yield from flat(consequence)
