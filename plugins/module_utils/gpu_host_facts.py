# SPDX-License-Identifier: Apache-2.0
"""What only the Proxmox host can tell of its GPUs' surroundings: IOMMU, driver, HMM, nodes, firmware, kernel log."""

from __future__ import annotations

import os
import re
import stat
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils import gpu_host_pci as pci
from ansible_collections.rackwell.gpu.plugins.module_utils.bounded import DeadlineError, run
from ansible_collections.rackwell.gpu.plugins.module_utils.gpu_host_read import names, read_parts, text
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_gpu import kernel_version

SCHEMA = "rackwell.gpu_host/1"
#: lines of the kernel log that are kept, and how many of them may be of the grave kind at least
KEPT, GRAVE_KEPT = 200, 100
_GRAVE = re.compile(
    r"\bXid\b|IO_PAGE_FAULT|DMAR:.*fault|fallen off the bus|RmInitAdapter|Surprise|severity=", re.IGNORECASE
)
_OTHERS = re.compile(r"NVRM|\bAER\b|pcieport")
#: what each port says at every boot
_USUAL = re.compile(r"pcieport.*(?:(?:AER|PME|DPC): (?:enabled|Signaling|error containment)|pciehp: Slot)")
_IOMMU_WORDS = re.compile(r"(?:^|\s)((?:amd_iommu|intel_iommu|iommu|iommu\.passthrough)=\S+)")
_TRANSLATING, _PASSING = {"DMA", "DMA-FQ"}, {"identity"}


def collect(root: str, seconds: float) -> dict[str, Any]:
    """The facts, schema ``rackwell.gpu_host/1``.

    Args:
        root: ``/``, or a directory in a test. seconds: how long one part may take.

    ``unread`` names the parts that gave nothing, with the reason; what they should have told is null or empty.
    """
    parts = [
        ("machine", lambda: machine(root)),
        ("iommu", lambda: iommu(root)),
        ("pci", lambda: tree(root)),
        ("driver", lambda: driver(root)),
        ("gpus", lambda: driver_gpus(root)),
    ]
    values, unread = read_parts(parts, seconds)
    lines, why = kernel_log(seconds)
    if why:
        unread["dmesg"] = why
    seen = values.get("pci") or {"paths": {}, "ports": [], "numa": {}}
    known = values.get("gpus") or {}
    return {
        "schema": SCHEMA,
        **(values.get("machine") or machine_unknown()),
        "iommu": values.get("iommu") or {"mode": "unknown", "groups": None, "evidence": unread.get("iommu", "")},
        **(values.get("driver") or {"driver": None, "hmm": None, "uvm_major": None}),
        "gpus": [_gpu(bus_id, known, seen["paths"]) for bus_id in sorted({*known, *seen["paths"]})],
        "ports": seen["ports"],
        "numa": seen["numa"],
        "dmesg": lines,
        "unread": unread,
    }


def machine(root: str) -> dict[str, Any]:
    """Kernel, boot and firmware."""
    # not uname: in a container of the laboratory these are its host's, as all other files are
    kernel = {
        "host": text(os.path.join(root, "proc/sys/kernel/hostname")),
        "kernel": text(os.path.join(root, "proc/sys/kernel/osrelease")),
        "boot_id": text(os.path.join(root, "proc/sys/kernel/random/boot_id")),
        "cmdline": text(os.path.join(root, "proc/cmdline")),
    }
    dmi = {"board": "board_name", "product": "product_name", "bios_version": "bios_version", "bios_date": "bios_date"}
    told = {key: text(os.path.join(root, "sys/class/dmi/id", name)) or None for key, name in dmi.items()}
    flags = re.search(r"^flags\s*:.*$", text(os.path.join(root, "proc/cpuinfo")) or "", re.MULTILINE)
    virtual = bool(flags and re.search(r"\bhypervisor\b", flags.group()))
    return {**kernel, "dmi": told, "virtual": virtual}


def machine_unknown() -> dict[str, Any]:
    """The same keys when nothing could be read."""
    dmi = dict.fromkeys(("board", "product", "bios_version", "bios_date"))
    return {**dict.fromkeys(("host", "kernel", "boot_id", "cmdline")), "dmi": dmi, "virtual": False}


def iommu(root: str) -> dict[str, Any]:
    """``mode``: off, pt (devices pass untranslated), translated, or unknown; with the groups and what it is read from.

    The GPUs' own groups decide: on one machine some devices may be translated and others not.
    """
    groups = names(os.path.join(root, "sys/kernel/iommu_groups"))
    units = names(os.path.join(root, "sys/class/iommu"))
    words = _IOMMU_WORDS.findall(text(os.path.join(root, "proc/cmdline")) or "")
    asked = "the kernel was started with " + (" ".join(words) or "no IOMMU option")
    if groups is None and units is None:
        off = any(word.endswith("=off") for word in words)
        return _mode("off" if off else "unknown", None, asked + "; sysfs shows no IOMMU at all")
    if not groups:
        mode = "unknown" if units else "off"
        return _mode(mode, 0, "no device is in an IOMMU group; " + asked)
    types = _group_types(root, groups)
    told = ", ".join("group {0} is {1}".format(group, kind or "of no type") for group, kind in sorted(types.items()))
    kinds = set(types.values())
    if kinds & _TRANSLATING:
        mode = "translated"
    elif kinds and kinds <= _PASSING:
        mode = "pt"
    else:
        mode = "unknown"
    return _mode(mode, len(groups), told + "; " + asked)


