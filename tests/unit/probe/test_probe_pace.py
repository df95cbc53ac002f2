# SPDX-License-Identifier: Apache-2.0
"""Reading the GPUs keeps to its budget, whatever a reading costs, and nothing starves."""

from __future__ import annotations

from typing import Any

import pytest

from rackwell.probe.pace import BUDGET, Pace


class Gpus:
    """GPUs of which each call costs so many CPU seconds; counts what was read."""

    def __init__(self, count: int, call: float) -> None:
        self.count = count
        self.call = call
        self.used = 0.0
        self.reads: dict[tuple[str, int], int] = {}

    def _read(self, kind: str, gpu: int, calls: int) -> dict[str, Any]:
        self.used += calls * self.call
        self.reads[kind, gpu] = self.reads.get((kind, gpu), 0) + 1
        return {}

    def power(self, gpu: int) -> dict[str, Any]:
        return {**self._read("power", gpu, 1), "power_w": 250.0}

    def use(self, gpu: int) -> dict[str, Any]:
        return {**self._read("use", gpu, 2), "energy_mj": 1}

    def state(self, gpu: int) -> dict[str, Any]:
        return {**self._read("state", gpu, 6), "sm_clock_mhz": 2400}


def run(count: int, call: float, hz: float = 5.0, seconds: float = 120.0) -> tuple[Gpus, list[list[dict[str, Any]]]]:
    gpus = Gpus(count, call)
    pace = Pace(gpus, hz, clock=lambda: gpus.used)
    samples, now = [pace.full()], 0.0
    gpus.used, gpus.reads = 0.0, {}
    while now < seconds:
        samples.append(pace.usual())
        now += pace.pause()
    return gpus, samples


def test_cheap_readings_are_all_taken_each_time() -> None:
    _, samples = run(8, 10e-6)
    assert len(samples) == pytest.approx(600, abs=2)
    assert all(None not in (gpu["power_w"], gpu["energy_mj"], gpu["sm_clock_mhz"]) for s in samples for gpu in s)


@pytest.mark.parametrize("hz", [5.0, 10.0])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_dear_readings_keep_to_the_budget_and_each_has_its_turn(count: int, hz: float) -> None:
    """0.4 ms a call: an H200's."""
    gpus, samples = run(count, 0.4e-3, hz)
    assert gpus.used / 120 < BUDGET * 1.1
    # power is in each sample, of every GPU, several times a second
    assert all(gpu["power_w"] is not None for sample in samples for gpu in sample)
    assert len(samples) > 120 * 2.5
    for gpu in range(count):
        assert gpus.reads["use", gpu] > 20
        assert gpus.reads["state", gpu] > 3


def test_of_no_gpu_there_is_nothing_to_read() -> None:
    pace = Pace(Gpus(0, 1.0), 5.0)
    assert (pace.full(), pace.usual(), pace.pause()) == ([], [], 0.2)
