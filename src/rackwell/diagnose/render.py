# SPDX-License-Identifier: Apache-2.0
"""A diagnosis for a person at three in the morning: what, how sure, why, what to do, what not."""

from __future__ import annotations

import textwrap

from rackwell.diagnose.findings import Diagnosis, Finding, Said

_WIDTH = 110
_SURE = {"high": "sure", "likely": "likely", "possible": "possible, not certain"}
_FINDINGS = 4
_LINES = 4


def text(told: Diagnosis) -> str:
    """The whole."""
    parts = [f"note: {note}" for note in told.notes]
    for number, finding in enumerate(told.findings[:_FINDINGS]):
        if number == 1:
            parts.append("also found:")
        parts.append(one(finding))
    if len(told.findings) > _FINDINGS:
        rest = told.findings[_FINDINGS:]
        parts.append(_wrapped("and", "; ".join(finding.title for finding in rest)))
    if told.unknown:
        parts.append(_unknown(told))
    parts += [
        _wrapped(
            "earlier",
            f"an earlier start (lines {start.first} to {start.last}) failed with: {start.finding.title}; "
            f"not this one. It would be mended so: {start.finding.remedy}",
        )
        for start in told.earlier[-2:]
    ]
    return "\n\n".join(parts)


def one(finding: Finding) -> str:
    """One finding."""
    sure = "" if finding.severity == "noise" else f" ({finding.severity}, {_SURE[finding.confidence]})"
    rows = [f"{finding.title}{sure} [{finding.id}]", _wrapped("what", finding.cause)]
    for line in finding.lines[:_LINES]:
        rows.append(_line("why", line))
    more = []
    if finding.count > len(finding.lines):
        more.append(f"{finding.count} such lines")
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
    rows = ["unknown: no rule knows this text"]
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
