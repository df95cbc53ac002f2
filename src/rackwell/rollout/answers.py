# SPDX-License-Identifier: Apache-2.0
"""What the answers of hosts and plays mean for a roll."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rackwell.ansible import ssh
from rackwell.ansible.results import PlayResult
from rackwell.rollout.state import Host
from rackwell.rollout.steps import Change, Ended, Outcome

_CHANGES = {"promoted": Change.PROMOTED, "returned": Change.RETURNED, "broken": Change.BROKEN, "none": Change.NONE}


def looked(host: Host, told: Mapping[str, Any]) -> Ended:
    """What a host's own words, its answer to ``look``, mean for the roll."""
    change = told.get("change") or {}
    state = str(change.get("state") or "none")
    data = {
        "change": str(_CHANGES.get(state, Change.OPEN)),
        "ours": bool(told.get("ours")),
        "drained": host.drained,
        "unhealthy": state in {"switching", "returning"},
        "told": {name: change[name] for name in ("from", "to", "side", "why", "code", "seconds") if change.get(name)},
    }
    return Ended(Outcome.OK, str(change.get("why") or ""), data)


def answered(said: ssh.Said) -> Ended:
    """What an answer of the host's program means."""
    if said.lost:
        return Ended(Outcome.UNREACHABLE, " ".join(said.err.split())[-300:] or "the connection was lost")
    try:
        told = json.loads(said.out)
        if not isinstance(told, dict):
            raise ValueError("no object")
    except ValueError:
        return Ended(Outcome.FAIL, (said.err or said.out).strip()[-300:] or f"it ended with {said.code}")
    if told.get("refused"):
        return Ended(Outcome.REFUSED, str(told["refused"]), {"lock": told.get("lock")})
    if told.get("error"):
        return Ended(Outcome.FAIL, str(told["error"]))
    return Ended(Outcome.OK, data=told)


def of_play(name: str, played: PlayResult) -> Ended:
    """What a play means for one host."""
    mine = [failure for failure in played.failures if failure.host == name]
    if not mine:
        if name not in played.hosts:
            # the play never came to it: another host's failure, or an interruption, ended it
            return Ended(Outcome.UNREACHABLE, "the play did not come to this host")
        return Ended(Outcome.OK)
    first = mine[0]
    problem = first.problems[0] if first.problems else None
    why = f"{problem.what}: {problem.why}".rstrip(": ") if problem else "a task failed"
    if first.unreachable:
        return Ended(Outcome.UNREACHABLE, why)
    if first.locked:
        return Ended(Outcome.REFUSED, why)
    fix = problem.fix if problem else ""
    return Ended(Outcome.FAIL, why, {"fix": fix, "code": problem.code if problem else ""})
