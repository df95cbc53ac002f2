# SPDX-License-Identifier: Apache-2.0
"""A Proxmox host by itself: brought to its declaration, and proved to be what it is declared to be."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rackwell.ansible import runner
from rackwell.ansible.results import Failure, PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import explaining, plays
from rackwell.provision.lock import container_lock
from rackwell.provision.progress import Progress
from rackwell.site import declaration, validation
from rackwell.site.declaration import Site
from rackwell.topology.model import GRAVITY

PASS, DEGRADED, FAIL, UNKNOWN = "pass", "degraded", "fail", "unknown"
VERDICT_TASK = "Tell the verdict"
#: what has to be looked at; a row of its own says so where it was not
LOOKED_AT = {"rackwell.host_clock": "clock", "rackwell.pve_platform": "platform", "rackwell.pve_host": "driver"}


@dataclasses.dataclass(frozen=True)
class Item:
    """One thing that was verified.

    Attributes:
        findings: what is wrong with it: ``verdict`` (degraded or fail) and the parts of a problem.
    """

    item: str
    verdict: str
    evidence: str
    findings: tuple[dict[str, str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**dataclasses.asdict(self), "findings": list(self.findings)}


@dataclasses.dataclass(frozen=True)
class HostVerified:
    """The verdicts of a host."""

    host: str
    items: list[Item]
    problems: list[Problem]
    exit_code: ExitCode
    reports: dict[str, dict[str, Any]]

    @property
    def verdict(self) -> str:
        """The gravest of all verdicts."""
        if self.exit_code != ExitCode.DONE:
            return FAIL
        return max((item.verdict for item in self.items if item.verdict in GRAVITY), key=GRAVITY.__getitem__)

    @property
    def degraded(self) -> list[Problem]:
        """What is wrong and fails nothing."""
        told = [finding for item in self.items for finding in item.findings if finding.get("verdict") == DEGRADED]
        return [Problem.from_dict(finding) for finding in told]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: as of a container, which a host has none of."""
        return {
            "container": "",
            "host": self.host,
            "verdict": self.verdict,
            "checks": [item.as_dict() for item in self.items],
            "drift": [],
            "gate": None,
            "report": None,
            "page": None,
            "reports": self.reports,
        }


@dataclasses.dataclass(frozen=True)
class Hosted:
    """What bringing a host to its declaration came to."""

    host: str
    played: PlayResult
    check: bool
    problems: list[Problem]
    exit_code: ExitCode

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        reports = self.played.payloads("rackwell.pve_platform", self.host)
        return {
            "host": self.host,
            "check": self.check,
            "changed": self.played.changed,
            "changes": [change.as_dict() for change in self.played.changes],
            "checks": reports[-1]["checks"] if reports else [],
            "log": str(self.played.log),
            "seconds": round(self.played.seconds, 1),
        }


def load(path: Path, name: str) -> Site:
    """The site with a host `name` whose declaration holds.

    Raises:
        RackwellError: there is no such host, or what is declared of it does not hold (exit 2).
    """
    site = declaration.load(path)
    if name not in site.hosts:
        known = ", ".join(sorted(site.hosts)) or "none"
        hint = validation.suggest(name, site.hosts, 0.6)
        if name in site.containers:
            hint = f"its host: {site.host_of(site.containers[name])}"
        why = f"the group pve has: {known}"
        where = site.sources.hosts.where()
        raise RackwellError(
            Problem("unknown-host", f"'{name}' is not a Proxmox host of this site", where, why, hint), ExitCode.INVALID
        )
    if problems := site.problems_of(name):
        raise RackwellError(problems, ExitCode.INVALID)
    return site


def containers_of(site: Site, name: str) -> list[str]:
    """The site's containers on a host."""
    return sorted(c.name for c in site.containers.values() if site.host_of(c) == name)


@contextlib.contextmanager
def _alone(site: Site, name: str) -> Iterator[None]:
    """Nobody provisions, rolls or measures on the host meanwhile. Raises as `container_lock`."""
    with contextlib.ExitStack() as held:
        for one in [name, *containers_of(site, name)]:
            held.enter_context(container_lock(site.state, one, "host"))
        yield


def bring(
    path: Path, name: str, progress: Progress, *, check: bool = False, diff: bool = False, allow_reboot: bool = False
) -> Hosted:
    """Bring host `name` to its declaration: driver, boot options, ACS, device nodes; no container is touched.

    Args:
        allow_reboot: consent, for this run, to a change of the kernel's options and to a reboot of the host.

    Raises:
        RackwellError: the declaration does not hold (exit 2), or another run works on the host or a container of it
            (exit 5).
    """
    site = load(path, name)
    with _alone(site, name):
        run = RunDirectory.create(site.state, "host")
        extra = {"pve_host_allow_reboot": True} if allow_reboot else None
        played = _play("host", site, name, run, progress, extra=extra, check=check, diff=diff)
        again = f"rackwell host {name} -i {site.path}"
        return Hosted(name, played, check, plays.problems(played, again), played.exit_code)


