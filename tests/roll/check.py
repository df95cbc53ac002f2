# SPDX-License-Identifier: Apache-2.0
"""Are the invariants of a roll kept? Judges what machines and journals show; uses no code of rackwell's.

I1 one active release a host, and its digest is its manifest's       I5 a second roll converges (the harness runs it)
I2 the server serves, or the host is failed and out of rotation      I6 exit code and JSON agree with the machines
I3 the journals are whole, and their last records say what happened  I7 no lock, timer, process, port, file left over
I4 no secret in any log
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ACTIVE = ("active", "activating")
UNDER_WAY = {"switching", "open", "returning"}
PORTS = {22, 30000}


@dataclasses.dataclass(frozen=True)
class Wrong:
    """One invariant that does not hold."""

    invariant: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.where}: {self.what}"


def chain(name: str, text: str) -> tuple[list[dict[str, Any]], list[Wrong]]:
    """The records of a journal, and what is wrong with it. A crash may have cut off a line; the next one says so."""
    records: list[dict[str, Any]] = []
    wrong: list[Wrong] = []
    last, torn = "0" * 64, False
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            record = json.loads(line)
            body = {key: value for key, value in record.items() if key != "hash"}
        except (ValueError, AttributeError):
            torn = True
            continue
        own = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        if record.get("hash") != own or record.get("prev") != last or record.get("seq") != len(records) + 1:
            wrong.append(Wrong("I3", name, f"line {number} breaks the chain"))
        if torn and not record.get("after_torn"):
            wrong.append(Wrong("I3", name, f"a line before {number} cannot be read, and nothing says so"))
        records.append(record)
        last, torn = str(record.get("hash")), False
    return records, wrong


def whole(name: str, seen: Mapping[str, Any]) -> list[Wrong]:
    """What must hold of a host at any moment, also in the middle of a change."""
    found = _release(name, seen)
    found += chain(f"{name} journal", seen["journal"])[1]
    change, units = seen["change"], seen["units"]
    armed = any(
        state in ("active", "activating")
        for unit, state in units.items()
        if not unit.startswith("rackwell-rollout-boot")
    )
    if change.get("state") in {"open", "returning"} and not armed:
        found.append(Wrong("I2", name, f"the change is {change['state']}, and nothing takes it back: {units}"))
    return found


def _release(name: str, seen: Mapping[str, Any]) -> list[Wrong]:
    release = seen["release"]
    found = []
    if not release["below"].endswith("/releases"):
        found.append(Wrong("I1", name, f"the slot points to {release['below']}/{release['slot']}"))
    elif not release["slot"] == release["complete"] == release["manifest_sha256"]:
        found.append(Wrong("I1", name, f"the release is not what its name says: {release}"))
    if release["wrong_wheels"]:
        found.append(Wrong("I1", name, f"wheels are not as in the manifest: {release['wrong_wheels']}"))
    return found


def settled(seen: Mapping[str, Any]) -> bool:
    """Whether a host is in the middle of nothing."""
    busy = [unit for unit, state in seen["units"].items() if state in ACTIVE and "-boot" not in unit]
    return seen["change"].get("state") not in UNDER_WAY and not busy


def serves(seen: Mapping[str, Any]) -> bool:
    """Whether the server answers, and right, from the release in the slot."""
    return (
        seen["unit"].get("ActiveState") == "active"
        and seen["health"] == 200
        and "Paris" in seen["answer"]
        and seen["processes"]["servers"] == [seen["release"]["slot"]]
    )


def at_rest(name: str, seen: Mapping[str, Any], run: str, rotation: str, broken: bool) -> list[Wrong]:
    """What must hold of a host when a roll is over.

    Args:
        run: the roll. rotation: what its hooks did last, ``in`` or ``out``. broken: what the roll says of it.
    """
    found = whole(name, seen)
    if not settled(seen):
        found.append(Wrong("I2", name, f"it does not come to rest: {seen['change']} {seen['units']}"))
    if not serves(seen):
        if not (broken and rotation == "out"):
            told = {key: seen[key] for key in ("unit", "health", "answer", "processes")}
            found.append(Wrong("I2", name, f"it does not serve, and is {rotation} rotation: {told}"))
    elif rotation == "out" and not broken:
        found.append(Wrong("I2", name, "it serves, and is left out of rotation"))
    if seen["secret_in_logs"]:
        found.append(Wrong("I4", name, "a secret is in a log"))
    if seen["lock"] and seen["lock"].get("run") == run:
        found.append(Wrong("I7", name, f"the roll still holds its lock: {seen['lock']}"))
    if seen["marker"]:
        found.append(Wrong("I7", name, f"an activation is left unfinished: {seen['marker']}"))
    if seen["drop_in"]:
        found.append(Wrong("I7", name, "restarts are still held back"))
    extra = [port for port in seen["listening"] if port not in PORTS and port < 32768]
    for what, value in (("processes", seen["processes"]["left"]), ("files", seen["temporary"]), ("ports", extra)):
        if value:
            found.append(Wrong("I7", name, f"{what} left over: {value}"))
    return found


def agrees(
    result: Mapping[str, Any], code: int | None, seen: Mapping[str, Mapping[str, Any]], before: Mapping[str, str]
) -> list[Wrong]:
    """Whether what the command printed is so.

    Args:
        result: its ``result``. before: release that each host served before the roll.
    """
    found = []
    said = {host["name"]: host for host in result.get("hosts", [])}
    release = str(result.get("release"))
    for name, host in said.items():
        slot, change = seen[name]["release"]["slot"], seen[name]["change"]
        told = host["result"]
        ours = change.get("run") == result.get("run")
        if told == "promoted" and not (slot == release and (not ours or change.get("state") == "promoted")):
            found.append(Wrong("I6", name, f"said to be promoted, and runs {slot[:12]}, change {change}"))
        if told == "present" and not slot == release == before[name]:
            found.append(Wrong("I6", name, f"said to be present, and runs {slot[:12]}, before {before[name][:12]}"))
        if told in ("returned", "untouched") and slot != before[name]:
            found.append(Wrong("I6", name, f"said to be {told}, and runs {slot[:12]}, before {before[name][:12]}"))
        if told in ("promoted", "present", "returned", "untouched") and not serves(seen[name]):
            found.append(Wrong("I6", name, f"said to be {told}, and does not serve"))
        if told == "broken" and serves(seen[name]):
            found.append(Wrong("I6", name, "said to be broken, and serves"))
    results = {host["result"] for host in said.values()}
    fits = {
        0: results <= {"promoted", "present"} or bool(result.get("stopping")),
        1: "broken" in results or any(host["trouble"] for host in said.values()),
        3: "returned" in results and "broken" not in results and "lost" not in results,
    }
    if code in fits and not fits[code]:
        found.append(Wrong("I6", "controller", f"exit {code} with {sorted(map(str, results))}"))
    return found


def controller(journal: Path, code: int | None, killed: bool) -> list[Wrong]:
    """Whether the controller's journal is whole and ends as its process did.

    Args:
        code: its exit code. killed: it had no chance to write a last record.
    """
    records, found = chain("controller journal", journal.read_text(encoding="utf-8"))
    last = records[-1] if records else {}
    if not killed and last.get("kind") != "finish":
        found.append(Wrong("I3", "controller journal", f"the last record is {last.get('kind')}"))
    if last.get("kind") == "finish" and code is not None and code >= 0 and last.get("exit_code") != code:
        found.append(Wrong("I6", "controller", f"exit {code}, and the journal says {last.get('exit_code')}"))
    return found


def finishes(name: str, seen: Mapping[str, Any], run: str, result: str) -> list[Wrong]:
    """Whether the host's journal tells what the roll says of the host."""
    events = [record["event"] for record in chain(name, seen["journal"])[0] if record.get("run") == run]
    wanted = {"promoted": "promoted", "returned": "returned", "broken": "broken"}.get(result)
    ends = [event for event in events if event in ("open", "promoted", "returned", "broken", "switch-asked")]
    if wanted and ends[-1:] != [wanted]:
        return [Wrong("I3", name, f"{result}, and its journal ends with {events[-3:]}")]
    if result == "untouched" and "open" in events:
        return [Wrong("I3", name, f"untouched, and its journal has {events}")]
    return []


def secrets(root: Path, secret: str) -> list[Wrong]:
    """Files of the controller that hold the secret, in the places of logs."""
    return [
        Wrong("I4", "controller", f"a secret is in {path.relative_to(root)}")
        for path in _files(root / "runs", root / "rolls", root / "results")
        if secret.encode() in path.read_bytes()
    ]


def _files(*roots: Path) -> Iterable[Path]:
    for root in roots:
        yield from (path for path in root.rglob("*") if path.is_file())
