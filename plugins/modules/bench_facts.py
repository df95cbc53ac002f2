#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a benchmark is of: the machine and the server, as they are."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bench_facts
short_description: Read what a benchmark's result says of the machine and the server
version_added: 0.1.0
description:
  - Reads kernel, driver, processor, the release and the unit that serve, and of the server's environment the variables
    that can explain a difference. Secrets are masked. Changes nothing.
  - Fails when another release serves than the one that is declared, or when something is no longer as it was when a
    sweep began, so that no figure is credited to what did not run.
options:
  root:
    description: Where the releases are.
    type: path
    default: /opt/rackwell
  release:
    description: Digest of the release that has to serve. Any when empty.
    type: str
    default: ""
  expected:
    description: An earlier result. What of it tells which server is measured, and on what, must still be so.
    type: dict
    default: {}
  server_unit:
    description: Unit of the server.
    type: str
    default: rackwell-inference.service
  environment_file:
    description: Where its environment file lies.
    type: path
    default: /etc/rackwell/inference.env
attributes:
  check_mode:
    description: Nothing is ever changed.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Look at the machine and the server
  rackwell.gpu.bench_facts:
    release: 3b0c449b5d1e0f0e0c8f6c8f1d7c3c8b3b0c449b5d1e0f0e0c8f6c8f1d7c3c8b
"""

RETURN = r"""
rackwell_result:
  description: Schema C(rackwell.bench_facts/1). What cannot be read is null.
  returned: always
  type: dict
rackwell_error:
  description: What, where, why and fix.
  returned: failure
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import machine_facts
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/rackwell"},
            "release": {"type": "str", "default": ""},
            "expected": {"type": "dict", "default": {}},
            "server_unit": {"type": "str", "default": "rackwell-inference.service"},
            "environment_file": {"type": "path", "default": "/etc/rackwell/inference.env"},
        },
        supports_check_mode=True,
    )
    options = module.params
    unit = options["server_unit"]
    wanted = "--property=MainPID,InvocationID,ActiveState,FragmentPath"
    shown = machine_facts.properties(module.run_command(["systemctl", "show", wanted, unit], check_rc=False)[1])
    unit_file = shown.get("FragmentPath") or "/etc/systemd/system/" + unit
    found = machine_facts.facts(shown, options["root"], unit_file, options["environment_file"])
    changed = machine_facts.differences(found, options["expected"])
    if changed:
        fail(
            module,
            "bench-server-changed",
            "the server is no longer the one of which the first points are",
            unit,
            "; ".join(changed),
            "measure anew",
            rackwell_result=found,
        )
    release = options["release"]
    if release and found["server_release"] != release and not module.check_mode:
        runs = (found["server_release"] or "none")[:12]
        fail(
            module,
            "bench-other-release",
            "another release serves than the one that is declared",
            unit,
            "%s is active, %s is declared: its figures would be credited to what did not run" % (runs, release[:12]),
            "rackwell provision, then measure; or declare what runs",
            rackwell_result=found,
        )
    done(module, changed=False, result=found)


if __name__ == "__main__":
    main()
