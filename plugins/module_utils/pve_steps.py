# SPDX-License-Identifier: Apache-2.0
"""How a declared container comes to be on a Proxmox VE host: checked, created or changed, started, opened for ssh."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_cli import POLL_S, Pve
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import Change, Conf, lines
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_gpu import device_problem, make_node_command
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_plan import Wanted, applied, as_options, foreign, refused
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError, problem

CONSENT = "pve_container_allow_restart"


class StopError(Exception):
    """A signal asked the module to end."""


class StolenError(Exception):
    """The number was taken between the look and the creation; the text is what `pct` said."""


# before anything is touched ----------------------------------------------------


def check_mounts(mounts: Sequence[Mapping[str, Any]]) -> None:
    """Each path can be a part of ``mpN``. Raises PveError: what follows a comma there would be another option."""
    for mount in mounts:
        for end in ("source", "target"):
            path = str(mount[end])
            why = ""
            if not path.startswith("/"):
                why = "it is not absolute"
            elif "," in path:
                why = "it holds a comma, by which Proxmox VE separates options"
            elif not path.isprintable():
                why = "it holds a line break or another control character"
            if why:
                raise problem(
                    "mount-invalid",
                    f"that cannot be the {end} of a mount",
                    "pve_container_mounts",
                    f"{path!r}: {why}",
                    "give an absolute path without commas and line breaks",
                )


def check_sources(
    devices: Sequence[str], mounts: Sequence[Mapping[str, Any]], bridge: str, node: str, sysfs: str = "/sys/class/net"
) -> None:
    """What the declaration takes from the host is there.

    Raises:
        PveError: naming every device node that is missing, or the first other thing.
    """
    missing = {path: wrong for path, wrong in ((path, device_problem(path)) for path in devices) if wrong}
    if missing:
        commands = list(dict.fromkeys(make_node_command(path) for path in missing))
        raise problem(
            "device-missing",
            "device nodes are missing on the host: " + ", ".join(missing),
            node,
            "; ".join(f"{path}: {wrong}" for path, wrong in missing.items()),
            "; ".join(commands) + " (on the host)",
        )
    for mount in mounts:
        if not os.path.isdir(mount["source"]):
            raise problem(
                "mount-missing",
                f"the directory {mount['source']} is not on the host",
                node,
                f"declared as the mount {mount['target']}",
                f"mkdir -p {mount['source']} on the host, or correct pve_container_mounts",
            )
    if not os.path.isdir(os.path.join(sysfs, bridge)):
        raise problem(
            "bridge-missing",
            f"the host has no bridge {bridge}",
            node,
            f"{sysfs}/{bridge} is absent",
            "make the bridge in the host's /etc/network/interfaces, or correct pve_container_bridge",
        )


def check_creation(pve: Pve, template: str, storage: str, disk_size: int) -> None:
    """Storage with space and template are there.

    Raises:
        PveError: one of them is not.
    """
    stores = {row["storage"]: row for row in pve.rows(f"/nodes/{pve.node}/storage", "storage")}
    for name, option in ((storage, "pve_container_storage"), (template.partition(":")[0], "pve_container_template")):
        if name not in stores:
            raise problem(
                "storage-missing",
                f"the host has no storage {name}",
                pve.node,
                f"it has: {', '.join(sorted(stores))}",
                f"correct {option}",
            )
    have = int(stores[storage].get("avail") or 0)
    if have < disk_size << 30:
        raise problem(
            "no-space",
            f"storage {storage} has no space for the container",
            f"{pve.node}: {storage}",
            f"{have / 2**30:.1f} GiB are free, {disk_size} GiB are declared",
            "free space there, or lower pve_container_disk_size",
        )
    place = template.partition(":")[0]
    path = f"/nodes/{pve.node}/storage/{place}/content"
    volumes = [row["volid"] for row in pve.rows(path, "volid", "--content", "vztmpl")]
    if template not in volumes:
        name = template.rpartition("/")[2]
        raise problem(
            "template-missing",
            f"the template {template} is not on the host",
            pve.node,
            f"it has: {', '.join(sorted(volumes)) or 'none'}",
            f"pveam update; pveam download {place} {name}; or correct pve_container_template",
        )


def check_ours(conf: Conf, vmid: int, hostname: str, node: str) -> None:
    """The existing container is rackwell's.

    Raises:
        PveError: it is somebody else's.
    """
    why = foreign(conf, hostname)
    if why:
        raise problem(
            "vmid-foreign",
            f"container {vmid} exists and is not rackwell's {hostname}",
            f"{node}: container {vmid}",
            why + "; it was not touched",
            "choose a free pve_container_vmid; or, to have it taken over, give it the tag 'rackwell' and that hostname",
        )


def check_fixed(conf: Conf, want: Wanted, vmid: int, node: str, storage: str, disk_size: int) -> None:
    """Nothing is declared that only a new container can have.

    Raises:
        PveError: naming every such option.
    """
    found = refused(conf, want, storage, disk_size)
    if not found:
        return
    fix = f"set them back to what the container has; or remove it (pct destroy {vmid}) and provision anew"
    if [option for option, _, _ in found] == ["disk_size"] and disk_size > int(found[0][1]):
        fix = f"pct resize {vmid} rootfs {disk_size}G (on the host)"
    raise problem(
        "read-only-option",
        "an existing container cannot change " + ", ".join("pve_container_" + option for option, _, _ in found),
        f"{node}: container {vmid}",
        "; ".join(f"{option}: it has {old}, declared is {new}" for option, old, new in found),
        fix,
    )


def check_consent(
    vmid: int,
    node: str,
    todo: Sequence[Change],
    waiting: Sequence[str],
    allowed: bool,
    diffs: Sequence[Mapping[str, str]] = (),
) -> None:
    """A restart that is needed is allowed.

    Raises:
        PveError: it is not; nothing was touched.
    """
    if allowed:
        return
    reasons = [f"{c.key} ({c.before or 'absent'} -> {c.after or 'absent'})" for c in todo if c.restart]
    reasons += [f"{key} (set earlier, waiting)" for key in waiting]
    raise problem(
        "restart-needed",
        f"the container must be restarted for: {', '.join(reasons)}",
        f"{node}: container {vmid}",
        "a restart ends everything that runs in it, the inference server included, which then loads its model again; "
        "nothing was changed",
        f"when that is acceptable, set {CONSENT}: true (or -e {CONSENT}=true) and run again: "
        "the changes are made and the container is restarted",
        restart_required=True,
        diff=list(diffs),
        pending=sorted({*waiting, *(c.key for c in todo if c.restart)}),
    )


# creation ---------------------------------------------------------------------------


def creation_options(want: Wanted, storage: str, disk_size: int) -> dict[str, str]:
    """The options of `pct create`."""
    return {**as_options(want), "rootfs": f"{storage}:{disk_size}"}


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ending signals become :class:`StopError`."""

    def stop(number: int, _frame: object) -> None:
        raise StopError(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def create_and_start(pve: Pve, vmid: int, template: str, options: Mapping[str, str]) -> None:
    """A new container that runs; when that fails, what this call made is destroyed again.

    Raises:
        PveError: with what became of the container.
    """
    with interruptible():
        try:
            rc, text = pve.create(vmid, template, options)
            if rc != 0 and re.search(rf"\b(CT|VM) {vmid} already exists", text):
                # whoever was faster owns it: it must not go through the removal below
                raise StolenError(text)
            if rc != 0:
                code = "no-space" if "No space left" in text else "create-failed"
                raise problem(
                    code,
                    f"pct create {vmid} failed",
                    pve.node,
                    f"exit {rc}: {text[-1500:]}",
                    "see what it says, then run again",
                )
            rc, text = pve.act("start", vmid)
            if rc != 0:
                raise problem(
                    "start-failed",
                    f"the new container {vmid} does not start",
                    pve.node,
                    f"exit {rc}: {text[-1500:]}",
                    "see what it says, then run again",
                )
        except StolenError as error:
            raise problem(
                "busy",
                f"container {vmid} was made by somebody else meanwhile",
                f"{pve.node}: container {vmid}",
                f"{error}; it was not touched",
                "run again: what is there is then held against the declaration",
            ) from None
        except StopError as signal_name:
            raise _after_removal(
                pve,
                vmid,
                options["hostname"],
                problem(
                    "interrupted",
                    f"the creation of container {vmid} was interrupted",
                    pve.node,
                    f"received {signal_name}",
                    "run again",
                ),
            ) from None
        except PveError as error:
            raise _after_removal(pve, vmid, options["hostname"], error) from None


def _after_removal(pve: Pve, vmid: int, hostname: str, error: PveError) -> PveError:
    """The same problem, saying what became of the half-made container."""
    told = remove(pve, vmid, hostname)
    found = error.finding
    return problem(found.code, found.what, found.where, f"{found.why}; {told}", found.fix, **error.extra)


def remove(pve: Pve, vmid: int, hostname: str) -> str:
    """Destroy a container that this call made, and say so. One that became somebody else's is left alone."""
    try:
        if not pve.exists(vmid):
            return "nothing of it is left"
        conf = pve.conf(vmid)
        # PVE writes tags and hostname only at the end of a creation: until then the lock is all there is
        if conf.current.get("lock") != "create" and foreign(conf, hostname):
            return f"{foreign(conf, hostname)}; it is somebody else's and was not touched"
        if "lock" in conf.current:
            pve.act("unlock", vmid)
        rc, text = pve.act("destroy", vmid, "--force", "1", "--purge", "1")
    except PveError as error:
        if error.finding.code == "vmid-foreign":
            return f"{error.finding.what}, which was not touched"
        rc, text = 1, error.finding.what
    return (
        "the container made by this run was destroyed again"
        if rc == 0
        else f"it could not be removed ({text}): pct destroy {vmid} --force 1"
    )


def settle_creation(pve: Pve, vmid: int, hostname: str, seconds: int, check_mode: bool) -> bool:
    """Whether the container exists, after a creation of it by someone else has ended or left its half-made rest.

    Raises:
        PveError: another creation goes on for longer than ``seconds``; or what is locked is not ours.
    """
    deadline = time.monotonic() + seconds
    while pve.exists(vmid):
        conf = pve.conf(vmid)
        if conf.current.get("lock") != "create":
            return True
        pid = pve.being_created(vmid)
        if pid is None:
            check_ours(conf, vmid, hostname, pve.node)
            if not check_mode:
                told = remove(pve, vmid, hostname)
                if pve.exists(vmid):
                    raise problem(
                        "create-unfinished",
                        f"container {vmid} is the rest of an interrupted creation",
                        pve.node,
                        told,
                        f"pct unlock {vmid}; pct destroy {vmid}",
                    )
            return False
        if time.monotonic() > deadline:
            raise problem(
                "busy",
                f"container {vmid} is being created by another process",
                f"{pve.node}: pid {pid}",
                f"it had not ended after {seconds} s",
                "wait for it, then run again",
            )
        time.sleep(POLL_S)
    return False


# change --------------------------------------------------------------------------------


def change(pve: Pve, vmid: int, todo: Sequence[Change], running: bool, restart: bool, seconds: int) -> None:
    """Make the changes, and restart or start the container; return to what was when it does not come back.

    Raises:
        PveError: `pct set` refused them (nothing changed), or the container failed with them (and was set back).
    """
    if todo:
        rc, text = pve.set(vmid, todo)
        if rc != 0:
            raise problem(
                "set-failed",
                f"pct set {vmid} failed",
                f"{pve.node}: container {vmid}",
                f"exit {rc}: {text[-1500:]}",
                "see what it says and correct the declaration",
            )
    if running and not restart:
        return
    rc, text = pve.act("reboot", vmid) if running else pve.act("start", vmid)
    why = f"exit {rc}: {text[-1500:]}"
    if rc == 0:
        try:
            pve.wait_for_systemd(vmid, seconds)
            return
        except PveError as error:
            why = error.finding.why
    if not todo or not running:
        raise problem(
            "start-failed",
            f"container {vmid} does not start",
            f"{pve.node}: container {vmid}",
            why,
            f"pct start {vmid} --debug shows more",
        )
    verified = _set_back(pve, vmid, todo, seconds)
    told = "it was set back and runs as before" if verified else "it was set back, but does not run: it needs a person"
    raise problem(
        "start-failed",
        f"container {vmid} does not start with the changed declaration",
        f"{pve.node}: container {vmid}",
        f"{why}; {told}",
        f"correct the declaration ({', '.join(c.key for c in todo)})",
        rolled_back=True,
        rollback_verified=verified,
    )


def _set_back(pve: Pve, vmid: int, todo: Sequence[Change], seconds: int) -> bool:
    """Undo the changes and start; whether it runs again."""
    with contextlib.suppress(PveError):
        rc, _ = pve.set(vmid, [change.inverse() for change in todo])
        if rc != 0:
            return False
        if pve.running(vmid):
            rc, _ = pve.act("reboot", vmid)
        else:
            rc, _ = pve.act("start", vmid)
        return rc == 0 and bool(pve.wait_for_systemd(vmid, seconds))
    return False


# ssh ---------------------------------------------------------------------------------------


def key_lines(text: str) -> list[str]:
    """The keys of a public key file.

    Raises:
        PveError: it holds no public key, or something else.
    """
    found = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not found or any(not _key_parts(line) for line in found):
        raise problem(
            "ssh-key-invalid",
            "the declared ssh key is no public key",
            "pve_container_ssh_public_key_file",
            "its lines do not have the form 'ssh-ed25519 AAAA… comment'",
            "name the .pub file; ssh-keygen -t ed25519 makes a pair",
        )
    return found


def missing_keys(pve: Pve, vmid: int, wanted: Sequence[str]) -> list[str]:
    """Those of the keys that root's authorized_keys does not have; comments and options do not matter."""
    rc, out, _ = pve.inside(vmid, ["cat", "/root/.ssh/authorized_keys"])
    there = [_key_parts(line) for line in out.splitlines()] if rc == 0 else []
    return [line for line in wanted if _key_parts(line) not in there]


def _key_parts(line: str) -> list[str]:
    """Type and key of an authorized_keys line, whatever options stand before them."""
    words = line.split()
    for index, word in enumerate(words[:-1]):
        if word.startswith(("ssh-", "ecdsa-", "sk-")):
            return words[index : index + 2]
    return []


def put_keys(pve: Pve, vmid: int, keys: Sequence[str]) -> None:
    """Append keys to root's authorized_keys.

    Raises:
        PveError: the container refused it.
    """
    script = (
        "umask 077; mkdir -p /root/.ssh && chmod 700 /root/.ssh && "
        'f=/root/.ssh/authorized_keys; [ ! -s $f ] || [ -z "$(tail -c1 $f)" ] || echo >> $f; cat >> $f && chmod 600 $f'
    )
    rc, out, err = pve.inside(vmid, ["sh", "-c", script], data="".join(key + "\n" for key in keys))
    if rc != 0:
        raise problem(
            "ssh-key-failed",
            "the ssh key cannot be put into the container",
            f"{pve.node}: container {vmid}",
            f"exit {rc}: {(out + err).strip()}",
            f"look: pct exec {vmid} -- ls -la /root/.ssh",
        )


def host_keys(pve: Pve, vmid: int) -> list[str]:
    """The public host keys of the container's ssh server, as ``type key``.

    Raises:
        PveError: there are none.
    """
    rc, out, err = pve.inside(vmid, ["sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub"])
    found = sorted(" ".join(line.split()[:2]) for line in out.splitlines() if line.startswith(("ssh-", "ecdsa-")))
    if rc != 0 or not found:
        raise problem(
            "ssh-missing",
            "the container has no ssh host keys",
            f"{pve.node}: container {vmid}",
            err.strip() or "no /etc/ssh/ssh_host_*_key.pub",
            "use a template that has openssh-server; pve_container_template",
        )
    return found


def diff(
    node: str, vmid: int, before: Optional[Mapping[str, str]], todo: Sequence[Change], options: Mapping[str, str]
) -> dict[str, str]:
    """Ansible's diff: the configuration's lines before and after; a new container has no before."""
    name = f"{node}:/etc/pve/lxc/{vmid}.conf"
    after = options if before is None else applied(before, todo)
    return {"before_header": name, "after_header": name, "before": lines(before or {}), "after": lines(after)}
