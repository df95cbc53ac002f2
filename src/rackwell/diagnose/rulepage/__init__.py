# SPDX-License-Identifier: Apache-2.0
"""All rules as one HTML page that can be searched, and that needs no network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rackwell import page
from rackwell.diagnose.matcher import telling
from rackwell.diagnose.rules import AREAS, Rule

__all__ = ["render"]

_HOLE = re.compile(r"\$\{(\w+)\}")
_SEVERITY = {"blocker": "bad", "wrong-output": "bad", "degraded": "weak", "noise": "none"}
_SURE = {"high": "sure", "likely": "likely", "possible": "possible"}


def render(rules: Sequence[Rule]) -> str:
    """The page."""
    areas = [
        {
            "name": area,
            "title": title,
            "rules": [_entry(rule) for rule in sorted(rules, key=lambda r: (-r.level, r.id)) if rule.area == area],
        }
        for area, title in AREAS.items()
    ]
    context: dict[str, Any] = {
        "areas": [area for area in areas if area["rules"]],
        "count": len(rules),
        "severities": [name for name in _SEVERITY if any(rule.severity == name for rule in rules)],
    }
    return page.render(__name__, context, {"named": named})


def _entry(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "title": rule.title,
        "severity": rule.severity,
        "css": _SEVERITY[rule.severity],
        "sure": _SURE[rule.confidence],
        "rank": rule.level,
        "cause": rule.cause,
        "remedy": rule.remedy,
        "naive": rule.naive,
        "lint": rule.lint,
        "patterns": list(dict.fromkeys(leaf.pattern for leaf in rule.tree.leaves)),
        "telling": set(telling(rule)),
        "evidence": rule.evidence,
        "example": rule.examples.match[0].strip(),
    }


def named(text: str) -> str:
    """A rule's text in one line; what the log fills in is shown as NAME."""
    return " ".join(_HOLE.sub(lambda found: found[1].upper(), text).split())
