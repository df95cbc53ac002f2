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
  description: What the host knows, schema C(rackwell.rollout_host/1); C(installed) says whether it has the program.
  returned: success
  type: dict
rackwell_error:
  description: What is wrong, where, why, and what mends it.
  returned: failure
  type: dict
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail

LAUNCHER = "/usr/local/lib/rackwell/rollout-agent"
SCHEMA = "rackwell.rollout_host/1"


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={"run": {"type": "str", "default": ""}, "connection": {"type": "dict", "default": {}}},
        supports_check_mode=True,
    )
    told = {"schema": SCHEMA, "installed": os.path.exists(LAUNCHER), "connection": module.params["connection"]}
    if told["installed"]:
        request = json.dumps({"op": "look", "run": module.params["run"]})
        code, out, err = module.run_command([LAUNCHER, "ask"], data=request)
        try:
            told.update(json.loads(out))
        except ValueError:
            why = (err or out).strip()[-400:] or "it ended with %d" % code
            fix = "rackwell provision installs it anew"
            fail(module, "agent-failed", "the host's own side of a roll does not answer", LAUNCHER, why, fix)
    done(module, False, told)


if __name__ == "__main__":
    main()
