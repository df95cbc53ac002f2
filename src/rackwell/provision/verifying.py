# SPDX-License-Identifier: Apache-2.0
"""Proof that a container and its host are what they are declared to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rackwell.ansible.results import Failure, PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import declared, drifting, explaining, gpus, hosting, plays
from rackwell.provision.gpus import Kept, Seen
from rackwell.provision.hosting import DEGRADED, FAIL, PASS, UNKNOWN, VERDICT_TASK
from rackwell.provision.lock import container_lock
from rackwell.provision.progress import Progress
from rackwell.site import declaration
from rackwell.site.declaration import Site
from rackwell.topology.model import GRAVITY
from rackwell.topology.report import Check

RELEASE = "--release-gate"

Judge = Callable[[Mapping[str, Any]], tuple[bool, str]]


@dataclasses.dataclass(frozen=True)
class Item:
    """One thing that was verified.

    Attributes:
        verdict: pass, degraded, fail, not-measured (evidence says why), or unknown when it was not looked at.
        check: the probe's own row, for what it measured.
    """

    item: str
    verdict: str
    evidence: str
    check: Check | None = None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        plain: dict[str, Any] = {"item": self.item, "verdict": self.verdict, "evidence": self.evidence}
        if self.check is not None:
            plain |= self.check.model_dump(include={"code", "measured", "expected", "unit", "basis"})
        return plain


@dataclasses.dataclass(frozen=True)
class Verified:
    """The verdicts of a container and its host.

    Attributes:
        problems: what makes it fail; what only degrades it stands in the findings of the report.
        reports: all that the modules reported, by schema.
        drift: how the container differs from its declaration, notes among it.
    """

    container: str
    host: str
    items: list[Item]
    problems: list[Problem]
    exit_code: ExitCode
    reports: dict[str, dict[str, Any]]
    found: Seen
    kept: Kept = dataclasses.field(default_factory=Kept)
    drift: list[drifting.Item] = dataclasses.field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The gravest of all verdicts; what was not looked at counts as failed where the run did."""
        if self.exit_code != ExitCode.DONE:
            return FAIL
        return max((item.verdict for item in self.items if item.verdict in GRAVITY), key=GRAVITY.__getitem__)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: the verdicts of each check, and under ``reports`` all that the modules reported."""
        gate = self.found.gate
        return {
            "container": self.container,
            "host": self.host,
            "verdict": self.verdict,
            "checks": [item.as_dict() for item in self.items],
            "drift": [item.as_dict() for item in self.drift],
            "gate": gate.model_dump(by_alias=True, exclude={"report"}) if gate is not None else None,
            "report": str(self.kept.report) if self.kept.report else None,
            "page": str(self.kept.page) if self.kept.page else None,
            "reports": self.reports,
        }


def verify(
    path: Path,
    name: str,
    progress: Progress,
    *,
    quick: bool = False,
    release_gate: bool = False,
    page: Path | None = None,
) -> Verified:
    """Verify container `name` and its host; changes nothing.

    Args:
        quick: only what takes seconds, whatever the declaration says.
        release_gate: run the boot gate again instead, in full, and start the server when it passes.
        page: a further file for the page.

    Raises:
        RackwellError: the declaration does not hold (exit 2), or another run holds the container (exit 5).
    """
    root = declaration.load(path)
    root.container(name)
    with container_lock(root.state, name, "verify"):
        target = declared.target(root, name)
        run = RunDirectory.create(root.state, "verify")
        if release_gate:
            played = plays.play("gate", target, run, progress)
        else:
            extra = {"gpu_probe_mode": "quick", "release_verify": False} if quick else None
            played = plays.play("verify", target, run, progress, extra=extra)
            progress.safety = "verify changes nothing"
        again = f"rackwell verify {name} -i {target.site.path}{f' {RELEASE}' if release_gate else ''}"
        done = judge(played, name, target.host, again, gate_only=release_gate, site=target.site)
        kept = gpus.keep(done.found, run, root.state, name, page)
        code = done.exit_code or (ExitCode.FAILED if kept.problems else ExitCode.DONE)
        return dataclasses.replace(done, kept=kept, problems=[*done.problems, *kept.problems], exit_code=code)


def judge(
    played: PlayResult, container: str, host: str, again: str, *, gate_only: bool = False, site: Site | None = None
) -> Verified:
    """The verdicts in a play of ``verify``, or of ``gate``; with the site also how the container differs from it."""
    failures = [f for f in [*played.failures, *played.tolerated] if f.task != VERDICT_TASK]

    def item(name: str, schema: str, where: str, roles: set[str], judge_: Judge) -> Item:
        of = [failure for failure in failures if failure.host == where and failure.role in roles]
        return _item(name, _payload(played, schema, where), of, judge_)

    found, unread = _seen(played, container)
    items = [*_gpu_items(found, failures, container), *_gate(found)]
    items.append(item("server", "rackwell.inference_server", container, {"inference_server"}, _server))
    differs: list[drifting.Item] = []
    if not gate_only:
        differs = drifting.differences(site, played, container, host) if site is not None else []
        items = [
            item("host", "rackwell.pve_host", host, {"pve_host"}, _host),
            *_rows(played, "platform", "rackwell.pve_platform", host),
            *_rows(played, "driver and kernel", "rackwell.pve_driver", host),
            *_rows(played, "power", "rackwell.pve_power", host),
            *_rows(played, "clock", "rackwell.host_clock", container),
            *_rows(played, "user space", "rackwell.nvidia_userspace", container),
            item("container", "rackwell.pve_container", container, {"pve_container"}, _container),
            *_drift_rows(differs),
            *items[:-1],
            item("release", "rackwell.release_store", container, {"release", ""}, _release),
            *_model_item(item("model", _model_schema(played, container), container, {"model_weights"}, _model)),
            *_sandbox(_payload(played, "rackwell.unit_sandbox", container)),
            items[-1],
            *_proxy(played, container, failures),
        ]
    told = (
        plays.problems(played, again)
        if played.interrupted
        else [*unread, *_problems(failures, found, container, again)]
    )
    reports = {reported.payload["schema"]: reported.payload for reported in played.results if reported.schema}
    # a refusal of the role tells of what only a new container could have
    refused = {"read-only"} if any(problem.code == "read-only-option" for problem in told) else set()
    told += [one.problem() for one in differs if one.severity == drifting.ERROR and one.code not in refused]
    code = _exit_code(played, failures, items)
    return Verified(container, host, items, told, code, reports, found, drift=differs)


def _seen(played: PlayResult, container: str) -> tuple[Seen, list[Problem]]:
    """What the probe reported; a report that cannot be understood is told as a problem, beside all other verdicts."""
    try:
        return gpus.seen(played, container), []
    except RackwellError as error:
        return Seen(), error.problems


def _problems(failures: list[Failure], found: Seen, container: str, again: str) -> list[Problem]:
    """What to tell: the gate's own line where it holds the server, and what was found now, once each."""
    if found.gate is None or not found.gate.held:
        return explaining.all_explained(failures)
    others = explaining.all_explained(failure for failure in failures if not failure.held)
    command = again if again.endswith(RELEASE) else f"{again} {RELEASE}"
    held = found.gate.problem(container, f"mend it, then: {command}")
    return list(dict.fromkeys([*([held] if held else []), *others]))


