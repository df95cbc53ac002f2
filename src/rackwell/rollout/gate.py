# SPDX-License-Identifier: Apache-2.0
"""The bench gate of a roll: is what a host serves now slower than what it served before?"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from rackwell.bench.result import BenchResult
from rackwell.rollout.steps import Ended, Outcome

#: older runs say little about what the machine does today
RECENT_DAYS = 30
#: reasons that say that answers are wrong, and not that the measurement was
WRONG = frozenset({"bench-garbage", "bench-empty-answers"})


def baselines(
    results: Sequence[BenchResult], release: str, profile: str, sweep: str, now: dt.datetime | None = None
) -> list[BenchResult]:
    """The recorded runs that a new release of this host is held against, the newest first.

    Args:
        release, profile, sweep: digests; a run of anything else is no baseline.
    """
    moment = now or dt.datetime.now(dt.UTC)
    fitting = [
        run
        for run in results
        if run.release is not None
        and run.release.digest == release
        and run.profile is not None
        and run.profile.digest == profile
        and run.bench_digest == sweep
        and run.complete
        and run.origin is None
        and any(point.valid for point in run.points)
        and (moment - dt.datetime.fromisoformat(run.date_utc)).days < RECENT_DAYS
    ]
    return sorted(fitting, key=lambda run: run.date_utc, reverse=True)


def judge(
    baseline: Sequence[BenchResult],
    candidates: Sequence[BenchResult],
    why_none: str,
    min_effect: float,
    energy: bool = False,
) -> Ended:
    """The verdict: pass, fail or inconclusive, and what it rests on.

    Args:
        candidates: of the new release; empty when nothing could be measured, for the reason `why_none`.
        min_effect: the least loss that counts, as a share. energy: joules per token are asked about, too.
    """
    if not candidates:
        return Ended(Outcome.INCONCLUSIVE, why_none or "nothing was measured")
    newest = candidates[-1].run_id
    wrong = [reason for run in candidates for point in run.points for reason in point.reasons if reason.code in WRONG]
    if wrong:
        return Ended(Outcome.FAIL, f"{wrong[0].what}: {wrong[0].why}".rstrip(": "), {"run": newest})
    if not baseline:
        return Ended(Outcome.INCONCLUSIVE, "there is no baseline of what the host served before")
    from rackwell.bench import compare_gate

    judged = [compare_gate.judge(baseline, candidates, min_effect)]
    if energy:
        judged.append(compare_gate.judge(baseline, candidates, min_effect, metric="joules_per_token"))
    worst = min(judged, key=lambda one: ("fail", "inconclusive", "pass").index(one.verdict))
    verdict = {"pass": Outcome.OK, "fail": Outcome.FAIL}.get(worst.verdict, Outcome.INCONCLUSIVE)
    data: dict[str, Any] = {
        "run": newest,
        "runs": [run.run_id for run in candidates],
        "baseline": [run.run_id for run in baseline],
        "ratio": worst.ratio,
        "low": worst.low,
        "high": worst.high,
        "metric": worst.metric,
    }
    return Ended(verdict, worst.why, data)
