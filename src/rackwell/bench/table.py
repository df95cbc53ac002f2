# SPDX-License-Identifier: Apache-2.0
"""A benchmark run as a table: for the terminal, as plain text for a ticket, as Markdown. Medians of the repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rackwell.bench.report import loads as of
from rackwell.bench.report.figure import share
from rackwell.bench.report.loads import Load
from rackwell.page import when
from rackwell.page.scales import UNKNOWN, count, number, ratio

if TYPE_CHECKING:
    from rich.table import Table

    from rackwell.bench.compare import Comparison
    from rackwell.bench.result import BenchResult
    from rackwell.bench.steptime import StepBudget

HEAD = (
    "streams",
    "output\ntok/s",
    "total\ntok/s",
    "TTFT ms\np50",
    "\np99",
    "ITL ms\np50",
    "\np99",
    "W per\nGPU",
    "of\nlimit",
    "J per\ntoken",
)
_FLAT = [
    "streams",
    "output tok/s",
    "total tok/s",
    "TTFT p50 ms",
    "p99",
    "ITL p50 ms",
    "p99",
    "W per GPU",
    "of limit",
    "J per token",
]


def row(load: Load) -> list[str]:
    """The cells of one load, in the order of :data:`HEAD`; what is not known is a dash."""
    ttft, itl = "ttft_ms", "itl_ms"
    return [
        f"{load.concurrency:,}",
        number(load.middle(of.output)),
        number(load.middle(of.total)),
        *(number(load.middle(of.latency(name, q))) for name in (ttft, itl) for q in ("p50", "p99")),
        number(load.middle(of.gpu_power)),
        share(load.middle(of.power_share), 100),
        number(load.middle(of.joules)),
    ]


def table(result: BenchResult) -> Table:
    """The loads of a run, 80 columns wide; below them, why a point does not count."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", caption_style="")
    grid.caption_justify = "left"
    every = of.loads(result.points)
    several = len(of.by_lengths(every)) > 1
    for title in ("tokens\nin/out", *HEAD) if several else HEAD:
        grid.add_column(title, justify="right", no_wrap=True)
    for load in every:
        lengths = [f"{load.input_tokens:,}/{load.output_tokens:,}"] if several else []
        grid.add_row(*lengths, *row(load), style="" if load.valid else "dim")
    rejected = _rejected(result, several)
    if rejected:
        grid.caption = Text("".join(f"{line}\n" for line in rejected), style="red")
    return grid


def _rejected(result: BenchResult, several: bool) -> list[str]:
    """Why points do not count, a line each."""
    lines = []
    repeated = any(point.repeat > 1 for point in result.points)
    for point in result.points:
        if point.valid:
            continue
        what = "; ".join(reason.what for reason in point.reasons) or point.status
        found = [str(finding.get("title") or finding.get("id") or "") for finding in point.findings[:1]]
        what += f" ({found[0]})" if found and found[0] else ""
        named = [f"{point.input_tokens:,}/{point.output_tokens:,} tokens"] if several else []
        named += [f"repeat {point.repeat}"] if repeated else []
        brackets = f" ({', '.join(named)})" if named else ""
        where = f"{count(point.concurrency)}{brackets}"
        lines.append(f"{where} {'does' if point.concurrency == 1 else 'do'} not count: {what}")
    return lines


def text(result: BenchResult, compared: Comparison | None = None, budgets: Sequence[StepBudget] | None = None) -> str:
    """For a ticket: what was measured on what, the figures, what does not count, what changed. Ends with a newline.

    Args:
        compared: against another run. budgets: where the time goes.
    """
    lines = [headline(result), *_surroundings(result), ""]
    head, rows = _columns(result)
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    lines += [
        "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in (head, *rows)
    ]
    lines += ["", *_told(result, compared, budgets)]
    return "\n".join(lines).rstrip() + "\n"


def markdown(
    result: BenchResult, compared: Comparison | None = None, budgets: Sequence[StepBudget] | None = None
) -> str:
    """The same as Markdown."""
    head, rows = _columns(result)
    lines = [f"**{_escaped(headline(result))}**", ""]
    lines += [f"{_escaped(line)}  " for line in _surroundings(result)]
    lines += ["", _line(head), _line(["---:"] * len(head)), *map(_line, rows), ""]
    lines += [f"- {_escaped(line)}" for line in _told(result, compared, budgets)]
    return "\n".join(lines).rstrip() + "\n"


