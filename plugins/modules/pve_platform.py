#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A Proxmox VE host's platform under its GPUs: IOMMU policy, ACS, links."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pve_platform
short_description: Have a Proxmox VE host's IOMMU, ACS and links as GPUs need them
version_added: 0.3.0
description:
  - Holds the IOMMU's policy in the file of the boot loader that booted this host, GRUB or systemd-boot, and has the
    loader read it. What the next boot gets is computed as the loader does before anything is written.
  - Has a unit clear ACS on the root and switch ports above the GPUs at each boot before the guests start, and reads the
    registers back.
  - Reads the links of the GPUs. An idle link is slow by itself; that is no fault.
  - Changes of the kernel's options need O(allow_reboot=true); else the module says what a reboot would disturb, and
    touches nothing. It never reboots by itself, and tells in RV(rackwell_result.reboot_required).
options:
  iommu:
    description:
      - V(off) turns it off, V(pt) has devices pass it untranslated, V(keep) leaves the kernel's options as they are.
      - V(off) is refused where processors with an APIC id above 254 would not start.
    type: str
    choices: [keep, "off", pt]
    default: keep
  acs:
    description: V(clear) has the unit and clears ACS now; V(keep) has no unit, and tells where ACS is on.
    type: str
    choices: [keep, clear]
    default: keep
  acs_helper:
    description: What the program that clears ACS has to be. Needed for O(acs=clear).
    type: str
    default: ""
  acs_unit:
    description: What the unit's file has to be. Needed for O(acs=clear).
    type: str
    default: ""
  link_generation:
    description: Generation of PCI Express that every GPU's link must be able to run at. 0 is what both its ends can.
    type: int
    default: 0
  link_width:
    description: Lanes that every GPU's slot must have. 0 is what both ends have.
    type: int
    default: 0
  host:
    description: Name of the host in the inventory, for the commands in remedies.
    type: str
    default: HOST
  allow_reboot:
    description: Whether the kernel's options may be changed, which only a reboot completes.
    type: bool
    default: false
  state:
    description:
      - V(present) brings the host to the declaration; V(looked) only tells what would be done.
      - V(checked) fails with everything by which the host is not as declared, and changes nothing.
    type: str
    choices: [present, looked, checked]
    default: present
attributes:
  check_mode:
    description: Looks, and tells whether it would change something.
    support: full
  diff_mode:
    description: Shows the boot loader's files and the ports' registers, before and after.
    support: full
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Have the IOMMU pass the GPUs through untranslated, and ACS off
  rackwell.gpu.pve_platform:
    iommu: pt
    acs: clear
    acs_helper: "{{ lookup('ansible.builtin.file', 'gpu-acs', rstrip=false) }}"
    acs_unit: "{{ lookup('ansible.builtin.file', 'rackwell-gpu-acs.service', rstrip=false) }}"
    allow_reboot: true
"""

RETURN = r"""
rackwell_result:
  description: What is there, and what is to do. Schema C(rackwell.pve_platform/1).
  returned: always
  type: dict
  contains:
    facts:
      description: Boot loader, options now and at the next boot, IOMMU, processors, ACS, unit and links.
      type: dict
    checks:
      description: C(item), C(verdict), C(evidence) and C(findings) of each item.
      type: list
      elements: dict
    todo:
      description: What is to do still. C(files), C(tell), C(reboot), C(unit).
      type: dict
    reboot_required:
      description: Whether only a reboot completes it.
      type: bool
    disturbs:
      description: What a reboot would end, in words.
      type: str
rackwell_error:
  description: What is wrong, as code, what, where, why and fix.
  returned: failure
  type: dict
problems:
  description: Every problem, in the same shape.
  returned: failure with O(state=checked)
  type: list
  elements: dict
held:
  description: Whether it waits for consent.
  returned: failure
  type: bool
