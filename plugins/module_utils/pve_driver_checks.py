# SPDX-License-Identifier: Apache-2.0
"""By what a host is not the pair of driver and kernel, or would not be after its next boot: told, with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.rackwell.gpu.plugins.module_utils import pve_driver_parameters
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_driver import DriverError
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import META_HEADERS, OPTIONS, Facts
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_plan import Wanted, leftovers, plan

_FIX = "rackwell host HOST, with pve_host_manage_driver: true"
#: what is shown -> the codes that are about it; the first item takes what has no other
ITEMS = {
    "pair": ("nouveau-loaded", "driver-host-only", "firmware-missing", "kernel-not-pinned", "driver-not-loaded"),
    "kernels": ("kernel-without-module", "kernel-headers-missing"),
    "module options": ("module-options",),
    "initramfs": ("initramfs-stale", "initramfs-unread"),
    "parameters": ("module-parameters",),
    "passthrough": ("vfio-leftovers",),
    "signatures": ("module-signature",),
}


def checks(facts: Facts, want: Wanted, found: Sequence[DriverError]) -> list[dict[str, Any]]:
    """A row an item: ``item``, ``verdict``, ``evidence`` and its ``findings``."""
    modules = [(kernel, kernel.modules.get("nvidia")) for kernel in facts.kernels]
    parameters = [
        "%s=%s" % (n, facts.parameters.get(n, "unknown")) for n in sorted({"%s.%s" % p[:2] for p in want.parameters})
    ]
    evidence = {
        "pair": "module %s, libraries %s, kernel %s runs, %s is pinned"
        % (facts.loaded or "not loaded", facts.userspace or "none", facts.running, facts.pinned or "none"),
        "kernels": ", ".join(
            "%s: %s" % (k.release, module.version if module else "no module") for k, module in modules
        ),
        "module options": OPTIONS,
        "initramfs": "%d read, equal to modprobe's files: %d"
        % (len(facts.kernels) - len(facts.unread), len(facts.kernels) - len(facts.unread) - len(facts.stale)),
        "parameters": ", ".join(parameters) or "none declared",
        "passthrough": "nothing of vfio-pci names an NVIDIA GPU" if not facts.leftovers else "",
        "signatures": "%s; key %s %s"
        % (
            facts.secure.enforced,
            facts.secure.key,
            "is enrolled" if facts.secure.enrolled else "is not known to be enrolled",
        )
        if facts.secure.enforced
        else "unsigned modules are loaded: no Secure Boot",
    }
    about: dict[str, list[DriverError]] = {item: [] for item in ITEMS}
    for error in found:
        item = next((item for item, codes in ITEMS.items() if error.parts["code"] in codes), "pair")
        about[item].append(error)
    return [
        {
            "item": item,
            "verdict": "fail" if about[item] else "pass",
            "evidence": "; ".join(filter(None, [*(error.parts["what"] for error in about[item]), text])),
            "findings": [{"verdict": "fail", **error.parts} for error in about[item]],
        }
        for item, text in evidence.items()
    ]


def findings(facts: Facts, want: Wanted) -> list[DriverError]:
    """Everything by which the host is not the pair, or would not be after its next boot; in the order of mending."""
    found = []
    todo = plan(facts, want)
    if facts.foreign:
        why = "%s is loaded: NVIDIA's driver cannot have the GPUs" % ", ".join(facts.foreign)
        found.append(DriverError("nouveau-loaded", "another driver holds the GPUs", "/sys/module", why, _FIX))
    if facts.leftovers:
        found.append(leftovers(facts, []))
    if facts.secure.problem:
        what = "this machine refuses a module that DKMS builds"
        found.append(DriverError("module-signature", what, facts.secure.key, facts.secure.problem, facts.secure.fix))
    if META_HEADERS in facts.packages:
        why = "a kernel upgrade brings a kernel without headers, and DKMS then leaves it out without a word"
        fix = "apt install " + META_HEADERS
        found.append(DriverError("kernel-headers-missing", "the headers' meta package is missing", fix=fix, why=why))
    found += _kernels(facts, want)
    if facts.userspace and facts.loaded and facts.userspace != facts.loaded:
        why = "its libraries are %s, the loaded module is %s: the driver was changed on the host, and not booted" % (
            facts.userspace,
            facts.loaded,
        )
        fix = "reboot the host, and bring the containers to the same version: rackwell roll --driver " + want.version
        found.append(
            DriverError("driver-host-only", "the host's driver is of two versions", "/sys/module/nvidia", why, fix)
        )
    if facts.loaded and facts.loaded not in facts.firmware:
        why = "/lib/firmware/nvidia/%s/gsp_ga10x.bin is not there" % facts.loaded
        found.append(DriverError("firmware-missing", "the GPUs' firmware is missing", "/lib/firmware", why, _FIX))
    if todo.pin:
        why = "pinned is %s, of the pair is %s" % (facts.next_pin or facts.pinned or "none", todo.kernel)
        fix = "proxmox-boot-tool kernel pin %s, or %s" % (todo.kernel, _FIX)
        found.append(
            DriverError("kernel-not-pinned", "another kernel may boot than the driver's", "/etc/kernel", why, fix)
        )
    if todo.options:
        why = "it is not what rackwell writes: nouveau may come back, or HMM"
        wrong = sorted(path for path, text in want.files.items() if facts.files.get(path, "") != text)
        found.append(DriverError("module-options", "the modules' options are not set", ", ".join(wrong), why, _FIX))
    found += _images(facts)
    if facts.loaded:
        found += _parameters(facts, want)
    if facts.loaded != want.version or todo.reboot:
        why = "; ".join(todo.reboot) or "no module is loaded"
        found.append(DriverError("driver-not-loaded", "the pair is not what runs", "/sys/module/nvidia", why, _FIX))
    return found


def _kernels(facts: Facts, want: Wanted) -> list[DriverError]:
    found = []
    for kernel in facts.kernels:
        why = kernel.wrong(want.version, facts.signed)
        if not why:
            continue
        fix = _FIX if kernel.headers else "apt install proxmox-headers-%s, then %s" % (kernel.release, _FIX)
        if not kernel.headers:
            why += "; its headers are not installed"
        what = "kernel %s would come up without the driver %s" % (kernel.release, want.version)
        found.append(DriverError("kernel-without-module", what, "/lib/modules/" + kernel.release, why, fix))
    return found


def _images(facts: Facts) -> list[DriverError]:
    found = []
    for release, why in sorted(facts.stale.items()):
        what = "the initramfs of kernel %s is not what modprobe's files say" % release
        fix = "update-initramfs -u -k %s; proxmox-boot-tool refresh; or %s" % (release, _FIX)
        found.append(DriverError("initramfs-stale", what, "/boot/initrd.img-" + release, why, fix))
    for release, why in sorted(facts.unread.items()):
        what = "the initramfs of kernel %s could not be read" % release
        fix = "apt install zstd, or make it anew: update-initramfs -u -k " + release
        found.append(DriverError("initramfs-unread", what, "/boot/initrd.img-" + release, why, fix))
    return found


def _parameters(facts: Facts, want: Wanted) -> list[DriverError]:
    found = []
    for name, value, loaded in pve_driver_parameters.difference(want.parameters, facts.parameters):
        what = "the module's parameter %s is not the declared one" % name
        place = (
            "/proc/driver/nvidia/params"
            if name.startswith("nvidia.")
            else "/sys/module/%s/parameters" % name.split(".")[0]
        )
        if loaded is None:
            why = "declared is %s, and the loaded driver has no such parameter" % value
            fix = "correct pve_host_module_options: modinfo -p " + name.split(".")[0]
        else:
            why = "declared is %s, loaded is %s: it is read when the module is loaded" % (value, loaded or "nothing")
            fix = _FIX + " and pve_host_allow_reboot: true"
        found.append(DriverError("module-parameters", what, place, why, fix))
    return found
