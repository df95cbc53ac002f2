# SPDX-License-Identifier: Apache-2.0
"""What was collected of a container and its host for a diagnosis (``rackwell.collected/1``), and what it says."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rackwell.ansible.results import PlayResult
from rackwell.topology import gate as gates

if TYPE_CHECKING:
    from rackwell.diagnose import Diagnosis, Facts, Finding

_FLAG = re.compile(r"(?:^|\s)--(?P<name>[a-z][a-z0-9-]+)(?:[ =](?!-)(?P<value>\"[^\"]*\"|[^\s\\]+))?")
_ASSIGNED = re.compile(r"^(?P<name>[A-Z][A-Z0-9_]+)=\"?(?P<value>.*?)\"?$", re.MULTILINE)
_PACKAGES = {"flashinfer-python": "flashinfer", "nvidia-nccl-cu12": "nccl", "nvidia-nccl-cu13": "nccl"}
#: how near to the root what a check of the GPUs finds is, beside the rules' ranks
_RANKS = {"nodes": 84, "driver": 86, "gpus": 82, "host": 78, "links": 72, "health": 84, "cuda": 62}
_P2P_RANK = 66
_GATE_LINE = re.compile(r"^.*?(?:held by the boot gate|gate held|gate passed): .*$", re.MULTILINE)
_READY = "The server is fired up and ready to roll!"
_OPTIONAL = frozenset({"pct-start", "gate", "memory", "host-memory", "host-nvidia-smi", "nodes"})
_ORDER = ("journal", "gate", "unit", "kernel", "kernel-earlier", "pct-start", "nvidia-smi")


@dataclasses.dataclass(frozen=True)
class Taken:
    """One text of one machine.

    Attributes:
        unread: why there is nothing, or less than there should be. earlier: it is of an earlier start.
        look: whether the rules are held against it.
    """

    machine: str
    name: str
    text: str
    unread: str = ""
    earlier: bool = False
    look: bool = True

    @property
    def place(self) -> str:
        """How it is named to people."""
        return f"{self.machine} {self.name}"


@dataclasses.dataclass
class Collection:
    """All texts of one container and its host, and what is known beside them."""

    container: str
    host: str
    taken: list[Taken] = dataclasses.field(default_factory=list)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def unread(self) -> list[str]:
        """What is missing, and why."""
        return [f"{one.place}: {one.unread}" for one in self.taken if one.unread]

    @property
    def gate(self) -> gates.Gate | None:
        """The boot gate's verdict."""
        return gates.read(self.facts.get("gate"))

    def known(self) -> Facts:
        """Versions, flags and environment, for the rules' conditions."""
        from rackwell.diagnose import Facts

        versions = {_PACKAGES.get(name, name): value for name, value in dict(self.facts.get("versions") or {}).items()}
        texts = {one.name: one.text for one in self.taken}
        command = texts.get("unit-file", "").rpartition("\nExecStart=")[2]
        flags: dict[str, Any] = {str(m["name"]): (m["value"] or "").strip('"') or True for m in _FLAG.finditer(command)}
        environment = {str(m["name"]): str(m["value"]) for m in _ASSIGNED.finditer(texts.get("environment", ""))}
        return Facts.of({"versions": versions, "flags": flags, "environment": environment})


def of_play(played: PlayResult, container: str, host: str) -> Collection:
    """What the play ``diagnose`` brought."""
    found = Collection(container, host)
    for payload in played.payloads("rackwell.collected"):
        on_host = payload.get("side") == "host"
        take(found, payload, host if on_host else container)
        if on_host and payload.get("inside"):
            take(found, payload["inside"], container)
    return found


def take(found: Collection, payload: Mapping[str, Any], machine: str) -> None:
    """Add what one machine told: ``sources`` and ``facts``."""
    for source in payload.get("sources") or []:
        found.taken.append(
            Taken(machine, **{key: source[key] for key in ("name", "text", "unread", "earlier", "look")})
        )
    for key, value in dict(payload.get("facts") or {}).items():
        if key == "versions":
            found.facts["versions"] = {**found.facts.get("versions", {}), **dict(value)}
        elif value not in (None, "") or key not in found.facts:
            found.facts[key] = value


