# SPDX-License-Identifier: Apache-2.0
"""A benchmark run as one HTML page that needs no network, now or later."""

from __future__ import annotations

from collections.abc import Sequence

from rackwell import page
from rackwell.bench.compare import Comparison, compare
from rackwell.bench.report import data, view
from rackwell.bench.result import BenchResult
from rackwell.bench.steptime import StepBudget, explain
from rackwell.page import scales

__all__ = ["context", "render"]

PACKAGE = __name__
FILTERS = {"ms": scales.milliseconds, "streams": scales.count}


def render(result: BenchResult, previous: BenchResult | None = None) -> str:
    """The page.

    Args:
        result: the run. previous: the run to hold it against, usually the valid one before it.
    """
    return page.render(PACKAGE, context(result, previous).as_dict(), FILTERS, data.embedded(result))


def context(result: BenchResult, previous: BenchResult | None = None) -> view.View:
    """Everything the page shows, drawings included; also what is written to files for a paper."""
    return view.view(result, previous, _compared(previous, result), _explained(result))


def _compared(previous: BenchResult | None, result: BenchResult) -> Comparison | None:
    return compare(previous, result) if previous is not None else None


def _explained(result: BenchResult) -> Sequence[StepBudget] | None:
    try:
        return explain(result)
    except NotImplementedError:
        return None
