# SPDX-License-Identifier: Apache-2.0
"""Which points a sweep has, what is missing of one that was interrupted, and that no two share their prompts."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.filter import bench_points as collection

from rackwell.bench.result import BenchPoint, Reason, Throughput
from rackwell.provision import sweeping
from rackwell.provision.sweeping import Clock, Planned
from rackwell.site.benchfile import BenchProfile, Load

SWEEP: dict[str, Any] = {"concurrency": [1, 16], "input_tokens": [128, 512], "output_tokens": 64, "repeats": 3}


def sweep(**changes: Any) -> BenchProfile:
    return BenchProfile.model_validate({**SWEEP, **changes})


def measured(planned: Planned, seconds: float = 10.0, **changes: Any) -> BenchPoint:
    load = planned.load
    point = BenchPoint(
        concurrency=load.concurrency,
        num_prompts=planned.num_prompts,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        repeat=planned.repeat,
        seed=planned.seed,
        status="measured",
        valid=True,
        throughput=Throughput(
            duration_s=seconds, request_per_s=1, input_tok_per_s=1, output_tok_per_s=1, total_tok_per_s=2
        ),
    )
    return point.model_copy(update=changes)


def test_the_collection_and_the_command_line_measure_the_same() -> None:
    for content in (SWEEP, {"input_tokens": 1, "output_tokens": 1}, {**SWEEP, "seed": 7, "prompts_per_stream": 9}):
        planned = sweeping.plan(BenchProfile.model_validate(content), "run-1", [])
        assert [one.as_dict() for one in planned] == collection.bench_points(content, "run-1")


def test_no_two_points_repeats_or_runs_share_a_seed() -> None:
    seeds = [p.seed for salt in ("run-1", "run-2") for p in sweeping.plan(sweep(repeats=20), salt, [])]
    assert len(seeds) == 160
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_repeats_come_after_all_loads_so_that_a_drift_meets_every_load() -> None:
    planned = sweeping.plan(sweep(), "s", [])
    assert [one.repeat for one in planned] == [1] * 4 + [2] * 4 + [3] * 4
    assert planned[0].load == Load(128, 64, 1)


def test_only_what_is_missing_is_planned_and_a_crash_is_no_gap() -> None:
    every = sweeping.plan(sweep(), "s", [])
    done = [
        measured(every[0]),
        measured(every[1], status="crashed", valid=False, throughput=None),
        measured(every[2], status="failed", valid=False, throughput=None),
    ]
    assert sweeping.plan(sweep(), "s", done) == every[3:]


def test_a_point_that_never_reached_the_server_is_measured_when_the_sweep_goes_on() -> None:
    every = sweeping.plan(sweep(), "s", [])
    silent = measured(
        every[0], status="failed", valid=False, reasons=[Reason(code="server-not-reachable", what="no server answers")]
    )
    assert sweeping.plan(sweep(), "s", [silent]) == every


def test_a_point_that_is_over_too_soon_is_measured_again_with_prompts_for_the_time_and_so_are_its_repeats() -> None:
    short = sweep(min_seconds=60, concurrency=[16], input_tokens=128, repeats=2)
    first, *_ = sweeping.plan(short, "s", [])
    assert first.num_prompts == 64
    again, other = sweeping.plan(short, "s", [measured(first, seconds=10)])
    assert (again.repeat, other.repeat) == (1, 2)
    assert again.num_prompts == other.num_prompts >= 6 * 64
    assert again.num_prompts % 16 == 0
    assert len({first.seed, again.seed, other.seed}) == 3
    # once: should it still be too short, it stands
    assert sweeping.plan(short, "s", [measured(again, seconds=50)]) == [other]


def test_as_long_as_lengths_are_to_be_found_out_one_repeat_is_measured_at_a_time() -> None:
    every = sweeping.plan(sweep(min_seconds=5), "s", [])
    assert {one.repeat for one in sweeping.batch(sweep(min_seconds=5), every)} == {1}
    assert sweeping.batch(sweep(), every) == every


def test_the_time_left_follows_from_the_nearest_load() -> None:
    clock = Clock()
    every = sweeping.plan(sweep(repeats=1), "s", [])
    assert clock.left(every) is None
    clock.took(every[0].load, every[0].num_prompts, 8.0)
    clock.took(every[1].load, every[1].num_prompts, 20.0)
    assert clock.left(every[2:]) == pytest.approx(28.0)
    assert sweeping.told(28) == "about 28 s left"
    assert sweeping.told(60 * 12) == "about 12 min left"
    assert sweeping.told(3600 * 2) == "about 2.0 h left"
