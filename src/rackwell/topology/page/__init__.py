# SPDX-License-Identifier: Apache-2.0
"""The validation of a machine's GPUs as one HTML page that needs no network, now or later."""

from __future__ import annotations

from rackwell import page
from rackwell.topology.baseline import Baseline
from rackwell.topology.gate import Gate
from rackwell.topology.page import view
from rackwell.topology.report import GpuReport, short

__all__ = ["render"]


def render(report: GpuReport, *, baseline: Baseline | None = None, gate: Gate | None = None, title: str = "") -> str:
    """The page.

    Args:
        baseline: the machine's own figures, to show the deltas. gate: the verdict of this boot.
        title: the container's name in the site; else the name that it gives itself.
    """
    context = view.context(report, baseline, gate, title or report.host or "this machine")
    data = report.model_dump(mode="json", by_alias=True)
    return page.render(__name__, context, {"short": short, "told": view.told}, data)
