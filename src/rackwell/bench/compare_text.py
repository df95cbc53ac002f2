# SPDX-License-Identifier: Apache-2.0
"""A comparison for the terminal or a ticket: plain lines of at most 80 columns where names allow it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rackwell.bench.compare_blocks import Load
from rackwell.bench.compare_metrics import SHORT
from rackwell.bench.compare_types import Comparison, Row
from rackwell.bench.result import BenchResult
from rackwell.page.scales import number

HEAD = ("streams", "A", "B", "B/A", "interval", "")
Line = tuple[str, str]
"""Text, and what it is: ``title``, ``head``, a verdict, or nothing."""


def lines(
    found: Comparison, a: Sequence[BenchResult], b: Sequence[BenchResult], *, every: bool = False
) -> Iterator[Line]:
    """The comparison, top down: what is compared, what differs, the verdicts, what does not count.

    Args:
        every: all metrics that were compared, not only those of :data:`SHORT`.
    """
    for letter, side in (("A", a), ("B", b)):
        for run in side:
            yield f"{letter}  {_run(run)}", ""
    attribution = found.attribution
    if len(attribution.changes) > 1:
        yield f"   {len(attribution.changes)} things changed, so no cause is named:", attribution.verdict
        yield from ((f"     {change.text}", "") for change in attribution.changes)
    else:
        yield f"   {attribution.text}", attribution.verdict
    if attribution.suggestion:
        yield f"   {attribution.suggestion}", ""
    yield "", ""
    shown = [row for row in found.rows if every or row.metric in SHORT]
    lengths = sorted({row.load[:2] for row in shown})
    for metric in dict.fromkeys(row.metric for row in shown):
        yield from _metric([row for row in shown if row.metric == metric], lengths, found)
    yield from _rest(found)


def _metric(rows: Sequence[Row], lengths: Sequence[tuple[int, int]], found: Comparison) -> Iterator[Line]:
    unit = f", {rows[0].unit}" if rows[0].unit else ""
    if all(row.ratio is None for row in rows) and len({row.why for row in rows}) == 1:
        yield f"{rows[0].title}{unit}: not comparable: {rows[0].why}", "not-comparable"
        yield "", ""
        return
    yield f"{rows[0].title}{unit}", "title"
    head, why = (HEAD if len(lengths) < 2 else ("in/out", *HEAD)), []
    cells: list[tuple[str, ...]] = []
    for row in rows:
        place = (f"{row.load[0]:,}/{row.load[1]:,}",) if len(lengths) > 1 else ()
        if row.ratio is None or row.low is None or row.high is None:
            cells.append((*place, f"{row.load[2]:,}", "", "", "", "", "not comparable"))
            why.append(f"at {row.load[2]:,} streams {row.why}")
        else:
            values = (number(row.baseline), number(row.candidate), ratio(row.ratio))
            cells.append((*place, f"{row.load[2]:,}", *values, f"{ratio(row.low)} to {ratio(row.high)}", _verdict(row)))
    widths = [max(len(line[i]) for line in [head, *cells]) for i in range(len(head) - 1)]
    yield _columns(head, widths), "head"
    for cell, row in zip(cells, rows, strict=True):
        yield _columns(cell, widths), row.verdict
    overall = found.overall
    if overall and overall.metric == rows[0].metric and overall.loads > 1:
        told = f"{ratio(overall.ratio)} ({ratio(overall.low)} to {ratio(overall.high)}): {overall.verdict}"
        yield f"  over {overall.loads} loads {told}", overall.verdict
    for text in dict.fromkeys(why):
        yield f"  {text}", ""
    yield "", ""


def _columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(["", *(c.rjust(w) for c, w in zip(cells, widths, strict=False)), cells[-1]]).rstrip()


def _verdict(row: Row) -> str:
    """With how much faster it is; of what is inconclusive, how many runs would tell, as the reason says it."""
    if row.verdict == "inconclusive":
        _, found, tail = row.why.partition("; about ")
        enough = f"~{tail.split()[0]} runs a side" if found else "too noisy" if "too much" in row.why else ""
        return f"inconclusive ({enough})" if enough else "inconclusive"
    if row.ratio is None or row.verdict == "same":
        return row.verdict
    factor = max(row.ratio, 1 / row.ratio)
    if factor >= 1.2:
        return f"{ratio(factor)} {row.verdict}"
    return f"{100 * abs(row.ratio - 1):.0f} % {row.verdict}"


def _rest(found: Comparison) -> Iterator[Line]:
    for point in found.rejected:
        side = "A" if point.side == "baseline" else "B"
        repeat = f", repeat {point.repeat}" if point.repeat > 1 else ""
        yield f"{side} does not count at {load(point.load)}{repeat}: {'; '.join(point.reasons)}", "slower"
    for side, alone in (("A", found.only_baseline), ("B", found.only_candidate)):
        if alone:
            yield f"only {side} measured: {', '.join(map(load, alone))}", ""
    for note in found.notes:
        yield f"note: {note}", ""
    yield f"A difference counts from {percent(found.min_effect)}; intervals are of {percent(found.confidence)}.", ""


def load(of: Load) -> str:
    """A load in words."""
    return f"{of[2]:,} stream{'' if of[2] == 1 else 's'} ({of[0]:,} in, {of[1]:,} out)"


def percent(share: float) -> str:
    """Such as ``3 %``."""
    return f"{100 * share:.3g} %"


def ratio(value: float) -> str:
    """Such as ``4.25x`` or ``0.0631x``: three digits at least."""
    return f"{number(value)}x"


def _run(run: BenchResult) -> str:
    parts = [f"{run.container}/{run.run_id}", run.date_utc[:16].replace("T", " ")]
    if run.release:
        parts.append(f"release {run.release.name} {run.release.digest[:8]}")
    if run.profile:
        parts.append(f"profile {run.profile.name}")
    if run.origin:
        parts.append(f"by {run.origin.tool}")
    return ", ".join(parts)
