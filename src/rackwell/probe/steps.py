# SPDX-License-Identifier: Apache-2.0
"""The steps of a child: told as they begin and end, and put together with causes and cures afterwards."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rackwell.probe.child import Emit, Outcome
from rackwell.probe.data import WrongDataError
from rackwell.probe.driver import DriverError
from rackwell.probe.errors import HANG, Advice, choose, explain


class StepFailedError(Exception):
    """A step failed and was reported: what depends on it is left out."""


@contextmanager
def step(emit: Emit, name: str, **scope: Any) -> Iterator[None]:
    """Tell that a step begins, then how it ended. ``scope`` says of what, e.g. ``device=3``.

    Raises StepFailedError after a failure of the driver or of the data.
    """
    emit({"begin": name, **scope})
    started = time.monotonic()
    error: dict[str, Any] | None = None
    try:
        yield
    except DriverError as failure:
        error = {"code": failure.code, "name": failure.name, "call": failure.call, "detail": failure.detail}
    except WrongDataError as failure:
        error = {"code": None, "name": "WRONG_DATA", "call": name, "detail": str(failure)}
    emit({"end": name, **scope, "ok": error is None, "seconds": round(time.monotonic() - started, 4), "error": error})
    if error:
        raise StepFailedError(name)


def steps_of(
    outcome: Outcome,
    scope: dict[str, Any],
    findings: Collection[str],
    wrong_data: Sequence[Advice],
) -> list[dict[str, Any]]:
    """The steps of one scope with causes and cures; a step that began and never ended is the one that hung."""
    steps: list[dict[str, Any]] = []
    for event in outcome.events:
        if any(event.get(key) != value for key, value in scope.items()):
            continue
        if "begin" in event:
            steps.append({"step": event["begin"], "ok": False, "seconds": None, "error": None})
        elif "end" in event:
            steps[-1].update(ok=event["ok"], seconds=event["seconds"])
            if event["error"]:
                steps[-1]["error"] = _explained(event["error"], findings, wrong_data)
    if steps and not steps[-1]["ok"] and not steps[-1]["error"]:
        advice = choose(HANG, findings)
        name = {"hung": "HANG", "stuck": "HANG_IN_KERNEL"}.get(outcome.state, "CRASH")
        steps[-1]["error"] = {
            "code": None,
            "name": name,
            "call": steps[-1]["step"],
            "detail": outcome.describe(),
            "cause": advice.cause if name != "CRASH" else "the driver's library ended the process",
            "fix": advice.fix,
        }
    return steps


def _explained(error: dict[str, Any], findings: Collection[str], wrong_data: Sequence[Advice]) -> dict[str, Any]:
    advice = choose(wrong_data) if error["code"] is None else explain(error["code"], findings)
    return {**error, "cause": advice.cause, "fix": advice.fix}