def _group_types(root: str, groups: list[str]) -> dict[str, Optional[str]]:
    """Type by group, of the GPUs' groups; of all when the GPUs are in none."""
    mine = set()
    for bus_id in pci.gpus(root):
        link = os.path.join(root, pci.DEVICES, bus_id, "iommu_group")
        if os.path.exists(link):
            mine.add(os.path.basename(os.path.realpath(link)))
        mine.update(g for g in groups if bus_id in (names(_group(root, g, "devices")) or []))
    return {group: text(_group(root, group, "type")) or None for group in mine or groups}


def _group(root: str, group: str, name: str) -> str:
    return os.path.join(root, "sys/kernel/iommu_groups", group, name)


def _mode(mode: str, groups: Optional[int], evidence: str) -> dict[str, Any]:
    return {"mode": mode, "groups": groups, "evidence": evidence}


def tree(root: str) -> dict[str, Any]:
    """The GPUs' paths, the ports on them and their NUMA nodes."""
    paths = {bus_id: pci.path_of(root, bus_id) for bus_id in pci.gpus(root)}
    return {"paths": paths, "ports": pci.ports(root, list(paths.values())), "numa": pci.numa(root, list(paths))}


def driver(root: str) -> dict[str, Any]:
    """The kernel modules: version, flavour, parameters, HMM of nvidia_uvm and the major number of its nodes."""
    proc = os.path.join(root, "proc/driver/nvidia")
    version, flavour = kernel_version(proc, os.path.join(root, "sys/module"))
    params = {}
    for line in (text(os.path.join(proc, "params")) or "").splitlines():
        key, separator, value = line.partition(":")
        if separator:
            params[key.strip()] = value.strip().strip('"')
    disabled = text(os.path.join(root, "sys/module/nvidia_uvm/parameters/uvm_disable_hmm"))
    major = re.search(r"^\s*(\d+) nvidia-uvm$", text(os.path.join(root, "proc/devices")) or "", re.MULTILINE)
    return {
        "driver": None if version is None else {"version": version, "flavour": flavour, "params": params},
        "hmm": None if not disabled else disabled != "Y",
        "uvm_major": int(major.group(1)) if major else None,
    }


def driver_gpus(root: str) -> dict[str, dict[str, Any]]:
    """What the driver tells of each GPU that it has, by bus id."""
    found = {}
    directory = os.path.join(root, "proc/driver/nvidia/gpus")
    for name in names(directory) or []:
        lines = (text(os.path.join(directory, name, "information")) or "").splitlines()
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        minor = fields.get("Device Minor", "")
        number = int(minor) if minor.isdigit() else None
        found[name.lower()] = {
            "uuid": fields.get("GPU UUID") or None,
            "minor": number,
            "node_present": number is not None and _is_node(os.path.join(root, "dev/nvidia%d" % number)),
        }
    return found


def _gpu(bus_id: str, known: dict[str, Any], paths: dict[str, list[str]]) -> dict[str, Any]:
    nothing = {"uuid": None, "minor": None, "node_present": None}
    return {"bus_id": bus_id, **known.get(bus_id, nothing), "path": paths.get(bus_id, [])}


def _is_node(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def kernel_log(seconds: float) -> tuple[list[str], str]:
    """What this boot's kernel said of GPUs, their ports and the IOMMU, oldest first; or why that is not known."""
    lines, why = _output(["dmesg"], seconds)
    # the ring has lost its beginning when it does not begin with the kernel's first moment: the journal has it all
    if why or not re.match(r"\[\s*0\.\d+\]", lines[0] if lines else ""):
        kept, _ = _output(["journalctl", "--dmesg", "--boot", "--no-pager", "--output=short-monotonic"], seconds)
        if matching(kept):
            lines, why = kept, ""
    return matching(lines), why


def matching(lines: list[str]) -> list[str]:
    """The lines that matter. A flood of reports from a port does not push out what a GPU or the IOMMU said."""
    grave = [place for place, line in enumerate(lines) if _GRAVE.search(line)]
    others = [
        place
        for place, line in enumerate(lines)
        if _OTHERS.search(line) and not _GRAVE.search(line) and not _USUAL.search(line)
    ]
    room = KEPT - min(len(grave), GRAVE_KEPT)
    others = others[-room:] if room else []
    grave = grave[-(KEPT - len(others)) :]
    return [lines[place].strip() for place in sorted([*grave, *others])]


def _output(command: list[str], seconds: float) -> tuple[list[str], str]:
    """A command's lines, or why there are none."""
    try:
        done = run(command, seconds, env={**os.environ, "LC_ALL": "C"})
    except DeadlineError as error:
        return [], str(error)
    except OSError as error:
        return [], "{0}: {1}".format(command[0], error.strerror)
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["no word"])[-1]
        return [], "{0} ended with status {1}: {2}".format(command[0], done.returncode, last)
    return done.stdout.splitlines(), ""
