# SPDX-License-Identifier: Apache-2.0
"""All hosts of a roll at a glance: phase, time in it, verdict."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rackwell.rollout import telling
from rackwell.rollout.state import Host, State


class _Row(NamedTuple):
    batch: int
    phase: str
    since: float
    verdict: str
    calm: bool


class Board:
    """Fed by the thread that carries the roll out, drawn by another.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: dict[str, _Row] = {}

    def take(self, record: Mapping[str, Any], state: State) -> None:
        """After a record: of one host, or of all when it names none."""
        name = str(record.get("host") or "")
        rows = dict(self._rows)
        for number, batch in enumerate(state.plan.batches, 1):
            for one in batch:
                if not name or one == name:
                    rows[one] = self._row(number, state.hosts[one], rows.get(one))
        self._rows = rows

    def _row(self, batch: int, host: Host, before: _Row | None) -> _Row:
        phase = telling.phase(host)
        since = before.since if before is not None and before.phase == phase else self._clock()
        if host.why and (host.trouble is not None or host.held):
            verdict = host.why
        else:
            verdict = f"bench {host.verdict}" if host.verdict is not None else ""
        calm = host.running is None and host.trouble is None and not host.held
        return _Row(batch, phase, since, verdict, calm)

    def lines(self, room: int = 20) -> list[str]:
        """One line a host; when there are more than `room`, those where something happens, and the others counted."""
        rows = list(self._rows.items())
        shown = rows
        if len(rows) > room:
            shown = [(name, row) for name, row in rows if not row.calm][: room - 1]
        names = {name for name, _row in shown}
        width = max((len(name) for name in names), default=0)
        now = self._clock()
        found = [
            f"{row.batch:>3}  {name:<{width}}  {row.phase:<28} {_duration(now - row.since):>7}  {row.verdict}".rstrip()
            for name, row in shown
        ]
        rest = Counter(row.phase for name, row in rows if name not in names)
        if rest:
            found.append("     and " + ", ".join(f"{count} {phase}" for phase, count in rest.most_common()))
        return found


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes else f"{rest} s"
