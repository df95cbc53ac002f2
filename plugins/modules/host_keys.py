#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action of the same name, which does the work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_keys
short_description: Record the ssh host keys of a machine on the controller
version_added: 0.1.0
description:
  - Does what M(ansible.builtin.known_hosts) does, for all keys of a machine, and lets one run at a time write the file.
    Runs for different containers of one site write the same file.
  - The lock is C(.rackwell/locks/known_hosts.lock) beside the file. Delegate the task to localhost.
options:
  path:
    description: The known_hosts file.
    type: path
    required: true
  name:
    description: Address of the machine, as ssh is given it.
    type: str
    required: true
  keys:
    description: The keys, each as C(type key), without the address.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    description: Says what would change.
    support: full
  diff_mode:
    description: Shows the file's difference.
    support: full
author:
  - The rackwell founders
"""

EXAMPLES = r"""
- name: Record the container's host keys
  rackwell.gpu.host_keys:
    path: "{{ inventory_dir }}/known_hosts"
    name: 192.0.2.21
    keys:
      - ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdGm0hWBOlCKHp6cxKkvpqUEKuI0LeVGQMWGRxY5Gqj
  delegate_to: localhost
"""

RETURN = r"""
rackwell_error:
  description: What, where, why and fix.
  returned: failure
  type: dict
"""
