#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The driver's user space in a container, exactly of the host's version."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_userspace
short_description: Install NVIDIA's driver libraries in a container, exactly of the version of the host's kernel module
version_added: 0.1.0
description:
  - Compares the declared version with the host's kernel module as the container sees it, and refuses any other.
  - Looks for the libraries and for nvidia-smi. When programs get them in exactly this version, installed or mounted
    from outside, nothing is done.
  - Otherwise checks NVIDIA's C(.run) file by sha256, asks it for its version, looks for space, and runs it for the
    user space only. Then looks again.
  - Reports files of other versions, and which packages own them; removes both only with O(remove_others=true).
  - Has apt's preferences keep packages of every other version away, so that an upgrade does not replace the user space.
  - The file is sent only when it is needed, and removed from the container afterwards.
options:
  version:
    description: Full version, such as V(595.58.03).
    type: str
    required: true
  run_file:
    description:
      - The C(.run) file, on the controller unless O(remote_src=true).
      - Without it the module only looks, and tells in RV(rackwell_result.needed) whether it would be needed.
    type: path
  sha256:
    description: Hash of O(run_file), 64 hexadecimal digits. Compared before anything of it runs.
    type: str
  remote_src:
    description: Whether O(run_file) is already in the container.
    type: bool
    default: false
  pin:
    description: Whether apt's preferences keep other versions of the driver's packages away.
    type: bool
    default: true
  remove_others:
    description:
      - Whether packages that bring another version of the driver are purged, and files of another version that no
        package has are removed. Mounted ones are left alone.
    type: bool
    default: false
  state:
    description:
      - V(present) brings the user space; V(looked) only tells what would be needed.
      - V(checked) fails with everything by which programs in the container would not get exactly this driver, now or
        after the next upgrade.
    type: str
    choices: [present, looked, checked]
    default: present
attributes:
  check_mode:
    description: Looks, and tells whether it would install. The file is neither sent nor run.
    support: full
  diff_mode:
    description: Shows which version programs get, before and after.
    support: full
author:
  - The rackwell founders
"""

EXAMPLES = r"""
- name: Have the driver's libraries
  rackwell.gpu.nvidia_userspace:
    version: 595.58.03
    run_file: /srv/drivers/NVIDIA-Linux-x86_64-595.58.03.run
    sha256: "{{ nvidia_userspace_sha256 }}"
"""

RETURN = r"""
rackwell_result:
  description: What is there. Schema C(rackwell.nvidia_userspace/1).
  returned: success, and failure with O(state=checked)
  type: dict
  contains:
    version:
      description: The declared version.
      type: str
    kernel_module:
      description: Version of the host's kernel module.
      type: str
    installed:
      description: Version that programs get now; empty when there is none, or none for all of them.
      type: str
    checks:
      description: One row, with C(item), C(verdict), C(evidence) and C(findings), of O(state=checked).
      type: list
      elements: dict
    needed:
      description: Whether an installation is needed still.
      type: bool
    pending:
      description: Whether preferences are to be written, or files to be removed.
      type: bool
    pinned:
      description: Whether apt's preferences are as wanted.
      type: bool
    mounted:
      description: Files and links of the driver that are mounted into the container from outside.
      type: list
      elements: str
    leftovers:
      description: C(path), C(version) and C(package) of each library of another version.
      type: list
      elements: dict
    kmod:
      description: Whether modprobe is there, which the installer asks for.
      type: bool
rackwell_error:
  description: What is wrong, as code, what, where, why and fix.
  returned: failure
  type: dict
problems:
  description: Every problem, in the same shape.
  returned: failure with O(state=checked)
  type: list
  elements: dict
log:
  description: The end of the installer's log.
  returned: when the installer failed
  type: list
  elements: str
