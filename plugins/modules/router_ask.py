#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Asks a router's own side what it has, and has it take a worker back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: router_ask
short_description: Ask a router which workers it has
version_added: 0.1.0
description:
  - Asks the program that role router installed on the router's machine.
  - What is given as O(connection) comes back, resolved by Ansible, so that a roll reaches the machine without it later.
options:
  connection:
    description: How the machine is reached.
    type: dict
    default: {}
  undrain:
    description: Containers that are to be in rotation, whoever drained them.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Tells who would come back.
  diff_mode:
    support: none
    description: There is nothing to compare.
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Ask
  rackwell.gpu.router_ask:

- name: Have a container back in rotation
  rackwell.gpu.router_ask:
    undrain: [glm5-01]
"""

RETURN = r"""
rackwell_result:
  description: What the router has; C(installed) says whether the program is there, C(answers) whether the router does.
  returned: success
  type: dict
  sample:
    schema: rackwell.router/1
    installed: true
    answers: true
    why: ""
    workers: [{name: glm5-01, url: "http://192.0.2.21:30000", listed: true, healthy: true, drained: null}]
    others: []
rackwell_error:
  description: What is wrong, where, why, and what mends it.
  returned: failure
  type: dict
"""

import os
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.own_side import asked

AGENT = "/usr/local/lib/rackwell/router-agent"
SCHEMA = "rackwell.router/1"


def ask(module: AnsibleModule, request: Dict[str, Any]) -> Dict[str, Any]:
    """The answer of the router's own side; what it did not do is its ``error``."""
    told, why = asked(module, AGENT, request)
    return {"error": why} if why else told


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "connection": {"type": "dict", "default": {}},
            "undrain": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    told: Dict[str, Any] = {
        "schema": SCHEMA,
        "installed": os.path.exists(AGENT),
        "connection": module.params["connection"],
    }
    if not told["installed"]:
        done(module, False, told)
    looked = ask(module, {"op": "look"})
    drained = {str(one["name"]) for one in looked.get("workers") or [] if one.get("drained")}
    back = [name for name in module.params["undrain"] if name in drained]
    for name in back if not module.check_mode else []:
        answer = ask(module, {"op": "undrain", "worker": name})
        if answer.get("error"):
            fix = "see: journalctl -u rackwell-router; once it answers, the worker comes back by itself"
            fail(module, "router-undrain", name + " is not back in rotation", AGENT, str(answer["error"]), fix)
    if back and not module.check_mode:
        looked = ask(module, {"op": "look"})
    done(module, bool(back), {**told, **looked, "why": looked.get("why") or looked.get("error") or ""})


if __name__ == "__main__":
    main()
