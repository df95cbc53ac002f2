# SPDX-License-Identifier: Apache-2.0
"""Where the time of a decode step goes, as stacked bars."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from html import escape

from rackwell.bench.report.figure import Figure
from rackwell.bench.report.versus import name
from rackwell.bench.steptime import Part, StepBudget
from rackwell.page.scales import UNKNOWN, number
from rackwell.page.svg import Frame, document, n, text

_COLOURS = {"weights": "g0", "kv": "g2", "allreduce": "g1", "rest": "s-dull"}
_ROW = 31.0


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """The figure, what is said of each load, and what all of it rests on."""

    figure: Figure
    statements: list[tuple[str, list[str]]]
    assumptions: list[str]


def steps(budgets: Sequence[StepBudget] | None) -> Steps | None:
    """The view; None where there is no budget."""
    if not budgets:
        return None
    several = len({budget.load[:2] for budget in budgets}) > 1
    said = {}
    seen: set[str] = set()
    for budget in budgets:
        fresh = [line for line in budget.statements if line not in seen]
        seen.update(fresh)
        if fresh:
            said[name(budget.load, several=several)] = fresh
    assumptions = list(dict.fromkeys(line for budget in budgets for line in budget.assumptions))
    return Steps(_figure(budgets, several), list(said.items()), assumptions)


def _figure(budgets: Sequence[StepBudget], several: bool) -> Figure:
    left = 26.0 + 7.4 * max(len(name(budget.load, several=several)) for budget in budgets)
    frame = Frame(900, 74 + _ROW * len(budgets), left=left, right=92, top=40, bottom=34)
    width = frame.x1 - frame.x0
    parts = _legend(budgets, frame)
    for tick in (0, 25, 50, 75, 100):
        x = frame.x0 + width * tick / 100
        parts.append(f'<line class="grid" x1="{n(x)}" x2="{n(x)}" y1="{n(frame.y1)}" y2="{n(frame.y0)}"/>')
        parts.append(text(x, frame.y0 + 18, f"{tick} %", "tick", "middle"))
    for i, budget in enumerate(budgets):
        parts.append(_bar(budget, frame, frame.y1 + i * _ROW + 6, several))
    told = "; ".join(
        f"{name(budget.load, several=several)}: {number(budget.step_ms.value)} ms, floor {number(budget.floor_ms)} ms"
        for budget in budgets
    )
    drawing = document(frame, "steps-plot", "Where the time of a decode step goes", told + ".", "".join(parts))
    head = ["Load", "Step", "Floor", "Floor of step", "Allreduces", "Each, measured"]
    titles = list(dict.fromkeys(part.title for budget in budgets for part in budget.parts))
    rows = [
        [
            name(budget.load, several=several),
            f"{number(budget.step_ms.value)} ms",
            f"{number(budget.floor_ms)} ms",
            f"{100 * budget.floor_share:.1f} %",
            f"{budget.allreduces:,}",
            UNKNOWN if budget.allreduce_us.value is None else f"{number(budget.allreduce_us.value)} us",
            *(_ms(budget, title) for title in titles),
        ]
        for budget in budgets
    ]
    caption = (
        "Shares of one decode step as measured. What memory and allreduces need at least is computed; "
        "the rest is everything else, waiting included."
    )
    return Figure("steps", "One decode step", caption, drawing, [*head, *titles], rows, wide=True)


def _legend(budgets: Sequence[StepBudget], frame: Frame) -> list[str]:
    parts, x = [], frame.x0
    shown = {part.name: part.title for budget in budgets for part in budget.parts}
    for key, title in shown.items():
        parts.append(f'<rect class="bar {_COLOURS.get(key, "g3")}" x="{n(x)}" y="8" width="12" height="12" rx="2"/>')
        parts.append(text(x + 18, 18, title, "tick"))
        x += 18 + 6.8 * len(title) + 18
    return parts


def _bar(budget: StepBudget, frame: Frame, y: float, several: bool) -> str:
    width = frame.x1 - frame.x0
    parts = [text(frame.x0 - 10, y + 15, name(budget.load, several=several), "tick", "end")]
    x = frame.x0
    for part in budget.parts:
        share = _share(part, budget)
        if not share:
            continue
        wide = min(width * share, frame.x1 - x)
        told = escape(f"{part.title}: {number(part.ms)} ms, {100 * share:.1f} %, {part.known}. {part.text}")
        css = _COLOURS.get(part.name, "g3")
        parts.append(
            f'<rect class="bar {css}" x="{n(x)}" y="{n(y)}" width="{n(max(wide, 0.75))}" height="22">'
            f"<title>{told}</title></rect>"
        )
        if wide > 44:
            parts.append(text(x + wide / 2, y + 15.5, f"{100 * share:.0f} %", "inside", "middle"))
        x += wide
    parts.append(text(frame.x1 + 10, y + 15, f"{number(budget.step_ms.value)} ms", "label s-ink"))
    return "".join(parts)


def _share(part: Part, budget: StepBudget) -> float:
    if part.share is not None:
        return max(0.0, part.share)
    return max(0.0, part.ms / budget.step_ms.value) if part.ms is not None and budget.step_ms.value else 0.0


def _ms(budget: StepBudget, title: str) -> str:
    part = next((part for part in budget.parts if part.title == title), None)
    return UNKNOWN if part is None or part.ms is None else f"{number(part.ms)} ms ({part.known})"
