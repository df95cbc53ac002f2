# SPDX-License-Identifier: Apache-2.0
"""The reference of all rules of diagnosis: ``python -m rackwell.diagnose.page docs/diagnosis.md`` writes it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rackwell.diagnose.rulepage import named
from rackwell.diagnose.rules import AREAS, Rule, load_rules

_HEAD = """# What `rackwell diagnose` knows

Generated from `catalog/rules/diagnose` (`python -m rackwell.diagnose.page docs/diagnosis.md`); a test keeps the two
equal. `rackwell rules page --out rules.html` writes the same as a page that can be searched, also by a pasted line;
[diagnose-rules.md](diagnose-rules.md) says how to write a rule.

Words in capitals stand for what the log fills in. Each rule has its severity, how sure it is of the cause once its
lines are there, and its rank: how near it stands to the root, among several findings. Causes and remedies are from
public reports and from the sources of the software concerned unless a rule says otherwise; nothing was measured on
SM120 by us.
"""


def text(catalog: Path) -> str:
    """The page."""
    rules = load_rules(catalog)
    counts = {area: sum(rule.area == area for rule in rules) for area in AREAS}
    parts = [_HEAD, "\n| area | rules |\n| --- | --- |\n"]
    parts += [f"| [{title}](#{_anchor(title)}) | {counts[area]} |\n" for area, title in AREAS.items() if counts[area]]
    for area, title in AREAS.items():
        mine = sorted((rule for rule in rules if rule.area == area), key=lambda rule: (-rule.level, rule.id))
        if mine:
            parts.append(f"\n## {title}\n")
            parts += [_entry(rule) for rule in mine]
    return "".join(parts)


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def _entry(rule: Rule) -> str:
    sure = {"high": "sure", "likely": "likely", "possible": "possible"}[rule.confidence]
    rows = [
        f"\n### {rule.id}\n",
        f"\n**{_line(rule.title)}** ({rule.severity}, {sure}, rank {rule.level}"
        + (f"; `rackwell check`: {rule.lint}" if rule.lint else "")
        + ")\n",
        f"\n{_line(rule.cause)}\n",
        f"\nDo: {_line(rule.remedy)}\n",
    ]
    if rule.naive:
        rows.append(f"\nNot: {_line(rule.naive)}\n")
    if rule.evidence:
        rows.append(f"\nKnown from: {'; '.join(_source(each) for each in rule.evidence)}\n")
    return "".join(rows)


def _source(words: str) -> str:
    return f"<{words}>" if re.fullmatch(r"https?://[^\s<>]+", words) else _line(words)


def _line(words: str) -> str:
    """One line of Markdown in which only what stands between backticks is more than text."""
    parts = named(words).split("`")
    plain = [re.sub(r"([\\*_<>|\[\]])", r"\\\1", part) for part in parts[::2]]
    parts[::2] = plain
    return "`".join(parts) if len(parts) % 2 else "".join(parts)


def main(path: Path) -> None:
    """Write the page to `path`."""
    from rackwell import shipped

    path.write_text(text(shipped.catalog()), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
