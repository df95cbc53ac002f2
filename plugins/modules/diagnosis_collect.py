#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a diagnosis looks at, read from a machine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: diagnosis_collect
short_description: Read what a diagnosis of an inference server looks at
version_added: 0.3.0
description:
  - Reads journals, the kernel's log, the unit's state, nvidia-smi, the boot gate's verdict, memory and versions. Every
    command has a deadline, every text a bound. Nothing is changed.
  - Of the server's log only the present start is read, by systemd's invocation id, and beside it the newest earlier
    start that failed, marked as such.
options:
  side:
    description:
      - V(container) reads the machine that it runs on as a container.
      - V(host) reads it as a Proxmox VE host. With O(inside) it also asks the container, through C(pct exec).
    type: str
    choices: [container, host]
    required: true
  vmid:
    description: Number of the container, for O(side=host). Without it the host alone is read.
    type: int
  inside:
    description: Whether the host asks the container too, for one that does not answer by itself.
    type: bool
    default: false
  since:
    description: When the server was started, in seconds since boot. What the kernel said before that counts less.
    type: float
  quick:
    description: Only the unit's state and its present start.
    type: bool
    default: false
  unit_name:
    description: Unit of the inference server.
    type: str
    default: rackwell-inference.service
  root:
    description: Directory of the releases.
    type: path
    default: /opt/rackwell
  timeout:
    description: Seconds for all of it.
    type: int
    default: 60
attributes:
  check_mode:
    support: full
    description: It changes nothing anyway.
  diff_mode:
    support: none
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Read the container
  rackwell.gpu.diagnosis_collect:
    side: container

- name: Read its host
  rackwell.gpu.diagnosis_collect:
    side: host
    vmid: 201
  delegate_to: pve1
"""

RETURN = r"""
rackwell_result:
  description: What was read.
  returned: success
  type: dict
  contains:
    schema:
      description: rackwell.collected/1
      type: str
    side:
      description: As O(side); V(inside) for what the host was told by the container.
      type: str
    sources:
      description: C(name), C(text), C(unread), C(earlier) and C(look) of each.
      type: list
      elements: dict
    facts:
      description: Versions, the unit's state, the gate's verdict.
      type: dict
rackwell_error:
  description: What is wrong, where, why, and what mends it.
  returned: failure
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.diagnosis_container import Container
from ansible_collections.rackwell.gpu.plugins.module_utils.diagnosis_host import Host
from ansible_collections.rackwell.gpu.plugins.module_utils.diagnosis_read import Reader
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail

SCHEMA = "rackwell.collected/1"


def collect(params: dict[str, Any]) -> dict[str, Any]:
    """What the module returns."""
    reader = Reader(params["timeout"])
    if params["side"] == "container":
        found = Container(reader, params["unit_name"], params["root"]).collect(params["quick"])
        return {"schema": SCHEMA, "side": "container", **found}
    inside: dict[str, Any] = {}
    since = params["since"]
    if params["inside"] and params["vmid"] is not None:
        through = Reader(params["timeout"] / 2, ["pct", "exec", str(params["vmid"]), "--"])
        inside = Container(through, params["unit_name"], params["root"]).collect(params["quick"])
        since = since or inside["facts"].get("started_monotonic")
    found = Host(reader, params["vmid"], since).collect()
    return {"schema": SCHEMA, "side": "host", **found, "inside": inside}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "side": {"type": "str", "choices": ["container", "host"], "required": True},
            "vmid": {"type": "int"},
            "inside": {"type": "bool", "default": False},
            "since": {"type": "float"},
            "quick": {"type": "bool", "default": False},
            "unit_name": {"type": "str", "default": "rackwell-inference.service"},
            "root": {"type": "path", "default": "/opt/rackwell"},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    if module.params["timeout"] < 1:
        what = f"timeout is {module.params['timeout']}"
        fail(module, "invalid-option", what, "timeout", "it must be at least 1", "give at least 1 second")
    done(module, False, collect(module.params))


if __name__ == "__main__":
    main()
