# SPDX-License-Identifier: Apache-2.0
"""A container's baseline: recorded there, kept here, and held against later reports."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rackwell.ansible.results import PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.probe import baseline as probe_baseline
from rackwell.provision import declared, gpus, plays
from rackwell.provision.lock import container_lock
from rackwell.provision.progress import Progress
from rackwell.site import declaration, files
from rackwell.topology import compare, model
from rackwell.topology.baseline import Baseline
from rackwell.topology.compare import Comparison
from rackwell.topology.report import GpuReport


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What a recording came to. baseline None: nothing was recorded."""

    container: str
    file: Path | None
    baseline: Baseline | None
    problems: list[Problem]
    exit_code: ExitCode

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"container": self.container, "file": str(self.file) if self.file else None, **summary(self.baseline)}


@dataclasses.dataclass(frozen=True)
class Held:
    """A report against a baseline. against: the file of the report."""

    against: Path
    report: GpuReport
    comparison: Comparison

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``; figures that did not change beyond noise included."""
        deltas = [*self.comparison.links, *self.comparison.pairs, *self.comparison.values]
        return {
            "report": str(self.against),
            "verdict": self.comparison.verdict,
            "fits": self.comparison.fits,
            "differences": [difference.model_dump() for difference in self.comparison.differences],
            "missing": self.comparison.missing,
            "deltas": [delta.as_dict() for delta in deltas],
        }


def summary(baseline: Baseline | None) -> dict[str, Any]:
    """A baseline in a few fields."""
    if baseline is None:
        return {"recorded": None, "runs": None, "digest": None, "figures": 0, "machine": None}
    return {
        "recorded": baseline.recorded,
        "runs": baseline.runs,
        "digest": baseline.digest,
        "figures": len(baseline.values),
        "machine": baseline.machine.model_dump(),
    }


def record(path: Path, name: str, progress: Progress, runs: int, allow_stop_server: bool) -> Recorded:
    """Measure container `name` `runs` times and keep the result as its baseline.

    Args:
        allow_stop_server: consent to stopping a server that runs, for as long as it is measured.

    Raises:
        RackwellError: the declaration does not hold (exit 2), or another run holds the container (exit 5).
    """
    root = declaration.load(path)
    root.container(name)
    with container_lock(root.state, name, "baseline record"):
        target = declared.target(root, name)
        run = RunDirectory.create(root.state, "baseline")
        extra = {"rackwell_baseline_runs": runs, "rackwell_baseline_stop_server": allow_stop_server}
        played = plays.play("baseline", target, run, progress, extra=extra)
        again = f"rackwell baseline record {name} -i {target.site.path}"
        problems = [_with_consent(problem, again) for problem in plays.problems(played, again)]
        if played.exit_code != ExitCode.DONE:
            return Recorded(name, None, None, problems, played.exit_code)
        document = _document(played, name)
        if document is None:
            problem = Problem("no-baseline", "the play ended without a baseline", name, "no task reported one")
            return Recorded(name, None, None, [problem], ExitCode.FAILED)
        baseline = model.parse(Baseline, document, f"{name}: what the probe recorded")
        file = gpus.baseline_file(root.state, name)
        _keep(file, document)
        progress.safety = "the baseline is recorded and kept"
        return Recorded(name, file, baseline, [], ExitCode.DONE)


def show(path: Path, name: str) -> tuple[Path, Baseline]:
    """The baseline of container `name`, and its file.

    Raises:
        RackwellError: there is no such container, or no baseline of it (exit 2).
    """
    site = declaration.load(path)
    site.container(name)
    file = gpus.baseline_file(site.state, name)
    if not files.is_file(file):
        raise RackwellError(
            Problem(
                "no-baseline",
                f"there is no baseline of {name} yet",
                str(file),
                "",
                f"record one: rackwell baseline record {name} -i {path}",
            ),
            ExitCode.INVALID,
        )
    return file, read(file)


def read(file: Path) -> Baseline:
    """A baseline from a file, whose digest must be right.

    Raises:
        RackwellError: it cannot be read, is none, or was changed since it was recorded (exit 2).
    """
    baseline = model.load(Baseline, file)
    document = json.loads(file.read_bytes())
    if baseline.digest != probe_baseline.digest(document):
        raise RackwellError(
            Problem(
                "baseline-damaged",
                "the baseline was changed after it was recorded",
                str(file),
                "its content does not give the digest that it names",
                "take it from a copy, or record it anew",
            ),
            ExitCode.INVALID,
        )
    return baseline


def diff(path: Path, what: str, reports: Sequence[Path]) -> tuple[Path, Baseline, list[Held]]:
    """Hold reports against the baseline of a container, or of a file.

    Args:
        what: a container of the site, or a baseline's file.
        reports: files; the container's newest report when there are none.

    Raises:
        RackwellError: something is missing or is not what it should be (exit 2).
    """
    if files.is_file(Path(what)):
        file, baseline = Path(what), read(Path(what))
        if not reports:
            problem = Problem("usage", "name a report to hold against this baseline", what, "", "add a gpu.json")
            raise RackwellError(problem, ExitCode.INVALID)
    else:
        file, baseline = show(path, what)
        reports = reports or [_latest(path, what)]
    held = []
    for place in reports:
        report = gpus.read_report(place)
        held.append(Held(place, report, compare.compare(baseline, report)))
    return file, baseline, held


def refused(file: Path, held: Held) -> Problem:
    """What to tell of a baseline that is not of this machine, or no longer."""
    facts = "; ".join(f"{d.fact}: {_plain(d.then)} then, {_plain(d.now)} now" for d in held.comparison.differences)
    foreign = held.comparison.code == "baseline-foreign"
    what = "the baseline is of another machine"
    return Problem(
        held.comparison.code,
        what if foreign else "the machine is no longer what the baseline was recorded on",
        str(file),
        facts,
        "record a new one where this is meant: rackwell baseline record CONTAINER",
    )


def _plain(value: Any) -> str:
    return "-" if value is None else str(value)


def _latest(path: Path, name: str) -> Path:
    file = gpus.latest(declaration.load(path).state, name)
    if files.is_file(file):
        return file
    raise RackwellError(
        Problem(
            "no-report",
            f"there is no report of {name} yet",
            str(file),
            "",
            f"make one: rackwell verify {name} -i {path}",
        ),
        ExitCode.INVALID,
    )


def _document(played: PlayResult, name: str) -> Mapping[str, Any] | None:
    found = played.payloads("rackwell.gpu_baseline", name)
    return found[-1] if found else None


def _keep(file: Path, document: Mapping[str, Any]) -> None:
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    try:
        files.write(file, text)
    except OSError as error:
        why = error.strerror or str(error)
        raise RackwellError(
            Problem(
                "cannot-write", "the baseline cannot be kept", str(file), why, "free space or rights, then record again"
            )
        ) from error


def _with_consent(problem: Problem, again: str) -> Problem:
    if problem.code != "server-running":
        return problem
    return dataclasses.replace(problem, fix=f"{again} --allow-stop-server")
