# SPDX-License-Identifier: Apache-2.0
"""A container that others made becomes one of the site: looked at, declared, and held against what was declared."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rackwell.ansible import runner
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import adoptfile, drifting, plays
from rackwell.provision.drifting import Drifted
from rackwell.provision.lock import container_lock
from rackwell.provision.progress import Progress
from rackwell.site import declaration, files, validation
from rackwell.site.declaration import Site
from rackwell.site.node import CONTAINER_GROUP, PLACEHOLDER

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
#: what a container may have of its groups, and what is written where none gives it
_INHERITED = {"template": "local:vztmpl/NAME.tar.zst", "ssh_public_key_file": "~/.ssh/id_ed25519.pub"}
_FIXED = {"ip": "192.0.2.21/24", "bridge": "vmbr0"}


@dataclasses.dataclass
class Adopted:
    """What came of it.

    Attributes:
        text: the container's host_vars. files: those that were written.
        untold: what the declaration cannot say, as the machine told it.
        left: what is still to be filled in or decided, file and line.
        proof: the container held against its new declaration; None where that could not be done.
    """

    container: str
    host: str
    vmid: int
    seen: Mapping[str, Any]
    text: str
    files: list[Path] = dataclasses.field(default_factory=list)
    left: list[Problem] = dataclasses.field(default_factory=list)
    proof: Drifted | None = None
    dry_run: bool = False

    @property
    def untold(self) -> list[dict[str, Any]]:
        """What the declaration cannot say."""
        return [dict(one) for one in self.seen.get("untold") or []]

    @property
    def notes(self) -> list[str]:
        """What else to know before the first provision."""
        found = []
        if not self.seen.get("running"):
            found.append("it does not run: a provision starts it")
        if (missing := int(self.seen.get("missing_keys", -1))) > 0:
            found.append(f"root of the container lacks {missing} of the site's ssh keys: a provision puts them in")
        if self.seen.get("running") and not self.seen.get("host_keys"):
            found.append("it has no ssh server, which rackwell needs: install openssh-server in it")
        if not self.seen.get("gpus"):
            found.append("it has no GPU by a dev entry: list those that it shall have in pve_container_gpus")
        return found

    @property
    def problems(self) -> list[Problem]:
        """What keeps the container from being one that a run does not change."""
        where = f"{self.host}:{self.seen.get('file')}"
        told = [
            Problem("not-declarable", one["what"], f"{where}:{one['number']}", one["line"], one["fix"])
            for one in self.untold
            if one["blocks"]
        ]
        proof = self.proof.problems if self.proof is not None else []
        return list(dict.fromkeys([*told, *self.left, *proof]))

    @property
    def exit_code(self) -> ExitCode:
        """Held: written, and something waits for a person."""
        if self.proof is not None and self.proof.exit_code not in {ExitCode.DONE, ExitCode.FAILED, ExitCode.HELD}:
            return self.proof.exit_code
        return ExitCode.HELD if self.problems else ExitCode.DONE

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "container": self.container,
            "host": self.host,
            "vmid": self.vmid,
            "dry_run": self.dry_run,
            "files": [str(path) for path in self.files],
            "declaration": dict(self.seen.get("declaration") or {}),
            "text": self.text,
            "untold": self.untold,
            "oddities": list(self.seen.get("oddities") or []),
            "notes": self.notes,
            "proved": self.proof is not None and not self.proof.changed and self.proof.exit_code == ExitCode.DONE,
            "drift": self.proof.as_dict() if self.proof is not None else None,
        }


def adopt(
    path: Path,
    host: str,
    vmid: int,
    progress: Progress,
    *,
    name: str = "",
    overwrite: bool = False,
    dry_run: bool = False,
) -> Adopted:
    """Write the declaration of container `vmid` of Proxmox host `host`; nothing on a machine is changed.

    Args:
        name: of the container in the site; its hostname when it is not given.
        overwrite: write over a host_vars file of that name.
        dry_run: write nothing.

    Raises:
        RackwellError: it cannot be declared: it is already, or a file would be lost (exit 2); its host did not tell of
            it (exit 1 or 6).
    """
    site = declaration.load(path)
    _check_host(site, host)
    _check_new(site, host, vmid, name, overwrite)
    run = RunDirectory.create(site.state, "adopt")
    progress.log = run.log
    progress.safety = "nothing was written, and adopting changes no machine"
    seen = _look(site, run, host, vmid, progress)
    declared = dict(seen["declaration"])
    name = name or str(declared["hostname"])
    _check_name(site, name)
    _check_files(site, name, overwrite)
    done = Adopted(name, host, vmid, seen, _text(site, host, seen), dry_run=dry_run)
    if dry_run:
        return done
    with container_lock(site.state, name, "adopt"):
        _write(site, done)
        progress.safety = "the declaration is written; no machine was changed"
        progress.line("controller", f"declared {name}: {', '.join(str(file) for file in done.files)}")
        _prove(site.path, done, progress)
    return done


def _check_host(site: Site, host: str) -> None:
    if host in site.hosts:
        return
    known = ", ".join(sorted(site.hosts)) or "none"
    raise RackwellError(
        Problem(
            "unknown-host",
            f"'{host}' is not a Proxmox host of this site",
            site.sources.hosts.where(),
            f"the group pve has: {known}",
            validation.suggest(host, site.hosts, 0.6) or "add it there",
        ),
        ExitCode.INVALID,
    )


def _check_new(site: Site, host: str, vmid: int, name: str, overwrite: bool) -> None:
    """No other container of the site is this one already."""
    for node in site.containers.values():
        same = site.host_of(node) == host and str(node.variables.get("pve_container_vmid")) == str(vmid)
        if same and not (overwrite and node.name == name):
            raise RackwellError(
                Problem(
                    "already-declared",
                    f"container {vmid} of {host} is declared already, as {node.name}",
                    site.sources.find(node.name, "pve_container_vmid", site.inventory),
                    "two declarations of one container would undo each other",
                    f"see how it differs: rackwell drift {node.name}; or write it anew: "
                    f"rackwell adopt {host} {vmid} --name {node.name} --overwrite",
                ),
                ExitCode.INVALID,
            )


def _check_name(site: Site, name: str) -> None:
    if _NAME.fullmatch(name) and name not in {*site.hosts, *site.inventory.groups, CONTAINER_GROUP}:
        return
    raise RackwellError(
        Problem(
            "bad-name", f"'{name}' cannot be the container's name in the site", "--name", "", "choose another: --name"
        ),
        ExitCode.INVALID,
    )


def _check_files(site: Site, name: str, overwrite: bool) -> None:
    """Nothing that is there is lost unless that is asked for."""
    there = adoptfile.existing(site.path, name)
    own = [site.path / "host_vars" / f"{name}.yml"]
    if there and not (overwrite and there == own):
        raise RackwellError(
            Problem(
                "file-exists",
                f"the site has variables of {name} already",
                str(there[0]),
                "nothing was written",
                "choose another name (--name)" + ("; or write over it: --overwrite" if there == own else ""),
            ),
            ExitCode.INVALID,
        )
    if name in site.containers and not overwrite:
        raise RackwellError(
            Problem(
                "already-declared",
                f"{name} is a container of this site already",
                site.sources.declared_at(name),
                "",
                "choose another name: --name",
            ),
            ExitCode.INVALID,
        )


def _look(site: Site, run: RunDirectory, host: str, vmid: int, progress: Progress) -> Mapping[str, Any]:
    extra = {"rackwell_adopt_vmid": vmid, "rackwell_adopt_ssh_public_key": _key(site)}
    played = runner.play("adopt", site.path, run, [host], listener=progress.step, extra=extra)
    if played.interrupted:
        raise KeyboardInterrupt
    found = played.payloads("rackwell.pve_container_look", host)
    if not found:
        again = f"rackwell adopt {host} {vmid} -i {site.path}"
        raise RackwellError(plays.problems(played, again), played.exit_code or ExitCode.FAILED)
    return found[-1]


def _key(site: Site) -> str:
    """The public key that the site's containers have; empty where that is not known yet."""
    for node in site.containers.values():
        if path := node.text("pve_container_ssh_public_key_file"):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                return files.place(path).read_text(encoding="utf-8")
    return ""


