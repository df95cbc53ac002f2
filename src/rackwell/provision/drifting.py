# SPDX-License-Identifier: Apache-2.0
"""What a container has that its declaration does not say, and the other way round, as its Proxmox host tells it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackwell.ansible import runner
from rackwell.ansible.results import PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import plays
from rackwell.provision.progress import Progress
from rackwell.site import declaration
from rackwell.site.declaration import Site

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)


@dataclasses.dataclass(frozen=True)
class Item:
    """One difference.

    Attributes:
        severity: ``error``, a run would change it or refuse to; ``warning``, it needs a person; ``note``, no run
            touches it.
        side: who has more: ``machine``, ``declaration``, or ``both`` where they say different things.
        where: ``host:file:line`` of the container's file, or of what of the declaration it is about.
        line: the line of that file; empty for what stands nowhere in it.
    """

    code: str
    severity: str
    side: str
    key: str
    what: str
    where: str
    line: str
    found: str
    declared: str
    fix: str

    def as_dict(self) -> dict[str, str]:
        """For ``--json``."""
        return dataclasses.asdict(self)

    def problem(self) -> Problem:
        """As it is told among problems."""
        parts = (("found", self.found), ("declared", self.declared))
        why = ", ".join(f"{word} {text!r}" for word, text in parts if text)
        return Problem(self.code, self.what, self.where, why, self.fix)


@dataclasses.dataclass(frozen=True)
class Drifted:
    """The differences of one container.

    Attributes:
        exists: whether the container is there at all; None when that was not told.
        changed: whether a run would change something.
    """

    container: str
    host: str
    items: list[Item]
    problems: list[Problem]
    exit_code: ExitCode
    exists: bool | None = None
    changed: bool = False

    def count(self, severity: str) -> int:
        """How many of this severity."""
        return Counter(item.severity for item in self.items)[severity]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "container": self.container,
            "host": self.host,
            "exists": self.exists,
            "changed": self.changed,
            "counts": {severity: self.count(severity) for severity in SEVERITIES},
            "drift": [item.as_dict() for item in self.items],
        }


def drift(path: Path, name: str, progress: Progress) -> Drifted:
    """Look for drift of container `name`; changes nothing, and takes no lock.

    Raises:
        RackwellError: what is declared of the container itself does not hold (exit 2). Other parts of its declaration
            need not: drift is looked for all the same.
    """
    site = declaration.load(path)
    node = site.container(name)
    host = site.host_of(node)
    if "pve_container" not in node.roles or host not in site.hosts:
        raise RackwellError(site.problems_of(name, host), ExitCode.INVALID)
    run = RunDirectory.create(site.state, "drift")
    progress.log = run.log
    played = runner.play("drift", site.path, run, [name, host], listener=progress.step, check=True)
    progress.safety = "drift changes nothing"
    return judge(site, played, name, host)


def judge(site: Site, played: PlayResult, name: str, host: str) -> Drifted:
    """The differences in a play of ``drift``."""
    if played.interrupted:
        raise KeyboardInterrupt
    payload = _payload(played, name)
    items = items_of(site, payload, name, host)
    # a refusal that the drift tells of already is told once
    told = {"read-only-option"} if any(item.code == "read-only" for item in items) else set()
    again = f"rackwell drift {name} -i {site.path}"
    problems = [problem for problem in plays.problems(played, again) if problem.code not in told]
    exists = payload.get("exists", True if payload else None)
    if exists is False:
        problems.append(
            Problem(
                "not-there",
                f"the container {name} does not exist",
                f"{host}: container {payload.get('vmid')}",
                "it is declared, and the host has none of this number",
                f"rackwell provision {name} makes it",
            )
        )
    problems += [item.problem() for item in items if item.severity == ERROR]
    code = _exit_code(played, items, exists)
    if code == ExitCode.HELD and not problems:
        problems.append(_for_a_person(items, name, host))
    reported = [one for one in played.results if one.schema.startswith("rackwell.pve_container/")]
    changed = any(one.changed for one in reported) or any(item.severity == ERROR for item in items)
    return Drifted(name, host, items, problems, code, exists, changed)


def differences(site: Site, played: PlayResult, name: str, host: str) -> list[Item]:
    """What a play told of the container's differences; none where it did not get so far."""
    return items_of(site, _payload(played, name), name, host)


def items_of(site: Site, payload: Mapping[str, Any], name: str, host: str) -> list[Item]:
    """The differences that role pve_container reported, and that of the host keys, which the controller keeps."""
    told = [_item(site, raw, payload, name, host) for raw in payload.get("drift") or []]
    keys = _host_keys(site, payload, name, host)
    return told if keys is None else [keys, *told]