"""

import os
import shutil
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import (
    nvidia_driver,
    nvidia_packages,
    nvidia_run_file,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_driver import SMI, DriverError, Leftover, Userspace
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail

SCHEMA = "rackwell.nvidia_userspace/1"
HEADER = "NVIDIA driver, user space"


def main() -> None:
    """Run as ansible runs modules."""
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "run_file": {"type": "path"},
            "sha256": {"type": "str"},
            "remote_src": {"type": "bool", "default": False},
            "pin": {"type": "bool", "default": True},
            "remove_others": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "looked", "checked"], "default": "present"},
        },
        required_together=[("run_file", "sha256")],
        supports_check_mode=True,
    )
    try:
        _converge(module)
    except DriverError as problem:
        fail(module, **problem.parts, **problem.extra)


def _converge(module: AnsibleModule) -> None:
    version: str = module.params["version"]
    _check_arguments(version, module.params["sha256"])
    kernel_module = _check_kernel_module(version)
    found = nvidia_driver.look(version)
    others = nvidia_driver.leftovers(found, version)
    if module.params["state"] == "checked":
        _check(module, version, kernel_module, found, others)
    needed = not found.complete(version)
    pin = module.params["pin"] and not nvidia_packages.pinned(version)
    remove = [item for item in others if module.params["remove_others"] and item.path not in found.mounted]
    if module.params["state"] == "looked" or not (needed or pin or remove):
        _done(module, version, kernel_module, found, changed=False, pending=bool(pin or remove))
    if needed:
        _check_mounted(found, version)
        _check_packages(others, module.params["remove_others"], version)
    diff = {
        "before_header": HEADER,
        "before": found.describe() + _more(others, not pin),
        "after_header": HEADER,
        "after": _wanted(version) + _more([item for item in others if item not in remove], module.params["pin"]),
    }
    if module.check_mode:
        _done(module, version, kernel_module, found, changed=True, diff=diff)
    if needed and not module.params["run_file"]:
        _done(module, version, kernel_module, found, changed=False)
    # before the installer: what the packages' removal takes away it puts there anew
    nvidia_packages.remove(remove)
    if pin:
        nvidia_packages.pin(version)
    if needed or not nvidia_driver.look(version).complete(version):
        if not module.params["run_file"]:
            # only seen when the removal took a link with it that had led to the right file
            nvidia_packages.links()
        else:
            _install(module.params["run_file"], module.params["sha256"], version)
    after = nvidia_driver.look(version)
    _check_installed(after, version)
    _done(module, version, kernel_module, after, changed=True, diff=diff)


def _check(module: AnsibleModule, version: str, kernel_module: str, found: Userspace, others: list[Leftover]) -> None:
    """Tell everything that is wrong. Ends the module."""
    problems = []
    fix = "rackwell provision brings it; with nvidia_userspace_remove_others: true what is of another version goes"
    packages = ", ".join(sorted({item.package for item in others if item.package}))
    if not found.complete(version):
        why = "found: %s; the host's kernel module is %s" % (_found(found), kernel_module)
        if packages:
            why += "; packages of another version are installed: %s (an upgrade of apt brings them)" % packages
        problems.append(DriverError("driver-userspace", "programs do not get the driver %s" % version, SMI, why, fix))
    elif others:
        names = ", ".join("%s (%s)" % (item.path, item.package or "of no package") for item in others[:6])
        what = "files of another driver version are left"
        problems.append(
            DriverError("driver-leftovers", what, others[0].path, "the loader may take them one day: " + names, fix)
        )
    if module.params["pin"] and not nvidia_packages.pinned(version):
        why = "the next upgrade may replace the user space by another version than the host's"
        what = "apt is not kept from other versions of the driver"
        problems.append(
            DriverError("driver-unpinned", what, nvidia_packages.PREFERENCES, why, "rackwell provision writes it")
        )
    told = [problem.parts["what"] for problem in problems]
    row = {
        "item": "user space",
        "verdict": "fail" if problems else "pass",
        "evidence": "; ".join(
            [*told, "%s, as the host's module" % version if found.complete(version) else _found(found)]
        ),
        "findings": [{"verdict": "fail", **problem.parts} for problem in problems],
    }
    if not problems:
        _done(module, version, kernel_module, found, changed=False, row=row)
    first = problems[0]
    result = {"schema": SCHEMA, "version": version, "kernel_module": kernel_module, "checks": [row]}
    fail(module, **first.parts, problems=[each.parts for each in problems], rackwell_result=result, changed=False)


def _check_packages(others: list[Leftover], may_remove: bool, version: str) -> None:
    """Packages of another version lie where the installer puts its files: ldconfig would choose the newer of both."""
    packages = sorted({item.package for item in others if item.package})
    if not packages or may_remove:
        return
    raise DriverError(
        "driver-packages",
        "packages bring another version of the driver into this container",
        packages[0],
        "%s; an upgrade of apt replaced the user space, or somebody installed them. Needed is %s; nothing was touched"
        % (", ".join("%s has %s" % (item.package, item.path) for item in others if item.package), version),
        "nvidia_userspace_remove_others: true has them purged; or: apt-get purge " + " ".join(packages),
        held=True,
    )


def _more(others: list[Leftover], pinned: bool) -> str:
    lines = ["%s: %s (%s)" % (item.path, item.version, item.package or "of no package") for item in others]
    return "\n".join([*lines, "apt's preferences: %s" % ("written" if pinned else "not written")]) + "\n"


def _check_arguments(version: str, sha256: str | None) -> None:
    if not nvidia_driver.VERSION.fullmatch(version):
        raise DriverError(
            "version-unclear",
            "that is no full driver version",
            "version",
            version,
            "give the whole version as in /proc/driver/nvidia/version on the host, such as 595.58.03",
        )
    if sha256 is not None:
        nvidia_run_file.check_sha256_form(sha256)


def _check_kernel_module(version: str) -> str:
    kernel_module: str = nvidia_driver.kernel_module_version()
    if not kernel_module:
        raise DriverError(
            "driver-not-loaded",
            "the host's NVIDIA kernel module is not visible in this container",
            "/sys/module/nvidia/version",
            "neither that file nor /proc/driver/nvidia/version is there",
            "load the driver on the Proxmox host (modprobe nvidia) and restart the container",
        )
    if kernel_module != version:
        raise DriverError(
            "driver-mismatch",
            "the declared driver is not that of the host",
            "/sys/module/nvidia/version",
            "declared is %s, the host's kernel module is %s; both must be equal to the last digit"
            % (version, kernel_module),
            "declare %s (nvidia_userspace_version, with its run file and sha256), or install %s on the Proxmox host"
            % (kernel_module, version),
        )
    return kernel_module


def _check_mounted(found: Userspace, version: str) -> None:
    if found.mounted:
        raise DriverError(
            "driver-files-mounted",
            "other files of the driver than those needed are mounted into this container",
            found.mounted[0],
            "found: %s; needed is %s, and the installer cannot replace mounted files" % (_found(found), version),
            "mount the files of %s, all of them, or take those mounts out of the container" % version,
        )


def _install(path: str, sha256: str, version: str) -> None:
    if os.geteuid() != 0:
        raise DriverError("not-root", "only root can install the driver", path, "", "connect as root, or use become")
    nvidia_run_file.check_sha256(path, sha256)
    nvidia_run_file.check_version(path, version)
    first = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 (the installer's own default)
    places = (first,) if first == "/var/tmp" else (first, "/var/tmp")  # noqa: S108
    directory = nvidia_run_file.place_to_unpack(os.path.getsize(path), places, "/usr/lib")
    nvidia_run_file.install(path, directory)


def _check_installed(found: Userspace, version: str) -> None:
    if found.complete(version):
        return
    others = nvidia_driver.leftovers(found, version)
    packages = sorted({item.package for item in others if item.package})
    if packages:
        fix = "remove the packages that bring the other version: apt-get purge " + " ".join(packages)
    elif others:
        fix = "remove the files of the other version and run ldconfig: " + " ".join(item.path for item in others)
    else:
        fix = "read " + nvidia_run_file.LOG
    raise DriverError(
        "not-installed",
        "the installer reported success, but programs do not get version %s" % version,
        "libcuda.so.1, libnvidia-ml.so.1, nvidia-smi",
        "found: " + _found(found),
        fix,
    )


def _found(found: Userspace) -> str:
    return str(found.describe().strip().replace("\n", ", "))


def _wanted(version: str) -> str:
    loaded = dict.fromkeys(nvidia_driver.REQUIRED_LIBRARIES, version)
    return str(Userspace(files={}, loaded=loaded, smi=True, mounted=()).describe())


def _done(
    module: AnsibleModule,
    version: str,
    kernel_module: str,
    found: Userspace,
    changed: bool,
    pending: bool = False,
    row: Any = None,
    **extra: Any,
) -> None:
    others = nvidia_driver.leftovers(found, version)
    if found.complete(version):
        for item in others:
            owner = "of package %s" % item.package if item.package else "of no package"
            module.warn(
                "%s (%s) is left from driver %s: remove it, or the loader may take it one day"
                % (item.path, owner, item.version)
            )
    done(
        module,
        changed=changed,
        result={
            "schema": SCHEMA,
            "version": version,
            "kernel_module": kernel_module,
            "installed": found.version,
            "needed": not found.complete(version),
            **({"checks": [row]} if row else {}),
            "pending": pending,
            "pinned": nvidia_packages.pinned(version),
            "mounted": list(found.mounted),
            "leftovers": [item.as_dict() for item in others],
            "kmod": shutil.which("modprobe", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is not None,
        },
        # where ansible would lay the file, for the controller's side: is there room to send it?
        rackwell_free={"path": module.tmpdir, "available": shutil.disk_usage(module.tmpdir).free},
        **extra,
    )


if __name__ == "__main__":
    main()
