# SPDX-License-Identifier: Apache-2.0
"""Variants of a profile measured unattended, one change at a time, and ranked against the declared profile.

The declared profile is measured first and last: two runs of the same say how much a difference means that day. Whatever
happens, the declared profile is served at the end, and that is verified.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

from rackwell.ansible.results import PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.bench.result import BenchResult
from rackwell.bench.store import Store
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import builds, crediting, declared, matrices, measure, plays, ranking, variants
from rackwell.provision.builds import Built
from rackwell.provision.declared import Target
from rackwell.provision.lock import container_lock
from rackwell.provision.matrices import Place, Step
from rackwell.provision.measure import Wishes
from rackwell.provision.progress import Progress
from rackwell.provision.ranking import Ranking
from rackwell.provision.recording import findings
from rackwell.provision.variants import Change
from rackwell.site import declaration, yamlsource

_POLL_S = 5.0
_REFUSED = ("unrecognized arguments", ": error: argument", "the following arguments are required")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Attributes:
        metric: by which the variants are ranked; the first that both sides have when empty.
        allow_restart: consent to a restart of the server for each variant. anew: go on with no interrupted matrix.
    """

    changes: list[Change]
    bench: str | None = None
    client: str = ""
    metric: str = ""
    allow_restart: bool = False
    anew: bool = False


@dataclasses.dataclass
class Tried:
    """What a matrix came to."""

    place: Place
    ranking: Ranking | None
    problems: list[Problem]
    exit_code: ExitCode
    restored: bool

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        matrix = self.place.matrix
        return {
            **matrix.model_dump(mode="json", exclude={"schema_", "key"}),
            "file": str(self.place.file),
            "declared_profile_served": self.restored,
            "ranking": self.ranking.as_dict() if self.ranking else None,
        }


def run(path: Path, name: str, progress: Progress, wanted: Wanted) -> Tried:
    """Measure the variants of container `name`, or those that an interrupted matrix still lacks.

    Raises:
        RackwellError: the declaration or a variant does not hold (exit 2), the restarts have no consent (exit 4), or
            another run holds the container (exit 5).
    """
    root = declaration.load(path)
    root.container(name)
    with container_lock(root.state, name, "bench matrix"):
        target = declared.target(root, name)
        profile = yamlsource.load(target.site.profile_file(target.container)).data
        changes = variants.checked(profile, wanted.changes)
        target.site.bench(target.container, wanted.bench)
        if not wanted.allow_restart:
            raise RackwellError(_consent(name, len(changes) + 2, target), ExitCode.HELD)
        progress.safety = "no machine was touched"
        directory = RunDirectory.create(root.state, "matrix")
        progress.log = directory.log
        built = builds.make_all(target.site, target.container, progress)
        place = _place(target, built, wanted, changes)
        left = len(place.matrix.left)
        what = "goes on, " if left < len(place.matrix.steps) else ""
        progress.line(name, f"matrix {place.matrix.id}: {what}{left} of {len(place.matrix.steps)} steps to measure")
        for change in changes:
            variants.written(profile, change, place.profile(change))
        return _Matrix(target, built, directory, progress, wanted, place).measured()


def _consent(name: str, restarts: int, target: Target) -> Problem:
    return Problem(
        "restart-needed",
        f"the server of {name} would be restarted {restarts} times",
        name,
        "each variant is measured from a start of its own; meanwhile nobody else is served well",
        f"consent to it: add --allow-restart (nothing was touched; the site is {target.site.path})",
    )


def _place(target: Target, built: dict[str, Built], wanted: Wanted, changes: list[Change]) -> Place:
    """The newest matrix where it is this one and not done, else a new one."""
    bench = target.site.bench_file(target.container, wanted.bench).stem
    reference = crediting.profile_reference(target)
    key = {
        "release": built["release"].digest,
        "profile": reference.digest,
        "sweep": crediting.sweep_digest(target, wanted.bench, wanted.client),
        "changes": crediting.digest([change.as_dict() for change in changes]),
    }
    state, name = target.site.state, target.container.name
    found = matrices.newest(state, name)
    if not wanted.anew and found is not None and not found.matrix.done and found.matrix.key == key:
        return found
    place = matrices.begin(state, name, bench, reference.name, key, changes)
    place.save()
    return place


class _Interrupted(Exception):  # noqa: N818 - no error: it ends the loop
    """A person ended it."""


