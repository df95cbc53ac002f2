# SPDX-License-Identifier: Apache-2.0
"""What tests/gpu/run.py prints of its results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import compare


def lines(results: dict[str, Any]) -> Iterator[str]:
    """All of it, a line each."""
    report = results["inside"]
    gpus = report.get("gpus") or []
    names = sorted({gpu.get("name", "?") for gpu in gpus})
    yield f"{len(gpus)}x {', '.join(names)}, driver {report.get('driver_version')}, {results['date']}"
    there = results["container"]
    yield f"{there['os']}, systemd {there['state']}, ids from {there['uid_map'][1:2]}, {there['user']}"
    for name in ("provision", "again", "verify", "baseline", "status"):
        if name in results:
            yield from _command(name, results[name])
    for name in ("inside", "inside_again", "outside"):
        yield from _report(name, results[name])
    gate, server = results["reboot"]["gate"], results["reboot"]["server"]
    yield f"reboot: gate {gate.get('verdict')} ({gate.get('mode')}, {gate.get('seconds')} s), server {server}"
    peers = results["peers"].get("nvbandwidth") or []
    if peers:
        states = ", ".join(sorted({run["status"] for run in peers}))
        yield f"nvbandwidth: {len(peers)} tests in {sum(run['seconds'] for run in peers):.1f} s ({states})"
    yield from compare.table(results["figures"])
    for point in (results["bench"] or {}).get("points", []):
        sampled = (point.get("telemetry") or {}).get("gpus", [])
        means = ", ".join(f"{(gpu.get('power_w') or {}).get('mean')} W" for gpu in sampled)
        yield f"bench (stand-in engine) concurrency {point['concurrency']}: {point['status']}, {means}"
    yield f"verdict: {results['verdict']}"


def _command(name: str, whole: dict[str, Any]) -> Iterator[str]:
    result = whole.get("result") or {}
    took = f", changed {result['changed']}, {result['seconds']} s" if {"changed", "seconds"} <= set(result) else ""
    yield f"{name:12} exit {whole['exit_code']}{took}"
    for problem in whole["problems"]:
        yield f"  {problem['what']} ({problem['where']}): {problem['why']}. Fix: {problem['fix']}"


def _report(name: str, told: dict[str, Any]) -> Iterator[str]:
    yield f"{name:12} {told['verdict']}, {told.get('seconds')} s of its own {told.get('why', '')}"
    for check in told.get("checks", []):
        yield f"  {check['id']:15} {check['verdict']:12} {check['summary']}"
    for finding in told.get("findings", []):
        yield f"  {finding['code']}: {finding['what']}: {finding['why']}"
