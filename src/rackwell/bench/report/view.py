# SPDX-License-Identifier: Apache-2.0
"""What the page of a run shows, in its order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rackwell import page
from rackwell.bench.compare import Comparison
from rackwell.bench.report import heat, provenance, sweeps
from rackwell.bench.report import loads as of
from rackwell.bench.report.details import Detail, details
from rackwell.bench.report.figure import Figure
from rackwell.bench.report.loads import Load
from rackwell.bench.report.steps import Steps, steps
from rackwell.bench.report.summary import Row, every_figure, summary, tiles
from rackwell.bench.report.versus import Versus, versus
from rackwell.bench.result import BenchPoint, BenchResult
from rackwell.bench.steptime import StepBudget


@dataclasses.dataclass(frozen=True, slots=True)
class Lengths:
    """The figures of one pair of lengths."""

    ident: str
    title: str
    label: str
    figures: list[Figure]


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """The variables of the template."""

    result: BenchResult
    when: str
    best: Load | None
    best_output: float | None
    load: str
    points: list[BenchPoint]
    rejected: list[BenchPoint]
    tiles: list[dict[str, str]]
    rows: list[tuple[str, list[Row]]]
    repeats: int
    previous: BenchResult | None
    previous_when: str
    overview: Figure | None
    lengths: list[Lengths]
    shown_lengths: str
    steps: Steps | None
    why_no_steps: str
    versus: Versus | None
    details: list[Detail]
    shown: str
    left_out: int
    p2p: Figure | None
    allreduce: Figure | None
    columns: tuple[list[str], list[list[str]]]
    remarks: list[tuple[str, str]]
    provenance: provenance.Rows
    sections: list[tuple[str, str]]

    def as_dict(self) -> dict[str, Any]:
        """For the template."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def figures(self) -> list[Figure]:
        """Every figure with a drawing, the timeline of the shown point only."""
        found = [self.overview, *(figure for each in self.lengths for figure in each.figures)]
        found += [self.steps.figure if self.steps else None, self.versus.figure if self.versus else None]
        found += [detail.time for detail in self.details if detail.ident == self.shown]
        found += [self.p2p, self.allreduce]
        return [figure for figure in found if figure is not None]

    @property
    def drawings(self) -> dict[str, str]:
        """Name and SVG of every drawing: the figures, and the bars of the shown point's GPUs."""
        made = {figure.ident: figure.svg for figure in self.figures}
        for detail in self.details:
            if detail.ident == self.shown and detail.gpus is not None:
                for plot in detail.gpus.plots:
                    made[plot.split('id="', 1)[1].split('-plot"', 1)[0]] = plot
        return made


def view(
    result: BenchResult,
    previous: BenchResult | None,
    compared: Comparison | None,
    budgets: Sequence[StepBudget] | None,
    why_no_steps: str = "",
) -> View:
    """Everything that can be shown of a run."""
    every = of.loads(result.points)
    earlier = of.matching(every, previous)
    matched = dict(zip([load.key for load in every], earlier, strict=True))
    groups = of.by_lengths(every)
    best = of.best(every)
    lengths = [_lengths(key, group, matched, len(groups)) for key, group in groups.items()]
    lengths = [each for each in lengths if each.figures]
    shown = details(every)
    rejected = [point for point in result.points if not point.valid]
    idents = [detail.ident for detail in shown]
    made = View(
        result=result,
        when=page.when(result.date_utc),
        best=best,
        best_output=best.middle(of.output) if best else None,
        load=_load(list(groups)),
        points=result.points,
        rejected=rejected,
        tiles=tiles(best, matched[best.key]) if best else [],
        rows=summary(groups, matched),
        repeats=max((len(load.points) for load in every), default=1),
        previous=previous if any(earlier) else None,
        previous_when=page.when(previous.date_utc) if previous else "",
        overview=sweeps.overview(groups),
        lengths=lengths,
        shown_lengths=_ident(best.key[:2]) if best and len(groups) > 1 else "",
        steps=steps(budgets),
        why_no_steps=why_no_steps,
        versus=versus(compared),
        details=shown,
        shown=best.ident if best and best.ident in idents else next(iter(idents), ""),
        left_out=max(0, len(every) - len(shown)),
        p2p=heat.heat(result.topology),
        allreduce=heat.allreduce(result.topology),
        columns=every_figure(result.points),
        remarks=_remarks(result.points),
        provenance=provenance.rows(result),
        sections=[],
    )
    return dataclasses.replace(made, sections=_sections(made))


def _lengths(
    key: tuple[int, int], group: list[Load], matched: dict[tuple[int, int, int], Load | None], count: int
) -> Lengths:
    suffix = f"-{key[0]}-{key[1]}" if count > 1 else ""
    earlier = [matched[load.key] for load in group]
    label = f"{sweeps.short(key[0])} + {sweeps.short(key[1])}"
    return Lengths(_ident(key), of.lengths(key), label, sweeps.figures(group, earlier, suffix))


def _ident(key: tuple[int, ...]) -> str:
    return f"{key[0]}-{key[1]}"


def _load(keys: list[tuple[int, int]]) -> str:
    """The load in words."""
    if len(keys) == 1:
        prompt, answer = keys[0]
        return f"{prompt:,} prompt and {answer:,} output tokens a request"
    return f"{len(keys)} pairs of prompt and answer lengths" if keys else "nothing measured"


def _remarks(points: list[BenchPoint]) -> list[tuple[str, str]]:
    """Each remark once, with the streams of the points that it is about."""
    found: dict[str, list[int]] = {}
    for point in points:
        for remark in point.remarks:
            found.setdefault(remark, []).append(point.concurrency)
    return [
        (remark, ", ".join(f"{c:,}" for c in dict.fromkeys(where)) if len(points) > 1 else "")
        for remark, where in found.items()
    ]


def _sections(made: View) -> list[tuple[str, str]]:
    """What the page's list of contents names: ident, title."""
    found = [
        ("summary", "Points", True),
        ("rejected", "What does not count", bool(made.rejected)),
        ("curves", "Over concurrency", bool(made.lengths)),
        ("step", "Where the time goes", made.steps is not None),
        ("against", "Against the baseline", made.versus is not None),
        ("point", "One point", bool(made.details)),
        ("pairs", "Between the GPUs", made.p2p is not None or made.allreduce is not None),
        ("figures", "All figures", bool(made.points)),
        ("provenance", "What was measured on what", True),
    ]
    return [(ident, title) for ident, title, there in found if there]
