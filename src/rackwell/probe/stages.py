# SPDX-License-Identifier: Apache-2.0
"""What measures: each stage a function that starts its own child, imported when it is needed.

A test puts its own in place of these, so that the order of the stages, the repetition and the judge can be tested
without a driver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from rackwell.probe import surroundings, sysfs
from rackwell.probe.surroundings import Surroundings
from rackwell.probe.topology import Topology

Plain = dict[str, Any]
Measure = Callable[[Mapping[str, Any], float, Collection[str]], Plain]


def _cuda(deadline: float, findings: Collection[str]) -> Plain:
    from rackwell.probe import cuda_check

    found: Plain = cuda_check.measure(deadline, findings)
    return found


def _pairs(arguments: Mapping[str, Any], deadline: float, findings: Collection[str]) -> Plain:
    from rackwell.probe.p2p import work

    return work.measure(arguments, deadline, findings)


def _concurrent(arguments: Mapping[str, Any], deadline: float, findings: Collection[str]) -> Plain:
    from rackwell.probe.p2p import concurrent

    return concurrent.measure(arguments, deadline, findings)


def _collectives(environment: Mapping[str, str], library: str | None, deadline: float, quick: bool) -> Plain:
    from rackwell.probe import collectives

    return collectives.measure(environment, library, deadline, quick)


def _before(topology: Topology, deadline: float) -> Plain:
    from rackwell.probe import links

    return links.before(topology, deadline)


def _after(
    state: Mapping[str, Any], load: Mapping[str, Any], deadline: float
) -> tuple[list[Plain], list[Plain], Plain]:
    from rackwell.probe import links

    return links.after(state, load, deadline)


def _nvlinks(state: Mapping[str, Any], bus_ids: list[str]) -> list[list[int]]:
    from rackwell.probe import links

    return links.nvlink_matrix(state, bus_ids)


@dataclasses.dataclass(frozen=True)
class Stages:
    """The measuring functions, in the order in which they run; deadlines are seconds."""

    surroundings: Callable[[], Surroundings] = surroundings.look
    tree: Callable[[], Topology] = sysfs.read
    before: Callable[[Topology, float], Plain] = _before
    nvlinks: Callable[[Mapping[str, Any], list[str]], list[list[int]]] = _nvlinks
    cuda: Callable[[float, Collection[str]], Plain] = _cuda
    pairs: Measure = _pairs
    concurrent: Measure = _concurrent
    collectives: Callable[[Mapping[str, str], str | None, float, bool], Plain] = _collectives
    after: Callable[[Mapping[str, Any], Mapping[str, Any], float], tuple[list[Plain], list[Plain], Plain]] = _after


def at(root: Path) -> Stages:
    """The stages of a machine whose /dev, /sys and /proc lie below ``root``."""

    def before(topology: Topology, deadline: float) -> Plain:
        from rackwell.probe import links

        return links.before(topology, deadline, root)

    return Stages(surroundings=lambda: surroundings.look(root), tree=lambda: sysfs.read(root), before=before)
