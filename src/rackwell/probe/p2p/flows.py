# SPDX-License-Identifier: Apache-2.0
"""Bytes on their way: one or many flows at once, and the time that each of them took.

All flows of a sample are put into their streams behind a kernel that waits for a flag in host memory, and start when
the host sets it: the time has none of the cost of putting them there. The GPUs' own events measure it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rackwell.probe.p2p.gpus import Gpu, Lane, Machine

#: how long a sample shall take, seconds: long beside what an event adds (a few us), short for the many that there are
SAMPLE = 0.010
#: copies in the sample that tells how many there shall be; it also wakes links that sleep
_TRIAL = 2
_MOST = 64


@dataclasses.dataclass(frozen=True)
class Flow:
    """``size`` bytes from ``source``'s memory at ``start`` to ``target``'s at ``to``, again and again.

    ``engine`` is ``copy`` or ``kernel``, ``op`` is ``write`` or ``read``; both GPUs may be the same.
    """

    source: Gpu
    target: Gpu
    engine: str
    op: str
    size: int
    start: int
    to: int

    @property
    def runner(self) -> Gpu:
        """The GPU whose engine moves the bytes."""
        return self.source if self.op == "write" else self.target

    def enqueue(self, lane: Lane, copies: int) -> None:
        """Put the copies into the stream; the runner's context is current."""
        if self.engine == "kernel":
            self.runner.kernels.copy(self.to, self.start, self.size, copies, lane.stream)
            return
        for _ in range(copies):
            self.runner.driver.copy(self.to, self.start, self.size, lane.stream)


def whole(source: Gpu, target: Gpu, engine: str, op: str, size: int) -> Flow:
    """The flow of one whole buffer into another."""
    return Flow(source, target, engine, op, size, source.source, target.target)


def once(machine: Machine, flows: Sequence[Flow], copies: Sequence[int]) -> list[float]:
    """Let the flows run at once; seconds of each."""
    work = [
        (flow.runner, lambda lane, flow=flow, count=count: flow.enqueue(lane, count))
        for flow, count in zip(flows, copies, strict=True)
    ]
    return timed(machine, work)


def timed(machine: Machine, work: Sequence[tuple[Gpu, Callable[[Lane], None]]]) -> list[float]:
    """Put each piece of work into a stream of its GPU, let all go at once; seconds that each took."""
    driver = machine.driver
    lanes = _lanes([gpu for gpu, _ in work])
    machine.flag.set(0)
    try:
        for (gpu, put), (_, lane) in zip(work, lanes, strict=True):
            gpu.use()
            gpu.kernels.spin(machine.flag, lane.stream)
            driver.record(lane.start, lane.stream)
            put(lane)
            driver.record(lane.end, lane.stream)
    finally:
        machine.flag.set(1)  # whatever went wrong: nothing may be left waiting
    seconds = []
    for gpu, lane in lanes:
        gpu.use()
        # an event has a resolution of half a microsecond
        seconds.append(max(driver.milliseconds(lane.start, lane.end), 5e-4) / 1e3)
    return seconds


def _lanes(gpus: Sequence[Gpu]) -> list[tuple[Gpu, Lane]]:
    """A lane for each entry, another one where a GPU stands there again; made before anything waits in one."""
    used: dict[int, int] = {}
    lanes = []
    for gpu in gpus:
        gpu.use()
        number = used.get(gpu.index, 0)
        used[gpu.index] = number + 1
        lanes.append((gpu, gpu.lane(number)))
    return lanes


def sampled(machine: Machine, flows: Sequence[Flow], samples: int, length: float = SAMPLE) -> list[list[float]]:
    """GB/s of each flow in each sample: first index = sample."""
    trial = once(machine, flows, [_TRIAL] * len(flows))
    copies = [max(1, min(_MOST, round(length * _TRIAL / seconds))) for seconds in trial]
    if len(flows) > 1:  # flows that end early would leave the others alone
        copies = [max(1, min(copies))] * len(flows)
    found = []
    for _ in range(samples):
        times = once(machine, flows, copies)
        found.append([count * flow.size / time / 1e9 for flow, count, time in zip(flows, copies, times, strict=True)])
    return found
