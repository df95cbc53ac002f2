# SPDX-License-Identifier: Apache-2.0
"""The bench gate of a roll, over the story's runs."""

from __future__ import annotations

import datetime as dt

from rackwell.bench.result import BenchResult
from rackwell.rollout import gate
from rackwell.rollout.steps import Outcome

from . import story_runs as story


def test_runs_of_anything_else_are_no_baseline(baseline: BenchResult) -> None:
    now = dt.datetime.fromisoformat(baseline.date_utc) + dt.timedelta(days=1)
    assert baseline.release is not None
    assert baseline.profile is not None
    release, profile = baseline.release.digest, baseline.profile.digest
    run = baseline.model_copy(update={"bench_digest": "sweep"})
    assert gate.baselines([run], release, profile, "sweep", now) == [run]
    for wrong in (("x", profile, "sweep"), (release, "x", "sweep"), (release, profile, "x")):
        assert gate.baselines([run], *wrong, now) == []
    later = now + dt.timedelta(days=gate.RECENT_DAYS)
    assert gate.baselines([run], release, profile, "sweep", later) == []


def test_the_newest_baseline_comes_first(baseline: BenchResult) -> None:
    now = dt.datetime.fromisoformat(baseline.date_utc) + dt.timedelta(days=1)
    assert baseline.release is not None
    assert baseline.profile is not None
    old = baseline.model_copy(update={"bench_digest": "sweep"})
    new = old.model_copy(update={"run_id": "new", "date_utc": now.isoformat()})
    found = gate.baselines([old, new], baseline.release.digest, baseline.profile.digest, "sweep", now)
    assert [run.run_id for run in found] == ["new", old.run_id]


def test_the_story_s_builds() -> None:
    same = gate.judge([story.autotune()], [story.autotune()], "", 0.05)
    assert same.outcome is Outcome.OK
    # faster by far, and a load of the baseline was not measured: a person is asked
    fewer = gate.judge([story.baseline()], [story.autotune()], "", 0.05)
    assert (fewer.outcome, "no valid point at 1 streams" in fewer.why) == (Outcome.INCONCLUSIVE, True)
    slower = gate.judge([story.autotune()], [story.fusion()], "", 0.05)
    assert (slower.outcome, slower.data["baseline"]) == (Outcome.FAIL, [story.autotune().run_id])
    assert slower.why


def test_nothing_measured_is_no_verdict(baseline: BenchResult) -> None:
    none = gate.judge([baseline], [], "the client starved", 0.05)
    assert (none.outcome, none.why) == (Outcome.INCONCLUSIVE, "the client starved")
    assert gate.judge([], [baseline], "", 0.05).outcome is Outcome.INCONCLUSIVE
