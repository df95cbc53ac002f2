# SPDX-License-Identifier: Apache-2.0
"""Which runs are reported, what each is held against, and the report in the form that was asked for."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from rackwell.bench import store as stores
from rackwell.bench import table
from rackwell.bench.report import compared, context, export, render
from rackwell.bench.report import loads as of
from rackwell.bench.result import BenchResult
from rackwell.bench.steptime import explain_or_why
from rackwell.bench.store import Entry, Store
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site import files

Format = Literal["html", "markdown", "text", "json"]
FORMATS: tuple[str, ...] = get_args(Format)


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A run to report. place: where its page goes by itself. previous: what it is held against.

    sites: where its model may be described."""

    result: BenchResult
    place: Path
    previous: BenchResult | None
    sites: tuple[Path, ...] = ()


def choose(site: Path, what: Sequence[str], baseline: str = "") -> list[Asked]:
    """The runs that `what` names; the newest finished one of all where it names none.

    Args:
        site: the site's directory. baseline: a run to hold each against; else the valid one before it.

    Raises:
        RackwellError: there is no such run, or a file is no result (exit 2).
    """
    store = Store(site)
    entries = [stores.resolve(site, each) for each in what] or _newest(store)
    held = stores.resolve(site, baseline).load() if baseline else None
    asked = []
    for entry in entries:
        result = entry.load()
        previous = held if held is not None else store.previous(result)
        same = previous is not None and (previous.run_id, previous.container) == (result.run_id, result.container)
        asked.append(Asked(result, entry.path, None if same else previous, (site,)))
    return asked


def _newest(store: Store) -> list[Entry]:
    """Of all containers, the newest run that has points; entries begin with their time."""
    containers = {entry.container for entry in store.entries()}
    found = [next(iter(store.results(container)), None) for container in containers]
    newest = max((each[0] for each in found if each is not None), key=lambda entry: entry.name, default=None)
    return [newest] if newest is not None else []


def form(asked: Asked, kind: str) -> str:
    """The report as HTML, Markdown, text or JSON. Raises RackwellError for another `kind` (exit 2)."""
    if kind not in FORMATS:
        raise RackwellError(
            Problem("report-format", "there is no such format of a report", repr(kind), fix=" or ".join(FORMATS)),
            ExitCode.INVALID,
        )
    if kind == "html":
        return render(asked.result, asked.previous, asked.sites)
    if kind == "json":
        return json.dumps(figures(asked), indent=1, ensure_ascii=False) + "\n"
    tell = table.markdown if kind == "markdown" else table.text
    return tell(asked.result, compared(asked.result, asked.previous), explain_or_why(asked.result, asked.sites)[0])


def figures(asked: Asked) -> dict[str, Any]:
    """The run in figures: a line for each load (medians), the comparison, where the time goes."""
    result = asked.result
    found = compared(result, asked.previous)
    budgets, why = explain_or_why(result, asked.sites)
    return {
        "container": result.container,
        "run_id": result.run_id,
        "date_utc": result.date_utc,
        "bench": result.bench,
        "valid": result.valid,
        "complete": result.complete,
        "headline": table.headline(result),
        "loads": [_figures(load) for load in of.loads(result.points)],
        "comparison": found.as_dict() if found is not None else None,
        "steptime": [budget.as_dict() for budget in budgets] if budgets else None,
        "steptime_why": why,
    }


def _figures(load: of.Load) -> dict[str, Any]:
    span = load.span(of.output)
    return {
        "input_tokens": load.input_tokens,
        "output_tokens": load.output_tokens,
        "concurrency": load.concurrency,
        "repeats": len(load.points),
        "valid_repeats": len(load.valid),
        "reasons": sorted({reason.code for point in load.points for reason in point.reasons}),
        "output_tok_per_s": load.middle(of.output),
        "output_tok_per_s_span": list(span) if span else None,
        "steady_output_tok_per_s": load.middle(of.steady),
        "total_tok_per_s": load.middle(of.total),
        **{
            f"{name}_{quantile}_ms": load.middle(of.latency(f"{name}_ms", quantile))
            for name in ("ttft", "itl", "e2e")
            for quantile in ("p50", "p99")
        },
        "gpu_power_w": load.middle(of.gpu_power),
        "gpu_power_limit_w": load.middle(of.gpu_limit),
        "utilization_pct": load.middle(of.busy),
        "joules_per_output_token": load.middle(of.joules),
    }


def plots(asked: Asked, directory: Path, kind: str) -> list[Path]:
    """Every drawing of the report as a file in `directory`. Raises RackwellError as :func:`export.write`."""
    return export.write(context(asked.result, asked.previous, asked.sites).drawings, directory, kind)


def save(text: str, target: Path) -> Path:
    """Write a report. Raises RackwellError: it cannot be written (exit 1)."""
    try:
        files.write(target, text)
    except OSError as error:
        raise RackwellError(
            Problem("cannot-write", "the report cannot be written", str(target), error.strerror or str(error))
        ) from error
    return target
