# SPDX-License-Identifier: Apache-2.0
"""The acceptance of containers: the suite on each of them and its host, several at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from rackwell.acceptance import result, running
from rackwell.acceptance.expected import expected
from rackwell.acceptance.reaching import Machine, machine
from rackwell.acceptance.result import Accepted, Check
from rackwell.ansible import ssh, unreachable
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import declared
from rackwell.provision.lock import container_lock
from rackwell.provision.progress import Progress
from rackwell.site import declaration
from rackwell.site.declaration import Site
from rackwell.site.node import Node

AT_ONCE = 4
"""Containers that are looked at together: each takes a process here."""
REPORT = "acceptance.json"
_REACH_S = 20.0


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """What the suite found on all containers that were asked for."""

    containers: tuple[Accepted, ...]
    problems: tuple[Problem, ...]
    exit_code: ExitCode
    seconds: float
    report: Path | None

    @property
    def verdict(self) -> str:
        """fail, unknown or pass: the gravest."""
        verdicts = {accepted.verdict for accepted in self.containers}
        return next((one for one in (result.FAIL, result.UNKNOWN) if one in verdicts), result.PASS)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``, and the file of the run's directory."""
        return {
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
            "containers": [accepted.as_dict() for accepted in self.containers],
            "report": str(self.report) if self.report else None,
        }


def accept(path: Path, names: Sequence[str], progress: Progress) -> Acceptance:
    """Run the suite on the containers `names`, or on all of the site; changes nothing.

    Raises:
        RackwellError: the extra is not installed, or the declaration does not hold (exit 2); another run holds a
            container (exit 5).
    """
    running.require_pytest()
    root = declaration.load(path)
    for name in names:
        root.container(name)
    chosen = sorted(set(names)) or sorted(root.containers)
    targets = [declared.target(root, name) for name in chosen]
    began = time.monotonic()
    with contextlib.ExitStack() as locks:
        for name in chosen:
            locks.enter_context(container_lock(root.state, name, "verify --acceptance"))
        machines = {target.container.name: _machines(root, target.container, target.host) for target in targets}
        wanted = {target.container.name: (target.container, target.host) for target in targets}
        run = RunDirectory.create(root.state, "acceptance")
        progress.log = run.log
        progress.safety = "acceptance changes nothing"
        reached = _reach({one.name: one for pair in machines.values() for one in pair.values()}, progress)
        lost = [problem for problem in reached.values() if problem]
        jobs = {}
        for name, (container, _) in wanted.items():
            pair = {role: _marked(one, reached[one.name]) for role, one in machines[name].items()}
            jobs[name] = expected(root, container, pair)
        found = _all(jobs, run.path, progress)
    problems, code = judged(found, lost)
    done = Acceptance(tuple(found), tuple(problems), code, time.monotonic() - began, run.path / REPORT)
    try:
        text = json.dumps(done.as_dict(), indent=1, ensure_ascii=False) + "\n"
        (run.path / REPORT).write_text(text, encoding="utf-8")
    except OSError as error:
        problem = Problem("cannot-write", "the report cannot be written", str(run.path), error.strerror or str(error))
        return dataclasses.replace(done, problems=(*problems, problem), exit_code=done.exit_code or ExitCode.FAILED)
    return done


def judged(found: Sequence[Accepted], lost: Sequence[Problem]) -> tuple[list[Problem], ExitCode]:
    """What to tell of the containers, and the exit code. `lost`: why machines were not looked at."""
    return [*lost, *(problem for one in found for problem in _problems(one, bool(lost)))], _code(found, lost)


def _machines(site: Site, container: Node, host: str) -> dict[str, Machine]:
    return {"host": machine(site, site.hosts[host]), "container": machine(site, container)}


def _marked(one: Machine, problem: Problem | None) -> Machine:
    return dataclasses.replace(one, down=problem.what) if problem else one


