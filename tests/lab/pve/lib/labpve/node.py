# SPDX-License-Identifier: Apache-2.0
"""LABORATORY ONLY, no part of Proxmox VE: exchanges device nodes inside a running container.

    python3 -m labpve.node VMID '{"nvidia-uvm": false, "nvidia0": {"mode": "0660"}}'

false takes a node away, "file" leaves a plain file in its place, an object changes mode, major or minor, null makes
it what the next start would make it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from . import schema
from .errors import PveError
from .host import SHIFT, Host
from .lxc import Lxc, device_id, indexed

_CLONE_NEWNS, _MNT_DETACH = 0x00020000, 2


def exchange(host: Host, lxc: Lxc, vmid: int, faults: dict[str, Any]) -> None:
    """Make each named node of the container what its fault says; a container that is stopped is left alone."""
    keys = host.read(vmid).keys
    if not lxc.running(vmid):
        return
    unprivileged = keys.get("unprivileged") == "1"
    devices = [lxc.parse("dev", keys[key]) for key in indexed(keys, "dev")]
    entries = {device["path"]: device for device in devices}
    for name, fault in faults.items():
        device = entries.get(f"/dev/{name}")
        if device is None:
            raise PveError(f"container '{vmid}' is not given /dev/{name}")
        _take_away(lxc, vmid, device["path"], plain=fault == "file", owner=SHIFT if unprivileged else 0)
        if fault in (False, "file"):
            continue
        changed = fault or {}
        found = device_id(device["path"])
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        number = os.makedev(int(changed.get("major", major)), int(changed.get("minor", minor)))
        if "mode" in changed:
            device = {**device, "mode": str(changed["mode"])}
        lxc.plug_device(vmid, device, unprivileged, number)


def _take_away(lxc: Lxc, vmid: int, path: str, *, plain: bool, owner: int) -> None:
    """Unmount the node in the container's own mount namespace, and remove what it was mounted on."""
    libc, pid = ctypes.CDLL(None, use_errno=True), lxc.pid(vmid)
    child = os.fork()
    if child:
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            raise PveError(f"failed to take '{path}' from container '{vmid}'")
        return
    failed = 1
    try:
        root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
        if libc.setns(namespace, _CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.fchdir(root)
        os.chroot(".")
        while libc.umount2(path.encode(), _MNT_DETACH) == 0:
            pass
        for call in (libc.setfsgid, libc.setfsuid):
            call(owner)
        Path(path).unlink(missing_ok=True)
        if plain:
            Path(path).touch()
        failed = 0
    finally:  # the child must never return into the caller's code
        if failed:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(failed)


def main() -> int:
    """The program."""
    host = Host()
    try:
        exchange(host, Lxc(host, schema.load()["create"]), int(sys.argv[1]), json.loads(sys.argv[2]))
    except PveError as error:
        print(error.text, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
