# SPDX-License-Identifier: Apache-2.0
"""Pairs below the floor of their link class, and what their pattern says of the cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from rackwell.probe.findings import FLOOR, Finding, make, pair_names
from rackwell.probe.judge.context import Context, figures
from rackwell.probe.judge.pairs import pair_of
from rackwell.probe.topology import CROSS_SOCKET, Pair

#: this part of a set of pairs must be slow before the set as a whole is called slow
MOST = 0.75


@dataclasses.dataclass(frozen=True)
class Slow:
    """The worst figure of a pair that is below its floor."""

    pair: Pair
    gb_per_s: float
    floor: float
    how: str  # "copy write", "kernel read both ways"

    @property
    def share(self) -> float:
        return self.gb_per_s / self.floor


def slow_pairs(context: Context) -> dict[Pair, Slow]:
    """Pairs with a figure below its floor, in the measurement and in its repetition where there is one."""
    again = figures((context.repetition.get("p2p") or {}).get("bandwidth") or ())
    found: dict[Pair, Slow] = {}
    first = figures(context.p2p.get("bandwidth") or ())
    for (pair, engine, op, ways), once in {**again, **first}.items():
        floor = context.floors.bandwidth(pair, engine, ways)
        figure = max(once, again.get((pair, engine, op, ways), once))
        if floor and figure < floor:
            how = f"{engine} {op}" + (" both ways" if ways == 2 else "")
            candidate = Slow(pair, figure, floor, how)
            if pair not in found or candidate.share < found[pair].share:
                found[pair] = candidate
    return found


def below_floor(context: Context, bad_links: set[int]) -> Iterator[Finding]:
    """The slow pairs, each under the widest pattern that explains it; ``bad_links`` = GPUs whose link has a fault."""
    slow = slow_pairs(context)
    parts = (context.p2p, context.repetition.get("p2p") or {})
    measured = {pair_of(entry) for part in parts for entry in part.get("bandwidth") or ()}
    left = set(slow)
    for gpu in sorted(bad_links):
        yield from _take(context, slow, left, "p2p-slow-gpu", {pair for pair in left if gpu in pair}, gpus=(gpu,))
    crossing = {pair for pair in measured if context.topology.crosses_root(*pair)}
    sockets = {pair for pair in measured if context.topology.link_class(*pair) == CROSS_SOCKET}
    within_socket = crossing - sockets
    if _most(sockets, left) and not _most(within_socket, left) and not _single_gpu(context, left, measured):
        yield from _take(context, slow, left, "p2p-slow-cross-socket", left & sockets)
    if _most(crossing, left) and len(crossing) > 2 and not _single_gpu(context, left, measured):
        yield from _take(context, slow, left, "p2p-slow-cross-root", left & crossing)
    for gpu in [gpu.index for gpu in context.topology.gpus]:
        for own in _links_of(gpu, measured):
            # with one pair only a link cannot be told from the pair
            if len(own) > 2 and _most(own, left):
                yield from _take(context, slow, left, "p2p-slow-gpu", left & own, gpus=(gpu,))
    # a direction is only called the slow one where the other was measured too
    both = {pair for pair in left if (pair[1], pair[0]) in left or (pair[1], pair[0]) not in measured}
    yield from _take(context, slow, left, "p2p-slow-pair", both)
    yield from _take(context, slow, left, "p2p-slow-direction", set(left))


def _links_of(gpu: int, measured: set[Pair]) -> Iterator[set[Pair]]:
    """What goes over one GPU's link: everything, then outwards, then inwards."""
    yield {pair for pair in measured if gpu in pair}
    yield {pair for pair in measured if pair[0] == gpu}
    yield {pair for pair in measured if pair[1] == gpu}


def _most(pairs: set[Pair], slow: set[Pair]) -> bool:
    return bool(pairs) and len(pairs & slow) >= MOST * len(pairs)


def _single_gpu(context: Context, slow: set[Pair], measured: set[Pair]) -> bool:
    """Whether one GPU alone explains all that is slow: with few GPUs its pairs are most of the crossing ones."""
    if len(context.topology.gpus) < 3:
        return False
    return any(
        all(gpu.index in pair for pair in slow) and _most({p for p in measured if gpu.index in p}, slow)
        for gpu in context.topology.gpus
    )


def _take(
    context: Context,
    slow: Mapping[Pair, Slow],
    left: set[Pair],
    code: str,
    taken: set[Pair],
    gpus: tuple[int, ...] = (),
) -> Iterator[Finding]:
    if not taken:
        return
    left -= taken
    pairs = sorted(taken)
    worst = min((slow[pair] for pair in pairs), key=lambda found: found.share)
    what = f"GPU {worst.pair[0]} -> {worst.pair[1]}: {worst.gb_per_s:.1f} GB/s {worst.how}, floor {worst.floor:.1f}"
    if len(pairs) > 1:
        what = f"{len(pairs)} pairs ({pair_names(pairs)}) are below their floor; worst {what}"
    yield make(
        code,
        what,
        context.names(gpus) if gpus else context.pairs(pairs),
        gpus=gpus,
        pairs=pairs,
        measured=round(worst.gb_per_s, 2),
        expected=round(worst.floor, 2),
        unit="GB/s",
        basis=FLOOR,
        fill={"bus_id": context.bus_id(gpus[0])} if gpus else None,
    )