def _exit_code(played: PlayResult, failures: list[Failure], items: list[Item]) -> ExitCode:
    """A server that the gate holds back waits for a person, whatever else failed: what failed is why it is held."""
    code = played.exit_code
    if code in {ExitCode.DONE, ExitCode.FAILED} and any(failure.held for failure in failures):
        return ExitCode.HELD
    if code == ExitCode.DONE and any(item.verdict in {FAIL, UNKNOWN} for item in items):
        return ExitCode.FAILED
    return code


def _gpu_items(found: Seen, failures: list[Failure], container: str) -> list[Item]:
    """A row for each check of the probe; one for all of them when it did not report."""
    if found.report is None:
        of = [f for f in failures if f.host == container and f.role == "gpu_probe" and not f.held]
        return [_item("gpus", None, of, _server)]
    # `host` is the row of the Proxmox host's own declaration
    return [
        Item("gpu-host" if check.id == "host" else check.id, check.verdict, check.summary or check.title, check)
        for check in found.report.checks
    ]


def _gate(found: Seen) -> list[Item]:
    """The boot gate's row; none where no gate is declared."""
    if found.gate is not None:
        return [Item("gate", FAIL if found.gate.held else found.gate.verdict, found.gate.line or found.gate.cell)]
    return [Item("gate", FAIL, f"no verdict of this boot: {found.gate_state}")] if found.gate_state else []


def _payload(played: PlayResult, schema: str, host: str) -> Mapping[str, Any] | None:
    """The last report of a kind: later tasks look more closely than earlier ones."""
    found = played.payloads(schema, host)
    return found[-1] if found else None


def _item(name: str, payload: Mapping[str, Any] | None, failures: list[Failure], judge_: Judge) -> Item:
    if payload is not None:
        good, evidence = judge_(payload)
        return Item(name, PASS if good else FAIL, evidence or _told(failures))
    if any(not failure.unreachable for failure in failures):
        return Item(name, FAIL, _told(failures))
    return Item(name, UNKNOWN, _told(failures) or "not looked at")


def _told(failures: list[Failure]) -> str:
    return "; ".join(problem.what for problem in explaining.all_explained(failures))


def _host(report: Mapping[str, Any]) -> tuple[bool, str]:
    text = f"driver {report.get('driver_version') or 'not loaded'}, {len(report.get('gpus') or [])} GPUs"
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


