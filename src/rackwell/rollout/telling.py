# SPDX-License-Identifier: Apache-2.0
"""What people and programs are told of a roll: lines as it goes, a table, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rackwell.errors import Problem
from rackwell.rollout.plan import Plan
from rackwell.rollout.state import Host, Result, State
from rackwell.rollout.steps import Outcome, Step

_DOING = {
    Step.STAGE: "staging",
    Step.LOCK: "taking the lock",
    Step.PREFLIGHT: "checking what it serves now",
    Step.DRAIN: "draining",
    Step.SWITCH: "switching",
    Step.BENCH: "measuring",
    Step.PROMOTE: "promoting",
    Step.UNDRAIN: "back into rotation",
    Step.UNLOCK: "unlocking",
    Step.RETURN: "returning to what ran before",
    Step.LOOK: "asking what it knows",
}
_QUIET = {Step.LOCK, Step.UNLOCK, Step.DRAIN, Step.UNDRAIN, Step.LOOK}


def batches(plan: Plan) -> str:
    """Such as ``glm5-01, then 2, then 5``."""
    parts = [
        batch[0] if len(batch) == 1 and number == 0 else str(len(batch)) for number, batch in enumerate(plan.batches)
    ]
    return ", then ".join(parts)


def lines(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(where, text) for a record; nothing for what nobody waits for."""
    kind = record.get("kind")
    if kind == "begin":
        step = Step(record["step"])
        if step not in _QUIET:
            yield str(record["host"]), _DOING[step]
    elif kind == "end":
        step, outcome = Step(record["step"]), Outcome(record["outcome"])
        if outcome is not Outcome.OK or (step in (Step.BENCH, Step.PROMOTE, Step.RETURN)):
            why = f": {record['why']}" if record.get("why") else ""
            yield str(record["host"]), f"{step} {outcome}{why}"
    elif kind == "revert":
        yield str(record["host"]), "was promoted, and is taken back"
    elif kind == "stop":
        if record.get("abort"):
            yield "controller", f"{record.get('why')}: what was switched returns to what ran before"
        else:
            yield (
                "controller",
                (
                    f"stopping ({record.get('why')}): no further host is begun, those under way come to their end"
                    " (Ctrl-C again: stop now, they return by themselves)"
                ),
            )
    elif kind == "plan":
        plan = Plan.from_dict(record["plan"])
        yield "controller", f"roll {plan.run}: {plan.build} {plan.release[:12]} over {batches(plan)}"
    elif kind == "finish":
        yield "controller", f"the roll is over: exit code {record.get('exit_code')}"
    elif kind == "resume":
        yield "controller", "going on with what the journal says"
    elif kind == "answer":
        kept = "promote it" if record["verdict"] == "ok" else "take it back"
        yield str(record["host"]), f"{record.get('by') or 'a person'} decided: {kept}"


def safety(state: State, again: str) -> str:
    """In what state things are, should the controller end now."""
    opened = [host.name for host in state.hosts.values() if host.open or host.running is Step.SWITCH]
    if opened and state.plan.settings.get("driver"):
        # a Proxmox host does not reboot itself
        return f"{', '.join(opened)} stay as they are, out of rotation; go on with: {again}"
    if opened:
        return f"{', '.join(opened)} return by themselves unless they are promoted in time; go on with: {again}"
    return f"no host is in the middle of a change; go on with: {again}"


def phase(host: Host) -> str:
    """One word or two for where a host is."""
    if host.running is not None:
        return _DOING[host.running]
    if host.result is Result.PRESENT:
        return "already there"
    if host.result is not None:
        return str(host.result)
    if host.held:
        return "held"
    if host.open:
        return "open"
    return "staged" if host.staged else "waiting"


def as_dict(state: State) -> dict[str, Any]:
    """For ``--json``: the plan and every host."""
    return {
        "run": state.plan.run,
        "build": state.plan.build,
        "release": state.plan.release,
        "finished": state.finished,
        "stopping": state.stopping,
        "skipped_gates": state.plan.skip,
        "hosts": [
            {
                "name": host.name,
                "phase": phase(host),
                "result": str(host.result) if host.result else None,
                "verdict": str(host.verdict) if host.verdict else None,
                "trouble": str(host.trouble) if host.trouble else None,
                "drained": host.drained,
                "why": host.why,
            }
            for host in (state.hosts[name] for name in state.plan.hosts)
        ],
    }


