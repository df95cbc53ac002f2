# SPDX-License-Identifier: Apache-2.0
"""What becomes of the events of a child that measures between GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from rackwell.probe.child import Emit, Outcome
from rackwell.probe.errors import DATA_MISMATCH_PEER
from rackwell.probe.p2p.gpus import NotMeasurableError
from rackwell.probe.steps import StepFailedError, steps_of


def guarded(emit: Emit, function: Callable[[], None]) -> None:
    """Run a measurement whose steps tell themselves why they fail; emits ``not_measured`` where nothing can be."""
    try:
        function()
    except StepFailedError:
        return
    except NotMeasurableError as error:
        emit({"not_measured": str(error)})


def collected(outcome: Outcome, findings: Collection[str], lists: Iterable[str]) -> dict[str, Any]:
    """What all measurements between GPUs tell: the entries that were emitted under each name of ``lists``, the steps
    that failed, and how it ended.
    """
    found: dict[str, Any] = {name: [event[name] for event in outcome.events if name in event] for name in lists}
    pairs = {tuple(event["pair"]) for event in outcome.events if event.get("pair") and "begin" in event}
    steps = {pair: steps_of(outcome, {"pair": list(pair)}, findings, DATA_MISMATCH_PEER) for pair in sorted(pairs)}
    common = steps_of(outcome, {"pair": None}, findings, DATA_MISMATCH_PEER)
    errors = [
        {"src": src, "dst": dst, "step": entry["step"], "error": entry["error"]}
        for (src, dst), entries in [((None, None), common), *steps.items()]
        for entry in entries
        if entry["error"]
    ]
    return {
        **found,
        "size": next((event["size"] for event in outcome.events if "size" in event), None),
        "devices": [event["identity"] for event in outcome.events if "identity" in event],
        "steps": common,
        "errors": errors,
        "not_measured": next((event["not_measured"] for event in outcome.events if "not_measured" in event), None),
        "state": outcome.state,
        "at": _at(outcome),
        "describe": outcome.describe(),
    }


def _at(outcome: Outcome) -> dict[str, Any] | None:
    """The step that never ended."""
    if outcome.state == "done":
        return None
    open_step: dict[str, Any] | None = None
    for event in outcome.events:
        if "begin" in event:
            open_step = {"pair": event["pair"], "step": event["begin"]}
        elif "end" in event:
            open_step = None
    return open_step


def merged(outcome: Outcome, name: str) -> dict[str, Any]:
    """The dicts that were emitted under one name, as one."""
    found: dict[str, Any] = {}
    for event in outcome.events:
        found |= event.get(name, {})
    return found
