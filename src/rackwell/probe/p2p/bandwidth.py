# SPDX-License-Identifier: Apache-2.0
"""GB/s of a pair, one way and both ways at once, and of a GPU's own memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from rackwell.probe.p2p import verify
from rackwell.probe.p2p.flows import Flow, sampled, whole
from rackwell.probe.p2p.gpus import Gpu, Machine


def one_way(machine: Machine, source: Gpu, target: Gpu, engine: str, op: str, samples: int) -> Iterator[dict[str, Any]]:
    """Events: one ``bandwidth``, and a ``data`` if what the timed copies brought is wrong."""
    yield from _measured(machine, [whole(source, target, engine, op, machine.size)], samples)


def two_way(machine: Machine, one: Gpu, other: Gpu, engine: str, op: str, samples: int) -> Iterator[dict[str, Any]]:
    """As :func:`one_way` for both directions while both run."""
    flows = [whole(one, other, engine, op, machine.size), whole(other, one, engine, op, machine.size)]
    yield from _measured(machine, flows, samples)


def _measured(machine: Machine, flows: list[Flow], samples: int) -> Iterator[dict[str, Any]]:
    poisons = [verify.poisoned(flow.target, flow) for flow in flows]
    speeds = sampled(machine, flows, samples)
    for number, flow in enumerate(flows):
        values = [sample[number] for sample in speeds]
        yield {
            "bandwidth": {
                "src": flow.source.index,
                "dst": flow.target.index,
                "engine": flow.engine,
                "op": flow.op,
                "ways": len(flows),
                "samples": [round(value, 3) for value in values],
                "gb_per_s": round(statistics.median(values), 3),
            }
        }
    for flow, poison in zip(flows, poisons, strict=True):
        found = verify.compared(flow, flow.source.seed, poison)
        if not found.ok:
            yield {"data": verify.row(flow, flow.source.seed, found)}


def own_memory(machine: Machine, gpu: Gpu, samples: int) -> dict[str, Any]:
    """An entry of ``memory``: bytes read and bytes written of a copy within the GPU."""
    speeds = sampled(machine, [whole(gpu, gpu, "kernel", "write", machine.size)], samples)
    return {"gpu": gpu.index, "gb_per_s": round(2 * statistics.median(sample[0] for sample in speeds), 1)}