def _meanwhile(state: State, again: str) -> str:
    """What keeps the new driver while another host is out, and how it is taken back all the same."""
    kept = [host.name for host in state.hosts.values() if host.result is Result.PROMOTED and host.trouble is None]
    if not kept or state.aborting:
        return ""
    back = again.replace(" resume ", " rollback ", 1)
    return f"; {', '.join(kept)} keep the new driver and serve; to take them back without waiting: {back}"


def problems(state: State, again: str) -> list[Problem]:
    """What is wrong with a roll that is over, host by host."""
    found = []
    driver = state.plan.one_at_a_time
    for host in (state.hosts[name] for name in state.plan.hosts):
        if host.result is Result.BROKEN:
            what, fix = (
                f"neither {'driver' if driver else 'release'} was seen to serve here; it is out of rotation",
                f"rackwell diagnose --container {host.name}",
            )
            each = f", for each of {', '.join(state.plan.settings['hosts'][host.name]['containers'])}" if driver else ""
            if driver:
                fix = f"rackwell verify CONTAINER{each}, says what is amiss{_meanwhile(state, again)}"
            if host.stranded:
                what = "it serves, and could not be brought back into rotation"
                inner = f"CONTAINER{each}," if driver else host.name
                fix = f"rackwell provision {inner} brings it back into its routers; hooks/undrain is called by hand"
            found.append(Problem("roll-broken", f"{host.name}: {what}", host.name, host.why, fix))
        elif host.result is Result.LOST:
            taken = host.trouble is Outcome.REFUSED
            what = "another run has taken this host" if taken else "it does not answer"
            fix = "rackwell status" if taken else f"it returns by itself unless it was promoted; then: {again}"
            if driver and not taken:
                fix = f"it stays as it is, out of rotation; when it answers again: {again}{_meanwhile(state, again)}"
            found.append(Problem("roll-lost", f"{host.name}: {what}", host.name, host.why, fix))
        elif host.held:
            fix = f"{again} --promote {host.name}, or --return {host.name}"
            hours = int(state.plan.settings.get("hold_s", 86400)) / 3600
            what = f"its gate tells neither pass nor fail; it waits {hours:g} h for you, then returns by itself"
            if driver:
                what = "its gate tells neither pass nor fail; it waits for you, with the new driver, out of rotation"
            found.append(Problem("roll-held", f"{host.name}: {what}", host.name, host.why, fix))
        elif host.trouble is not None and host.result is Result.RETURNED:
            new, before = ("driver", "the pair of before") if driver else ("release", "what ran before")
            what = f"the new {new} was not accepted; {before} runs again, verified"
            fix = host.fix or again.replace(" resume ", " logs ", 1)
            found.append(Problem("roll-returned", f"{host.name}: {what}", host.name, host.why, fix))
        elif host.trouble is not None:
            code = {Outcome.REFUSED: "locked", Outcome.UNREACHABLE: "unreachable"}.get(host.trouble, "roll-stopped")
            kept = {
                Result.PROMOTED: "keeps the new release",
                Result.PRESENT: "served the release already",
            }.get(host.result or Result.UNTOUCHED, "was not switched")
            found.append(
                Problem(
                    code,
                    f"{host.name} {kept}: {host.why or host.trouble}",
                    host.name,
                    "",
                    f"{host.fix or 'mend it'}, then: {again}",
                )
            )
    if not found and state.stopping and not state.aborting:
        found.append(Problem("interrupted", f"stopped: {state.stopping}", "", safety(state, again), again))
    return found


def table(state: State) -> list[tuple[str, str, str, str]]:
    """Rows: batch, host, phase, why."""
    return [
        (str(number), name, phase(state.hosts[name]), state.hosts[name].why)
        for number, batch in enumerate(state.plan.batches, 1)
        for name in batch
    ]