def _columns(result: BenchResult) -> tuple[list[str], list[list[str]]]:
    """Head and rows without columns of which nothing is known."""
    every = of.loads(result.points)
    several = len(of.by_lengths(every)) > 1
    repeated = any(len(load.points) > 1 for load in every)
    head = [*(["in/out"] if several else []), *_FLAT, *(["spread of output"] if repeated else [])]
    rows = []
    for load in every:
        span = load.span(of.output)
        spread = f"{number(span[0])} to {number(span[1])}" if span else UNKNOWN
        lengths = [f"{load.input_tokens:,}/{load.output_tokens:,}"] if several else []
        rows.append([*lengths, *row(load), *([spread] if repeated else [])])
    kept = [i for i in range(len(head)) if any(cells[i] != UNKNOWN for cells in rows)]
    return [head[i] for i in kept], [[cells[i] for i in kept] for cells in rows]


def headline(result: BenchResult) -> str:
    """The run in one line: where, when, its best load, whether it counts."""
    best = of.best(of.loads(result.points))
    lost = sum(not point.valid for point in result.points)
    verdict = "valid" if result.valid else f"{lost} of {len(result.points)} points do not count"
    if result.origin:
        verdict = f"imported from {result.origin.tool}, not checked"
    where = f"{result.container} on {result.host}" if result.host else result.container
    reached = "no point counts"
    if best:
        reached = f"{number(best.middle(of.output))} output tok/s at {count(best.concurrency)}"
    return f"{where}, {when(result.date_utc)}: {reached} ({verdict}{'' if result.complete else ', interrupted'})"


def _surroundings(result: BenchResult) -> list[str]:
    release, profile = result.release, result.profile
    lengths = "; ".join(of.lengths(key) for key in of.by_lengths(of.loads(result.points)))
    served = (profile.served_name or profile.name) if profile else "a model"
    hardware = result.hardware
    where = f"{hardware.summary}, driver {hardware.driver_version or UNKNOWN}" if hardware.gpus else "unnamed GPUs"
    lines = ["; ".join(filter(None, (f"{served} on {where}", lengths)))]
    if release:
        sources = ", ".join(f"{name} {version}" for name, version in release.sources.items())
        patches = ", ".join(release.patches) or "no patches"
        lines.append(f"release {release.name} {release.digest[:12]} ({sources}; {patches})")
    if profile:
        lines.append(f"profile {profile.name} {profile.digest[:12]}")
    client = " ".join(filter(None, (result.client.name, result.client.version)))
    lines.append(f"run {result.run_id}, sweep {result.bench}, client {client}")
    return lines


def _told(result: BenchResult, compared: Comparison | None, budgets: Sequence[StepBudget] | None) -> list[str]:
    """What does not count, how it compares, where the time goes."""
    lines = _rejected(result, len({point.load[:2] for point in result.points}) > 1)
    if compared is not None and compared.rows:
        from rackwell.bench.report.versus import headline as versus
        from rackwell.bench.report.versus import name

        main = [each for each in compared.rows if each.metric == "output_tok_per_s"] or compared.rows[:1]
        several = len({each.load[:2] for each in main}) > 1
        lines.append(f"against {', '.join(compared.baseline)}: {versus(main, several)}")
        for each in main:
            if each.ratio and each.low and each.high:
                where = name(each.load, several=several)
                span = f"{each.low:.2f} to {each.high:.2f}"
                lines.append(f"  {where}: {ratio(each.ratio, 1.0)} ({span}), {each.verdict.replace('-', ' ')}")
        lines.append(compared.attribution.text)
    for budget in (budgets or [])[:1]:
        lines += [f"at {count(budget.load[2])}: {line}" for line in budget.statements[:3]]
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) if not cell.endswith('-:') else cell for cell in cells)} |"


def _escaped(words: str) -> str:
    """Text that Markdown takes as text."""
    for sign in ("\\", "`", "*", "_", "|", "<", "[", "~"):
        words = words.replace(sign, f"\\{sign}")
    return " ".join(words.split())
