# SPDX-License-Identifier: Apache-2.0
"""Proof that a container and its host are what they are declared to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rackwell.ansible.results import Failure, PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem
from rackwell.provision import declared, plays
from rackwell.provision.lock import container_lock
from rackwell.provision.progress import Progress
from rackwell.site import declaration

PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"
VERDICT_TASK = "Tell the verdict"


@dataclasses.dataclass(frozen=True)
class Item:
    """One thing that was verified.

    Attributes:
        verdict: pass, fail, or unknown when it was not looked at.
        wanted: False when the declaration itself leaves the check out: that is no failure.
    """

    item: str
    verdict: str
    evidence: str
    wanted: bool = True

    def as_dict(self) -> dict[str, str]:
        """For ``--json``."""
        return {"item": self.item, "verdict": self.verdict, "evidence": self.evidence}


@dataclasses.dataclass(frozen=True)
class Verified:
    """The verdicts of a container and its host."""

    container: str
    host: str
    items: list[Item]
    problems: list[Problem]
    exit_code: ExitCode
    reports: dict[str, dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: the verdicts of each check, and under ``reports`` all that the modules reported."""
        return {
            "container": self.container,
            "host": self.host,
            "checks": [item.as_dict() for item in self.items],
            "reports": self.reports,
        }


def verify(path: Path, name: str, progress: Progress) -> Verified:
    """Verify container `name` and its host; changes nothing.

    Raises:
        RackwellError: the declaration does not hold (exit 2), or another run holds the container (exit 5).
    """
    root = declaration.load(path)
    root.container(name)
    with container_lock(root.state, name, "verify"):
        target = declared.target(root, name)
        run = RunDirectory.create(root.state, "verify")
        played = plays.play("verify", target, run, progress)
        progress.safety = "verify changes nothing"
        return judge(played, name, target.host, f"rackwell verify {name} -i {target.site.path}")


def judge(played: PlayResult, container: str, host: str, again: str) -> Verified:
    """The verdicts in a play of ``verify``."""
    failures = [f for f in [*played.failures, *played.tolerated] if f.task != VERDICT_TASK]
    items = [
        _item(
            name, _payload(played, schema, where), [f for f in failures if f.host == where and f.role in roles], judge_
        )
        for name, schema, where, roles, judge_ in (
            ("host", "rackwell.pve_host", host, {"pve_host"}, _host),
            ("container", "rackwell.pve_container", container, {"pve_container"}, _container),
            ("cuda", "rackwell.gpu_check", container, {"gpu_probe"}, _cuda),
            ("p2p", "rackwell.gpu_check", container, {"gpu_probe"}, _p2p),
            ("release", "rackwell.release_store", container, {"release", ""}, _release),
            ("server", "rackwell.inference_server", container, {"inference_server"}, _server),
        )
    ]
    found = list(dict.fromkeys(problem for failure in failures for problem in failure.problems))
    if played.interrupted:
        found = plays.problems(played, again)
    code = played.exit_code
    if code == ExitCode.DONE and any(item.wanted and item.verdict != PASS for item in items):
        code = ExitCode.FAILED
    reports = {item.payload["schema"]: item.payload for item in played.results}
    return Verified(container, host, items, found, code, reports)


def _payload(played: PlayResult, schema: str, host: str) -> Mapping[str, Any] | None:
    """The last report of a kind: later tasks look more closely than earlier ones."""
    found = played.payloads(schema, host)
    return found[-1] if found else None


def _item(
    name: str,
    payload: Mapping[str, Any] | None,
    failures: list[Failure],
    judge_: Callable[[Mapping[str, Any]], tuple[bool | None, str]],
) -> Item:
    if payload is not None:
        good, evidence = judge_(payload)
        if good is None:
            return Item(name, UNKNOWN, evidence, wanted=False)
        return Item(name, PASS if good else FAIL, evidence or _told(failures))
    if any(not failure.unreachable for failure in failures):
        return Item(name, FAIL, _told(failures))
    return Item(name, UNKNOWN, _told(failures) or "not looked at")


def _told(failures: list[Failure]) -> str:
    return "; ".join(problem.what for failure in failures for problem in failure.problems)


def _host(report: Mapping[str, Any]) -> tuple[bool, str]:
    gpus = report.get("gpus") or []
    text = f"driver {report.get('driver_version') or 'not loaded'}, {len(gpus)} GPUs"
    return not report.get("problems"), text


def _container(report: Mapping[str, Any]) -> tuple[bool, str]:
    keys = report.get("changed_keys") or []
    if not report.get("exists"):
        return False, "it does not exist"
    if keys:
        return False, f"differs from its declaration in {', '.join(keys)}"
    if not report.get("systemd"):
        return False, f"vmid {report.get('vmid')} does not run"
    if report.get("pending"):
        return False, f"waits for a restart for {', '.join(report['pending'])}"
    return True, f"vmid {report.get('vmid')} as declared, systemd {report.get('systemd')}"


def _cuda(whole: Mapping[str, Any]) -> tuple[bool, str]:
    report = whole.get("cuda") or {}
    devices = report.get("devices") or []
    good = [d for d in devices if all(step.get("ok") for step in d.get("steps") or [])]
    # a CUDA that does not start at all lists no device
    wanted = max(len(devices), int(report.get("expected_gpus") or 0))
    text = f"{len(good)} of {wanted} GPUs initialise, driver {report.get('driver_version')}"
    return report.get("verdict") == PASS, text


def _p2p(whole: Mapping[str, Any]) -> tuple[bool | None, str]:
    """None when the declaration does not ask for it."""
    report = whole.get("p2p")
    if not report:
        if (whole.get("cuda") or {}).get("verdict") == PASS:
            return None, "not asked for: gpu_probe_p2p is false"
        return False, "not looked at: CUDA failed"
    pairs = report.get("pairs") or []
    rates = [pair["gb_per_s"] for pair in pairs if pair.get("gb_per_s") is not None]
    verified = sum(bool(pair.get("verified")) for pair in pairs)
    text = f"{verified} of {len(pairs)} pairs with data verified"
    if rates:
        text += f", {min(rates):.1f} to {max(rates):.1f} GB/s"
    return report.get("verdict") == PASS, text


def _release(report: Mapping[str, Any]) -> tuple[bool, str]:
    digest, slot = str(report.get("digest", "")), str(report.get("slot_before") or "")
    damaged = report.get("blobs_damaged") or []
    if not report.get("staged_before", report.get("staged")):
        return False, f"{digest[:12]} is not complete{f', {len(damaged)} wheels damaged' if damaged else ''}"
    if slot and slot != digest:
        return False, f"{slot[:12]} runs, {digest[:12]} is declared"
    return bool(slot), f"{report.get('name')} {digest[:12]} is complete and active" if slot else "no release is active"


def _server(report: Mapping[str, Any]) -> tuple[bool, str]:
    healthy = report.get("health") == 200
    text = f"health {report.get('health')}, answers {str(report.get('answer', '')).strip()[:40]!r}"
    return healthy, text
