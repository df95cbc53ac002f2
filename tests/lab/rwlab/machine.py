# SPDX-License-Identifier: Apache-2.0
"""STAND-IN, laboratory only: what the kernel tells of the machine beside its GPUs.

/proc/devices, /proc/cmdline, the kernel's release, the IOMMU's groups and the board's names. None of it changes what
this machine is: it is what software reads to judge it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rwlab import cpus, pci
from rwlab.errors import LabError
from rwlab.shown import File, Link, Wanted, text

RELEASE = "6.17.13-2-pve"
IOMMU = ("off", "pt", "translated")
# the board of the machine that the laboratory follows; the names say what they are wherever they are shown
DMI = {
    "sys_vendor": "ASUSTeK COMPUTER INC.",
    "product_name": "ESC8000A-E13P (stand-in)",
    "board_vendor": "ASUSTeK COMPUTER INC.",
    "board_name": "K15PG-D24 (stand-in)",
    "bios_vendor": "American Megatrends Inc.",
    "bios_version": "1203",
    "bios_date": "07/14/2026",
}

_OPTIONS = {"off": "amd_iommu=off iommu=off", "pt": "iommu=pt", "translated": ""}
# where the machine's own classes stay visible in a container of nesting=1 (see hosts.py and LXC's nesting.conf)
_UNCOVERED = "/dev/.lxc/sys/class"


def settings() -> dict[str, Any]:
    """What `lab.py set kernel` changes here: release, cmdline (more boot options), dmi, dmesg (lines), cpus (how many).

    ``booted``: the whole command line, where a boot loader of the host gave it (loader.py).
    """
    return {"release": RELEASE, "cmdline": "", "dmi": dict(DMI), "dmesg": [], "cpus": 0, "booted": ""}


def iommu(state: dict[str, Any]) -> str:
    """The IOMMU's mode in the state file.

    Raises:
        LabError: it is none of ``off``, ``pt``, ``translated``.
    """
    mode = str(state.get("iommu") or "off")
    if mode not in IOMMU:
        raise LabError("iommu-unknown", f"no IOMMU mode {mode!r}", why=", ".join(IOMMU), exit_code=2)
    return mode


def cmdline(state: dict[str, Any], kernel: dict[str, Any]) -> str:
    """/proc/cmdline of a Proxmox VE host."""
    if kernel["booted"]:
        return " ".join([*str(kernel["booted"]).split(), *str(kernel["cmdline"]).split()]) + "\n"
    options = f"{_OPTIONS[iommu(state)]} {kernel['cmdline']}".split()
    head = [f"BOOT_IMAGE=/boot/vmlinuz-{kernel['release']}", "root=/dev/mapper/pve-root", "ro", "quiet"]
    return " ".join([*head, *options]) + "\n"


def devices(of_machine: str, majors: Iterable[tuple[int, str]]) -> str:
    """/proc/devices: the machine's own, and the driver's character devices among them."""
    head, _, rest = of_machine.partition("\n\n")
    own = [line for line in head.splitlines()[1:] if line.strip()]
    lines = [*own, *(f"{major:3} {name}" for major, name in majors)]
    lines.sort(key=lambda line: int(line.split()[0]))  # stable: names of one major keep their order
    return "\n".join(["Character devices:", *lines]) + f"\n\n{rest}"


def groups(state: dict[str, Any]) -> dict[str, int]:
    """bdf -> IOMMU group: each function its own, as ACS on every port makes it; empty when the IOMMU is off."""
    if iommu(state) == "off":
        return {}
    return {device.bdf: number for number, device in enumerate(pci.devices(state), start=14)}


def iommu_groups(state: dict[str, Any]) -> Wanted:
    """What is mounted on /sys/kernel/iommu_groups."""
    kind = "identity" if iommu(state) == "pt" else "DMA-FQ"
    wanted: dict[str, File | Link | None] = {}
    for device in pci.devices(state) if groups(state) else []:
        group = groups(state)[device.bdf]
        wanted[f"{group}/type"] = text(kind)
        wanted[f"{group}/devices/{device.bdf}"] = Link(f"../../../../bus/pci/{device.directory}")
    return wanted


def numa(state: dict[str, Any], cpus: int, memory_kib: int) -> Wanted:
    """What is mounted on /sys/devices/system/node: as many nodes as the GPUs name, this machine's processors dealt out.

    Args:
        cpus: how many processors there are. memory_kib: all memory.
    """
    count = max((int(gpu.get("numa", 0)) for gpu in state["gpus"]), default=0) + 1
    all_of_them = f"0-{count - 1}" if count > 1 else "0"
    wanted: dict[str, File | Link | None] = {
        name: text(all_of_them) for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory")
    }
    for node in range(count):
        first, last = node * cpus // count, (node + 1) * cpus // count - 1
        mask = sum(1 << cpu for cpu in range(first, last + 1))
        distances = ("10" if other == node else "32" for other in range(count))
        wanted |= {
            f"node{node}/cpulist": text("" if last < first else f"{first}-{last}" if last > first else first),
            f"node{node}/cpumap": text(_mask(mask)),
            f"node{node}/distance": text(" ".join(distances)),
            f"node{node}/meminfo": File(
                f"Node {node} MemTotal:       {memory_kib // count} kB\n"
                f"Node {node} MemFree:        {memory_kib // count // 2} kB\n".encode()
            ),
        }
        for cpu in range(first, last + 1):
            wanted[f"node{node}/cpu{cpu}"] = Link(f"../../cpu/cpu{cpu}")
    return wanted


def _mask(bits: int) -> str:
    """As the kernel writes sets of processors: 32 bits a word in hex, commas between."""
    words = [bits & 0xFFFFFFFF]
    while bits := bits >> 32:
        words.append(bits & 0xFFFFFFFF)
    return ",".join(f"{word:08x}" for word in reversed(words))


def memory_kib(meminfo: str) -> int:
    """MemTotal of /proc/meminfo."""
    return int(next(line for line in meminfo.splitlines() if line.startswith("MemTotal:")).split()[1])


def classes(state: dict[str, Any], kernel: dict[str, Any], of_machine: Iterable[str]) -> Wanted:
    """What stands for parts of /sys/class: dmi and iommu; links to the machine's own classes for the rest."""
    wanted: dict[str, File | Link | None] = {
        name: Link(f"{_UNCOVERED}/{name}") for name in of_machine if name not in ("dmi", "iommu")
    }
    for name, value in kernel["dmi"].items():
        wanted[f"dmi/id/{name}"] = text(value)
    wanted["iommu"] = None
    if iommu(state) != "off":
        # one for each root bus
        for number, _ in enumerate({device.path[0][:7] for device in pci.devices(state)}):
            wanted[f"iommu/ivhd{number}"] = None
    return wanted


def classes_of_machine() -> list[str]:
    """Names below this machine's /sys/class."""
    root = Path("/sys/class")
    return sorted(path.name for path in root.iterdir()) if root.is_dir() else []


def lacks_board() -> bool:
    """Whether this machine is known to show no board of its own, as most virtual ones.

    Where /sys is not mounted (in a chroot) nothing is known, and nothing of its classes could be shown again.
    """
    return Path("/sys/class").is_dir() and not Path("/sys/devices/virtual/dmi/id").is_dir()


def messages(kernel: dict[str, Any], mode: str = "off") -> str:
    """What the hosts' dmesg prints, a line a second after the driver's."""
    own = cpus.messages(int(kernel["cpus"]), mode)
    lines = [*own, "nvidia: loading out-of-tree module taints kernel.", *kernel["dmesg"]]
    return "".join(f"[{12 + second:5}.{345678:06}] {line}\n" for second, line in enumerate(map(str, lines)))
