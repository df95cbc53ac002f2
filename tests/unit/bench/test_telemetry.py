# SPDX-License-Identifier: Apache-2.0
"""Only what lies inside the measured window counts."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import bench_clients, bench_clock, bench_telemetry

from .conftest import ORIGIN, record


def step(t: float, _gpu: int) -> float:
    """88 W idle, 250 W from second 10 to second 40."""
    return 250.0 if 10 <= t <= 40 else 88.0


@pytest.fixture
def reduced() -> dict[str, Any]:
    return bench_telemetry.reduce(record(step, seconds=60, start=9), ORIGIN + 10.0, 30.0)


def test_idle_before_and_after_the_load_is_not_counted(reduced: dict[str, Any]) -> None:
    for gpu in reduced["gpus"]:
        assert gpu["power_w"]["mean"] == pytest.approx(250.0)
        assert gpu["utilization_pct"]["mean"] == pytest.approx(97.0)
        assert gpu["power_limit_w"] == 600.0


def test_a_sample_after_the_load_would_say_otherwise() -> None:
    """The story's error: 14.5 % of the limit, read when the load was over."""
    after = bench_telemetry.reduce(record(step, seconds=60, start=9), ORIGIN + 45.0, 10.0)
    assert after["gpus"][0]["power_w"]["mean"] / 600.0 == pytest.approx(0.147, abs=0.003)


def test_energy_comes_from_the_counter(reduced: dict[str, Any]) -> None:
    assert {gpu["energy_source"] for gpu in reduced["gpus"]} == {"counter"}
    assert reduced["energy_j"] == pytest.approx(8 * 250 * 30, rel=0.01)


def test_energy_without_a_counter_is_the_integral_of_power() -> None:
    reduced = bench_telemetry.reduce(record(step, seconds=60, start=9, counter=False), ORIGIN + 10.0, 30.0)
    assert {gpu["energy_source"] for gpu in reduced["gpus"]} == {"power"}
    assert reduced["energy_j"] == pytest.approx(8 * 250 * 30, rel=0.001)


def test_a_long_run_travels_thin_and_keeps_its_mean() -> None:
    reduced = bench_telemetry.reduce(
        record(lambda t, _g: 100 + t / 10, seconds=900, start=0, gpus=1), ORIGIN + 0.0, 900.0
    )
    power = reduced["gpus"][0]["power_w"]
    assert len(reduced["t"]) == len(power["series"]) == bench_telemetry.MAX_SAMPLES
    assert reduced["samples"] == 4501
    assert sum(power["series"]) / len(power["series"]) == pytest.approx(power["mean"], abs=0.1)
    assert power["max"] == pytest.approx(190.0)


def test_fast_sampling_is_thinned_to_5_hz() -> None:
    reduced = bench_telemetry.reduce(record(step, seconds=20, start=9, hz=50, gpus=1), ORIGIN + 10.0, 10.0)
    assert (reduced["samples"], len(reduced["t"])) == (501, 50)


def test_unreadable_quantities_are_none_not_zero() -> None:
    raw = record(step, seconds=20, start=9, gpus=2)
    for sample in raw["samples"]:
        sample["gpus"][1]["power_w"] = None
        sample["gpus"][1]["energy_mj"] = None
    reduced = bench_telemetry.reduce(raw, ORIGIN + 10.0, 5.0)
    broken = reduced["gpus"][1]
    assert broken["power_w"]["mean"] is None
    assert set(broken["power_w"]["series"]) == {None}
    assert broken["energy_j"] is None
    assert reduced["energy_j"] is None


def test_no_nvml_gives_an_empty_telemetry() -> None:
    raw = {"telemetry": {"available": False, "why": "NVML: Driver Not Loaded"}}
    reduced = bench_telemetry.reduce(raw, 1.0, 5.0)
    assert (reduced["samples"], reduced["gpus"], reduced["energy_j"]) == (0, [], None)


def test_the_window_opens_when_the_client_starts_its_clock() -> None:
    """The client sleeps for a second between its start line and its clock."""
    raw = record(step, seconds=60, start=9)
    raw["lines"].append({"t": ORIGIN + 40.25, "text": "============ Serving Benchmark Result ============"})
    window = bench_clock.window_of(raw, {}, {}, bench_clients.Client("/"), 30.0)
    assert window is not None
    assert window["start"] == ORIGIN + 10.0
    assert window["uncertainty_s"] == 0.25
    assert window["start_utc"] == "2026-11-30T00:53:30.000Z"


def test_a_client_that_never_started_has_no_window() -> None:
    client = bench_clients.Client("/")
    assert bench_clock.window_of({"window_start": None}, {}, {}, client, 1.0) is None
    assert bench_clock.window_of(None, {}, {}, client, 1.0) is None
