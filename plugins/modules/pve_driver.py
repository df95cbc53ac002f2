#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's driver and the kernel of a Proxmox VE host, as a pair."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pve_driver
short_description: Bring a Proxmox VE host to a pair of NVIDIA driver and kernel
version_added: 0.1.0
description:
  - Installs NVIDIA's C(.run) file with the open kernel modules, has DKMS build them for every installed kernel, and
    pins the kernel that goes with the driver.
  - Reads the module file that each kernel would load (C(modinfo)) and compares version, kernel and licence. What
    C(dkms status) says is evidence, and no proof.
  - What needs a reboot needs O(allow_reboot=true); else the module says what a reboot would disturb, and touches
    nothing. It never reboots by itself and never unloads a module, and tells in RV(rackwell_result.reboot_required).
  - Keeps the C(.run) files of this driver and of the one before in C(/var/lib/rackwell/driver), and returns to the one
    before when an installation fails.
options:
  version:
    description: Full version, such as V(595.58.03).
    type: str
    required: true
  run_file:
    description:
      - The C(.run) file, on the controller unless O(remote_src=true).
      - It is not needed where the driver is installed, or where the host has kept the file.
    type: path
  sha256:
    description: Hash of the file, 64 hexadecimal digits. Compared before anything of it runs, also with a kept file.
    type: str
  remote_src:
    description: Whether O(run_file) is already on the host.
    type: bool
    default: false
  kernel:
    description: Release of the kernel that is pinned with the driver. Empty keeps the pin, or pins the one that runs.
    type: str
    default: ""
  packages:
    description:
      - Packages that bring the driver in the place of the C(.run) file, from repositories that the host has. apt's
        preferences pin them to O(version), which has to be in the repositories.
    type: list
    elements: str
    default: []
  disable_hmm:
    description: Whether nvidia_uvm is loaded with HMM off.
    type: bool
    default: true
  module_options:
    description: 'Options of the driver''s modules by module, such as V({nvidia: {NVreg_EnableResizableBar: 1}}).'
    type: dict
    default: {}
  registry:
    description: 'Keys of C(NVreg_RegistryDwords), such as V({ForceP2P: "0x11"}).'
    type: dict
    default: {}
  remove_vfio:
    description:
      - Whether lines that an earlier passthrough left (C(vfio-pci) with ids of NVIDIA, C(blacklist nvidia)) may be made
        comments. Without it they are told, and nothing is touched.
    type: bool
    default: false
  allow_reboot:
    description: Whether what only a reboot completes may be begun.
    type: bool
    default: false
  state:
    description:
      - V(present) brings the host to the pair; V(looked) only tells what would be done, and needs no file.
      - V(checked) fails with everything by which the host is not the pair, or would not be after its next boot.
    type: str
    choices: [present, looked, checked]
    default: present
attributes:
  check_mode:
    description: Looks, and tells whether it would change something. The file is neither sent nor run.
    support: full
  diff_mode:
    description: Shows the pair, what each kernel would load, and the pin, before and after.
    support: full
author:
  - The rackwell founders
"""

EXAMPLES = r"""
- name: Have the driver
  rackwell.gpu.pve_driver:
    version: 595.58.03
    run_file: /srv/drivers/NVIDIA-Linux-x86_64-595.58.03.run
    sha256: "{{ sha256 }}"
    kernel: 6.17.13-2-pve
    allow_reboot: true
"""

RETURN = r"""
rackwell_result:
  description: What is there, and what is to do. Schema C(rackwell.pve_driver/1).
  returned: success, and failure with O(state=checked)
  type: dict
  contains:
    facts:
      description: Kernels with the modules that they would load, loaded driver, pin, what is kept.
      type: dict
    todo:
      description:
        - What is to do still. C(run), C(build), C(options), C(initramfs), C(pin), C(packages), C(reboot), C(vfio).
      type: dict
    checks:
      description: C(item), C(verdict), C(evidence) and C(findings) of each thing that was held against the declaration.
      type: list
      elements: dict
    file_needed:
      description: Whether the C(.run) file has to be sent.
      type: bool
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
rolled_back:
  description: Whether the driver of before was installed again, and C(rollback_verified) whether it was seen to be.
  returned: when an installation failed
  type: bool
