#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a Proxmox VE host knows of its GPUs' surroundings that their containers cannot see."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_host
short_description: Read what only the host knows of its GPUs
version_added: 0.2.0
description:
  - Reads the IOMMU's mode, the ACS bits of the ports above the GPUs, the NVIDIA driver's parameters, HMM, firmware,
    NUMA nodes, links and error counters, and what the kernel said of them since boot.
  - For M(rackwell.gpu.gpu_check), which judges them together with what it measures in the container.
  - Reads only and never changes anything. A part that does not answer is left out, and named in
    RV(rackwell_result.unread).
  - Needs root, as ACS can be read by no one else.
options:
  timeout:
    description: Seconds that one part may take.
    type: int
    default: 20
attributes:
  check_mode:
    description: Reads only, so check mode returns the same.
    support: full
  diff_mode:
    description: Nothing changes, so there is no difference to show.
    support: none
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Read what the host knows of its GPUs
  rackwell.gpu.gpu_host:
  delegate_to: "{{ pve_container_host }}"
  register: host

- name: Judge it together with what is measured
  rackwell.gpu.gpu_check:
    host_facts: "{{ host.rackwell_result }}"
"""

RETURN = r"""
rackwell_result:
  description: The facts. Schema C(rackwell.gpu_host/1). What is not known is null.
  returned: always
  type: dict
  contains:
    kernel:
      description: Release of the kernel. C(host), C(boot_id), C(cmdline) and C(dmi) stand beside it.
      type: str
    virtual:
      description: Whether the host is itself a virtual machine, whose PCI tree is not the real one.
      type: bool
    iommu:
      description: C(mode), one of V(off), V(pt), V(translated) and V(unknown); C(groups); C(evidence).
      type: dict
    driver:
      description: C(version), C(flavour) and C(params) of the kernel module; null when it is not loaded.
      type: dict
    hmm:
      description: Whether nvidia_uvm uses heterogeneous memory management.
      type: bool
    uvm_major:
      description: Major number of the nodes of nvidia_uvm.
      type: int
    gpus:
      description: C(bus_id), C(uuid), C(minor), C(node_present), and the C(path) of bus ids from the root port.
      type: list
      elements: dict
    ports:
      description:
        - Each device on those paths. C(bdf), C(kind), C(acs) with C(cap) and C(ctl), link speeds in GT/s, widths in
          lanes, and C(aer), the totals of its error counters since boot.
      type: list
      elements: dict
    numa:
      description: NUMA node by bus id.
      type: dict
    dmesg:
      description: Lines of this boot's kernel log about the GPUs, their ports and the IOMMU, at most 200, oldest first.
      type: list
      elements: str
    unread:
      description: Parts that could not be read, with the reason.
      type: dict
rackwell_error:
  description: Code, what, where, why and fix.
  returned: failure
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.gpu_host_facts import collect
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail


def main() -> None:
    """Read, and end with what was read."""
    module = AnsibleModule(argument_spec={"timeout": {"type": "int", "default": 20}}, supports_check_mode=True)
    if module.params["timeout"] < 1:
        what = "timeout is {0}".format(module.params["timeout"])
        fail(module, "invalid-option", what, "timeout", "it must be at least 1", "give at least 1 second")
    if os.geteuid() != 0:
        why = "the kernel shows the ACS bits of the ports to root only"
        fail(module, "not-root", "the host's facts need root", "gpu_host", why, "run the task with become: true")
    done(module, changed=False, result=collect("/", module.params["timeout"]))


if __name__ == "__main__":
    main()