def _reach(machines: Mapping[str, Machine], progress: Progress) -> dict[str, Problem | None]:
    """Why each machine cannot be looked at; None for one that can."""
    with ThreadPoolExecutor(8, "reach") as pool:
        found = dict(zip(machines, pool.map(_reached, machines.values()), strict=True))
    for name, problem in found.items():
        if problem:
            progress.line(name, problem.what)
    return found


def _reached(one: Machine) -> Problem | None:
    options = shlex.join(one.arguments)
    connection = ssh.Connection(one.address, one.port, one.user, one.key, options, become=one.sudo)
    said = ssh.ask(connection, ["id", "-u"], timeout=_REACH_S)
    if said.lost:
        return unreachable.problem(one.name, said.err)
    if said.code or said.out.strip() != "0":
        told = said.err.strip() or f"{one.user} has uid {said.out.strip()}"
        return Problem(
            "not-root",
            f"{one.name} cannot be looked at as root",
            one.name,
            told[:300],
            "set ansible_user: root, or ansible_become: true with sudo that asks for no password",
        )
    return None


def _all(jobs: Mapping[str, Mapping[str, Any]], folder: Path, progress: Progress) -> list[Accepted]:
    """Every container, in the order of their names."""
    found: dict[str, Accepted] = {}
    guard = threading.Lock()
    with ThreadPoolExecutor(min(AT_ONCE, len(jobs)), "acceptance") as pool:
        pending = {}
        for name, job in jobs.items():
            progress.detail(name, "acceptance …")
            pending[pool.submit(running.run, job, folder)] = name
        while pending:
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                accepted = future.result()
                with guard:
                    found[pending.pop(future)] = accepted
                progress.line(accepted.container, _told(accepted))
    return [found[name] for name in jobs]


def _told(accepted: Accepted) -> str:
    counts = accepted.counts
    parts = [f"{count} {verdict.replace('-', ' ')}" for verdict, count in counts.items() if count]
    return f"acceptance with {accepted.host}: {', '.join(parts) or 'nothing ran'}, {accepted.seconds:.1f} s"


def _problems(accepted: Accepted, lost: bool) -> list[Problem]:
    found = [_problem(accepted, check) for check in accepted.checks if check.verdict == result.FAIL]
    if accepted.broken:
        found.append(
            Problem(
                "acceptance-broken",
                f"the acceptance suite did not come to its end on {accepted.container}",
                str(accepted.log or ""),
                accepted.broken,
                "see the log",
            )
        )
    unknown = [check for check in accepted.checks if check.verdict == result.UNKNOWN]
    # a machine that is not reached is told of once
    if unknown and not lost:
        first = unknown[0]
        found.append(
            Problem(
                "not-looked-at",
                f"{len(unknown)} checks of {accepted.container} could not be made: {first.item} first",
                first.machine,
                first.why,
                f"see {accepted.log}",
            )
        )
    return found


def _problem(accepted: Accepted, check: Check) -> Problem:
    code = "gate-held" if check.held else "not-accepted"
    what = f"{accepted.container}: {check.item}: this does not hold: {check.title}"
    return Problem(code, what, check.machine, f"expected {check.expected}; found {check.found}", check.fix)


def _code(found: Sequence[Accepted], lost: Sequence[Problem]) -> ExitCode:
    """As `verify`: a server that the boot gate holds back waits for a person, whatever else failed."""
    checks = [check for accepted in found for check in accepted.checks]
    if any(check.held for check in checks):
        return ExitCode.HELD
    if any(problem.code != "not-root" for problem in lost):
        return ExitCode.UNREACHABLE
    if any(accepted.verdict != result.PASS for accepted in found):
        return ExitCode.FAILED
    return ExitCode.DONE


def interrupted() -> RackwellError:
    """What a Ctrl-C comes to."""
    return RackwellError(
        Problem(
            "interrupted",
            "interrupted: acceptance changes nothing",
            "",
            "",
            "run `rackwell verify --acceptance` again when you like",
        ),
        ExitCode.INTERRUPTED,
    )