def _host_keys(site: Site, payload: Mapping[str, Any], name: str, host: str) -> Item | None:
    """Whether the site's known_hosts has another key for the container than its Proxmox host reads in it."""
    node = site.containers.get(name)
    address = ((node.text("pve_container_ip") if node is not None else "") or "").partition("/")[0]
    there = {" ".join(key.split()[:2]) for key in payload.get("host_keys") or []}
    known = dict(_known(site.path / "known_hosts", address))
    kinds = {key.split()[0] for key in there}
    stale = {key: line for key, line in known.items() if key.split()[0] in kinds and key not in there}
    if not there or not stale or set(known) & there:
        return None
    number = min(stale.values())
    return Item(
        "host-key-changed",
        ERROR,
        "both",
        "known_hosts",
        "the container's ssh server has another host key than the site knows: ssh refuses to go there",
        f"{site.path / 'known_hosts'}:{number}",
        "",
        ", ".join(sorted(there)),
        ", ".join(sorted(stale)),
        f"when it was made anew, or its keys were: rackwell provision {name} records what {host} reads in it; when "
        "nobody did that, find out who answers at its address first",
    )


def _known(path: Path, address: str) -> list[tuple[str, int]]:
    """The keys of an address, as ``type key``, with their lines."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    words = [(line.split(), number) for number, line in enumerate(lines, 1)]
    return [(" ".join(word[1:3]), number) for word, number in words if len(word) > 2 and address in word[0].split(",")]


def _for_a_person(items: list[Item], name: str, host: str) -> Problem:
    """What no run mends, in one: each is told in full beside it."""
    told = [item for item in items if item.severity == WARNING]
    return Problem(
        "needs-a-person",
        f"{name} is as it is declared, with {len(told)} warning{'' if len(told) == 1 else 's'}",
        host,
        "; ".join(f"{item.what} ({item.where})" for item in told),
        told[0].fix if len(told) == 1 else "see each",
    )


def _exit_code(played: PlayResult, items: list[Item], exists: bool | None) -> ExitCode:
    """What differs fails; what only needs a person's eye is held."""
    severities = {item.severity for item in items}
    if exists is False or ERROR in severities:
        return ExitCode.FAILED
    if played.exit_code != ExitCode.DONE:
        return played.exit_code
    return ExitCode.HELD if WARNING in severities else ExitCode.DONE


def _payload(played: PlayResult, name: str) -> Mapping[str, Any]:
    """The report; of a run that was refused what it told all the same."""
    found = [*played.payloads("rackwell.pve_container", name), *played.payloads("rackwell.container_drift", name)]
    return found[-1] if found else {}


def _item(site: Site, raw: Mapping[str, Any], payload: Mapping[str, Any], name: str, host: str) -> Item:
    vmid, number = payload.get("vmid"), int(raw.get("number") or 0)
    if number:
        where = f"{host}:/etc/pve/lxc/{vmid}.conf:{number}"
    elif raw.get("side") == "declaration":
        where = _declared_at(site, name, str(raw.get("key", "")))
    else:
        where = f"{host}: container {vmid}"
    parts = {key: str(raw.get(key) or "") for key in ("code", "severity", "side", "key", "what", "line")}
    return Item(
        **parts,
        where=where,
        found=str(raw.get("found") or ""),
        declared=str(raw.get("declared") or ""),
        fix=str(raw.get("fix") or "")
        .replace("VMID", str(vmid))
        .replace("rackwell provision", f"rackwell provision {name}"),
    )


_OPTIONS = {
    "lxc.cgroup2.cpuset.cpus": ("cpuset", "numa_nodes", "raw"),
    "lxc.cgroup2.cpuset.mems": ("numa_nodes", "raw"),
    "lxc.prlimit.memlock": ("memlock", "raw"),
    "lxc.mount.entry": ("shm_size", "raw"),
    "net0": ("ip",),
    "ssh_public_key": ("ssh_public_key_file",),
    "dev": ("devices", "gpus"),
    "mp": ("mounts",),
}


def _declared_at(site: Site, name: str, key: str) -> str:
    """``file:line`` of the declaration that asks for an option; else where the container is declared."""
    kind = key.rstrip("0123456789")
    options = _OPTIONS.get(key) or _OPTIONS.get(kind) or ((key, "options") if not key.startswith("lxc.") else ("raw",))
    variables = site.containers[name].variables
    found = next((f"pve_container_{option}" for option in options if f"pve_container_{option}" in variables), "")
    return site.sources.find(name, found, site.inventory) if found else site.sources.declared_at(name)