def diagnosed(collection: Collection) -> Diagnosis:
    """One answer over all texts, ordered by cause; what an earlier start ended with stands apart."""
    from rackwell.diagnose import diagnoser
    from rackwell.diagnose.findings import EarlierStart

    facts = collection.known()
    looked = sorted((one for one in collection.taken if one.look and one.text.strip()), key=_place)
    now = [(one.place, _evidence(one.text)) for one in looked if not one.earlier]
    told = diagnoser().diagnose(now, facts)
    earlier = list(told.earlier)
    for one in looked:
        if one.earlier:
            before = diagnoser().diagnose([(one.place, _evidence(one.text))], facts)
            if before.first is not None and before.first.severity != "noise":
                earlier.append(EarlierStart(1, before.lines, before.first, one.place))
    found = with_more(_of_machines(told), gate_findings(collection.gate))
    found = dataclasses.replace(found, earlier=tuple(earlier), notes=(*found.notes, *_notes(collection)))
    return _calm(found) if found.first is None and _serves(collection) else found


def _evidence(text: str) -> str:
    """`text` with the gate's lines emptied: what they advise is no sign of it, and its verdict is read as such."""
    return _GATE_LINE.sub("", text)


def _of_machines(told: Diagnosis) -> Diagnosis:
    """`told` without what only looks alarming beside a benchmark: an idle machine shows idle GPUs."""

    def kept(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        return tuple(each for each in findings if not (each.severity == "noise" and each.area == "bench"))

    return dataclasses.replace(told, findings=kept(told.findings), normal=kept(told.normal))


def _serves(collection: Collection) -> bool:
    """Whether the unit is active and said that it is ready."""
    unit = collection.facts.get("unit") or {}
    journal = next((one.text for one in collection.taken if one.name == "journal"), "")
    return unit.get("ActiveState") == "active" and _READY in journal


def _calm(told: Diagnosis) -> Diagnosis:
    """Of a server that runs nothing need be known: lines that look like trouble are shown for one that does not."""
    note = "the server said that it is ready, and nothing that was read points to a failure"
    return dataclasses.replace(told, unknown=False, telling=(), collect=(), notes=(*told.notes, note))


def _place(one: Taken) -> tuple[int, str]:
    return (_ORDER.index(one.name) if one.name in _ORDER else len(_ORDER), one.place)


def _notes(collection: Collection) -> Iterable[str]:
    unit = collection.facts.get("unit") or {}
    if unit:
        restarts = f", {unit['NRestarts']} restarts" if unit.get("NRestarts", "0") not in {"", "0"} else ""
        ended = f", ended with status {unit['ExecMainStatus']}" if unit.get("Result") not in {"", "success"} else ""
        yield f"the server's unit is {unit.get('ActiveState')} ({unit.get('Result')}{ended}{restarts})"
    state = collection.facts.get("container")
    if state and state != "running":
        yield f"the container is {state}: what it wrote itself is not read"
    # an index of tasks that is not there, and the like, stands in the bundle
    missing = [one for one in collection.taken if one.unread and not one.text and one.name not in _OPTIONAL]
    yield from (f"not read: {one.place}: {one.unread}" for one in missing)


def gate_findings(gate: gates.Gate | None) -> list[Finding]:
    """What the boot gate found, as findings: it has causes and remedies of its own (docs/codes.md)."""
    from rackwell.diagnose.findings import Finding, Said

    if gate is None or not gate.counts or gate.report is None or gate.verdict == "pass":
        return []
    found = []
    for each in gate.report.findings:
        p2p = each.check.startswith("p2p")
        found.append(
            Finding(
                id=f"gate-{each.code}",
                area="p2p" if p2p else "driver",
                title=each.what,
                severity="blocker" if each.verdict == "fail" else "degraded",
                confidence="high",
                cause=f"{each.what}: {each.why}" if each.why else each.what,
                remedy=each.fix or "",
                naive="",
                lines=(Said(1, gate.line or each.what, "boot gate"),),
                count=1,
                ranks=(),
                evidence=(),
                folded=(),
                rank=_RANKS.get(each.check, _P2P_RANK if p2p else 50),
                fatal=gate.held,
            )
        )
    return found


def with_more(told: Diagnosis, more: list[Finding]) -> Diagnosis:
    """`told` with findings that no text gave; what is normal steps back behind them."""
    if not more:
        return told
    real = [finding for finding in told.findings if finding.severity != "noise"]
    noise = [finding for finding in told.findings if finding.severity == "noise"]
    every = sorted([*real, *more], key=lambda finding: -finding.rank)
    return dataclasses.replace(
        told, findings=tuple(every), normal=(*told.normal, *noise), unknown=False, telling=(), collect=()
    )
