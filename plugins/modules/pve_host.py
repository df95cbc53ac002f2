#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a Proxmox VE host is ready to lend its GPUs to containers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pve_host
short_description: Check that a Proxmox VE host can pass its NVIDIA GPUs into containers
version_added: 0.1.0
description:
  - Reads the loaded kernel modules, their version and flavour, the HMM option of nvidia_uvm, the GPUs and their device
    nodes, and compares them with the declaration.
  - Reads only, never changes anything, and collects every problem before it fails.
options:
  driver_version:
    description: Full version of the NVIDIA kernel module that must be loaded, such as V(595.58.03).
    type: str
    required: true
  gpus:
    description: How many GPUs the host must show.
    type: int
    default: 8
  modules:
    description: Kernel modules that must be loaded.
    type: list
    elements: str
    default: [nvidia, nvidia_uvm, nvidia_modeset]
  disable_hmm:
    description:
      - Whether heterogeneous memory management must be off in nvidia_uvm. With the open modules on Blackwell, CUDA
        fails to initialise in containers when it is on.
    type: bool
    default: true
attributes:
  check_mode:
    description: Reads only, so check mode returns the same.
    support: full
  diff_mode:
    description: Nothing changes, so there is no difference to show.
    support: none
author:
  - The rackwell founders
"""

EXAMPLES = r"""
- name: Check the host
  rackwell.gpu.pve_host:
    driver_version: 595.58.03
    gpus: 8
"""

RETURN = r"""
rackwell_result:
  description: What was found. Schema C(rackwell.pve_host/1).
  returned: always
  type: dict
  contains:
    driver_version:
      description: Version of the loaded kernel module.
      type: str
    flavour:
      description: V(open) or V(proprietary).
      type: str
    hmm_disabled:
      description: Whether HMM is off; none when nvidia_uvm is not loaded or has no such option.
      type: bool
    modules:
      description: Module name and whether it is loaded.
      type: dict
    gpus:
      description: C(bus_id), C(uuid), C(minor), C(model) and C(node) of each GPU, by bus id.
      type: list
      elements: dict
    nodes:
      description: C(major), C(minor) and C(mode) of each device node.
      type: dict
rackwell_error:
  description: The first problem, as code, what, where, why and fix.
  returned: failure
  type: dict
problems:
  description: Every problem, in the same shape; also in RV(rackwell_result.problems), which is empty for a good host.
  returned: failure
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_checks import check


def main() -> None:
    """Entry of the module."""
    module = AnsibleModule(
        argument_spec={
            "driver_version": {"type": "str", "required": True},
            "gpus": {"type": "int", "default": 8},
            "modules": {"type": "list", "elements": "str", "default": ["nvidia", "nvidia_uvm", "nvidia_modeset"]},
            "disable_hmm": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    args = module.params
    facts, findings = check(args["driver_version"], args["gpus"], args["modules"], args["disable_hmm"])
    problems = [finding.as_dict() for finding in findings]
    result = {"schema": "rackwell.pve_host/1", **facts, "problems": problems}
    if findings:
        first = findings[0].as_dict()
        rest = len(findings) - 1
        if rest:
            first["why"] += f" (and {rest} more: " + "; ".join(finding.what for finding in findings[1:]) + ")"
        fail(module, **first, problems=problems, rackwell_result=result, changed=False)
    done(module, changed=False, result=result)


if __name__ == "__main__":
    main()