def _text(site: Site, host: str, seen: Mapping[str, Any]) -> str:
    declared = dict(seen["declaration"])
    missing = {name: example for name, example in _FIXED.items() if name not in declared}
    missing |= {name: example for name, example in _INHERITED.items() if not _inherits(site, adoptfile.PREFIX + name)}
    if "template" in missing and seen.get("templates"):
        declared["template"] = seen["templates"][-1]
        del missing["template"]
    if "storage" not in declared:
        missing["storage"] = "local"
    told = [f"Not declared: {one['line']} ({one['what']})" for one in seen.get("untold") or []]
    origin = f"{host}:{seen['file']} (digest {str(seen.get('digest', ''))[:12]})"
    return adoptfile.host_vars(host, declared, missing, told, origin, len(seen.get("gpus") or []))


def _inherits(site: Site, variable: str) -> bool:
    """Whether a container of the site gets this variable from its groups."""
    for group in ("all", CONTAINER_GROUP):
        if any(document.has((variable,)) for document in site.sources.group_vars.get(group, [])):
            return True
        places = site.sources.places.get(group, [])
        if any(site.sources.hosts.has((*pointer, "vars", variable)) for pointer in places):
            return True
    return False


def _write(site: Site, done: Adopted) -> None:
    """host_vars first: an entry without it would be a container that does not hold.

    Raises:
        RackwellError: a file cannot be written, or hosts.yml cannot be added to; then nothing is left.
    """
    hosts = site.sources.hosts.path
    entry = adoptfile.with_container(hosts.read_text(encoding="utf-8"), done.container, hosts)
    target = site.path / "host_vars" / f"{done.container}.yml"
    before = target.read_bytes() if files.is_file(target) else None
    try:
        files.write(target, done.text)
        done.files.append(target)
        if entry != hosts.read_text(encoding="utf-8"):
            files.write(hosts, entry)
            done.files.append(hosts)
    except OSError as error:
        with contextlib.suppress(OSError):
            if before is None:
                target.unlink(missing_ok=True)
            else:
                target.write_bytes(before)
        raise RackwellError(
            Problem("file-unwritable", "the declaration cannot be written", str(error.filename), error.strerror or "")
        ) from error


def _prove(path: Path, done: Adopted, progress: Progress) -> None:
    """Read the site again, record the host keys, and hold the container against what was written."""
    site = declaration.load(path)
    done.left = list(_left(site, done))
    keys = list(done.seen.get("host_keys") or [])
    if keys and done.seen["declaration"].get("ip"):
        run = RunDirectory.create(site.state, "adopt")
        extra = {"rackwell_adopt_host_keys": keys}
        played = runner.play("adopt_keys", site.path, run, [done.container], listener=progress.step, extra=extra)
        if played.interrupted:
            raise KeyboardInterrupt
        site = declaration.load(path)
        done.left = list(_left(site, done))
    if PLACEHOLDER in done.text or not _holds(site, done.container):
        return
    done.proof = drifting.drift(path, done.container, progress)


def _left(site: Site, done: Adopted) -> Iterable[Problem]:
    return site.problems_of(done.container)


def _holds(site: Site, name: str) -> bool:
    node = site.containers.get(name)
    return node is not None and "pve_container" in node.roles
