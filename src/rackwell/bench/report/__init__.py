# SPDX-License-Identifier: Apache-2.0
"""A benchmark run as one HTML page that needs no network, now or later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rackwell import page
from rackwell.bench.compare import Comparison, compare
from rackwell.bench.report import data, view
from rackwell.bench.result import BenchResult
from rackwell.bench.steptime import explain_or_why
from rackwell.page import scales

__all__ = ["compared", "context", "render"]

PACKAGE = __name__
FILTERS = {"ms": scales.milliseconds, "streams": scales.count}


def render(result: BenchResult, previous: BenchResult | None = None, sites: Sequence[Path] = ()) -> str:
    """The page.

    Args:
        result: the run. previous: the run to hold it against, usually the valid one before it.
        sites: directories whose ``models/`` and ``gpus/`` are looked into before the catalogue, for the step's time.
    """
    return page.render(PACKAGE, context(result, previous, sites).as_dict(), FILTERS, data.embedded(result))


def context(result: BenchResult, previous: BenchResult | None = None, sites: Sequence[Path] = ()) -> view.View:
    """Everything the page shows, drawings included; also what is written to files for a paper."""
    budgets, why = explain_or_why(result, sites)
    return view.view(result, previous, compared(result, previous), budgets, why)


def compared(result: BenchResult, previous: BenchResult | None) -> Comparison | None:
    """The run against an earlier one; None without one, or where they share no load that counts in both."""
    return compare(previous, result) if previous is not None else None