def verify(path: Path, name: str, progress: Progress) -> HostVerified:
    """Verify host `name`; changes nothing.

    Raises:
        RackwellError: the declaration does not hold (exit 2).
    """
    site = load(path, name)
    run = RunDirectory.create(site.state, "verify")
    played = _play("host_verify", site, name, run, progress)
    progress.safety = "verify changes nothing"
    return judge(played, name, f"rackwell verify {name} -i {site.path}")


def _play(playbook: str, site: Site, name: str, run: RunDirectory, progress: Progress, **options: Any) -> PlayResult:
    progress.log = run.log

    def on_interrupt() -> None:
        progress.line("controller", "interrupted: ending the running step (Ctrl-C again kills it)")

    return runner.play(playbook, site.path, run, [name], listener=progress.step, on_interrupt=on_interrupt, **options)


def judge(played: PlayResult, name: str, again: str) -> HostVerified:
    """The verdicts in a play of ``host_verify``."""
    failures = [f for f in [*played.failures, *played.tolerated] if f.task != VERDICT_TASK and f.host in ("", name)]
    items: list[Item] = []
    for reported in played.results:
        if reported.host == name:
            items += rows(reported.payload)
    for schema, title in LOOKED_AT.items():
        if not played.payloads(schema, name):
            items.append(Item(title, UNKNOWN, _why_not(failures) or "not looked at"))
    problems = plays.problems(played, again) if played.interrupted else explaining.all_explained(failures)
    code = played.exit_code
    if code == ExitCode.DONE and any(item.verdict in {FAIL, UNKNOWN} for item in items):
        code = ExitCode.FAILED
    reports = {reported.payload["schema"]: reported.payload for reported in played.results if reported.schema}
    return HostVerified(name, items, problems, code, reports)


def rows(payload: Mapping[str, Any]) -> list[Item]:
    """The rows of a report: those that it gives itself, and those of the module that knows the driver."""
    checks = payload.get("checks")
    if isinstance(checks, list):
        found = [check for check in checks if isinstance(check, dict) and "item" in check and "verdict" in check]
        return [
            Item(
                str(check["item"]),
                str(check["verdict"]),
                str(check.get("evidence") or ""),
                tuple(_of_item(finding) for finding in check.get("findings") or []),
            )
            for check in found
        ]
    if str(payload.get("schema", "")).startswith("rackwell.pve_host/"):
        return _driver(payload)
    return []


def _of_item(finding: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in finding.items()}


def _driver(report: Mapping[str, Any]) -> list[Item]:
    """Driver, modules, HMM, GPUs and nodes, each with what of the problems is about it."""
    problems = [problem for problem in report.get("problems") or [] if isinstance(problem, dict)]
    gpus, nodes = report.get("gpus") or [], report.get("nodes") or {}
    modules = report.get("modules") or {}
    hmm = {True: "off", False: "on", None: "unknown"}[report.get("hmm_disabled")]
    evidence = {
        "driver": f"{report.get('driver_version') or 'not loaded'}, {report.get('flavour') or 'of no known flavour'}",
        "modules": ", ".join(f"{module}{'' if there else ' missing'}" for module, there in sorted(modules.items())),
        "hmm": f"HMM of nvidia_uvm is {hmm}",
        "gpus": f"{len(gpus)} GPUs" + (f", {gpus[0].get('model')}" if gpus else ""),
        "device nodes": f"{len(nodes)} nodes",
    }
    about: dict[str, list[dict[str, Any]]] = {item: [] for item in evidence}
    for problem in problems:
        about[_item_of(str(problem.get("code", "")))].append(problem)
    return [
        Item(
            item,
            FAIL if about[item] else PASS,
            "; ".join([*(str(problem["what"]) for problem in about[item]), text]),
            tuple({"verdict": FAIL, **_of_item(problem)} for problem in about[item]),
        )
        for item, text in evidence.items()
    ]


def _item_of(code: str) -> str:
    for word, item in (("node", "device nodes"), ("hmm", "hmm"), ("module", "modules"), ("gpu", "gpus")):
        if word in code:
            return item
    return "driver"


def _why_not(failures: Sequence[Failure]) -> str:
    return "; ".join(dict.fromkeys(problem.what for problem in explaining.all_explained(failures)))
