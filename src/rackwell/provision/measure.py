# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a container: run, or gone on with; stored after each point; reported."""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path
from typing import Any

from rackwell import runid
from rackwell.ansible.results import PlayResult, Reported
from rackwell.ansible.runner import RunDirectory
from rackwell.bench.result import BenchResult
from rackwell.bench.store import REPORT, Entry, Store
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import crediting, plays, recording, resuming, sweeping, topologies
from rackwell.provision.builds import Built, bundles
from rackwell.provision.declared import Target
from rackwell.provision.measured import Measured
from rackwell.provision.progress import Progress
from rackwell.provision.recording import RAW, Recorder
from rackwell.provision.resuming import SERVER_CHANGED
from rackwell.provision.sweeping import Planned
from rackwell.provision.watching import Watch
from rackwell.site.benchfile import BenchProfile


@dataclasses.dataclass(frozen=True)
class Wishes:
    """How to measure, beside what the sweep says.

    Attributes:
        client: whose load generator; the sweep's when empty.
        resume: the interrupted run to go on with; the newest one that fits when None.
        anew: go on with none.
        extra: variables for the plays. matrix: which variant of a matrix the run is of.
        again: the command that goes on with it, where that is not `rackwell bench`.
    """

    client: str = ""
    resume: Entry | None = None
    anew: bool = False
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    matrix: dict[str, Any] | None = None
    again: str = ""


def find(target: Target, built: dict[str, Built], bench: str | None = None) -> Measured | None:
    """A valid result of this release, profile and sweep, when there is one."""
    store = Store(target.site.path)
    name = target.site.bench_file(target.container, bench).stem
    reference = crediting.profile_reference(target)
    sweep = crediting.sweep_digest(target, bench)
    found = store.find(target.container.name, built["release"].digest, reference.digest, name, sweep)
    if found is None:
        return None
    place = next((e.path for e, r in store.results(target.container.name) if r.run_id == found.run_id), None)
    report = place / REPORT if place is not None and (place / REPORT).exists() else None
    return Measured(found, report, False, [], ExitCode.DONE, place)


def measure(
    target: Target,
    built: dict[str, Built],
    run: RunDirectory,
    progress: Progress,
    bench: str | None = None,
    wishes: Wishes | None = None,
) -> Measured:
    """Run the sweep, or what is missing of one that was interrupted; store what comes of it and write the report.

    A sweep with points that do not count is stored too, and is a failure.

    Raises:
        RackwellError: a run was named that cannot be gone on with (exit 2).
    """
    wishes = wishes or Wishes()
    return _Sweep(target, built, run, progress, bench, wishes).measure()


