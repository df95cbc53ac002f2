# SPDX-License-Identifier: Apache-2.0
"""Do the bytes arrive? What the driver says proves nothing: there are machines where it offers access, reports success
and drops the writes. So every copy is of a pattern that was never used before, to memory that holds a random poison,
and is compared word for word on the GPU that received it.
"""

from __future__ import annotations

import functools
from typing import Any

from rackwell.probe.data import fresh
from rackwell.probe.kernels import Comparison
from rackwell.probe.p2p.flows import Flow, once, timed, whole
from rackwell.probe.p2p.gpus import Gpu, Lane, Machine

#: engine and operation of the copies that are verified
COPIES = (("copy", "write"), ("copy", "read"), ("kernel", "write"), ("kernel", "read"))
_ADDITIONS = 64  # of each thread


def verify(machine: Machine, source: Gpu, target: Gpu, engine: str, op: str) -> dict[str, Any]:
    """One copy of everything, compared."""
    source.renew(machine.size)
    flow = whole(source, target, engine, op, machine.size)
    poison = poisoned(target, flow)
    once(machine, [flow], [1])
    return row(flow, source.seed, compared(flow, source.seed, poison))


def poisoned(target: Gpu, flow: Flow) -> int:
    """Spoil where the flow goes to; gives the value that stands there now."""
    poison = fresh()
    target.use()
    target.kernels.poison(flow.to, flow.size, poison)
    target.driver.synchronize()
    return poison


def compared(flow: Flow, seed: int, poison: int) -> Comparison:
    """What arrived, against the pattern of ``seed``."""
    flow.target.use()
    return flow.target.kernels.compare(flow.to, flow.size, seed, poison)


def row(flow: Flow, seed: int, found: Comparison) -> dict[str, Any]:
    """An entry of ``data``; ``wrong`` counts the bytes of all wrong words; with such ones the source is looked at."""
    intact = None
    if not found.ok:
        flow.source.use()
        intact = flow.source.kernels.compare(flow.start, flow.size, seed, 0).ok
    return {
        "src": flow.source.index,
        "dst": flow.target.index,
        "engine": flow.engine,
        "op": flow.op,
        "ok": found.ok,
        "bytes": flow.size,
        "wrong": found.wrong * 8,
        "first": found.first,
        "kind": found.kind,
        "source_intact": intact,
    }


def verify_atomics(machine: Machine, source: Gpu, target: Gpu) -> dict[str, Any]:
    """``source`` and ``target`` count on one counter in ``target``'s memory at the same time: nothing may be lost."""
    target.use()
    machine.driver.write(target.counter, bytes(8))
    added = []

    def add(gpu: Gpu, lane: Lane) -> None:
        added.append(gpu.kernels.add(target.counter, _ADDITIONS, lane.stream))

    timed(machine, [(gpu, functools.partial(add, gpu)) for gpu in (source, target)])
    target.use()
    missing = sum(added) - machine.driver.words(target.counter, 1)[0]
    return {
        "src": source.index,
        "dst": target.index,
        "engine": "kernel",
        "op": "atomic",
        "ok": missing == 0,
        "bytes": 8,
        "wrong": 0 if missing == 0 else 8,
        "first": None if missing == 0 else 0,
        "kind": None if missing == 0 else "other",
        "source_intact": None,
    }