class _Matrix:
    """One command's work on one matrix."""

    def __init__(
        self,
        target: Target,
        built: dict[str, Built],
        directory: RunDirectory,
        progress: Progress,
        wanted: Wanted,
        place: Place,
    ) -> None:
        self.target = target
        self.built = built
        self.directory = directory
        self.progress = progress
        self.wanted = wanted
        self.place = place
        self.name = target.container.name
        self.again = f"rackwell provision {self.name} -i {target.site.path} --no-bench"
        self.problems: list[Problem] = []
        self.exit_code = ExitCode.DONE
        #: whether something else than the declared profile may be served
        self.astray = False

    def measured(self) -> Tried:
        """Every step that is left, then the declared profile back, then the ranking."""
        try:
            with contextlib.suppress(_Interrupted):
                for step in self.place.matrix.left:
                    self._step(step)
        except KeyboardInterrupt:
            self.problems.append(Problem("interrupted", "interrupted between two steps", self.name))
            self.exit_code = ExitCode.INTERRUPTED
        finally:
            restored = self._restored()
        matrix = self.place.matrix
        matrix.done = not matrix.left
        self.place.save()
        if not matrix.done and self.exit_code == ExitCode.DONE:
            self.exit_code = ExitCode.FAILED
        return Tried(self.place, self._ranking(), list(dict.fromkeys(self.problems)), self.exit_code, restored)

    # -- a step --------------------------------------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        total = len(self.place.matrix.steps)
        self.progress.line(self.name, f"step {step.number} of {total}: {step.variant}")
        change = matrices.change_of(step)
        try:
            target = self.target if change is None else variants.target(self.target, self.place.profile(change))
        except RackwellError as error:
            self._settle(step, "refused", error.problems)
            return
        if not self._activated(step, target, change):
            return
        done = measure.measure(
            target,
            self.built,
            self.directory,
            self.progress,
            self.wanted.bench,
            Wishes(
                client=self.wanted.client,
                again="the same `rackwell bench matrix` command",
                extra=self._extra(change),
                matrix={
                    "id": self.place.matrix.id,
                    "step": step.number,
                    "variant": step.variant,
                    "change": step.change,
                },
            ),
        )
        self.progress.safety = "the declared profile is brought back before this ends"
        step.run = done.result.run_id if done.result is not None else None
        if done.exit_code == ExitCode.INTERRUPTED:
            self._interrupted(done.problems)
        self._settle(step, "measured" if done.result is not None and done.result.complete else "failed", done.problems)

    def _activated(self, step: Step, target: Target, change: Change | None) -> bool:
        """Whether the step's profile serves now, from a start of its own."""
        self.astray = self.astray or change is not None
        played = self._switch(target, change)
        if played.interrupted:
            self._interrupted(plays.problems(played, self.again))
        served = [one for one in played.payloads("rackwell.inference_server", self.name) if one.get("invocation_id")]
        if played.exit_code == ExitCode.DONE and change is None and not self.astray and not self._fresh(played):
            # it ran already: the first and the last measurement must both be of a fresh start
            played = plays.play(
                "fresh", target, self.directory, self.progress, extra={"rackwell_fresh_allow_stop": True}
            )
            if played.interrupted:
                self._interrupted(plays.problems(played, self.again))
            served = played.payloads("rackwell.inference_server", self.name)
        if change is None and played.exit_code == ExitCode.DONE:
            self.astray = False
        if played.exit_code == ExitCode.DONE:
            step.ready_seconds = next((one["ready_seconds"] for one in served if one.get("ready_seconds")), None)
            return True
        problems = plays.problems(played, self.again)
        lines = [line for failure in played.failures for line in failure.journal]
        step.findings = findings(lines or [problem.why for problem in problems])
        refused = any(text in problem.why for problem in problems for text in _REFUSED)
        rolled_back = played.exit_code == ExitCode.ROLLED_BACK
        self._settle(step, ("refused" if refused else "crashed") if rolled_back else "failed", problems)
        return False

    def _fresh(self, played: PlayResult) -> bool:
        """Whether the play started the server."""
        return any(one.get("ready_seconds") for one in played.payloads("rackwell.inference_server", self.name))

    def _switch(self, target: Target, change: Change | None) -> PlayResult:
        extra = {**builds.bundles(target.container, self.built), **self._extra(change)}
        deadline = time.monotonic() + target.site.profile(target.container).limits.ready_timeout + 60
        while True:
            played = plays.play("activate", target, self.directory, self.progress, extra=extra)
            # a switch that was cut off ends on the machine by itself
            if played.exit_code != ExitCode.LOCKED or time.monotonic() > deadline:
                return played
            time.sleep(_POLL_S)

    def _extra(self, change: Change | None) -> dict[str, Any]:
        return {} if change is None else {"inference_server_profile_file": str(self.place.profile(change))}

    def _settle(self, step: Step, state: matrices.State, problems: list[Problem]) -> None:
        step.state = state
        step.problems = [
            problem.as_dict() for problem in crediting.hide_problems(problems, crediting.secrets(self.target))
        ]
        told = "" if state == "measured" or not problems else f": {problems[0].what}"
        self.progress.line(self.name, f"step {step.number}: {step.variant}: {state}{told}")
        if state == "failed":
            self.problems += problems
        self.place.save()

    def _interrupted(self, problems: list[Problem]) -> None:
        self.problems += problems
        self.exit_code = ExitCode.INTERRUPTED
        raise _Interrupted

    # -- the end -------------------------------------------------------------------------------------------------

    def _restored(self) -> bool:
        """Bring the declared profile back where something else may be served. Returns whether it is served."""
        if not self.astray:
            return True
        self.progress.line(self.name, "bringing the declared profile back")
        played = self._switch(self.target, None)
        if played.exit_code == ExitCode.DONE:
            self.astray = False
            self.progress.safety = "the declared profile is served, and that was verified"
            return True
        self.problems += plays.problems(played, self.again)
        self.problems.append(
            Problem(
                "not-restored",
                "the declared profile is not served again",
                self.name,
                "a variant may be served, or nothing",
                self.again,
            )
        )
        self.exit_code = self.exit_code or played.exit_code
        return False

    def _ranking(self) -> Ranking | None:
        store = Store(self.target.site.path)
        wanted = {step.run: step.number for step in self.place.matrix.steps if step.run}
        runs: dict[int, BenchResult] = {
            wanted[result.run_id]: result for _, result in store.results(self.name) if result.run_id in wanted
        }
        return ranking.rank(self.place.matrix, runs, self.wanted.metric)
