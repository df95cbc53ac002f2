# SPDX-License-Identifier: Apache-2.0
"""What a benchmark came to, for whoever asked for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rackwell.bench import result as results
from rackwell.bench.result import BenchResult
from rackwell.errors import ExitCode, Problem


@dataclasses.dataclass(frozen=True)
class Measured:
    """A benchmark that was run, or found.

    Attributes:
        result: None when there was nothing to store.
        report: the HTML file; None when there is none.
        fresh: whether it was measured now.
        missing: how many points of the sweep are still to be measured.
    """

    result: BenchResult | None
    report: Path | None
    fresh: bool
    problems: list[Problem]
    exit_code: ExitCode
    stored: Path | None = None
    missing: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: the summary; the whole is in the file."""
        return {
            "measured": self.fresh and self.result is not None,
            "valid": bool(self.result and self.result.valid),
            "complete": bool(self.result and self.result.complete),
            "missing": self.missing,
            "bench": self.result.bench if self.result else None,
            "run_id": self.result.run_id if self.result else None,
            "file": str(self.stored / "bench.json") if self.stored else None,
            "report": str(self.report) if self.report else None,
            "points": [point_summary(point) for point in self.result.points] if self.result else [],
        }


def point_summary(point: results.BenchPoint) -> dict[str, Any]:
    """The headline figures of a point; what is not known is None."""
    throughput, telemetry = point.throughput, point.telemetry
    return {
        "input_tokens": point.input_tokens,
        "output_tokens": point.output_tokens,
        "concurrency": point.concurrency,
        "repeat": point.repeat,
        "status": point.status,
        "valid": point.valid,
        "reasons": [reason.code for reason in point.reasons],
        "findings": [finding.get("id") or finding.get("rule") or finding.get("code") for finding in point.findings],
        "output_tok_per_s": throughput.output_tok_per_s if throughput else None,
        "total_tok_per_s": throughput.total_tok_per_s if throughput else None,
        "ttft_p50_ms": point.latency.ttft_ms.p50 if point.latency.ttft_ms else None,
        "power_w_all_gpus": telemetry.mean_power_w if telemetry else None,
        "mean_utilization_pct": telemetry.mean_utilization_pct if telemetry else None,
    }
