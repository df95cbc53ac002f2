#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Installs the host's own side of a roll."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_host
short_description: Install the program that lets a host return by itself
version_added: 0.1.0
description:
  - During a roll a host switches, waits, and returns by itself when nobody confirms the change. The program that does
    it needs no controller and no network, is started by systemd, and consists of the sources that this module brings.
  - A unit of its own puts back, at boot and before the server starts, what ran before a change that nobody confirmed.
options:
  unit_name:
    description: Unit of the inference server.
    type: str
    default: rackwell-inference.service
  environment_file:
    description: The server's environment file.
    type: path
    default: /etc/rackwell/inference.env
  root:
    description: Where the releases are.
    type: path
    default: /opt/rackwell
  state_directory:
    description: Where rackwell keeps what it knows of this host.
    type: path
    default: /var/lib/rackwell
attributes:
  check_mode:
    support: full
    description: Tells what would be written.
  diff_mode:
    support: none
    description: The files are rackwell's own sources.
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Have the program that returns by itself
  rackwell.gpu.rollout_host:
"""

RETURN = r"""
rackwell_result:
  description: Where the program is, and the paths that were written or would be.
  returned: success
  type: dict
  sample:
    schema: rackwell.rollout_agent/1
    launcher: /usr/local/lib/rackwell/rollout-agent
    written: []
rackwell_error:
  description: What is wrong, where, why, and what mends it.
  returned: failure
  type: dict
"""

import sys

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import rollout_install
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import CommandError, System
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_agent import Place

SCHEMA = "rackwell.rollout_agent/1"


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "unit_name": {"type": "str", "default": "rackwell-inference.service"},
            "environment_file": {"type": "path", "default": "/etc/rackwell/inference.env"},
            "root": {"type": "path", "default": "/opt/rackwell"},
            "state_directory": {"type": "path", "default": "/var/lib/rackwell"},
        },
        supports_check_mode=True,
    )
    p = module.params
    place = Place(p["unit_name"], p["environment_file"], p["root"], p["state_directory"])
    wanted = rollout_install.install(place, sys.executable)
    system = System()
    written = rollout_install.differences(wanted)
    enabled = system.show(rollout_install.BOOT_UNIT).enabled
    changed = bool(written) or not enabled
    if changed and not module.check_mode:
        try:
            rollout_install.put(wanted)
            if not enabled or any(path.endswith(".service") for path in written):
                system.systemctl("daemon-reload")
                system.systemctl("enable", rollout_install.BOOT_UNIT)
        except (OSError, CommandError) as error:
            where = str(getattr(error, "filename", "") or rollout_install.LIBRARY)
            what = "the program that returns by itself cannot be installed"
            fail(module, "cannot-write", what, where, str(error), "mend that, then run again")
    result = {"schema": SCHEMA, "launcher": rollout_install.LAUNCHER, "written": written}
    done(module, changed, result)


if __name__ == "__main__":
    main()
