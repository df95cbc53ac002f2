# SPDX-License-Identifier: Apache-2.0
"""A report against a baseline: noise is no loss, a slow link is one, and an unfit baseline compares nothing."""

from __future__ import annotations

import random

import pytest

from rackwell.topology import compare
from rackwell.topology.baseline import Baseline
from rackwell.topology.report import GpuReport

from . import samples
from .conftest import report

NOISE = 0.03


def noisy(seed: int, slow: int | None = None) -> GpuReport:
    """A healthy machine measured once, with noise; all pairs of GPU `slow` 8 % slower."""
    raw = samples.healthy()
    dice = random.Random(seed)
    for row in raw["measurements"]["p2p"]["bandwidth"]:
        row["gb_per_s"] *= dice.gauss(1, NOISE) * (0.92 if slow in (row["src"], row["dst"]) else 1)
    for row in raw["measurements"]["p2p"]["latency"]:
        row["us"] *= dice.gauss(1, NOISE)
    return GpuReport.model_validate(raw)


@pytest.fixture
def rough() -> Baseline:
    """The healthy machine's figures, recorded with 3 % of noise."""
    return Baseline.model_validate(samples.baseline(noise=NOISE))


def test_the_same_report_did_not_change(baseline: Baseline) -> None:
    found = compare.compare(baseline, report("healthy"))
    assert (found.fits, found.verdict, found.missing) == (True, "pass", 0)
    assert all(abs(delta.change) < 0.02 for delta in found.values)


def test_noise_is_no_loss_and_a_slow_link_is_found(rough: Baseline) -> None:
    for seed in range(10):
        assert not [link.name for link in compare.compare(rough, noisy(seed)).links if link.worse]
    for seed in range(10):
        worse = {link.name for link in compare.compare(rough, noisy(seed, slow=4)).links if link.worse}
        assert worse == {"GPU 4 sends", "GPU 4 receives", "GPU 4 both ways"}


def test_a_gain_is_no_loss_and_a_longer_time_is_one(baseline: Baseline) -> None:
    raw = samples.healthy()
    for row in raw["measurements"]["p2p"]["bandwidth"]:
        row["gb_per_s"] *= 1.5
    assert compare.compare(baseline, GpuReport.model_validate(raw)).verdict == "pass"
    for row in raw["measurements"]["p2p"]["latency"]:
        row["us"] *= 1.5
    found = compare.compare(baseline, GpuReport.model_validate(raw))
    assert {delta.key.partition("/")[0] for delta in found.worse} == {"latency"}


def test_the_changes_as_a_matrix(baseline: Baseline) -> None:
    found = report("below-baseline")
    compared = compare.compare(baseline, found)
    changes = compare.changes(found, compared, "copy/write/1")
    assert changes[4][0] == pytest.approx(-8, abs=1.5)
    assert changes[0][1] == pytest.approx(0, abs=1.5)
    assert changes[3][3] is None
    assert set(compare.worse_pairs(compared)) == {pair for pair in samples.pairs() if 4 in pair}
    assert compared.worse[0].name.startswith("GPU 4 ")


def test_a_figure_that_was_not_measured_is_not_worse(baseline: Baseline) -> None:
    found = compare.compare(baseline, report("quick"))
    assert (found.verdict, found.missing) == ("pass", len(baseline.values) - 19)


def test_nothing_is_compared_with_a_baseline_that_does_not_fit(baseline: Baseline) -> None:
    raw = samples.healthy()
    raw["driver_version"] = "600.1"
    found = compare.compare(baseline, GpuReport.model_validate(raw))
    assert (found.code, found.verdict, found.values) == ("baseline-outdated", "not-measured", [])
    assert [difference.fact for difference in found.differences] == ["driver_version"]
    assert compare.compare(baseline, report("nvlink-pair")).code in {"baseline-outdated", "baseline-foreign"}


def test_figures_are_named_by_index(baseline: Baseline) -> None:
    names = {delta.name for delta in compare.compare(baseline, report("healthy")).values}
    assert "p2p/copy/write/1 GPU 2 to GPU 5" in names
    assert "latency/remote-read GPU 2 to GPU 5" in names
    assert not [name for name in names if "GPU-" in name]


def test_a_baseline_as_a_matrix(baseline: Baseline) -> None:
    found, named = compare.as_matrix(baseline)
    assert named is not None
    assert (found.count, len(named.known)) == (8, 56)
    assert compare.as_matrix(baseline.model_copy(update={"values": {}}))[1] is None
