# SPDX-License-Identifier: Apache-2.0
"""How long it takes until a byte of another GPU's memory is there."""

from __future__ import annotations

import statistics
from typing import Any

from rackwell.probe.p2p.flows import timed
from rackwell.probe.p2p.gpus import Gpu, Lane, Machine

# A ring of pointers, each in a cache line of its own, over as much memory as one page has: the way to the other GPU
# counts, not the search for the page's address. These are nvbandwidth's numbers, so that the figures can be compared.
_RING, _STRIDE = 2 << 20, 128
_STEPS = 4000
_SMALL, _COPIES = 16, 100


def remote_read(machine: Machine, source: Gpu, target: Gpu, samples: int) -> dict[str, Any]:
    """``target`` follows a ring in ``source``'s memory, each sample on another of its multiprocessors: how far these
    are from the link differs.
    """
    nodes = min(_RING, machine.size) // _STRIDE
    source.use()
    # in the buffer that others write to: the pattern in the other one stays
    source.kernels.chain(source.target, nodes, _STRIDE)
    machine.driver.synchronize()
    values = []
    for number in range(samples):
        multiprocessor = number * target.kernels.multiprocessors // samples

        def chase(lane: Lane, multiprocessor: int = multiprocessor) -> None:
            target.kernels.chase(source.target, _STEPS, multiprocessor, lane.stream)

        values.append(timed(machine, [(target, chase)])[0] / _STEPS * 1e6)
    return _entry(source, target, "remote-read", values)


def arrived(machine: Machine, source: Gpu, target: Gpu) -> bool:
    """Whether the last :func:`remote_read` ended where it must: the pointers that it read were the right ones."""
    nodes = min(_RING, machine.size) // _STRIDE
    target.use()
    return target.kernels.chased()[1] == source.target + _STEPS % nodes * _STRIDE


def small_copy(machine: Machine, source: Gpu, target: Gpu, samples: int) -> dict[str, Any]:
    """The copy engine of ``source`` pushes a few bytes, many times one after the other."""

    def copy(lane: Lane) -> None:
        for _ in range(_COPIES):
            machine.driver.copy(target.target, source.source, _SMALL, lane.stream)

    timed(machine, [(source, copy)])
    values = [timed(machine, [(source, copy)])[0] / _COPIES * 1e6 for _ in range(samples)]
    return _entry(source, target, "copy", values)


def _entry(source: Gpu, target: Gpu, kind: str, values: list[float]) -> dict[str, Any]:
    return {
        "src": source.index,
        "dst": target.index,
        "kind": kind,
        "samples": [round(value, 4) for value in values],
        "us": round(statistics.median(values), 4),
    }
