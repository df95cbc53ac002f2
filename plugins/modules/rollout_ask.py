#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Asks a host what it knows of a roll, and tells how it is reached."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_ask
short_description: Ask a host what it knows of a roll
version_added: 0.1.0
description:
  - Asks the program that M(rackwell.gpu.rollout_host) installed. Changes nothing.
  - What is given as O(connection) comes back, resolved by Ansible, so that a roll can reach the host without it later.
options:
  run:
    description: The roll that asks.
    type: str
    default: ""
  connection:
    description: How the host is reached.
    type: dict
    default: {}
  root:
    description: Directory of the releases, to tell which one is active where the program is not installed.
    type: path
    default: /opt/rackwell
  tolerant:
    description: A program that does not answer is no failure; its words are in C(broken).
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: It asks all the same.
  diff_mode:
    support: none
    description: There is nothing to compare.
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Ask
  rackwell.gpu.rollout_ask:
"""

RETURN = r"""
rackwell_result:
  description: What the host knows; C(installed) says whether it has the program.
  returned: success
  type: dict
  sample:
    schema: rackwell.rollout_host/1
    installed: true
    release: 3b0c449b5d1e0f0e0c8f6c8f1d7c3c8b3b0c449b5d1e0f0e0c8f6c8f1d7c3c8b
    lock: {run: 20261130T081500Z-1a2b, owner: ops@control, epoch: 3, age_s: 12.0, left_s: 108.0}
    change: {run: 20261130T081500Z-1a2b, state: open, returns_in_s: 95.0}
rackwell_error:
  description: What is wrong, where, why, and what mends it.
  returned: failure
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_files import slot_release
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.own_side import asked

LAUNCHER = "/usr/local/lib/rackwell/rollout-agent"
SCHEMA = "rackwell.rollout_host/1"


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "run": {"type": "str", "default": ""},
            "connection": {"type": "dict", "default": {}},
            "root": {"type": "path", "default": "/opt/rackwell"},
            "tolerant": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    told = {
        "schema": SCHEMA,
        "installed": os.path.exists(LAUNCHER),
        "connection": module.params["connection"],
        "release": slot_release(module.params["root"], "current"),
    }
    if told["installed"]:
        looked, why = asked(module, LAUNCHER, {"op": "look", "run": module.params["run"]})
        told.update(looked)
        if why:
            fix = "rackwell provision installs it anew"
            if module.params["tolerant"]:
                done(module, False, {**told, "broken": why})
            fail(module, "agent-failed", "the host's own side of a roll does not answer", LAUNCHER, why, fix)
    done(module, False, told)


if __name__ == "__main__":
    main()
