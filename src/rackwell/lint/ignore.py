# SPDX-License-Identifier: Apache-2.0
"""``# rackwell: ignore RW123 the reason``: a finding that somebody has looked at, and what they say to it.

A comment after a value is about that line, one in a line of its own about the next line that is no comment. It counts
for every finding that has the line among its places, in a profile or in a build file.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from rackwell.lint.findings import Finding

_COMMENT = re.compile(r"#\s*rackwell:\s*ignore\b[ \t]*(?P<code>\S*)[ \t]*(?P<reason>.*?)\s*$")
CODES = ("RW190", "RW191", "RW192")
"""What can be wrong with such a comment: no reason, no such rule, nothing to ignore."""


@dataclasses.dataclass(frozen=True)
class Ignore:
    """One comment. `place` is the line that it is about, `where` its own."""

    code: str
    reason: str
    place: str
    where: str


def read(path: Path) -> list[Ignore]:
    """The comments of a file; none when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return list(parse(text, str(path)))


def parse(text: str, name: str) -> Iterator[Ignore]:
    """The comments in `text`."""
    lines = text.splitlines()
    for index, line in enumerate(lines):
        found = _COMMENT.search(line)
        if found is None:
            continue
        about = index
        if line.lstrip().startswith("#"):
            about = next((n for n in range(index + 1, len(lines)) if _has_value(lines[n])), index)
        yield Ignore(found["code"], found["reason"], f"{name}:{about + 1}", f"{name}:{index + 1}")


def _has_value(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def apply(findings: Iterable[Finding], ignores: Iterable[Ignore]) -> list[Finding]:
    """The findings, those that a comment with a reason is about with that reason."""
    reasons = {(ignore.place, ignore.code): ignore.reason for ignore in ignores if ignore.reason}

    def reason(finding: Finding) -> str:
        return next((reasons[key] for place in finding.places if (key := (place, finding.code)) in reasons), "")

    return [dataclasses.replace(finding, ignored=reason(finding)) for finding in findings]


def faults(
    ignores: Iterable[Ignore], findings: Iterable[Finding], known: Iterable[str]
) -> Iterator[tuple[str, str, Ignore]]:
    """(code, what, comment) for each comment that is wrong in itself, or about nothing that `findings` have."""
    codes = set(known)
    used = {(place, finding.code) for finding in findings for place in finding.places}
    for ignore in ignores:
        if ignore.code not in codes:
            yield "RW191", f"there is no rule {ignore.code or '(none named)'} to ignore", ignore
        elif not ignore.reason:
            yield "RW190", f"{ignore.code} is ignored without a reason", ignore
        elif (ignore.place, ignore.code) not in used:
            yield "RW192", f"{ignore.code} finds nothing here that could be ignored", ignore
