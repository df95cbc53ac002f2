# SPDX-License-Identifier: Apache-2.0
"""The report as text for people, at most 80 columns wide with eight GPUs."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 80
_MARKS = {"pass": "pass", "degraded": "DEGRADED", "fail": "FAIL", "not-measured": "-"}


def text(report: Mapping[str, Any]) -> str:
    """Table of checks, matrix of one-way bandwidth, findings with why and fix, verdict."""
    parts = [_head(report), *_checks(report["checks"])]
    matrix = bandwidth_matrix(report)
    if matrix:
        parts += ["", "GB/s one way, row -> column:", *_matrix(matrix)]
    for finding in report["findings"]:
        parts += ["", *_finding(finding)]
    worst = next((finding["code"] for finding in report["findings"] if finding["verdict"] == report["verdict"]), "")
    parts += ["", f"verdict: {report['verdict']}" + (f" ({worst})" if worst else "")]
    return "\n".join(line.rstrip() for line in parts) + "\n"


def bandwidth_matrix(report: Mapping[str, Any]) -> list[list[float | None]]:
    """Median of a pair's one-way figures by copy engine, else by kernel; empty when nothing was timed."""
    order = [gpu["index"] for gpu in report["gpus"]]
    entries = [e for e in (report["measurements"].get("p2p") or {}).get("bandwidth") or () if e["ways"] == 1]
    for engine in ("copy", "kernel"):
        found: dict[tuple[int, int], list[float]] = {}
        for entry in entries:
            if entry["engine"] == engine and entry.get("gb_per_s"):
                found.setdefault((entry["src"], entry["dst"]), []).append(entry["gb_per_s"])
        if found:
            return [[statistics.median(found[s, t]) if (s, t) in found else None for t in order] for s in order]
    return []


def _head(report: Mapping[str, Any]) -> str:
    beside = ", beside the running server" if report["beside_server"] else ""
    return (
        f"{report['host']}: {len(report['gpus'])} GPUs, driver {report['driver_version'] or 'unknown'}, "
        f"{report['mode']} check{beside}, {report['seconds']:.1f} s"
    )


def _checks(checks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield ""
    first = max(len(check["id"]) for check in checks)
    indent = " " * (first + 2 + 10)
    for check in checks:
        lines = textwrap.wrap(_summary(check), WIDTH - len(indent), break_on_hyphens=False) or [""]
        yield f"{check['id']:<{first}}  {_MARKS[check['verdict']]:<10}{lines[0]}"
        for line in lines[1:]:
            yield indent + line


def _summary(check: Mapping[str, Any]) -> str:
    limit = check["expected"]
    if check["verdict"] == "pass" and limit is not None and check["basis"] == "floor":
        return f"{check['summary']} (nearest to its floor: {check['measured']:g} of {limit:g} {check['unit']})"
    return str(check["summary"])


def _matrix(matrix: Sequence[Sequence[float | None]]) -> Iterator[str]:
    cells = [["-" if value is None else f"{value:.1f}" for value in row] for row in matrix]
    width = max(5, *(len(cell) for row in cells for cell in row))
    yield "     " + " ".join(f"{index:>{width}}" for index in range(len(matrix)))
    for index, row in enumerate(cells):
        yield f"{index:>4} " + " ".join(f"{cell:>{width}}" for cell in row)


def _finding(finding: Mapping[str, Any]) -> Iterator[str]:
    yield from _wrapped(f"{finding['verdict'].upper()} {finding['code']}: ", finding["what"], "  ")
    for name in ("where", "why", "fix"):
        yield from _wrapped(f"  {name}: ", finding[name], "    ")
    follows = sorted(set(_codes(finding["consequences"])))
    if follows:
        yield from _wrapped("  explains: ", ", ".join(follows), "    ")


def _codes(findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for finding in findings:
        yield finding["code"]
        yield from _codes(finding["consequences"])


def _wrapped(title: str, content: str, indent: str) -> list[str]:
    return textwrap.wrap(
        title + " ".join(str(content).split()),
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