"""

import dataclasses
import os
import socket
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_driver_use, pve_platform_checks, pve_platform_pci
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_steps as steps
from ansible_collections.rackwell.gpu.plugins.module_utils.bounded import DeadlineError
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_facts import UNIT, Platform, look
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_plan import (
    CLEAR,
    Todo,
    Wanted,
    check_consent,
    plan,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError, problem

SCHEMA = "rackwell.pve_platform/1"
HOST = Host()


def main() -> None:
    """Run as ansible runs modules."""
    module = AnsibleModule(
        argument_spec={
            "iommu": {"type": "str", "choices": ["keep", "off", "pt"], "default": "keep"},
            "acs": {"type": "str", "choices": ["keep", "clear"], "default": "keep"},
            "acs_helper": {"type": "str", "default": ""},
            "acs_unit": {"type": "str", "default": ""},
            "link_generation": {"type": "int", "default": 0},
            "link_width": {"type": "int", "default": 0},
            "host": {"type": "str", "default": "HOST"},
            "allow_reboot": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "looked", "checked"], "default": "present"},
        },
        supports_check_mode=True,
    )
    try:
        _converge(module)
    except PveError as error:
        fail(module, **error.finding.as_dict(), **error.extra)
    except DeadlineError as error:
        fail(module, **error.parts("a step did not end", socket.gethostname(), "look at the host's load, run again"))


def _converge(module: AnsibleModule) -> None:
    given = module.params
    want = Wanted(
        given["iommu"],
        given["acs"],
        given["acs_helper"],
        given["acs_unit"],
        given["link_generation"],
        given["link_width"],
        given["host"],
    )
    if want.acs == CLEAR and not (want.helper and want.unit):
        why, fix = "acs: clear needs them", "give acs_helper and acs_unit"
        raise problem("invalid-option", "the unit's files are not given", "acs_helper, acs_unit", why, fix)
    if os.geteuid() != 0:
        why = "the kernel shows the ports' registers to root only, and nobody else may change boot options"
        fix = "connect as root; or as a user who may use sudo without a password, with ansible_become: true"
        raise problem("not-root", "only root can look after the host's platform", socket.gethostname(), why, fix)
    found = look(HOST)
    if given["state"] == "checked":
        _check(module, found, want)
    todo = plan(HOST, found, want)
    use = pve_driver_use.look(HOST) if todo.boot or todo.reboot else pve_driver_use.Use((), ())
    check_consent(todo, use, given["allow_reboot"], socket.gethostname())
    changes = todo.boot or todo.unit
    if not changes or module.check_mode or given["state"] == "looked":
        _done(module, found, want, todo, use, changes and given["state"] != "looked")
    # held until this process ends
    _lock = steps.alone(HOST)
    steps.boot(HOST, todo, found.boot)
    steps.unit(HOST, todo, want)
    after = look(HOST)
    if want.acs == CLEAR and after.redirecting:
        shown = ", ".join("%s %#06x" % pair for pair in sorted(after.redirecting.items()))
        why = "%s ended well, and they read: %s" % (UNIT, shown)
        fix = "journalctl -b -u %s; turn ACS off in the BIOS" % UNIT
        raise problem("acs-not-cleared", "ACS is still on at ports above the GPUs", UNIT, why, fix)
    left = plan(HOST, after, want)
    _done(module, after, want, dataclasses.replace(left, edit={}, tell=False), use, True, (found, todo))


def _check(module: AnsibleModule, found: Platform, want: Wanted) -> None:
    rows = pve_platform_checks.rows(found, want)
    problems = [f.as_dict() for row in rows for verdict, f in row.findings if verdict == pve_platform_checks.FAIL]
    if not problems:
        _done(module, found, want, Todo(), pve_driver_use.Use((), ()), False)
    first = dict(problems[0])
    if len(problems) > 1:
        first["why"] += " (and %d more: %s)" % (len(problems) - 1, "; ".join(each["what"] for each in problems[1:]))
    result = _result(found, want, Todo(), pve_driver_use.Use((), ()))
    fail(module, **first, problems=problems, rackwell_result=result, changed=False)


def _result(found: Platform, want: Wanted, todo: Todo, use: pve_driver_use.Use) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "facts": found.as_dict(),
        "checks": [row.as_dict() for row in pve_platform_checks.rows(found, want)],
        "todo": {
            "files": sorted(todo.edit),
            "tell": todo.tell,
            "reboot": list(todo.reboot),
            "unit": [name for name in ("files", "enable", "run", "remove") if getattr(todo, name)],
        },
        "reboot_required": bool(todo.reboot),
        "disturbs": use.told() if todo.reboot else "",
    }


def _done(
    module: AnsibleModule,
    found: Platform,
    want: Wanted,
    todo: Todo,
    use: pve_driver_use.Use,
    changed: bool,
    was: tuple[Platform, Todo] | None = None,
) -> None:
    before, doing = was or (found, todo)
    extra: dict[str, Any] = {"diff": _diff(before, doing)} if changed else {}
    done(module, changed=changed, result=_result(found, want, todo, use), **extra)


def _diff(found: Platform, todo: Todo) -> list[dict[str, str]]:
    """Each file, and the ports, before and after."""
    node = socket.gethostname()
    parts = [
        {
            "before_header": "%s: %s" % (node, path),
            "after_header": "%s: %s" % (node, path),
            "before": found.boot.files[path],
            "after": text,
        }
        for path, text in sorted(todo.edit.items())
    ]
    before, after = [], []
    if todo.tell:
        before.append("next boot: as before")
        after.append("next boot: %s (%s)" % (" ".join(todo.words), found.boot.apply))
    if todo.unit:
        unit = found.unit
        there = (
            "absent"
            if unit.text is None
            else "%s, %s" % ("enabled" if unit.enabled else "not enabled", "ran" if unit.active else "did not run")
        )
        before.append("%s: %s" % (UNIT, there))
        after.append("%s: %s" % (UNIT, "absent" if todo.remove else "enabled, ran"))
    if todo.run:
        for bdf, control in sorted(found.redirecting.items()):
            before.append("%s ACSCtl %#06x %s" % (bdf, control, pve_platform_pci.flags(control)))
            after.append("%s ACSCtl 0x0000 %s" % (bdf, pve_platform_pci.flags(0)))
    if before:
        header = "platform of %s" % node
        texts = {"before": "\n".join(before) + "\n", "after": "\n".join(after) + "\n"}
        parts.append({"before_header": header, "after_header": header, **texts})
    return parts


if __name__ == "__main__":
    main()
