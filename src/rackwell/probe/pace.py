# SPDX-License-Identifier: Apache-2.0
"""How much is read of the GPUs, and how often, so that reading stays cheap.

With drivers whose firmware does the work (Hopper and later) each reading waits busily for it: 0.4 ms of a core on an
H200, so that all of eight GPUs five times a second would use up a sixth of a core. Power is read each time; energy and
utilisation, which the driver sums up by itself, and then clocks, memory, temperature and throttling as often as the
budget has room for them, one GPU after the other; what was not read this time is None. Where power alone is too much,
samples come more rarely.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

#: share of one core that reading may use. What the recorder does beside it must fit below 2 % as well.
BUDGET = 0.012
#: how quickly the idea of what a reading costs follows what it did cost
_FOLLOW = 0.2

_NOTHING: dict[str, Any] = dict.fromkeys(
    (
        "power_w", "power_instant", "energy_mj", "utilization_pct", "memory_utilization_pct", "power_limit_w",
        "memory_used_mib", "temperature_c", "sm_clock_mhz", "memory_clock_mhz", "throttle_reasons",
    )
)  # fmt: skip


class Source(Protocol):
    """What is read: :class:`rackwell.probe.readings.Nvml`."""

    @property
    def count(self) -> int: ...
    def power(self, gpu: int) -> dict[str, Any]: ...
    def use(self, gpu: int) -> dict[str, Any]: ...
    def state(self, gpu: int) -> dict[str, Any]: ...


class Pace:
    """Reads samples within a budget.

    Args:
        hz: samples a second that are wanted. budget: share of one core. clock: CPU seconds of this thread.
    """

    def __init__(
        self, source: Source, hz: float, budget: float = BUDGET, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self.period = 1 / hz
        self._source = source
        self._budget = budget
        self._clock = clock
        self._cost = {"power": 0.0, "use": 0.0, "state": 0.0}  # of one GPU, CPU seconds
        self._next = {"use": 0, "state": 0}
        self._samples = 0
        self._usual = 0.0  # CPU seconds of a usual sample

    def full(self) -> list[dict[str, Any]]:
        """A sample with everything in it: the first one, and those at the edges of a window."""
        found = self._empty()
        for kind in self._cost:
            for gpu, reading in enumerate(found):
                self._read(kind, gpu, reading)
        return found

    def usual(self) -> list[dict[str, Any]]:
        """A sample with power, one more reading, and what else the budget of a period has room for."""
        began, found = self._clock(), self._empty()
        if not found:
            return found
        for gpu, reading in enumerate(found):
            self._read("power", gpu, reading)
        self._samples += 1
        # the slow ones must have their turn as well
        turn = "state" if self._samples % (len(found) + 1) == 0 else "use"
        self._go_on(turn, found)
        for kind in ("use", "state"):
            for _ in range(len(found) - (kind == turn)):
                if self._clock() - began + self._cost[kind] > self._budget * self.period:
                    break
                self._go_on(kind, found)
        self._usual = _follow(self._usual, self._clock() - began)
        return found

    def pause(self) -> float:
        """Seconds from one sample to the next."""
        return max(self.period, self._usual / self._budget)

    def _empty(self) -> list[dict[str, Any]]:
        return [{**_NOTHING} for _ in range(self._source.count)]

    def _go_on(self, kind: str, found: list[dict[str, Any]]) -> None:
        """Read the next GPU of this kind."""
        gpu = self._next[kind]
        self._read(kind, gpu, found[gpu])
        self._next[kind] = (gpu + 1) % len(found)

    def _read(self, kind: str, gpu: int, into: dict[str, Any]) -> None:
        before = self._clock()
        into.update(getattr(self._source, kind)(gpu))
        self._cost[kind] = _follow(self._cost[kind], self._clock() - before)


def _follow(known: float, found: float) -> float:
    """An idea of what something costs, after it did cost so much."""
    return found if known == 0 else known + _FOLLOW * (found - known)
