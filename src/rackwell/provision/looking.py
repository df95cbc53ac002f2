# SPDX-License-Identifier: Apache-2.0
"""A quick look at a site: what of it answers, what runs, when it was last measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackwell.ansible import runner
from rackwell.ansible.results import PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.bench.store import Store
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import collection, explaining, routerview
from rackwell.provision.progress import Progress
from rackwell.site import declaration
from rackwell.site.declaration import Site
from rackwell.site.node import Node
from rackwell.topology import gate


@dataclasses.dataclass(frozen=True)
class Row:
    """What is known of one container; "unknown" where it could not be asked.

    Attributes:
        release: digest of the server's release, "none" or "unknown".
        gate: verdict of the boot gate, "held: <code>", "running", or "-" where there is none.
        unit: state of the server's unit; "stopped" for one that was asked to stop, which the engine ends by SIGKILL.
        why: why the server does not run, or why it had to start anew: the gate's line, or what that start's log tells.
        fix: what to do about it.
        roll: the roll that is under way there, in one line; empty when none is.
    """

    container: str
    host: str
    host_state: str
    state: str
    release: str
    unit: str
    gate: str
    bench: str
    why: str = ""
    fix: str = ""
    roll: str = ""

    def as_dict(self) -> dict[str, str]:
        """For ``--json``."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Looked:
    """The rows of a site, its routers, and who did not answer; ``state``: the directory of the site's own state."""

    rows: list[Row]
    problems: list[Problem]
    exit_code: ExitCode
    routers: list[routerview.RouterRow]
    state: Path


def status(path: Path, name: str, progress: Progress) -> Looked:
    """Look at container `name`, or at all of them when it is empty.

    Raises:
        RackwellError: there is no such site or container (exit 2). A machine that does not answer is not an error here.
    """
    site = declaration.load(path)
    nodes = [site.container(name)] if name else list(site.containers.values())
    if not nodes:
        problem = Problem("no-containers", "the site has no containers", site.sources.hosts.where())
        raise RackwellError(problem, ExitCode.INVALID)
    hosts = {site.host_of(node) for node in nodes} & set(site.hosts)
    run = RunDirectory.create(site.state, "status")
    progress.log = run.log
    # a router on a container that was not asked for would have that looked at as well
    routers = [
        router
        for router in site.routers.values()
        if (not name or name in site.workers_of(router)) and (not name or router.name not in site.containers)
    ]
    limit = list(dict.fromkeys([*(node.name for node in nodes), *sorted(hosts), *(one.name for one in routers)]))
    played = runner.play("status", site.path, run, limit, listener=progress.step, retries=0, connect_timeout=5)
    if played.interrupted:
        raise KeyboardInterrupt
    silent = _unreachable(played)
    problems = [*silent, *(p for failure in played.failures if not failure.unreachable for p in failure.problems)]
    code = ExitCode.FAILED if len(problems) > len(silent) else ExitCode.UNREACHABLE if silent else ExitCode.DONE
    held = [told for node in nodes if (told := _held(site, node, played)) is not None]
    if held:
        problems += held
        code = ExitCode.HELD if code == ExitCode.DONE else code
    rows = [_row(site, node, played) for node in nodes]
    return Looked(rows, problems, code, [routerview.row(router, played) for router in routers], site.state)


def _unreachable(played: PlayResult) -> list[Problem]:
    found: dict[str, Problem] = {}
    for failure in [*played.tolerated, *played.failures]:
        if failure.unreachable:
            for problem in failure.problems:
                found.setdefault(problem.where, problem)
    return list(found.values())


def _row(site: Site, node: Node, played: PlayResult) -> Row:
    host = site.host_of(node)
    of_host: dict[str, Any] = next(iter(played.payloads("rackwell.host_status", host)), {})
    mine: dict[str, Any] = next(iter(played.payloads("rackwell.container_status", node.name)), {})
    state = str(mine.get("container", "")).removeprefix("status: ") or "unknown"
    if mine.get("host_reachable") and state == "unknown":
        state = "absent"
    why, fix = _why(site, node, played, mine)
    return Row(
        container=node.name,
        host=host,
        host_state=f"driver {of_host.get('driver') or 'not loaded'}" if of_host.get("reachable") else "unreachable",
        state=state if state != "running" or mine.get("reachable") else "running, ssh silent",
        release=str(mine.get("slot", "")).rpartition("/")[2] or ("none" if mine.get("reachable") else "unknown"),
        unit=_unit(mine) if mine.get("reachable") else "unknown",
        gate=_gate(mine),
        bench=_bench(site, node),
        why=why,
        fix=fix,
        roll=_roll(mine.get("roll")),
    )