class _Sweep:
    """One command's work on one run."""

    def __init__(
        self,
        target: Target,
        built: dict[str, Built],
        run: RunDirectory,
        progress: Progress,
        bench: str | None,
        wishes: Wishes,
    ) -> None:
        self.target = target
        self.built = built
        self.directory = run
        self.progress = progress
        self.wishes = wishes
        self.name = target.container.name
        self.file = target.site.bench_file(target.container, bench)
        content = crediting.sweep_content(target, bench, wishes.client)
        self.sweep = BenchProfile.model_validate(content)
        self.store = Store(target.site.path)
        self.wanted = self._new(content)
        self.mark = secrets.token_hex(2)
        self.hidden = crediting.secrets(target)
        named = f" --profile {bench}" if bench else ""
        self.again = wishes.again or f"rackwell bench {self.name}{named} -i {target.site.path}"

    def _new(self, content: dict[str, Any]) -> BenchResult:
        run_id, started = runid.new()
        environment: dict[str, Any] = {}
        if "bench_client" in self.built:
            environment["client_build"] = self.built["bench_client"].digest
        if self.wishes.matrix is not None:
            environment["matrix"] = self.wishes.matrix
        return BenchResult(
            run_id=run_id,
            container=self.name,
            host=self.target.host,
            date_utc=started.isoformat(timespec="seconds"),
            bench=self.file.stem,
            bench_digest=crediting.digest(content),
            release=crediting.release_reference(self.built["release"]),
            profile=crediting.profile_reference(self.target),
            profile_content=crediting.profile_content(self.target),
            sweep=content,
            salt=run_id,
            environment=environment,
            topology=topologies.newest(self.target.site.state, self.name),
            complete=False,
            points=[],
        )

    def measure(self) -> Measured:
        found = None if self.wishes.anew else resuming.choose(self.store, self.wanted, self.wishes.resume)
        if found is not None and found.refused:
            self.progress.line("controller", f"not gone on with {found.name}: {found.refused}; measuring anew")
            found = None
        if found is not None:
            measured = self._run(found.run, resumed=True)
            if measured is not None:
                return measured
        return self._run(self.wanted, resumed=False) or Measured(None, None, True, [], ExitCode.FAILED)

    def _run(self, run: BenchResult, *, resumed: bool) -> Measured | None:
        """Measure what is missing of `run`. None: it is resumed, of another server, and nothing was measured."""
        watch = Watch(self.progress, self.name, self.sweep.repeats)
        recorder = Recorder(self.store, run, self.name, self.hidden, watch.point)
        todo = sweeping.plan(self.sweep, run.salt or run.run_id, run.points)
        what = f"bench {run.bench}: {len(todo)} points"
        if resumed:
            done = len(self.sweep.loads()) * self.sweep.repeats - len(todo)
            what = f"bench {run.bench}: goes on with {done} points done, {len(todo)} missing"
        self.progress.line(self.name, f"{what}, run {run.run_id}")
        entry = recorder.save()
        tried: set[tuple[Any, ...]] = set()
        problems: list[Problem] = []
        code = ExitCode.DONE
        while entry is not None and (batch := self._batch(recorder.run, tried)):
            watch.begin(batch)
            tried |= {(planned.key, planned.num_prompts) for planned in batch}
            played = self._play(recorder, watch, batch, entry.path, resumed=resumed)
            if resumed and any(problem.code == SERVER_CHANGED for problem in played.problems):
                why = next(problem.why for problem in played.problems if problem.code == SERVER_CHANGED)
                self.progress.line("controller", f"not gone on with {run.run_id}: {why}; measuring anew")
                return None
            problems += plays.problems(played, self.again)
            code = played.exit_code or code
            if code not in {ExitCode.DONE, ExitCode.FAILED}:
                break
        return self._ended(recorder, list(dict.fromkeys(problems)), code, entry)

    def _batch(self, run: BenchResult, tried: set[tuple[Any, ...]]) -> list[Planned]:
        missing = sweeping.plan(self.sweep, run.salt or run.run_id, run.points)
        untried = [planned for planned in missing if (planned.key, planned.num_prompts) not in tried]
        return sweeping.batch(self.sweep, untried)

    def _play(
        self, recorder: Recorder, watch: Watch, batch: list[Planned], place: Path, *, resumed: bool
    ) -> PlayResult:
        # in a matrix a point that was cut off met the return of the declared profile: what it left counts for nothing
        again = resumed and self.wishes.matrix is not None
        extra: dict[str, Any] = {
            **bundles(self.target.container, self.built),
            **self.wishes.extra,
            "bench_client_run_id": f"{recorder.run.run_id}.{self.mark}" if again else recorder.run.run_id,
            "bench_client_profile": self.file.stem,
            "bench_client_profile_file": str(self.file),
            "bench_client_client": self.sweep.client,
            "bench_client_points": [planned.as_dict() for planned in batch],
            "bench_client_expected": resuming.expected(recorder.run) if resumed or recorder.run.points else {},
            "bench_client_collect": str(place / RAW),
        }

        def reported(report: Reported) -> None:
            recorder.take(report.host, report.payload)

        played = plays.play("bench", self.target, self.directory, watch, extra=extra, retries=2, on_result=reported)
        self.progress.safety = watch.safety
        for payload in played.payloads("rackwell.bench_point", self.name):
            recorder.take(self.name, payload)
        recording.unpack(place / RAW, place, self.hidden)
        return played

    def _ended(self, recorder: Recorder, found: list[Problem], code: ExitCode, entry: Entry | None) -> Measured:
        missing = sweeping.plan(self.sweep, recorder.run.salt or recorder.run.run_id, recorder.run.points)
        entry = recorder.save(complete=not missing) or entry
        if recorder.problem is not None:
            found += recorder.problem.problems
            code = code or ExitCode.FAILED
        if not recorder.run.points:
            # what was cut off may go on there, and is found again by the run's name
            if entry is not None and code not in {ExitCode.INTERRUPTED, ExitCode.UNREACHABLE}:
                self.store.forget(entry)
                entry = None
            if code == ExitCode.DONE:
                code = ExitCode.FAILED
            if not found:
                found = [Problem("no-points", "the benchmark brought no points", self.name)]
            return Measured(None, None, True, found, code, entry.path if entry else None)
        if code == ExitCode.DONE and not recorder.run.valid:
            code = ExitCode.FAILED  # points of an earlier command that do not count
        if missing and code in {ExitCode.DONE, ExitCode.FAILED}:
            code = ExitCode.FAILED
            found.append(self._incomplete(len(missing)))
        report = self._report(recorder, entry, found)
        self.progress.line("controller", f"bench {recorder.run.bench}: stored in {entry.path if entry else 'nothing'}")
        return Measured(recorder.run, report, True, found, code, entry.path if entry else None, len(missing))

    def _incomplete(self, missing: int) -> Problem:
        return Problem(
            "bench-incomplete",
            f"{missing} points were not measured",
            self.name,
            "what was measured is stored",
            f"mend what is told above, then go on with it: {self.again}",
        )

    def _report(self, recorder: Recorder, entry: Entry | None, found: list[Problem]) -> Path | None:
        if entry is None:
            return None
        try:
            return store_with_report(self.target.site.path, recorder.run)[1]
        except RackwellError as error:
            found += error.problems
            return None


def store_with_report(site: Path, result: BenchResult) -> tuple[Path, Path]:
    """Store `result` and its report. Returns the run's directory and the report's file. Raises RackwellError."""
    from rackwell.bench.report import render

    store = Store(site)
    html = render(result, store.previous(result), [site])
    entry = store.save(result, html)
    return entry.path, entry.path / REPORT
