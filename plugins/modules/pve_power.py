#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Persistence mode and power limit of a Proxmox VE host's GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pve_power
short_description: Persistence mode and power limit of NVIDIA GPUs, now and at each boot
version_added: 0.1.0
description:
  - Installs the unit C(rackwell-gpu-power.service), which sets both at each boot, and reads back what the GPUs have.
  - Runs the unit again when a GPU has lost either, since neither lasts over a reload of the driver. No program on the
    GPUs is disturbed.
  - Removes the unit when neither is declared; the GPUs keep what they have until the next boot.
options:
  persistence:
    description: Whether persistence mode is on. V(false) leaves it alone.
    type: bool
    default: false
  power_limit:
    description: Watts that each GPU may take. V(0) leaves the limit alone.
    type: int
    default: 0
  helper:
    description: Text of the program that the unit runs.
    type: str
    default: ""
  state:
    description: V(checked) fails with what is not as declared, and changes nothing.
    type: str
    choices: [present, checked]
    default: present
attributes:
  check_mode:
    description: Looks, and tells whether it would change something.
    support: full
  diff_mode:
    description: Shows the unit and what each GPU has.
    support: full
author:
  - The rackwell founders
"""

EXAMPLES = r"""
- name: Have 450 W a GPU, also after a boot
  rackwell.gpu.pve_power:
    persistence: true
    power_limit: 450
    helper: "{{ lookup('ansible.builtin.file', 'gpu-power') }}"
"""

RETURN = r"""
rackwell_result:
  description: What the GPUs have. Schema C(rackwell.pve_power/1).
  returned: success, and failure with O(state=checked)
  type: dict
  contains:
    checks:
      description: One row, with C(item), C(verdict), C(evidence) and C(findings).
      type: list
      elements: dict
    gpus:
      description: >-
        C(index), C(bus_id), C(persistence), C(limit), C(least) and C(most) of each GPU.
      type: list
      elements: dict
rackwell_error:
  description: What is wrong, as code, what, where, why and fix.
  returned: failure
  type: dict
problems:
  description: Every problem, in the same shape.
  returned: failure with O(state=checked)
  type: list
  elements: dict
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_power
from ansible_collections.rackwell.gpu.plugins.module_utils.bounded import DeadlineError
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import Finding, PveError

SCHEMA = "rackwell.pve_power/1"
HOST = Host()


def main() -> None:
    """Run as ansible runs modules."""
    module = AnsibleModule(
        argument_spec={
            "persistence": {"type": "bool", "default": False},
            "power_limit": {"type": "int", "default": 0},
            "helper": {"type": "str", "default": ""},
            "state": {"type": "str", "choices": ["present", "checked"], "default": "present"},
        },
        supports_check_mode=True,
    )
    try:
        _converge(module)
    except PveError as error:
        fail(module, **error.finding.as_dict())
    except DeadlineError as error:
        fix = "dmesg | grep -E 'NVRM|Xid' tells of a driver that hangs"
        fail(module, **error.parts("nvidia-smi did not end", "nvidia-smi", fix))


def _converge(module: AnsibleModule) -> None:
    persistence, limit = module.params["persistence"], module.params["power_limit"]
    gpus = _read(module) if persistence or limit else []
    found = pve_power.findings(gpus, persistence, limit)
    wanted = pve_power.files(persistence, limit, module.params["helper"])
    unit = "/etc/systemd/system/" + pve_power.UNIT
    if module.params["state"] == "checked":
        if pve_power.differing(HOST, {unit: wanted[unit]}) and wanted[unit]:
            why = "persistence mode and power limit would not be set at the next boot"
            found.append(Finding("power-unit", "the unit is not as declared", unit, why, "rackwell provision"))
        _told(module, found, gpus)
    wrong = pve_power.impossible(gpus, limit)
    if wrong:
        _told(module, [wrong], gpus)
    differing = pve_power.differing(HOST, wanted)
    enabled = not wanted[unit] or _systemctl("is-enabled", pve_power.UNIT)
    if not (differing or found or not enabled):
        _done(module, gpus, changed=False)
    diff = {"before_header": pve_power.UNIT, "after_header": pve_power.UNIT}
    diff["before"] = HOST.read(unit) + _shown(gpus)
    diff["after"] = wanted[unit] + _shown(gpus, persistence, limit)
    if module.check_mode:
        _done(module, gpus, changed=True, diff=diff)
    if unit in differing and not wanted[unit]:
        _systemctl("disable", "--now", pve_power.UNIT)
    for path in differing:
        _write(path, wanted[path], 0o755 if path == pve_power.HELPER else 0o644)
    if unit in differing:
        _systemctl("daemon-reload")
    if wanted[unit]:
        if not enabled:
            _systemctl("enable", pve_power.UNIT)
        # the programs' own words are in its journal
        _systemctl("restart", pve_power.UNIT)
        gpus = pve_power.read(HOST)
        left = pve_power.findings(gpus, persistence, limit)
        if left:
            said = HOST.run(["journalctl", "--unit", pve_power.UNIT, "--lines", "6", "--output", "cat"]).stdout
            first = left[0]
            why = "%s. The unit ran, and said: %s" % (first.why, " ".join(said.split())[-400:])
            fix = "nvidia-smi -pm 1; nvidia-smi -pl WATTS, as root on the host, say why"
            _told(module, [Finding(first.code, first.what, first.where, why, fix), *left[1:]], gpus)
    _done(module, gpus, changed=True, diff=diff)


def _read(module: AnsibleModule) -> list[pve_power.Gpu]:
    try:
        found: list[pve_power.Gpu] = pve_power.read(HOST)
        return found
    except PveError:
        if module.check_mode and module.params["state"] == "present":
            # the driver may be what is brought before this
            return []
        raise


def _told(module: AnsibleModule, found: list[Finding], gpus: list[pve_power.Gpu]) -> None:
    if not found:
        _done(module, gpus, changed=False)
    problems = [finding.as_dict() for finding in found]
    fail(module, **problems[0], problems=problems, rackwell_result=_result(module, gpus, found), changed=False)


def _shown(gpus: list[pve_power.Gpu], persistence: bool = False, limit: int = 0) -> str:
    return "".join(
        "GPU %s: persistence %s, %g W\n"
        % (gpu.index, "on" if persistence or gpu.persistence else "off", limit or gpu.limit or 0)
        for gpu in gpus
    )


def _systemctl(*words: str) -> bool:
    ended: int = HOST.run(["systemctl", *words]).returncode
    return ended == 0


def _write(path: str, text: str, mode: int) -> None:
    place = HOST.at(path)
    if not text:
        if os.path.exists(place):
            os.unlink(place)
        return
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(place + ".new", mode)
    os.replace(place + ".new", place)


def _result(module: AnsibleModule, gpus: list[pve_power.Gpu], found: list[Finding]) -> dict[str, Any]:
    result: dict[str, Any] = {"schema": SCHEMA, "gpus": [gpu.as_dict() for gpu in gpus]}
    if module.params["state"] == "checked":
        result["checks"] = [
            {
                "item": "power",
                "verdict": "fail" if found else "pass",
                "evidence": "; ".join([*(finding.what for finding in found), pve_power.shown(gpus)]),
                "findings": [{"verdict": "fail", **finding.as_dict()} for finding in found],
            }
        ]
    return result


def _done(module: AnsibleModule, gpus: list[pve_power.Gpu], changed: bool, **extra: Any) -> None:
    result = _result(module, gpus, [])
    done(module, changed=changed, result=result, **extra)


if __name__ == "__main__":
    main()
