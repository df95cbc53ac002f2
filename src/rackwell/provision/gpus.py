# SPDX-License-Identifier: Apache-2.0
"""The report of the GPUs that a play brought: found, kept, and turned into a page."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackwell.ansible.results import PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site import files
from rackwell.topology import model
from rackwell.topology.baseline import Baseline
from rackwell.topology.gate import Gate
from rackwell.topology.report import GpuReport

REPORT, PAGE = "gpu.json", "gpu.html"


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a play brought about GPUs.

    Attributes:
        raw: the report as it came, with what this version does not know.
        gate: the boot gate's verdict of this boot. gate_state: why there is none, where a gate is declared.
    """

    report: GpuReport | None = None
    raw: Mapping[str, Any] | None = None
    gate: Gate | None = None
    gate_state: str = ""


@dataclasses.dataclass(frozen=True)
class Kept:
    """Where a report lies. problems: what could not be written; that changes no verdict."""

    report: Path | None = None
    page: Path | None = None
    problems: tuple[Problem, ...] = ()


def seen(played: PlayResult, container: str) -> Seen:
    """The newest report of `container` in a play; the gate's own when nothing else measured.

    Raises:
        RackwellError: a report came that is none (exit 1): the probe there is of another version.
    """
    gates = played.payloads("rackwell.gate", container)
    gate = gates[-1] if gates else None
    reports = played.payloads("rackwell.gpu", container)
    raw = reports[-1] if reports else (gate or {}).get("report")
    raw = raw if isinstance(raw, Mapping) and raw else None
    report = model.parse(GpuReport, raw, f"{container}: what the probe reported") if raw is not None else None
    verdict = None
    if gate is not None and gate.get("verdict"):
        verdict = model.parse(Gate, {**gate, "report": None}, f"{container}: the boot gate's verdict")
        verdict = verdict if verdict.counts else None
    return Seen(report, raw, verdict, "" if verdict is not None else str((gate or {}).get("state") or ""))


def latest(state: Path, name: str) -> Path:
    """Where the newest report of container `name` is kept."""
    return state / "gpu" / f"{name}.json"


def baseline_file(state: Path, name: str) -> Path:
    """Where the baseline of container `name` is kept on this machine; role gpu_probe sends it from there."""
    return state / "baselines" / f"{name}.json"


def own_baseline(state: Path, name: str) -> Baseline | None:
    """The baseline of `name`; None when there is none, or it cannot be read."""
    with contextlib.suppress(RackwellError):
        path = baseline_file(state, name)
        return model.load(Baseline, path) if files.is_file(path) else None
    return None


def keep(found: Seen, run: RunDirectory, state: Path, name: str, page: Path | None = None) -> Kept:
    """Write the report and its page into the run's directory, the report also as the newest one of `name`.

    Args:
        page: a further file for the page.
    """
    if found.report is None or found.raw is None:
        return Kept()
    from rackwell.topology.page import render

    text = json.dumps(found.raw, indent=1, ensure_ascii=False) + "\n"
    html = render(found.report, baseline=own_baseline(state, name), gate=found.gate, title=name)
    problems = []
    written: dict[Path, bool] = {}
    for path, content in (
        (run.path / REPORT, text),
        (latest(state, name), text),
        (run.path / PAGE, html),
        *([(page, html)] if page is not None else []),
    ):
        try:
            files.write(path, content)
            written[path] = True
        except OSError as error:
            problems.append(
                Problem("cannot-write", "the report cannot be written", str(path), error.strerror or str(error))
            )
    shown = page if page is not None and page in written else run.path / PAGE
    return Kept(
        run.path / REPORT if run.path / REPORT in written else None,
        shown if shown in written else None,
        tuple(problems),
    )


def read_report(path: Path) -> GpuReport:
    """A report from a file: ``gpu.json``, what ``verify --json`` printed, or the boot gate's verdict.

    Raises:
        RackwellError: it cannot be read, or is none of these (exit 2).
    """
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        problem = Problem("file-unreadable", "the file cannot be read", str(path), error.strerror or str(error))
        raise RackwellError(problem, ExitCode.INVALID) from None
    except ValueError as error:
        problem = Problem("not-such-a-document", "this is not JSON", str(path), str(error))
        raise RackwellError(problem, ExitCode.INVALID) from None
    for candidate in _candidates(data):
        if isinstance(candidate, Mapping) and candidate.get("schema") == "rackwell.gpu/1":
            try:
                return model.parse(GpuReport, candidate, str(path))
            except RackwellError as error:
                raise RackwellError(error.problems, ExitCode.INVALID) from None
    raise RackwellError(
        Problem(
            "not-such-a-document",
            "this is no report of GPUs",
            str(path),
            f"schema {data.get('schema')!r}" if isinstance(data, Mapping) else "",
            "name a gpu.json that `rackwell verify` wrote",
        ),
        ExitCode.INVALID,
    )


def _candidates(data: Any) -> list[Any]:
    if not isinstance(data, Mapping):
        return []
    reports = (data.get("result") or {}).get("reports") if isinstance(data.get("result"), Mapping) else None
    return [data, data.get("report"), (reports or {}).get("rackwell.gpu/1")]
