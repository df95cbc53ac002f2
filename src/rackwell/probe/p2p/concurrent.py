# SPDX-License-Identifier: Apache-2.0
"""What is left when many copies run at once: pair by pair everything can be right and still this collapses."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from rackwell.probe import child
from rackwell.probe.child import Emit
from rackwell.probe.data import further
from rackwell.probe.driver import Driver, load
from rackwell.probe.p2p import verify
from rackwell.probe.p2p.collect import collected, guarded
from rackwell.probe.p2p.flows import Flow, sampled
from rackwell.probe.p2p.gpus import MAX_PEERS, Machine, opened
from rackwell.probe.p2p.work import SIZE
from rackwell.probe.steps import step

PATTERNS = ("one-to-all", "all-to-one", "all-to-all", "switch-writes", "switch-reads")
#: of a quick look: those in which a collapse shows
QUICK = ("all-to-all", "switch-writes", "switch-reads")
_SAMPLES, _QUICK_SAMPLES = 3, 2
# longer than a pair's: with many flows each one is slow
_LENGTH = 0.030
_ALIGNED = 4096

Route = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Flows that run at once: ``op`` as in a :class:`Flow`, ``routes`` = (source, target) of each."""

    name: str
    op: str
    routes: tuple[Route, ...]


def measure(arguments: Mapping[str, Any], deadline: float, findings: Collection[str] = ()) -> dict[str, Any]:
    """The part ``concurrent`` of ``measurements["p2p"]``, with ``errors``, ``state``, ``at``, ``describe`` and so on.

    Args:
        arguments: ``size`` (bytes of a buffer), ``samples``, ``quick``, ``patterns`` (of PATTERNS; None = as the mode
            wants), ``switches`` ([[indices of the GPUs of one switch], …]), ``roots`` ({str(index): root port}; without
            them the patterns of switches are left out). All may be left out.
        deadline: seconds for everything.
        findings: what was seen around the driver.
    """
    outcome = child.run("rackwell.probe.p2p.concurrent:work", dict(arguments), deadline)
    return collected(outcome, findings, ("concurrent", "data"))


def work(emit: Emit, arguments: dict[str, Any]) -> None:
    """The child's part."""
    guarded(emit, lambda: exercise(emit, arguments, load))


def exercise(emit: Emit, arguments: Mapping[str, Any], loader: Callable[[], Driver]) -> None:
    """Run every pattern that this machine has."""
    quick = bool(arguments.get("quick"))
    names = arguments.get("patterns") or (QUICK if quick else PATTERNS)
    samples = arguments.get("samples") or (_QUICK_SAMPLES if quick else _SAMPLES)
    with step(emit, "load", pair=None):
        driver = loader()
    with opened(emit, driver, arguments.get("size") or SIZE) as machine:
        # more GPUs than one may have peers cannot all talk at once in one process
        count = min(len(machine.gpus), MAX_PEERS + 1)
        chosen = [
            pattern
            for pattern in patterns(count, arguments.get("switches") or [], arguments.get("roots") or {})
            if pattern.name in names
        ]
        for pattern in chosen:
            with step(emit, f"{pattern.name} {pattern.op}", pair=None):
                for event in _measured(machine, pattern, samples):
                    emit(event)


def patterns(count: int, switches: Sequence[Sequence[int]], roots: Mapping[str, str | None]) -> list[Pattern]:
    """Every pattern of ``count`` GPUs, write and read; one entry a GPU, or a switch, that it turns on."""
    everyone = range(count)
    found = []
    for op in ("write", "read"):
        for one in everyone:
            others = [index for index in everyone if index != one]
            found.append(Pattern("one-to-all", op, tuple((one, other) for other in others)))
            found.append(Pattern("all-to-one", op, tuple((other, one) for other in others)))
        found.append(Pattern("all-to-all", op, tuple((s, t) for s in everyone for t in everyone if s != t)))
    for members in switches:
        routes = across_roots([index for index in members if index < count], everyone, roots)
        if len(routes) > 1:
            found += [Pattern("switch-writes", "write", routes), Pattern("switch-reads", "read", routes)]
    return [pattern for pattern in found if pattern.routes]


def across_roots(members: Sequence[int], everyone: Sequence[int], roots: Mapping[str, str | None]) -> tuple[Route, ...]:
    """Each GPU of a switch to one behind another root port than its own: as many roots as can be, no GPU twice.

    Posted writes from one switch to several root ports are what stalls; reads over the same routes are not affected.
    """
    free: dict[str, list[int]] = {}
    for index in everyone:
        root = roots.get(str(index))
        if root and index not in members:
            free.setdefault(root, []).append(index)
    routes, uses = [], dict.fromkeys(free, 0)
    for member in members:
        own = roots.get(str(member))
        choice = [root for root, left in free.items() if left and own and root != own]
        if choice:
            root = min(choice, key=lambda name: uses[name])
            uses[root] += 1
            routes.append((member, free[root].pop(0)))
    return tuple(routes)


def _measured(machine: Machine, pattern: Pattern, samples: int) -> Iterator[dict[str, Any]]:
    """Events: one ``concurrent``, and a ``data`` for each flow that brought wrong bytes."""
    flows, seeds = flows_of(machine, pattern)
    if not flows:
        return
    poisons = [verify.poisoned(flow.target, flow) for flow in flows]
    speeds = sampled(machine, flows, samples, _LENGTH)
    wrong = []
    for flow, seed, poison in zip(flows, seeds, poisons, strict=True):
        found = verify.compared(flow, seed, poison)
        if not found.ok:
            wrong.append(verify.row(flow, seed, found))
    # the same number of bytes for all, so the slowest one says when everything was there
    totals = [len(flows) * min(sample) for sample in speeds]
    yield {
        "concurrent": {
            "pattern": pattern.name,
            "op": pattern.op,
            "flows": [[flow.source.index, flow.target.index] for flow in flows],
            "flow_gb_per_s": [round(statistics.median(values), 3) for values in zip(*speeds, strict=True)],
            "samples": [round(total, 3) for total in totals],
            "gb_per_s": round(statistics.median(totals), 3),
            "verified": not wrong,
        }
    }
    for row in wrong:
        yield {"data": row}


def flows_of(machine: Machine, pattern: Pattern) -> tuple[list[Flow], list[int]]:
    """The flows, all of one size, each to a part of the target's buffer that is its own; and the seed of each."""
    routes = [
        (machine.gpus[source], machine.gpus[target])
        for source, target in pattern.routes
        if machine.can_reach(machine.gpus[source], machine.gpus[target])
    ]
    for source, target in routes:
        machine.connect(source, target)
    taken: dict[int, int] = {}
    places = []
    for _, target in routes:
        places.append(taken.get(target.index, 0))
        taken[target.index] = places[-1] + 1
    size = machine.size // max(taken.values(), default=1) // _ALIGNED * _ALIGNED
    flows, seeds = [], []
    for (source, target), place in zip(routes, places, strict=True):
        offset = place * size
        flows.append(Flow(source, target, "copy", pattern.op, size, source.source + offset, target.target + offset))
        seeds.append(further(source.seed, offset))
    return flows, seeds
