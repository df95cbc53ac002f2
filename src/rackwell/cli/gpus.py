# SPDX-License-Identifier: Apache-2.0
"""What several commands print about GPUs: heat maps and findings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rackwell.cli import tables

if TYPE_CHECKING:
    from rackwell.topology.report import Finding, GpuReport

_LOUD = {"fail": ("FAIL", "bold red"), "degraded": ("DEGRADED", "bold yellow"), "not-measured": ("not measured", "dim")}


def maps(out: Any, report: GpuReport) -> None:
    """The plainest matrix, and every further one that a finding is about: its own pairs are marked there."""
    from rackwell.topology import figures, heat

    found = figures.matrices(report)
    latency = any(finding.check == "p2p.latency" for finding in report.all_findings())
    for number, named in enumerate(found):
        if number == 0 or (latency and not named.more_is_better):
            out.print("")
            tables.plain(out, heat.heat(named, report))


def findings(out: Any, found: Iterable[Finding]) -> None:
    """Each finding with its number, cause and remedy, and what follows from it."""
    from rich.text import Text

    for finding in found:
        word, style = _LOUD.get(finding.verdict, (finding.verdict, ""))
        lines = [Text.assemble((f"{word} ", style), (f"{finding.code}  ", "bold"), finding.what)]
        for label, text in (
            ("number", number(finding)),
            ("where", finding.where),
            ("why", finding.why),
            ("fix", finding.fix),
        ):
            if text:
                lines.append(Text.assemble((f"  {label:<8}", "dim"), text))
        lines += [Text.assemble(("  follows ", "dim"), f"{each.code}  {each.what}") for each in finding.consequences]
        out.print("")
        tables.plain(out, Text("\n").join(lines))
    out.print("")


def number(finding: Finding) -> str:
    """What was measured against what was expected, with the unit."""
    if finding.measured is None:
        return ""
    unit = f" {finding.unit}" if finding.unit else ""
    text = f"{_plain(finding.measured)}{unit}"
    if finding.expected is not None:
        text += f", expected {_plain(finding.expected)}"
        text += f" ({finding.basis})" if finding.basis else ""
    return text


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