def _roll(told: Any) -> str:
    """Who holds a container, and what its change waits for."""
    if not isinstance(told, Mapping):
        return ""
    lock, change = told.get("lock") or {}, told.get("change") or {}
    parts = []
    if told.get("broken"):
        parts.append(f"its own side of a roll does not answer: {told['broken']}")
    if lock and lock.get("left_s"):
        parts.append(f"run {lock['run']} of {lock['owner']} holds it")
    elif lock:
        parts.append(f"run {lock['run']} of {lock['owner']} held it, and was not heard of in time")
    if change.get("state") in {"switching", "open", "returning"}:
        left = change.get("returns_in_s")
        returns = "" if left is None else f", and returns by itself in {left:.0f} s"
        whose = "its" if lock and lock.get("run") == change["run"] else f"run {change['run']}'s"
        parts.append(f"{whose} change is {change['state']}{returns}")
    elif change.get("state") == "broken":
        parts.append(f"run {change['run']} left it broken: {change.get('why')}")
    return "; ".join(parts)


def _why(site: Site, node: Node, played: PlayResult, mine: Mapping[str, Any]) -> tuple[str, str]:
    """Why a server does not run, in one line, and what to do."""
    if held := _held(site, node, played):
        return held.why, held.fix
    start = mine.get("start")
    if not isinstance(start, Mapping) or not start.get("sources") or _asked_to_stop(mine):
        return "", ""
    found = collection.Collection(node.name, "")
    collection.take(found, start, node.name)
    again = f"see: rackwell diagnose --container {node.name} -i {site.path}"
    # after an automatic restart the present start may not have come to its end yet
    try:
        told = collection.diagnosed(found)
    except RackwellError as error:
        # a rule that does not hold: everything else is shown all the same
        return str(error), again
    finding = told.first or (told.earlier[-1].finding if told.earlier else None)
    if mine.get("unit") == "active":
        # what it says now is nobody's concern: the start before is, which it took the place of
        finding = told.earlier[-1].finding if told.earlier else None
        again = f"it was started anew since; {again}"
    if finding is None or finding.severity == "noise":
        return "no rule knows why the server failed", again
    return explaining.sentence(finding), f"{finding.remedy.rstrip('.')}; {again}"


def _unit(report: Mapping[str, Any]) -> str:
    """The state of the server's unit, with its restarts when there were any."""
    state, restarts = str(report.get("unit") or "absent"), str(report.get("restarts") or "0")
    if _asked_to_stop(report):
        return "stopped"
    return state if restarts == "0" else f"{state}, {restarts} restarts"


def _asked_to_stop(report: Mapping[str, Any]) -> bool:
    """Whether a unit that systemd calls failed was only stopped: the engine ends each drain by SIGKILL to itself."""
    start = report.get("start")
    if report.get("unit") != "failed" or not isinstance(start, Mapping):
        return False
    unit = (start.get("facts") or {}).get("unit") or {}
    journal = next((str(one["text"]) for one in start.get("sources") or [] if one.get("name") == "journal"), "")
    killed = (unit.get("Result"), str(unit.get("ExecMainStatus"))) == ("signal", "9")
    return killed and any(line.startswith("Stopping ") for line in journal.splitlines())


def _gate(report: Mapping[str, Any]) -> str:
    """The boot gate's verdict in a word or two; "-" where the container has no gate, or an older one."""
    told = report.get("gate")
    found = gate.read(told)
    if found is not None:
        return found.cell
    state = str(told.get("state") or "") if isinstance(told, Mapping) else ""
    if not state and report.get("gate_partial") in {True, "True", "true"}:
        state = "running"
    return "-" if state in {"", "absent"} else state


def _held(site: Site, node: Node, played: PlayResult) -> Problem | None:
    """The line of a gate that holds the server of `node` back."""
    mine: dict[str, Any] = next(iter(played.payloads("rackwell.container_status", node.name)), {})
    found = gate.read(mine.get("gate"))
    if found is None:
        return None
    return found.problem(node.name, f"mend it, then: rackwell verify {node.name} -i {site.path} --release-gate")


def _bench(site: Site, node: Node) -> str:
    for _, result in Store(site.path).results(node.name):
        best = result.best
        rate = best.throughput.output_tok_per_s if best is not None and best.throughput is not None else None
        figure = f"{rate:,.0f} tok/s at {best.concurrency}" if rate is not None and best is not None else "not valid"
        return f"{figure}, {result.date_utc[:16].replace('T', ' ')}"
    return "never"
