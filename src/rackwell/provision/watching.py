# SPDX-License-Identifier: Apache-2.0
"""Progress of a sweep for people: which point, what came out of it, how long the rest will take."""

from __future__ import annotations

import time
from pathlib import Path

from rackwell.ansible.events import Step
from rackwell.bench.result import BenchPoint
from rackwell.provision import sweeping
from rackwell.provision.progress import Progress
from rackwell.provision.sweeping import Clock, Planned

POINT_TASK = "Measure each point"
"""The task of role bench_client whose items are the points."""


class Watch:
    """Progress of a play whose items are points: tells of these itself, and passes on everything else.

    Args:
        repeats: how often the sweep is measured: with several, each point says which one it is of.
    """

    def __init__(self, progress: Progress, container: str, repeats: int) -> None:
        self.log: Path | None = progress.log
        self.safety = progress.safety
        self._progress = progress
        self._container = container
        self._repeats = repeats
        self._clock = Clock()
        self._todo: list[Planned] = []
        self._total = self._done = 0
        self._since = time.monotonic()

    def begin(self, batch: list[Planned]) -> None:
        """These points come next."""
        self._todo = list(batch)
        self._total, self._done = len(batch), 0

    def line(self, where: str, text: str) -> None:
        """As `Progress`."""
        self._progress.line(where, text)

    def detail(self, where: str, text: str) -> None:
        """As `Progress`."""
        self._progress.detail(where, text)

    def step(self, step: Step) -> None:
        """As `Progress`; the end of a point is told by `point`."""
        _, task, item = step.label.partition(POINT_TASK)
        if task and item:
            return
        self._progress.step(step)
        if task and not step.outcome:
            self._since = time.monotonic()
            self._next()

    def point(self, point: BenchPoint) -> None:
        """A point is there."""
        now = time.monotonic()
        planned = next((one for one in self._todo if one.key == sweeping.key_of(point)), None)
        if planned is None:
            return
        self._todo.remove(planned)
        self._done += 1
        if sweeping.begun(point):
            self._clock.took(planned.load, planned.num_prompts, now - self._since)
        told = (
            f"point {self._done} of {self._total}: {self._named(planned)}: {outcome(point)}, {now - self._since:.0f} s"
        )
        left = sweeping.told(self._clock.left(self._todo)) if self._todo else ""
        self._progress.line(self._container, "; ".join(filter(None, (told, left))))
        self._since = now
        self._next()

    def _next(self) -> None:
        if self._todo:
            told = f"point {self._done + 1} of {self._total}: {self._named(self._todo[0])} …"
            left = sweeping.told(self._clock.left(self._todo))
            self._progress.detail(self._container, f"{told} {left}".rstrip())

    def _named(self, planned: Planned) -> str:
        return f"{planned.load}{f', repeat {planned.repeat}' if self._repeats > 1 else ''}"


def outcome(point: BenchPoint) -> str:
    """A point in a few words."""
    rate = point.throughput
    figure = f"{rate.output_tok_per_s:,.0f} output tok/s" if rate is not None else point.status
    if point.valid:
        return figure
    why = point.reasons[0].what if point.reasons else "no reason is given"
    return f"{figure}, does not count: {why}" if rate is not None else f"{figure}: {why}"
