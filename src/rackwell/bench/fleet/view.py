# SPDX-License-Identifier: Apache-2.0
"""The lines as the page shows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rackwell import page
from rackwell.bench.fleet.rows import FEWEST, Row
from rackwell.bench.report.figure import unit
from rackwell.page import scales
from rackwell.page.scales import UNKNOWN, number
from rackwell.page.svg import n

#: A ratio this far from one is marked; one run against one says nothing of less.
NOTABLE = 0.05
_STATES = {
    "valid": ("good", "valid"),
    "invalid": ("bad", "newest run invalid"),
    "interrupted": ("weak", "newest run interrupted"),
    "never": ("none", "never measured"),
}
_VERDICTS = {"pass": "good", "degraded": "weak", "fail": "bad"}


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """A cell. sort: what it is sorted by. css: how it is marked. note: small, below."""

    text: str
    sort: str = ""
    css: str = ""
    note: str = ""


def view(rows: Sequence[Row], site: str, now: str) -> dict[str, Any]:
    """The variables of the template."""
    counts = {key: sum(row.state == key for row in rows) for key in _STATES}
    slower = [row for row in rows if row.to_previous is not None and row.to_previous < 1 - NOTABLE]
    return {
        "site": site,
        "when": page.when(now),
        "now": now,
        "rows": [_line(row) for row in rows],
        "head": HEAD,
        "hosts": len({row.host for row in rows if row.host}),
        "counts": [(key, _STATES[key], counts[key]) for key in _STATES if counts[key]],
        "slower": [(row.name, scales.ratio(row.to_previous, 1.0)) for row in slower],
        "failing": [row.name for row in rows if row.verdict == "fail"],
        "fewest": FEWEST,
        "notable": f"{NOTABLE:.0%}",
    }


#: Title, and whether greater sorts first.
HEAD = (
    ("Container", False),
    ("State", False),
    ("Served", False),
    ("Output tok/s", True),
    ("Of its previous", False),
    ("Of the fleet", False),
    ("J per token", False),
    ("W per GPU", True),
    ("GPU validation", False),
    ("Age", False),
)


def _line(row: Row) -> dict[str, Any]:
    css, state = _STATES[row.state]
    load = row.load
    where = scales.count(load[2]) if load else ""
    told = f"at {where}, {load[0]:,} + {load[1]:,}" if load else ""
    cells = [
        Cell(state, row.state, css, row.reason),
        Cell(row.release or UNKNOWN, f"{row.release} {row.digest}", "", row.profile),
        Cell(number(row.output), _sort(row.output), "", told),
        _ratio(row.to_previous),
        _ratio(row.to_fleet, f"of {row.peers}" if row.to_fleet is not None else ""),
        Cell(number(row.joules), _sort(row.joules)),
        Cell(
            unit(row.power, "W"), _sort(row.power), "", f"{row.share:.1f} % of limit" if row.share is not None else ""
        ),
        Cell(row.verdict.replace("-", " ") or UNKNOWN, row.verdict, _VERDICTS.get(row.verdict, "")),
        Cell(age(row.age_s), _sort(row.age_s), "", row.date[:10]),
    ]
    return {
        "row": row,
        "cells": [(HEAD[i + 1][0], cell) for i, cell in enumerate(cells)],
        "trend": trend(row.trend),
        "find": " ".join(word.lower() for word in _words(row) if word),
        "undeclared": not row.declared,
    }


def _words(row: Row) -> tuple[str, ...]:
    """What a line is found by."""
    return row.name, row.host, row.release, row.digest, row.profile, row.model, row.gpus, row.verdict, row.state


def _ratio(value: float | None, note: str = "") -> Cell:
    if value is None:
        return Cell(UNKNOWN)
    css = "bad" if value < 1 - NOTABLE else "good" if value > 1 + NOTABLE else ""
    return Cell(scales.ratio(value, 1.0), _sort(value), css, note)


def _sort(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def age(seconds: float | None) -> str:
    """``3 hours``, ``12 days``; a dash for what is not known or lies ahead."""
    if seconds is None or seconds < 0:
        return UNKNOWN
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count:,} {name}{'' if count == 1 else 's'}"
    return "now"


def trend(values: Sequence[float]) -> str:
    """A small line of the best outputs, the oldest first; empty for fewer than two."""
    if len(values) < 2:
        return ""
    high = max(values) or 1.0
    step = 56 / (len(values) - 1)
    places = " ".join(f"{n(2 + i * step)},{n(18 - 15 * value / high)}" for i, value in enumerate(values))
    told = f"{len(values)} runs: {', '.join(map(number, values))} tok/s"
    last = places.rsplit(" ", 1)[-1].split(",")
    dot = f'<circle cx="{last[0]}" cy="{last[1]}" r="2"/>'
    return (
        f'<svg class="trend" viewBox="0 0 60 20" role="img" aria-label="{told}"><title>{told}</title>'
        f'<polyline points="{places}"/>{dot}</svg>'
    )