def _rows(played: PlayResult, name: str, schema: str, where: str) -> list[Item]:
    """One row for all of a report's: the gravest verdict, with what is wrong. None where nobody looked."""
    payload = _payload(played, schema, where)
    found = hosting.rows(payload) if payload is not None else []
    if not found:
        return []
    wrong = [row for row in found if row.verdict in {FAIL, DEGRADED}]
    gravest = max(found, key=lambda row: GRAVITY.get(row.verdict, 0)).verdict
    # each of them, of a host whose rows are told in full by `rackwell verify HOST`
    text = "; ".join(f"{row.item}: {row.evidence}" for row in wrong) or ", ".join(row.item for row in found)
    return [Item(name, gravest, found[0].evidence if len(found) == 1 else text)]


def _drift_rows(found: list[drifting.Item]) -> list[Item]:
    """A row for each difference that a provision would mend, or that needs a person; notes are counted in none."""
    verdicts = {drifting.ERROR: FAIL, drifting.WARNING: DEGRADED}
    return [
        Item("drift", verdicts[one.severity], f"{one.code}: {one.what} ({one.where.rpartition('/')[2]})")
        for one in found
        if one.severity in verdicts
    ]


def _release(report: Mapping[str, Any]) -> tuple[bool, str]:
    digest, slot = str(report.get("digest", "")), str(report.get("slot_before") or "")
    damaged = report.get("blobs_damaged") or []
    if not report.get("staged_before", report.get("staged")):
        return False, f"{digest[:12]} is not complete{f', {len(damaged)} wheels damaged' if damaged else ''}"
    if wrong := report.get("files_damaged_count"):
        first = (report.get("files_damaged") or [{}])[0].get("path", "")
        return False, f"{digest[:12]} is damaged: {wrong} installed files are not what its wheels say, {first} first"
    if damaged:
        return False, f"{digest[:12]} is damaged: {len(damaged)} wheels in the store are not what they were"
    if slot and slot != digest:
        return False, f"{slot[:12]} runs, {digest[:12]} is declared"
    return bool(slot), f"{report.get('name')} {digest[:12]} is complete and active" if slot else "no release is active"


def _model_item(made: Item) -> list[Item]:
    """The model's row; none where nobody looked, as when the play ended before."""
    return [] if made.verdict == UNKNOWN else [made]


def _model_schema(played: PlayResult, container: str) -> str:
    """Who told of the model: what brought it, else what only looked for it in the container."""
    brought = "rackwell.model_snapshot"
    return brought if _payload(played, brought, container) is not None else "rackwell.model_weights"


def _model(report: Mapping[str, Any]) -> tuple[bool, str]:
    if "repository" not in report:
        return True, f"{report.get('path')} can be read; nobody told of which revision it is"
    name = f"{report['repository']} at {str(report.get('revision', ''))[:12]}"
    damaged = report.get("damaged") or []
    if report.get("state") != "complete" or damaged:
        more = (
            f": {', '.join(damaged[:3])}{f' and {len(damaged) - 3} more' if len(damaged) > 3 else ''}"
            if damaged
            else ""
        )
        return False, f"{name} is {report.get('state')}{more}"
    size = f"{report.get('files')} files, {report.get('bytes', 0) / 1e9:.1f} GB"
    return True, f"{name}: {size}, held against their {'hashes' if report.get('verified') == 'sha256' else 'sizes'}"


def _proxy(played: PlayResult, container: str, failures: list[Failure]) -> list[Item]:
    """The proxy's row; none where no proxy is declared. One whose certificate ends soon is degraded."""
    of = [failure for failure in failures if failure.host == container and failure.role == "api_proxy"]
    report = _payload(played, "rackwell.api_proxy", container)
    if of:
        return [Item("proxy", FAIL, _told(of))]
    if report is None:
        return []
    certificate = report.get("certificate") or {}
    left = int(certificate.get("days_left") or 0)
    asked = ", ".join(f"{one['status']} {one['name']}" for one in report.get("asked") or [])
    engine = f"; engine on {', '.join(report['engine_listens'])} alone" if report.get("engine_listens") else ""
    text = f"port {report.get('port')}: {asked}{engine}; certificate ({certificate.get('from')}) for {left} more days"
    return [Item("proxy", DEGRADED if left <= int(certificate.get("warn_days") or 0) else PASS, text)]


def _sandbox(report: Mapping[str, Any] | None) -> list[Item]:
    """What the server's unit may ask of systemd here; less than everything is degraded, with what brings the rest."""
    if report is None:
        return []
    score = report.get("exposure")
    text = f"{report.get('form')} form, exposure {'unknown' if score is None else score} (lower is safer)"
    dropped = [str(one.get("option")) for one in report.get("dropped") or []]
    if report.get("form") == "full":
        return [Item("sandbox", PASS, f"{text}, {len(report.get('options') or [])} options")]
    why = report.get("problem") or next((str(one.get("why")) for one in report.get("dropped") or []), "")
    lacks = f"without {', '.join(dropped)}" if dropped else "nothing could be tried"
    return [Item("sandbox", DEGRADED, f"{text}, {lacks}: {why}; {report.get('fix')}")]


def _server(report: Mapping[str, Any]) -> tuple[bool, str]:
    healthy = report.get("health") == 200
    text = f"health {report.get('health')}, answers {str(report.get('answer', '')).strip()[:40]!r}"
    return healthy, text
