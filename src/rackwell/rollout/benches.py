# SPDX-License-Identifier: Apache-2.0
"""The measurements of a roll: of what a host served before, of the new release, and of both in turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rackwell.ansible.runner import RunDirectory
from rackwell.bench.result import BenchResult
from rackwell.bench.store import Store
from rackwell.errors import ExitCode
from rackwell.provision import crediting, measure
from rackwell.provision.builds import Built
from rackwell.provision.declared import Target
from rackwell.provision.measured import Measured
from rackwell.provision.progress import Progress
from rackwell.rollout import gate
from rackwell.rollout.plan import Plan
from rackwell.rollout.state import Host
from rackwell.rollout.steps import Change, Ended, Outcome

#: so many recorded runs are held against the new one
RECORDED = 5
NEW, BEFORE = "to", "from"

Ask = Callable[[Host, dict[str, Any], float], Ended]
Look = Callable[[Host, Plan], Ended]


class Benches:
    """The measurements of one roll.

    Args:
        ask: one request to a host's own program. look: what became of its change, once it is in the middle of nothing.

    Attributes:
        serving: digest of the release that a host ran before the roll.
    """

    def __init__(
        self, targets: Mapping[str, Target], built: dict[str, Built], progress: Progress, ask: Ask, look: Look
    ) -> None:
        self._targets, self._built, self._progress, self._ask, self._look = targets, built, progress, ask, look
        self.serving: dict[str, str] = {}
        self._baselines: dict[str, list[BenchResult]] = {}

    def baseline(self, host: Host, plan: Plan) -> Ended:
        """Have what the host serves now measured, unless that is asked of what is recorded, and is there."""
        if plan.settings.get("baseline", "recorded") == "recorded":
            recorded = self._recorded(host.name, plan)
            if recorded:
                self._baselines[host.name] = recorded
                return Ended(Outcome.OK, data={"baseline": [run.run_id for run in recorded]})
        measured = self._measure(host, plan, self._before(host.name))
        if measured.result is None or not any(point.valid for point in measured.result.points):
            return Ended(Outcome.FAIL, f"what it serves now could not be measured: {why_of(measured)}")
        self._baselines[host.name] = [measured.result]
        return Ended(Outcome.OK, data={"baseline": [measured.result.run_id], "measured": True})

    def judge(self, host: Host, plan: Plan) -> Ended:
        """Measure the new release, in turn with the one before when that is asked for, and hold them together."""
        back = self._turn(host, plan, NEW)
        if back is not None:
            return back
        if not self._baselines.get(host.name):
            # another process made this run's preflight
            self._baselines[host.name] = self._recorded(host.name, plan)
        before, after = list(self._baselines[host.name]), []
        why = ""
        for turn in range(1 + int(plan.settings.get("interleave", 0))):
            if turn:
                again = self._measured_before(host, plan)
                if isinstance(again, Ended):
                    return again
                before.append(again)
            measured = self._measure(host, plan, self._built["release"])
            if measured.exit_code == ExitCode.UNREACHABLE:
                return Ended(Outcome.UNREACHABLE, why_of(measured))
            why = why_of(measured)
            if measured.result is None:
                break
            after.append(measured.result)
        return self._held(host, plan, before, after, why)

    def _held(
        self, host: Host, plan: Plan, before: Sequence[BenchResult], after: Sequence[BenchResult], why: str
    ) -> Ended:
        """The gate's verdict. why: of nothing having been measured, where `after` is empty."""
        effect, energy = float(plan.settings.get("min_effect", 0.05)), bool(plan.settings.get("energy"))
        verdict = gate.judge(before, after, why, effect, energy)
        if verdict.outcome is not Outcome.INCONCLUSIVE:
            return verdict
        # a server that did not live through its benchmark is not left to wait for a person
        alive = self._ask(host, {"op": "check"}, 180)
        if alive.outcome is Outcome.OK and not alive.data.get("healthy"):
            told = f"it does not serve any more after the benchmark: {alive.data.get('why')}"
            return Ended(Outcome.FAIL, told, verdict.data)
        return verdict

    def _measured_before(self, host: Host, plan: Plan) -> BenchResult | Ended:
        """What ran before, once more; the new release serves again afterwards. An ``Ended`` is the gate's end."""
        back = self._turn(host, plan, BEFORE)
        if back is not None:
            return back
        measured = self._measure(host, plan, self._before(host.name))
        back = self._turn(host, plan, NEW)
        if back is not None:
            return back
        if measured.result is None:
            return Ended(Outcome.INCONCLUSIVE, f"what ran before could not be measured once more: {why_of(measured)}")
        return measured.result

    def _turn(self, host: Host, plan: Plan, side: str) -> Ended | None:
        """Have the host serve this release of its open change; None when it does."""
        asked = self._ask(host, {"op": "turn", "run": plan.run, "epoch": host.epoch, "side": side}, 60)
        if asked.outcome is Outcome.OK and not asked.data.get("working"):
            self._remember(host.name, asked.data.get("change"))
            return None
        if asked.outcome is not Outcome.OK and asked.outcome is not Outcome.FAIL:
            return asked
        looked = self._look(host, plan)
        if looked.outcome is not Outcome.OK:
            return looked
        told = looked.data.get("told") or {}
        self._remember(host.name, told)
        if looked.change is Change.OPEN and not looked.data.get("unhealthy") and told.get("side") == side:
            return None
        if looked.change in (Change.RETURNED, Change.BROKEN):
            return Ended(Outcome.FAIL, str(told.get("why") or asked.why), looked.data)
        return Ended(Outcome.UNREACHABLE, asked.why or "the host did not turn to the other release")

    def _remember(self, name: str, change: Any) -> None:
        """What it ran before the roll, when another process of the run made the preflight."""
        if isinstance(change, dict) and change.get("from"):
            self.serving[name] = str(change["from"])

    def _recorded(self, name: str, plan: Plan) -> list[BenchResult]:
        target = self._targets[name]
        results = [run for _entry, run in Store(target.site.path).results(name)]
        profile = crediting.profile_reference(target).digest
        sweep = crediting.sweep_digest(target, plan.settings.get("bench") or None)
        return gate.baselines(results, self.serving.get(name, ""), profile, sweep)[:RECORDED]

    def _before(self, name: str) -> Built:
        digest = self.serving.get(name, "")
        path = self._targets[name].site.state / "releases" / digest
        try:
            manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            manifest = {}
        return Built(str(manifest.get("name") or digest[:12]), digest, path, False, manifest)

    def _measure(self, host: Host, plan: Plan, release: Built) -> Measured:
        target = self._targets[host.name]
        directory = RunDirectory.create(target.site.state, f"rollbench-{host.name}")
        sweep = plan.settings.get("bench") or None
        built = {**self._built, "release": release}
        return measure.measure(target, built, directory, self._progress, sweep, measure.Wishes(anew=True))


def why_of(measured: Measured) -> str:
    """Why a measurement is of no use."""
    return measured.problems[0].what if measured.problems else "no point counts"
