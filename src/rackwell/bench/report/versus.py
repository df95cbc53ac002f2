# SPDX-License-Identifier: Apache-2.0
"""A run against its baseline: ratios with their intervals, verdicts, and what may be the cause."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from html import escape
from typing import Any

from rackwell.bench.compare import Comparison, Row
from rackwell.bench.report.figure import Figure
from rackwell.page import scales
from rackwell.page.scales import UNKNOWN, Scale, number
from rackwell.page.svg import Frame, document, n, text

MAIN = "output_tok_per_s"
#: Verdicts as people read them, and the class of their mark.
VERDICTS = {
    "faster": ("faster", "s-good"),
    "slower": ("slower", "s-bad"),
    "same": ("the same", "s-dull"),
    "higher": ("higher", "s-dull"),
    "lower": ("lower", "s-dull"),
    "inconclusive": ("inconclusive", "s-dull"),
    "not-comparable": ("not comparable", "s-dull"),
}
_ROW, _VERDICT = 27.0, 156.0
_TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Versus:
    """What the page says of the comparison.

    Attributes:
        headline: in one sentence. figure: ratios of output throughput. tables: (title, head, rows) of each metric.
    """

    headline: str
    figure: Figure | None
    tables: list[tuple[str, list[str], list[list[str]]]]
    text: str
    changes: list[dict[str, Any]]
    suggestion: str
    notes: list[str]
    rejected: list[str]
    only: list[str]


def versus(compared: Comparison | None) -> Versus | None:
    """The view; None without a comparison or without a row in it."""
    if compared is None or not compared.rows:
        return None
    metrics = list(dict.fromkeys(row.metric for row in compared.rows))
    main = MAIN if MAIN in metrics else metrics[0]
    several = len({row.load[:2] for row in compared.rows}) > 1
    by_metric = {metric: [row for row in compared.rows if row.metric == metric] for metric in metrics}
    only = [f"{name(load, several=True)}: only in the baseline" for load in compared.only_baseline]
    only += [f"{name(load, several=True)}: only in this run" for load in compared.only_candidate]
    return Versus(
        headline(by_metric[main], several),
        _figure(by_metric[main], several),
        [_table(rows, several) for rows in by_metric.values()],
        compared.attribution.text,
        [change.as_dict() for change in compared.attribution.changes],
        compared.attribution.suggestion,
        [
            *compared.notes,
            *(
                [f"not known of both runs: {', '.join(compared.attribution.unknown)}"]
                if compared.attribution.unknown
                else []
            ),
        ],
        [
            f"{point.side}, {name(point.load, several=True)}, repeat {point.repeat}: {'; '.join(point.reasons)}"
            for point in compared.rejected
        ],
        only,
    )


def name(load: tuple[int, int, int], *, several: bool) -> str:
    """A load in words; its lengths only where there are several."""
    words = scales.count(load[2])
    return f"{words}, {load[0]:,} + {load[1]:,}" if several else words


def headline(rows: Sequence[Row], several: bool = False) -> str:
    """How the loads came out, and the one that changed most."""
    verdicts = [row.verdict for row in rows]
    said = ", ".join(
        f"{verdicts.count(verdict)} {words}" for verdict, (words, _css) in VERDICTS.items() if verdict in verdicts
    )
    decided = [row for row in rows if row.ratio and row.verdict in {"faster", "slower"}]
    words = f"of {len(rows)} load{'' if len(rows) == 1 else 's'}: {said}."
    if decided:
        most = max(decided, key=lambda row: abs(math.log(row.ratio or 1.0)))
        most_ = f"{scales.ratio(most.ratio, 1.0)} the baseline's {most.title} at {name(most.load, several=several)}"
        return f"{most_}; {words}"
    return f"{_capital(rows[0].title)}, {words}"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _table(rows: Sequence[Row], several: bool) -> tuple[str, list[str], list[list[str]]]:
    head = ["Load", "Baseline", "This run", "Ratio", "Interval", "Verdict", "Measured", "Why"]
    cells = [
        [
            name(row.load, several=several),
            number(row.baseline),
            number(row.candidate),
            scales.ratio(row.ratio, 1.0),
            f"{row.low:.2f} to {row.high:.2f}" if row.low is not None and row.high is not None else UNKNOWN,
            VERDICTS[row.verdict][0],
            f"{row.measurements[0]} / {row.measurements[1]}",
            row.why,
        ]
        for row in rows
    ]
    return f"{_capital(rows[0].title)}, {rows[0].unit}", head, cells


def _figure(rows: Sequence[Row], several: bool) -> Figure | None:
    """Ratios as marks with their intervals, on a logarithmic axis around one."""
    known = [row for row in rows if row.ratio]
    if not known:
        return None
    values = [v for row in known for v in (row.ratio, row.low, row.high) if v]
    low, high = min([*values, 0.9]), max([*values, 1.1])
    # what is decided stands beside the names: on a small screen the plot is scrolled
    names = 18.0 + 6.6 * max(len(name(row.load, several=several)) for row in known)
    frame = Frame(900, 56 + _ROW * len(known), left=names + _VERDICT, right=24, top=14, bottom=42)
    x = Scale(low / 1.04, high * 1.04, frame.x0, frame.x1, log=True)
    ticks = [value for value in _TICKS if x.low <= value <= x.high]
    kept = [value for value in ticks if value == 1.0]
    for value in sorted(ticks, key=lambda v: -abs(math.log(v))):
        if all(abs(x(value) - x(other)) > 44 for other in kept):
            kept.append(value)
    parts = []
    for value in sorted(kept):
        css = "even" if value == 1.0 else "grid"
        parts.append(
            f'<line class="{css}" x1="{n(x(value))}" x2="{n(x(value))}" y1="{n(frame.y1)}" y2="{n(frame.y0)}"/>'
        )
        parts.append(text(x(value), frame.y0 + 18, f"{value:g}x", "tick", "middle"))
    for i, row in enumerate(known):
        parts.append(_mark(row, frame.y1 + (i + 0.5) * _ROW, x, frame, several))
    parts.append(
        text((frame.x0 + frame.x1) / 2, frame.height - 6, "this run over the baseline", "axis-title", "middle")
    )
    told = "; ".join(
        f"{name(row.load, several=several)} {scales.ratio(row.ratio, 1.0)} {VERDICTS[row.verdict][0]}" for row in known
    )
    title = f"{_capital(known[0].title)} against the baseline"
    drawing = document(frame, "versus-plot", title, told + ".", "".join(parts))
    caption = f"{_capital(known[0].title)} of this run over that of the baseline, with the interval that noise allows."
    caption += " Right of 1x is more."
    _title, head, cells = _table(rows, several)
    return Figure("versus", "Ratio to the baseline", caption, drawing, head[:7], [row[:7] for row in cells], wide=True)


def _mark(row: Row, y: float, x: Scale, frame: Frame, several: bool) -> str:
    words, css = VERDICTS[row.verdict]
    ratio = row.ratio or 1.0
    parts = [text(frame.x0 - _VERDICT - 12, y + 4, name(row.load, several=several), "tick", "end")]
    if row.low and row.high:
        ends = f'x1="{n(x(row.low))}" x2="{n(x(row.high))}" y1="{n(y)}" y2="{n(y)}"'
        parts.append(f'<line class="span" {ends}/>')
    told = escape(f"{name(row.load, several=several)}: {scales.ratio(ratio, 1.0)}, {words}. {row.why}")
    parts.append(f'<circle cx="{n(x(ratio))}" cy="{n(y)}" r="5"><title>{told}</title></circle>')
    label = text(frame.x0 - _VERDICT + 4, y + 4, f"{scales.ratio(ratio, 1.0)} {words}", f"label {css}")
    return f'<g class="series {css}">{"".join(parts[1:])}</g>{parts[0]}{label}'
