# SPDX-License-Identifier: Apache-2.0
"""Hosts on which a roll of a driver is not over: nothing on the host itself tells of it, and nothing there ends it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from rackwell.errors import RackwellError
from rackwell.rollout.rolls import load, places
from rackwell.rollout.state import Host, Result

#: how many rolls are read, the newest first: later ones stand on those before
NEWEST = 20


def waiting(state: Path) -> Iterator[tuple[str, str]]:
    """(host, what is told of it), of this site's own rolls."""
    settled: set[str] = set()
    for place in itertools.islice(places(state), NEWEST):
        with contextlib.suppress(RackwellError):
            roll = load(place)
            if not roll.plan.one_at_a_time:
                continue
            for host in roll.hosts.values():
                how = _how(host, roll.finished is None)
                if how and host.name not in settled:
                    yield host.name, f"{how} by roll {place.name} ({roll.plan.build}): rackwell resume {place.name}"
                if host.begun:
                    settled.add(host.name)


def _how(host: Host, going: bool) -> str:
    if host.held:
        return "held for your decision with the new driver, out of rotation,"
    if host.result is Result.LOST:
        return "given up, perhaps half-way and out of rotation,"
    if host.begun and host.result is None:
        return "being moved, or left half-way," if going else "left half-way"
    return ""
