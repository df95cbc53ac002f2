# SPDX-License-Identifier: Apache-2.0
"""The baseline: whether it fits, and that it neither cries wolf nor sleeps.

RACKWELL_MODEL_RUNS sets how many simulated runs are held against it.
"""

from __future__ import annotations

import json
import os
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulated import Machine, codes, record

from rackwell.probe import baseline, regression
from rackwell.probe.regression import student

RUNS = int(os.environ.get("RACKWELL_MODEL_RUNS", "48"))
PAIRS = Machine().topology.pairs()
NOISES: dict[str, dict[str, Any]] = {
    "each sample": {"sample_noise": 0.03},
    "each run": {"run_noise": 0.03},
}


@pytest.fixture(scope="module", params=NOISES)
def noisy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A baseline recorded under 3 % noise, and that noise."""
    noise = NOISES[request.param]
    path = tmp_path_factory.mktemp("baseline") / "gpu.json"
    return record(path, machine=lambda seed: Machine(seed, **noise)), noise


# --- no false alarm, no sleep -----------------------------------------------------------------------------------


def test_healthy_runs_raise_no_alarm(noisy: tuple[Path, dict[str, Any]]) -> None:
    path, noise = noisy
    alarms = {}
    for seed in range(RUNS):
        report = Machine(10_000 + seed, **noise).check(baseline=path)
        if report["verdict"] != "pass":
            alarms[seed] = codes(report)
    assert alarms == {}


def test_a_link_eight_percent_slower_is_found(noisy: tuple[Path, dict[str, Any]]) -> None:
    path, noise = noisy
    slow = {pair: 0.92 for pair in PAIRS if 2 in pair}
    found = [codes(Machine(20_000 + seed, slow=slow, **noise).check(baseline=path)) for seed in range(RUNS // 2)]
    assert sum(1 for of in found if of == ["link-below-baseline"]) >= 0.95 * len(found)
    assert {code for of in found for code in of} == {"link-below-baseline"}


def test_so_is_what_it_sends_alone(noisy: tuple[Path, dict[str, Any]]) -> None:
    path, noise = noisy
    slow = {pair: 0.88 for pair in PAIRS if pair[0] == 2}
    report = Machine(30_000, slow=slow, **noise).check(baseline=path)
    assert codes(report) == ["link-below-baseline"]
    assert report["findings"][0]["gpus"] == [2]
    assert report["findings"][0]["basis"] == "baseline"


def test_one_pair_eight_percent_slower_is_found_where_samples_scatter(tmp_path: Path) -> None:
    noise = NOISES["each sample"]
    path = record(tmp_path / "gpu.json", machine=lambda seed: Machine(seed, **noise))
    slow = {(2, 5): 0.92, (5, 2): 0.92}
    found = [codes(Machine(40_000 + seed, slow=slow, **noise).check(baseline=path)) for seed in range(40)]
    assert found.count(["p2p-below-baseline"]) >= 38


def test_one_pair_is_not_told_as_its_gpus_link(tmp_path: Path) -> None:
    path = record(tmp_path / "gpu.json", machine=lambda seed: Machine(seed, sample_noise=0.01))
    report = Machine(5, slow={(2, 5): 0.85, (5, 2): 0.85}, sample_noise=0.01).check(baseline=path)
    # 0.85 of 38.2 GB/s is above the floor, and pulls the mean over 14 pairs down by 2 %
    assert codes(report) == ["p2p-below-baseline"]
    assert report["findings"][0]["pairs"] == [[2, 5], [5, 2]]


def test_a_quiet_machine_still_needs_five_percent(tmp_path: Path) -> None:
    path = record(tmp_path / "gpu.json")
    for factor, expected in ((0.96, []), (0.94, ["p2p-below-baseline"])):
        assert codes(Machine(slow={(2, 5): factor, (5, 2): factor}).check(baseline=path)) == expected


def test_an_alarm_needs_the_repetition(tmp_path: Path) -> None:
    """What is slow once and not again is no finding."""
    path = record(tmp_path / "gpu.json")

    class Once(Machine):
        def measure_pairs(self, *args: Any) -> dict[str, Any]:
            first = not any(name == "pairs" for name, _ in self.calls)
            self.slow = {(2, 5): 0.8} if first else {}
            return super().measure_pairs(*args)

    machine = Once()
    assert codes(machine.check(baseline=path)) == []
    again = [arguments for name, arguments in machine.calls if name == "pairs"][1]
    assert [2, 5] in again["pairs"]
    assert again["samples"] > 5


def test_concurrency_and_allreduce_below_the_baseline(tmp_path: Path) -> None:
    path = record(tmp_path / "gpu.json")
    assert codes(Machine(link=45.0).check(baseline=path)) == ["concurrent-below-baseline"]

    class Slower(Machine):
        def reduce(self, *args: Any) -> dict[str, Any]:
            told = super().reduce(*args)
            for point in told["points"]:
                point["busbw"] *= 0.8
            return told

    assert codes(Slower().check(baseline=path)) == ["allreduce-below-baseline"]


def test_latency_above_the_baseline(tmp_path: Path) -> None:
    path = record(tmp_path / "gpu.json")
    report = Machine(latency=0.9).check(baseline=path)
    assert codes(report) == ["p2p-below-baseline"]
    assert report["findings"][0]["unit"] == "us"


def test_below_the_floor_is_not_told_twice(tmp_path: Path) -> None:
    path = record(tmp_path / "gpu.json")
    report = Machine(slow={(2, 3): 0.33, (3, 2): 0.33}).check(baseline=path)
    assert codes(report) == ["p2p-slow-pair"]
    follows = {entry["code"] for entry in report["findings"][0]["consequences"]}
    assert follows == {"p2p-below-baseline", "allreduce-below-baseline"}
    report = Machine(generation={3: 2}).check(baseline=path)
    assert codes(report) == ["link-generation"]


def test_the_quick_check_compares_what_it_measured(tmp_path: Path) -> None:
    path = record(tmp_path / "gpu.json")
    slow = {pair: 0.85 for pair in PAIRS if pair[1] == pair[0] + 1}
    assert codes(Machine(slow=slow).check(mode="quick", baseline=path)) == ["p2p-below-baseline"]
    assert codes(Machine().check(mode="quick", baseline=path)) == []


# --- the statistics ---------------------------------------------------------------------------------------------


def test_the_spread_is_that_between_runs() -> None:
    rng = random.Random(3)
    runs = [{f"p2p/copy/write/1/a{i}/b{i}": 50 * rng.gauss(1, 0.02) for i in range(200)} for _ in range(5)]
    values, pooled = regression.record(runs)
    assert pooled["p2p/copy/write/1"] == pytest.approx(0.02, rel=0.15)
    assert values["p2p/copy/write/1/a0/b0"]["mean"] == pytest.approx(
        statistics.fmean(run["p2p/copy/write/1/a0/b0"] for run in runs)
    )
    assert values["p2p/copy/write/1/a0/b0"]["n"] == 5


def test_a_key_that_a_run_lacks_is_left_out() -> None:
    values, _ = regression.record([{"concurrent/x/write": 1.0, "concurrent/y/write": 2.0}, {"concurrent/x/write": 1.1}])
    assert set(values) == {"concurrent/x/write"}


@pytest.mark.parametrize(("freedom", "expected"), [(8, 5.62), (20, 4.33), (224, 3.56), (1e9, 3.5)])
def test_students_t(freedom: float, expected: float) -> None:
    """Quantiles of t where the normal distribution has 3.5; from the incomplete beta function."""
    assert student(3.5, freedom) == pytest.approx(expected, rel=0.05)


def test_latency_is_worse_when_it_is_more() -> None:
    recorded = {"latency/remote-read/a/b": {"mean": 1.0, "sd": 0.0, "n": 5}}
    slow = regression.suspects({"latency/remote-read/a/b": 1.2}, recorded, {"latency/remote-read": 0.001})
    fast = regression.suspects({"latency/remote-read/a/b": 0.8}, recorded, {"latency/remote-read": 0.001})
    assert [loss.loss for loss in slow] == [pytest.approx(0.2)]
    assert fast == []


# --- fit --------------------------------------------------------------------------------------------------------


def test_a_baseline_of_this_machine_is_used(tmp_path: Path) -> None:
    path = record(tmp_path / "gpu.json")
    report = Machine(seed=9).check(baseline=path)
    assert report["baseline"]["state"] == "used"
    assert report["baseline"]["recorded"] == "2026-11-30T00:00:00Z"
    assert report["baseline"]["differences"] == []
    assert len(report["baseline"]["digest"]) == 64


def test_none_is_no_fault(tmp_path: Path) -> None:
    report = Machine().check(baseline=tmp_path / "none.json")
    assert report["baseline"]["state"] == "absent"
    assert report["verdict"] == "pass"


@pytest.mark.parametrize(
    ("machine", "code", "fact"),
    [
        (Machine(number=2), "baseline-foreign", "gpu"),
        (Machine(facts={"board": "OTHER"}), "baseline-foreign", "board"),
        (Machine(facts={"kernel": "6.17.20-1-pve"}), "baseline-outdated", "kernel"),
        (Machine(facts={"bios_version": "1301"}), "baseline-outdated", "bios_version"),
        (Machine(surroundings={"kernel_module_version": "610.43.03"}), "baseline-outdated", "driver_version"),
        (Machine(links={"gen_gpu_max": 4}), "baseline-outdated", "link of 0000:06:00.0"),
    ],
)
def test_what_no_longer_fits_is_refused(tmp_path: Path, machine: Machine, code: str, fact: str) -> None:
    path = record(tmp_path / "gpu.json")
    if "driver" in fact:  # the container's libraries were brought along
        machine.surroundings["library_version"] = "610.43.03"
        machine.cuda["user_space_version"] = "610.43.03"
    report = machine.check(baseline=path)
    assert codes(report) == [code]
    assert report["verdict"] == "degraded"
    assert report["baseline"]["state"] == "refused"
    assert fact in [difference["fact"] for difference in report["baseline"]["differences"]]


def test_a_refused_baseline_is_not_used(tmp_path: Path) -> None:
    path = record(tmp_path / "gpu.json")
    slow = dict.fromkeys(PAIRS, 0.88)
    assert codes(Machine(slow=slow, number=2).check(baseline=path)) == ["baseline-foreign"]


def test_a_boot_of_the_same_machine_fits(tmp_path: Path) -> None:
    """Another boot id and other minors are what a reboot brings."""
    path = record(tmp_path / "gpu.json")
    assert codes(Machine(facts={"boot_id": "another"}).check(baseline=path)) == []


def test_a_machine_that_lacks_a_gpu_is_still_this_machine(tmp_path: Path) -> None:
    path = record(tmp_path / "gpu.json")
    report = Machine(gone=(7,), slow={(0, 1): 0.85, (1, 0): 0.85}).check(baseline=path)
    assert codes(report) == ["gpu-missing", "p2p-below-baseline"]


def _cut(content: str) -> str:
    return content[: len(content) // 2]


def _edited(content: str) -> str:
    whole = json.loads(content)
    key = next(iter(whole["values"]))
    whole["values"][key]["mean"] *= 0.5
    return json.dumps(whole)


def _without_machine(content: str) -> str:
    whole = {key: value for key, value in json.loads(content).items() if key != "machine"}
    return json.dumps({**whole, "digest": baseline.digest(whole)})


def _not_a_number(content: str) -> str:
    whole = json.loads(content)
    whole["values"][next(iter(whole["values"]))]["mean"] = "fast"
    return json.dumps({**whole, "digest": baseline.digest(whole)})


@pytest.mark.parametrize(
    "damage",
    [_cut, _edited, _without_machine, _not_a_number, lambda _: "", lambda _: "[]", lambda _: '{"schema": "other/1"}'],
)
def test_a_damaged_baseline_is_refused(tmp_path: Path, damage: Callable[[str], str]) -> None:
    path = record(tmp_path / "gpu.json")
    path.write_text(damage(path.read_text()))
    report = Machine().check(baseline=path)
    assert codes(report) == ["baseline-damaged"]
    assert report["baseline"]["state"] == "refused"


def test_a_directory_is_no_baseline(tmp_path: Path) -> None:
    assert codes(Machine().check(baseline=tmp_path)) == ["baseline-damaged"]


def test_writing_replaces_in_one_step(tmp_path: Path) -> None:
    path = record(tmp_path / "gpu.json")
    content = json.loads(path.read_text())
    target = tmp_path / "other.json"
    target.write_text("old")
    baseline.write(target, content)
    assert json.loads(target.read_text()) == content
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["gpu.json", "other.json"]
