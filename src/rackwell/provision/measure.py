# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a container: run, stored, reported."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import re
import secrets
from pathlib import Path
from typing import Any

from rackwell.ansible.runner import RunDirectory
from rackwell.bench import result as results
from rackwell.bench.result import BenchResult, ProfileRef, Release
from rackwell.bench.store import REPORT, Store
from rackwell.errors import ExitCode, Problem
from rackwell.provision import plays
from rackwell.provision.builds import Built, bundles
from rackwell.provision.declared import Target
from rackwell.provision.progress import Progress
from rackwell.site import yamlsource

_SECRET_FLAG = re.compile(r"(^|-)(api-key|key|password|secret|auth-token)$")


@dataclasses.dataclass(frozen=True)
class Measured:
    """A benchmark that was run, or found.

    Attributes:
        result: None when there was nothing to store.
        report: the HTML file; None when there is none.
        fresh: whether it was measured now.
    """

    result: BenchResult | None
    report: Path | None
    fresh: bool
    problems: list[Problem]
    exit_code: ExitCode
    stored: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: the summary; the whole is in the file."""
        return {
            "measured": self.fresh and self.result is not None,
            "valid": bool(self.result and self.result.valid),
            "bench": self.result.bench if self.result else None,
            "run_id": self.result.run_id if self.result else None,
            "file": str(self.stored / "bench.json") if self.stored else None,
            "report": str(self.report) if self.report else None,
            "points": [_point(point) for point in self.result.points] if self.result else [],
        }


def _point(point: results.BenchPoint) -> dict[str, Any]:
    throughput, telemetry = point.throughput, point.telemetry
    return {
        "concurrency": point.concurrency,
        "valid": point.valid,
        "output_tok_per_s": throughput.output_tok_per_s if throughput else None,
        "total_tok_per_s": throughput.total_tok_per_s if throughput else None,
        "ttft_p50_ms": point.latency.ttft_ms.p50 if point.latency.ttft_ms else None,
        "power_w_all_gpus": telemetry.mean_power_w if telemetry else None,
        "mean_utilization_pct": telemetry.mean_utilization_pct if telemetry else None,
    }


def profile_reference(target: Target) -> ProfileRef:
    """Name and digest of the serving profile; comments and order of keys do not count.

    Results and reports are handed around: the values of flags that hold a secret do not go into them.
    """
    path = target.site.profile_file(target.container)
    profile = target.site.profile(target.container)
    data = yamlsource.load(path).data
    return ProfileRef(
        name=path.stem,
        digest=_digest(data),
        model_path=profile.model.path,
        served_name=profile.model.served_name,
        repository=profile.model.repository,
        revision=profile.model.revision,
        flags={name: "***" if _SECRET_FLAG.search(name) else value for name, value in profile.flags.items()},
    )


def sweep_digest(target: Target, bench: str | None = None) -> str:
    """Digest of what the bench file says; comments, order of keys and defaults that are written out do not count."""
    return _digest(target.site.bench(target.container, bench).model_dump(mode="json"))


def _digest(data: Any) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(canonical).hexdigest()


def release_reference(built: Built) -> Release:
    """The server's release, as a result names it."""
    return Release(
        digest=built.digest,
        name=built.build,
        sources={source["project"]: source["version"] for source in built.manifest.get("sources", [])},
        patches=[
            # a risk that was accepted is shown wherever the patch is
            f"{patch['name']} (harmful; accepted: {patch['accept_risk']})" if "accept_risk" in patch else patch["name"]
            for patch in built.manifest.get("patches", [])
        ],
    )


def find(target: Target, built: dict[str, Built], bench: str | None = None) -> Measured | None:
    """A valid result of this release, profile and sweep, when there is one."""
    store = Store(target.site.path)
    name = target.site.bench_file(target.container, bench).stem
    reference = profile_reference(target)
    sweep = sweep_digest(target, bench)
    found = store.find(target.container.name, built["release"].digest, reference.digest, name, sweep)
    if found is None:
        return None
    place = next((e.path for e, r in store.results(target.container.name) if r.run_id == found.run_id), None)
    report = place / REPORT if place is not None and (place / REPORT).exists() else None
    return Measured(found, report, False, [], ExitCode.DONE, place)


def measure(
    target: Target, built: dict[str, Built], run: RunDirectory, progress: Progress, bench: str | None = None
) -> Measured:
    """Run the sweep, store what came of it and write the report.

    A sweep with points that do not count is stored too, and is a failure.
    """
    sweep = target.site.bench_file(target.container, bench)
    points = len(target.site.bench(target.container, bench).concurrency)
    digest = sweep_digest(target, bench)
    started = dt.datetime.now(dt.UTC)
    run_id = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    extra: dict[str, Any] = {
        **bundles(target.container, built),
        "bench_client_run_id": run_id,
        "bench_client_profile": sweep.stem,
        "bench_client_profile_file": str(sweep),
    }
    progress.line(target.container.name, f"bench {sweep.stem}: {points} points, run {run_id}")
    played = plays.play("bench", target, run, progress, extra=extra, retries=2)
    found = plays.problems(played, f"rackwell bench {target.container.name} -i {target.site.path}")
    payloads = played.payloads("rackwell.bench_point", target.container.name)
    if not payloads:
        code = ExitCode.FAILED if played.exit_code == ExitCode.DONE else played.exit_code
        if code == ExitCode.FAILED and not found:
            found = [Problem("no-points", "the benchmark brought no points", target.container.name)]
        return Measured(None, None, True, found, code)
    result = results.assemble(
        payloads,
        run_id=run_id,
        container=target.container.name,
        host=target.host,
        date_utc=started.isoformat(timespec="seconds"),
        bench=sweep.stem,
        bench_digest=digest,
        release=release_reference(built["release"]),
        profile=profile_reference(target),
    )
    entry, report = store_with_report(target.site.path, result)
    progress.line("controller", f"bench {sweep.stem}: stored in {entry}")
    return Measured(result, report, True, found, played.exit_code, entry)


def store_with_report(site: Path, result: BenchResult) -> tuple[Path, Path]:
    """Store `result` and its report. Returns the run's directory and the report's file. Raises RackwellError."""
    from rackwell.bench.report import render

    store = Store(site)
    html = render(result, store.previous(result))
    entry = store.save(result, html)
    return entry.path, entry.path / REPORT