"""

import dataclasses
import os
import socket
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import (
    nvidia_driver,
    pve_driver_checks,
    pve_driver_parameters,
    pve_driver_use,
    pve_driver_vfio,
)
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_driver_steps as steps
from ansible_collections.rackwell.gpu.plugins.module_utils.bounded import DeadlineError
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_driver import DriverError
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_apt import PROPRIETARY
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Facts, Host, kept_file, look
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_plan import (
    Todo,
    Wanted,
    check_before,
    check_consent,
    check_packages,
    plan,
)

SCHEMA = "rackwell.pve_driver/1"
HOST = Host()


def main() -> None:
    """Run as ansible runs modules."""
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "run_file": {"type": "path"},
            "sha256": {"type": "str"},
            "remote_src": {"type": "bool", "default": False},
            "kernel": {"type": "str", "default": ""},
            "packages": {"type": "list", "elements": "str", "default": []},
            "disable_hmm": {"type": "bool", "default": True},
            "module_options": {"type": "dict", "default": {}},
            "registry": {"type": "dict", "default": {}},
            "remove_vfio": {"type": "bool", "default": False},
            "allow_reboot": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "looked", "checked"], "default": "present"},
        },
        supports_check_mode=True,
    )
    try:
        _converge(module)
    except DriverError as problem:
        fail(module, **problem.parts, **problem.extra)
    except DeadlineError as problem:
        fail(module, **problem.parts("a step did not end", socket.gethostname(), "look at the host's load, run again"))


def _converge(module: AnsibleModule) -> None:
    given = module.params
    want = _wish(given)
    if not nvidia_driver.VERSION.fullmatch(want.version):
        fix = "give the whole version, such as 595.58.03"
        raise DriverError("version-unclear", "that is no full driver version", "version", want.version, fix)
    if os.geteuid() != 0:
        raise DriverError("not-root", "only root can look after the driver", fix="connect as root, or use become")
    if given["state"] != "checked":
        steps.alone(HOST, changes=False)
    facts = look(HOST, want.version)
    if not facts.kernels:
        why = "/boot has no vmlinuz-*"
        raise DriverError("no-kernels", "no installed kernel was found", "/boot", why, "is it a Proxmox VE host?")
    if given["state"] == "checked":
        _check(module, facts, want)
    todo = plan(facts, want)
    use = pve_driver_use.look(HOST)
    check_before(todo, facts, want, pve_driver_vfio.machines(HOST))
    check_consent(todo, facts, use, given["allow_reboot"], socket.gethostname())
    if not todo.anything or module.check_mode or given["state"] == "looked":
        _done(module, facts, todo, use, want, todo.anything)
    check_packages(todo)
    path, directory = "", ""
    if todo.run and not want.packages:
        path = _file(given, facts, want)
        directory = steps.check_file(HOST, path, given["sha256"], want.version)
    # held until this process ends
    _lock = steps.alone(HOST, changes=True)
    if plan(look(HOST, want.version), want) != todo:
        what, why = "the host was changed while it was looked at", "by another process; nothing was touched"
        raise DriverError("driver-busy", what, socket.gethostname(), why, "run again")
    try:
        steps.bring(HOST, todo, want, facts, path, directory)
    except (DriverError, DeadlineError) as error:
        raise _after_return(error, facts, want) from error
    if todo.run:
        steps.remember(HOST, want, todo.kernel, given["sha256"] or "", path, facts)
    after = look(HOST, want.version)
    _done(module, after, plan(after, want), use, want, True, facts)


def _wish(given: dict[str, Any]) -> Wanted:
    try:
        parameters = pve_driver_parameters.wanted(given["module_options"], given["registry"])
    except (AttributeError, ValueError) as error:
        fix = "correct pve_host_module_options (module: {name: value}) or pve_host_registry (name: value)"
        what = "the modules' options cannot be written"
        raise DriverError("module-options", what, "pve_host_module_options", str(error), fix) from error
    packages, remove = tuple(given["packages"]), given["remove_vfio"]
    proprietary = [name for name in packages if PROPRIETARY.match(name) and "open" not in name]
    if proprietary:
        what, why = (
            "these packages bring the proprietary modules",
            "%s; Blackwell runs with the open ones only" % proprietary[0],
        )
        fix = "packages: [nvidia-driver-cuda, nvidia-kernel-open-dkms]"
        raise DriverError("driver-flavour", what, "pve_host_drivers", why, fix)
    return Wanted(given["version"], given["kernel"], given["disable_hmm"], parameters, packages, remove)


def _file(given: dict[str, Any], facts: Facts, want: Wanted) -> str:
    """The file to run. Raises DriverError when there is none."""
    sha256 = given["sha256"]
    if sha256 and facts.kept.get(want.version) == sha256:
        return str(HOST.at(kept_file(want.version)))
    if not given["run_file"] or not sha256:
        raise DriverError(
            "run-file-missing",
            "the driver %s is not installed, and its .run file is not known" % want.version,
            "pve_host_drivers",
            "kept on the host are: %s" % (", ".join(sorted(facts.kept)) or "none"),
            "declare it: pve_host_drivers: [{version: %s, run_file: ..., sha256: ...}]" % want.version,
        )
    return str(given["run_file"])


def _after_return(error: Any, facts: Facts, want: Wanted) -> DriverError:
    """The failure, with what became of the host: the driver of before is installed again where its file is kept."""
    extra: dict[str, Any] = {}
    if isinstance(error, DeadlineError):
        parts = error.parts("a step did not end", socket.gethostname(), "look at the host's load, and run again")
    else:
        parts, extra = dict(error.parts), dict(error.extra)
    before = facts.userspace
    told, verified = "nothing was installed before", False
    if before == want.version:
        told = "the same driver was installed before"
    elif before:
        told, verified = _return(facts, dataclasses.replace(want, version=before, kernel=facts.pinned))
    parts["why"] = "%s; %s" % (parts["why"], told)
    if before and not verified and before != want.version:
        parts["fix"] = "do not reboot this host before it is mended: " + parts["fix"]
    return DriverError(**parts, **{**extra, "rolled_back": bool(before), "rollback_verified": verified})


def _return(facts: Facts, before: Wanted) -> tuple[str, bool]:
    """Install what was there before, and look."""
    sha256 = facts.kept.get(before.version)
    if before.packages:
        return _bring_back(before, facts, "", "")
    if not sha256:
        return (
            "the driver of before (%s) could not be installed again: its file is not kept here" % before.version,
            False,
        )
    path = HOST.at(kept_file(before.version))
    try:
        directory = steps.check_file(HOST, path, sha256, before.version)
    except DriverError as error:
        return "the driver of before (%s) could not be installed again: %s" % (before.version, error), False
    return _bring_back(before, facts, path, directory)


def _bring_back(before: Wanted, facts: Facts, path: str, directory: str) -> tuple[str, bool]:
    try:
        todo = dataclasses.replace(plan(look(HOST, before.version), before), run=True, options=True, initramfs=True)
        steps.bring(HOST, todo, before, facts, path, directory)
    except (DriverError, DeadlineError) as error:
        return "the driver of before (%s) could not be installed again: %s" % (before.version, error), False
    left = plan(look(HOST, before.version), before)
    if left.run or left.build or left.pin:
        return "the driver of before (%s) is not whole again" % before.version, False
    return "the driver of before (%s) is installed again, verified for every kernel" % before.version, True


def _check(module: AnsibleModule, facts: Facts, want: Wanted) -> None:
    found = pve_driver_checks.findings(facts, want)
    todo = plan(facts, want)
    rows = pve_driver_checks.checks(facts, want, found)
    if not found:
        _done(module, facts, todo, pve_driver_use.Use((), ()), want, False, rows=rows)
    first = dict(found[0].parts)
    if len(found) > 1:
        first["why"] += " (and %d more: %s)" % (len(found) - 1, "; ".join(each.parts["what"] for each in found[1:]))
    told = _result(facts, todo, pve_driver_use.Use((), ()), want)
    told["checks"] = rows
    fail(module, **first, problems=[each.parts for each in found], rackwell_result=told, changed=False)


def _result(facts: Facts, todo: Todo, use: pve_driver_use.Use, want: Wanted, sha256: Any = None) -> dict[str, Any]:
    names = {"%s.%s" % each[:2] for each in want.parameters}
    told = facts.as_dict()
    told["parameters"] = {name: value for name, value in facts.parameters.items() if name in names}
    return {
        "schema": SCHEMA,
        "version": want.version,
        "facts": told,
        "todo": {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(todo).items()},
        "file_needed": bool(todo.run and not want.packages and facts.kept.get(want.version) != sha256),
        "reboot_required": bool(todo.reboot),
        "disturbs": use.told() if todo.reboot else "",
    }


def _done(
    module: AnsibleModule,
    facts: Facts,
    todo: Todo,
    use: pve_driver_use.Use,
    want: Wanted,
    changed: bool,
    before: Any = None,
    rows: Any = None,
) -> None:
    result = _result(facts, todo, use, want, module.params["sha256"])
    if rows is not None:
        result["checks"] = rows
    extra: dict[str, Any] = {}
    if changed:
        header = "driver and kernel of %s" % socket.gethostname()
        extra["diff"] = {
            "before_header": header,
            "after_header": header,
            "before": _shown(before or facts),
            "after": _wanted(before or facts, want, todo),
        }
    if module.params["state"] == "looked":
        extra["rackwell_free"] = {"path": module.tmpdir, "available": steps.shutil.disk_usage(module.tmpdir).free}
    done(module, changed=changed and module.params["state"] != "looked", result=result, **extra)


def _shown(facts: Facts) -> str:
    lines = ["driver: %s" % (facts.userspace or "absent"), "pinned kernel: %s" % (facts.pinned or "none")]
    for kernel in facts.kernels:
        module = kernel.modules.get("nvidia")
        lines.append("%s: %s" % (kernel.release, module.version if module else "no module"))
    lines += ["initramfs of %s: stale" % release for release in sorted(facts.stale)]
    lines += [each.told for each in facts.leftovers if each.first]
    return "\n".join([*lines, *("%s: %s" % (name, text) for name, text in sorted(facts.files.items()) if text)]) + "\n"


def _wanted(facts: Facts, want: Wanted, todo: Todo) -> str:
    lines = ["driver: %s" % want.version, "pinned kernel: %s" % todo.kernel]
    releases = [kernel.release for kernel in facts.kernels]
    lines += ["%s: %s" % (name, want.version) for name in dict.fromkeys([*releases, todo.kernel])]
    return "\n".join([*lines, *("%s: %s" % (name, text) for name, text in sorted(want.files.items()) if text)]) + "\n"


if __name__ == "__main__":
    main()
