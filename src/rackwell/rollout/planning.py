# SPDX-License-Identifier: Apache-2.0
"""What a roll would do, host by host; touches nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackwell.ansible import runner
from rackwell.ansible.runner import RunDirectory
from rackwell.bench.store import Store
from rackwell.errors import ExitCode, Problem
from rackwell.provision import builds, crediting
from rackwell.provision.progress import Progress
from rackwell.rollout import gate
from rackwell.rollout.plan import Plan
from rackwell.rollout.preparing import Prepared, Wishes, prepare
from rackwell.site.declaration import Site

SCHEMA = "rackwell.rollout_host"


@dataclasses.dataclass(frozen=True)
class Line:
    """What would be done to one host.

    Attributes:
        before: digest of the release that it serves; empty when that is not known.
        baseline: what its benchmark would be held against, in words.
        note: what is in the way, or would be left out. drained_by: who takes it out of rotation. details: what would be
            done, in its order, where the steps are not those of every roll.
    """

    batch: int
    host: str
    before: str
    after: str
    baseline: str
    note: str
    drained_by: tuple[str, ...] = ()
    details: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            **{name: getattr(self, name) for name in ("batch", "host", "baseline", "note")},
            "from": self.before,
            "to": self.after,
            "drained_by": list(self.drained_by),
            "details": list(self.details),
        }


@dataclasses.dataclass(frozen=True)
class Preview:
    """A roll as it would be."""

    plan: Plan
    lines: list[Line]
    problems: list[Problem]
    exit_code: ExitCode

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "build": self.plan.build,
            "release": self.plan.release,
            "on_failure": self.plan.on_failure,
            "skipped_gates": self.plan.skip,
            "settings": self.plan.settings,
            "hosts": [line.as_dict() for line in self.lines],
        }


def preview(path: Path, build: str, wishes: Wishes, progress: Progress) -> Preview:
    """Make the release on this machine, ask the hosts what they serve, and tell what would be done.

    Raises:
        RackwellError: as :func:`rackwell.rollout.preparing.prepare`. A host that does not answer is in the result.
    """
    ready = prepare(path, build, wishes, progress)
    directory = RunDirectory.create(ready.site.state, "rollplan")
    progress.log = directory.log
    names = list(ready.targets)
    played = runner.play(
        "roll_look",
        ready.site.path,
        directory,
        names,
        listener=progress.step,
        extra=builds.bundles(ready.targets[names[0]].container, ready.built),
    )
    if played.interrupted:
        raise KeyboardInterrupt
    heard = {name: told[-1] for name in names if (told := played.payloads(SCHEMA, name))}
    lines = [
        _line(number, name, heard.get(name), ready)
        for number, batch in enumerate(ready.plan.batches, 1)
        for name in batch
    ]
    return Preview(ready.plan, lines, played.problems, played.exit_code)


def _line(batch: int, name: str, told: Mapping[str, Any] | None, ready: Prepared) -> Line:
    if told is None:
        return Line(batch, name, "", ready.plan.release, "-", "does not answer: the roll would stop before any switch")
    before, after = str(told.get("release") or ""), ready.plan.release
    held = "-" if before == after else baseline(name, before, ready)
    return Line(batch, name, before, after, held, note(told, before == after), drained_by(ready.site, name))


def drained_by(site: Site, container: str) -> tuple[str, ...]:
    """Who takes a container out of rotation before it is touched: its routers, and the site's own program."""
    hook = site.path / "hooks" / "drain"
    return (*(router.name for router in site.routers_of(container)), *(["hooks/drain"] if hook.exists() else []))


def note(told: Mapping[str, Any], same: bool = False) -> str:
    """What is in the way on a host, from what it told of itself."""
    lock = told.get("lock") or {}
    change = told.get("other_change") or told.get("change") or {}
    if lock and lock.get("left_s"):
        return f"held by run {lock['run']} of {lock['owner']}"
    if change.get("state") in {"switching", "open", "returning"}:
        return f"the change of run {change['run']} is {change['state']}"
    if same:
        return "serves it already: not touched unless unit or environment differ"
    return "" if told.get("installed") else "never rolled: staging brings what returns by itself"


def baseline(name: str, before: str, ready: Prepared, driver: str = "") -> str:
    """What the benchmark of a container would be held against, in words.

    Args:
        driver: only what was measured with this version of it.
    """
    plan, target = ready.plan, ready.targets[name]
    if "bench" in plan.skip:
        return "not asked"
    if plan.settings.get("baseline") != "measure" and before:
        every = [run for _entry, run in Store(target.site.path).results(name)]
        results = [run for run in every if not driver or run.hardware.driver_version in (None, driver)]
        sweep = crediting.sweep_digest(target, plan.settings.get("bench") or None)
        runs = gate.baselines(results, before, crediting.profile_reference(target).digest, sweep)[:5]
        if runs:
            more = "" if len(runs) == 1 else f" and {len(runs) - 1} more"
            return f"recorded: {runs[0].run_id}{more}"
    return "measured before the switch"
