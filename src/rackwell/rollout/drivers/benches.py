# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a container before and after its host's driver was changed: the release stays the same."""

from __future__ import annotations

import datetime as dt

from rackwell.bench.result import BenchResult
from rackwell.errors import ExitCode
from rackwell.rollout.benches import Benches, why_of
from rackwell.rollout.plan import Plan
from rackwell.rollout.state import Host
from rackwell.rollout.steps import Ended, Outcome


class DriverBenches(Benches):
    """As of a build, but what differs between the two sides is the host and not the release."""

    #: container -> version of the driver that it had
    drivers: dict[str, str]

    def judge(self, host: Host, plan: Plan) -> Ended:
        """Measure, and hold it against what was measured with the driver of before."""
        if not self.serving.get(host.name):
            looked = self._ask(host, {"op": "look", "run": plan.run}, 60)
            self.serving[host.name] = str(looked.data.get("release") or "")
        before = self._baselines.get(host.name) or self._recorded(host.name, plan)
        measured = self._measure(host, plan, self._before(host.name))
        if measured.exit_code == ExitCode.UNREACHABLE:
            return Ended(Outcome.UNREACHABLE, why_of(measured))
        after = [measured.result] if measured.result is not None else []
        return self._held(host, plan, before, after, why_of(measured))

    def _recorded(self, name: str, plan: Plan) -> list[BenchResult]:
        """Not what was measured with the new driver already, by a process of this run that died."""
        return [run for run in super()._recorded(name, plan) if self._of_before(run, name, plan)]

    def _of_before(self, run: BenchResult, name: str, plan: Plan) -> bool:
        seen, had = run.hardware.driver_version, self.drivers.get(name)
        if seen is not None and had:
            return seen == had
        begun = dt.datetime.strptime(plan.run[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC)
        return dt.datetime.fromisoformat(run.date_utc) < begun
