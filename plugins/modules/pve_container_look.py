#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A container that exists on a Proxmox VE host, as a declaration."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pve_container_look
short_description: Look at a container of a Proxmox VE host, and tell how it would be declared
version_added: 0.1.0
description:
  - Runs on the Proxmox VE host as root. Changes nothing.
  - Tells the options of M(rackwell.gpu.pve_container) with which a run changes nothing, and what they cannot say.
options:
  vmid:
    description: Number of the container.
    type: int
    required: true
  ssh_public_key:
    description: Public key of which to tell whether root has it in the container; empty asks nothing.
    type: str
    default: ""
attributes:
  check_mode:
    description: Only looks.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
author:
  - The rackwell founders
"""

EXAMPLES = r"""
- name: Look at a container that somebody made by hand
  rackwell.gpu.pve_container_look:
    vmid: 201
  delegate_to: pve1
"""

RETURN = r"""
rackwell_result:
  description: The container. Schema C(rackwell.pve_container_look/1).
  returned: success
  type: dict
  contains:
    declaration:
      description: Options of M(rackwell.gpu.pve_container).
      type: dict
    untold:
      description: What they cannot say, with C(key), C(what), C(fix), C(blocks), C(line), C(number).
      type: list
      elements: dict
    oddities:
      description: What a hand has left in its file, in the form of the drift of M(rackwell.gpu.pve_container).
      type: list
      elements: dict
    file:
      description: Path of the container's file, and under C(digest) what names its content.
      type: str
    running:
      description: Whether it runs.
      type: bool
    gpus:
      description: The GPUs of its C(dev) entries.
      type: list
      elements: dict
    host_keys:
      description: Public host keys of its ssh server; none when it does not run or has no ssh server.
      type: list
      elements: str
    missing_keys:
      description: How many of the given public keys root does not have there; -1 when that was not asked or not told.
      type: int
    templates:
      description: Templates on the host that have its kind of operating system.
      type: list
      elements: str
rackwell_error:
  description: What is wrong, as code, what, where, why and fix.
  returned: failure
  type: dict
"""

from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_steps as steps
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_cli import Pve, numa_nodes
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_declare import declare
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_drift import oddities
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_gpu import read_gpus
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError, problem

SPEC: Dict[str, Dict[str, Any]] = {
    "vmid": {"type": "int", "required": True},
    # a public key is no secret; without this the name would make it one
    "ssh_public_key": {"type": "str", "default": "", "no_log": False},
}


def look(module: AnsibleModule) -> Dict[str, Any]:
    """All of it."""
    vmid: int = module.params["vmid"]
    pve = Pve(module)
    if not pve.exists(vmid):
        raise problem(
            "no-container",
            f"the host has no container {vmid}",
            pve.node,
            f"it has: {', '.join(known(pve)) or 'none'}",
            "name one of these; pct list on the host shows them",
        )
    conf, file = pve.conf(vmid), pve.file(vmid)
    gpus = read_gpus()
    found = declare(conf, file, gpus, vmid, numa_nodes())
    running = pve.running(vmid)
    mine = set(found.variables.get("gpus", []))
    return {
        "schema": "rackwell.pve_container_look/1",
        "vmid": vmid,
        "node": pve.node,
        "file": pve.file_name(vmid),
        "digest": conf.digest,
        "running": running,
        "declaration": found.variables,
        "untold": [one.as_dict() for one in found.untold],
        "oddities": [one.as_dict() for one in oddities(file)] if file else [],
        "gpus": [gpu.as_dict() for gpu in gpus if gpu.bus_id in mine],
        "host_keys": host_keys(pve, vmid) if running else [],
        "missing_keys": missing(pve, vmid, module.params["ssh_public_key"]) if running else -1,
        "templates": templates(pve, found.variables["ostype"]),
    }


def known(pve: Pve) -> List[str]:
    """The containers of the host."""
    rows = pve.rows("/cluster/resources", "vmid", "--type", "vm")
    mine = [row for row in rows if row.get("type") == "lxc" and row.get("node") == pve.node]
    return [f"{row['vmid']} ({row.get('name', '')})" for row in sorted(mine, key=lambda row: int(row["vmid"]))]


def host_keys(pve: Pve, vmid: int) -> List[str]:
    """Those of its ssh server; none when it has none."""
    try:
        return [str(key) for key in steps.host_keys(pve, vmid)]
    except PveError:
        return []


def missing(pve: Pve, vmid: int, keys: str) -> int:
    """How many of the keys root does not have; -1: not told."""
    try:
        return len(steps.missing_keys(pve, vmid, steps.key_lines(keys))) if keys else -1
    except PveError:
        return -1


def templates(pve: Pve, ostype: str) -> List[str]:
    """Templates of this kind of system on any storage of the host, the newest name last."""
    found: List[str] = []
    for store in pve.rows(f"/nodes/{pve.node}/storage", "storage"):
        if "vztmpl" in str(store.get("content", "")).split(",") and store.get("active", 1):
            path = f"/nodes/{pve.node}/storage/{store['storage']}/content"
            found += [str(row["volid"]) for row in pve.rows(path, "volid", "--content", "vztmpl")]
    return sorted(volume for volume in found if volume.partition("vztmpl/")[2].startswith(ostype))


def main() -> None:
    """Entry of the module."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        found = look(module)
    except PveError as error:
        fail(module, **error.finding.as_dict(), **error.extra)
    done(module, False, found)


if __name__ == "__main__":
    main()
