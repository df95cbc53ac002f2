# SPDX-License-Identifier: Apache-2.0
"""A diagnosis for a person at three in the morning: what, how sure, why, what to do, what not."""

from __future__ import annotations

import textwrap

from rackwell.diagnose.findings import Diagnosis, EarlierStart, Finding, Said

_WIDTH = 110
_SURE = {"high": "sure", "likely": "likely", "possible": "possible, not certain"}
_FINDINGS = 4
_LINES = 4


def text(told: Diagnosis) -> str:
    """The whole."""
    parts = [f"note: {note}" for note in told.notes]
    if told.findings and told.first is None:
        parts += _normal(told.findings)
    else:
        parts += _causes(told.findings, unknown=told.unknown)
    if told.unknown:
        parts.append(_unknown(told))
        if told.normal:
            parts.append("\n".join(_wrapped("normal", f"{each.title} [{each.id}]") for each in told.normal))
    parts += [_earlier(start) for start in told.earlier[-2:]]
    return "\n\n".join(parts)


def _causes(findings: tuple[Finding, ...], *, unknown: bool) -> list[str]:
    parts = [one(finding) for finding in findings[:_FINDINGS]]
    if len(parts) > 1:
        parts.insert(1, "or:" if unknown else "also found, not explained by the first:")
    if len(findings) > _FINDINGS:
        parts.append(_wrapped("and", "; ".join(f"{each.title} [{each.id}]" for each in findings[_FINDINGS:])))
    return parts


def _normal(findings: tuple[Finding, ...]) -> list[str]:
    parts = ["nothing wrong is known of this text; it has what is normal, though it looks alarming:", one(findings[0])]
    if len(findings) > 1:
        parts.append("\n".join(_wrapped("also", f"{each.title} [{each.id}]") for each in findings[1:]))
    return parts


def _earlier(start: EarlierStart) -> str:
    found = start.finding
    where = f"{start.source}, " if start.source else ""
    rows = [f"an earlier start ({where}lines {start.first} to {start.last}) failed otherwise; this is not about that:"]
    rows.append(_wrapped("earlier", f"{found.title} [{found.id}]"))
    rows += [_line("why", line) for line in found.lines[:1]]
    rows.append(_wrapped("do", found.remedy))
    return "\n".join(rows)


def short(finding: Finding) -> str:
    """Two lines for the message of another command: what it is, and the line that says so."""
    rows = [f"{finding.title} ({_SURE[finding.confidence]}) [{finding.id}]"]
    rows += [f"{line.source or 'line'} {line.number}: {line.text[:200]}" for line in finding.lines[:1]]
    return "\n".join(rows)


def one(finding: Finding) -> str:
    """One finding."""
    sure = "" if finding.severity == "noise" else f" ({finding.severity}, {_SURE[finding.confidence]})"
    rows = [f"{finding.title}{sure} [{finding.id}]", _wrapped("what", finding.cause)]
    rows += [_line("why", line) for line in finding.lines[:_LINES]]
    more = []
    if finding.count > len(finding.lines):
        more.append(f"{finding.count:,} such lines")
    if len(finding.ranks) > 1:
        more.append(f"ranks {', '.join(finding.ranks[:16])}, {finding.ranks[0]} first")
    if more:
        rows.append(_wrapped("", "; ".join(more)))
    rows.append(_wrapped("do", finding.remedy))
    if finding.naive:
        rows.append(_wrapped("not", finding.naive))
    if finding.lint:
        rows.append(_wrapped("check", f"`rackwell check` tells it in the declaration as {finding.lint}"))
    if finding.folded:
        rows.append(_wrapped("follows", ", ".join(finding.folded)))
    rows += [_wrapped("known", link) for link in finding.evidence[:2]]
    return "\n".join(rows)


def _unknown(told: Diagnosis) -> str:
    near = "; what stands above is near it by its words alone" if told.findings else ""
    rows = [f"unknown: no rule knows this text{near}"]
    if told.telling:
        rows += [_line("lines", line) for line in told.telling]
    else:
        rows.append(_wrapped("lines", "nothing in it looks like trouble"))
    rows += [_wrapped("collect", command) for command in told.collect]
    return "\n".join(rows)


def _line(label: str, line: Said) -> str:
    where = f"{line.source}:{line.number}" if line.source else str(line.number)
    return f"  {label:<8}{where}: {line.text[:220]}"


def _wrapped(label: str, words: str) -> str:
    lines = textwrap.wrap(words, _WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(f"  {label if not index else '':<8}{line}" for index, line in enumerate(lines))
