# SPDX-License-Identifier: Apache-2.0
"""What must hold before anything of a container is touched; each check names cause and remedy."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_cli import Pve, unwritable
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import Change, Conf
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_gpu import device_problem, make_node_command
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_plan import Wanted, foreign, refused
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import problem

CONSENT = "pve_container_allow_restart"


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


def check_creation(pve: Pve, template: str, storage: str, disk_size: int, sha256: str = "") -> None:
    """Storage with space and template are there.

    Args:
        sha256: what the template's file must be; empty: not looked at.

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
    if sha256:
        path = pve.volume_path(template)
        found = _sha256(path)
        if found != sha256.lower():
            raise problem(
                "template-checksum",
                f"the template {template} is not the declared one",
                f"{pve.node}: {path}",
                f"its sha256 is {found}, declared is {sha256.lower()}; no container was made of it",
                f"fetch it again (rm {path}; pveam download {place} {template.rpartition('/')[2]}); or, when this is "
                "the right one, correct pve_container_template_sha256",
            )


def _sha256(path: str) -> str:
    """Of a file's content. Raises PveError."""
    made = hashlib.sha256()
    try:
        with open(path, "rb") as handle:
            while part := handle.read(1 << 20):
                made.update(part)
    except OSError as error:
        raise problem(
            "template-unreadable",
            "the template's file cannot be read",
            path,
            error.strerror or str(error),
            "fetch it again",
        ) from None
    return made.hexdigest()


def check_lock(conf: Conf, vmid: int, node: str) -> None:
    """Nothing else works on the container. Raises PveError: Proxmox VE would refuse a change."""
    lock = conf.current.get("lock")
    if lock:
        raise problem(
            "locked",
            f"container {vmid} is locked ({lock})",
            f"{node}: container {vmid}",
            _LOCKS.get(lock, "another task of Proxmox VE works on it") + "; nothing was changed",
            f"wait until it has ended (pvesh get /nodes/{node}/tasks --vmid {vmid} --source active); when none runs, "
            f"the lock is left over: pct unlock {vmid}",
        )


_LOCKS = {
    "backup": "vzdump makes a backup of it",
    "snapshot": "a snapshot of it is being made",
    "snapshot-delete": "a snapshot of it is being removed, or its removal was interrupted",
    "rollback": "it is being set back to a snapshot",
    "migrate": "it is being moved to another host",
    "disk": "a disk of it is being moved or resized",
    "mounted": "its file system is mounted on the host (pct mount)",
    "fstrim": "pct fstrim works on it",
    "destroyed": "its removal was interrupted",
}


def check_quorum(pve: Pve, vmid: int) -> None:
    """/etc/pve takes changes. Raises PveError."""
    if not pve.quorate():
        raise unwritable(vmid, pve.node, "the cluster has no quorum (/etc/pve/.members)")


def check_shared(pve: Pve, vmid: int, nodes: Sequence[str]) -> None:
    """No other running container has one of these GPUs.

    Raises:
        PveError: one has; two servers would find the memory of a GPU taken, and neither would know why.
    """
    shared = {number: found for number, found in pve.sharing(vmid, nodes).items() if found[0]}
    if shared:
        told = "; ".join(f"container {number} has {', '.join(found[1])}" for number, found in shared.items())
        raise problem(
            "gpu-shared",
            f"a GPU of container {vmid} is another running container's",
            f"{pve.node}: container {vmid}",
            f"{told}; nothing was changed",
            "list the GPUs of each container (pve_container_gpus), each GPU once; or stop the other one",
        )


def check_ours(conf: Conf, vmid: int, hostname: str, node: str, adopted: bool = False) -> None:
    """The existing container is rackwell's.

    Raises:
        PveError: it is somebody else's.
    """
    why = foreign(conf, hostname, vmid, adopted)
    if why:
        raise problem(
            "vmid-foreign",
            f"container {vmid} exists and is not rackwell's {hostname}",
            f"{node}: container {vmid}",
            why + "; it was not touched",
            "choose a free pve_container_vmid; or, to have it taken over, write its declaration with: "
            f"rackwell adopt HOST {vmid}",
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
