# SPDX-License-Identifier: Apache-2.0
"""STAND-IN, laboratory only: /sys/bus/pci of a machine with the GPUs of a state file.

The GPUs of one ``switch`` number stand behind one switch chip, which has a root port of its own, as on a board with
four Broadcom switches: root port, upstream port, one downstream port a GPU. A GPU without one has its own root port.
The ports' addresses are invented from the GPUs': the free buses below the first GPU's.

The files cannot follow a load: an idle link shows 2.5 GT/s, and NVML tells what it does under load.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

from rwlab import config_space as config
from rwlab.errors import LabError
from rwlab.shown import File, Link, Wanted, text

# below the directory that is mounted; real ones are below /sys/devices, where nothing can be mounted
_DEVICES = "rackwell-lab"
_SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
_GPU_IDS, _ROOT_IDS, _SWITCH_IDS = (0x10DE, 0x2BB5), (0x1022, 0x153E), (0x1000, 0xC030)
_BRIDGE_CLASS, _GPU_CLASS = 0x060400, 0x030200
_DEAD = b"\xff" * config.SIZE

# as the kernel prints them (drivers/pci/pcie/aer.c)
_CORRECTABLE = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
_UNCORRECTABLE = (
    *("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC"),
    *("UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr", "PoisonTLPBlocked"),
)


@dataclasses.dataclass(frozen=True)
class Device:
    """One function of the tree.

    Attributes:
        bdf: ``0000:10:03.0``. path: bdfs from the root port to this one. speed, max_speed: PCIe generation.
        gpu: the entry of the state file; None for a port. target: Target Link Speed, 0 for the most. stays: Hardware
            Autonomous Speed Disable.
    """

    bdf: str
    path: tuple[str, ...]
    kind: int
    numa: int
    ids: tuple[int, int]
    buses: tuple[int, int, int] | None
    speed: int
    width: int
    max_speed: int
    max_width: int
    gpu: dict[str, Any] | None = None
    target: int = 0
    stays: bool = False

    @property
    def directory(self) -> str:
        """Where it lies below the mounted directory: ``rackwell-lab/pci0000:00/0000:00:01.1/…``."""
        return "/".join((_DEVICES, f"pci{self.path[0][:7]}", *self.path))


def devices(state: dict[str, Any]) -> list[Device]:
    """Every port and GPU, ports before what is behind them.

    Raises:
        LabError: no bus is free for the ports.
    """
    gpus = sorted(state["gpus"], key=lambda gpu: str(gpu["bus_id"]))
    taken = {_bus(gpu) for gpu in gpus}
    found: list[Device] = []
    groups: dict[Any, list[dict[str, Any]]] = {}
    for position, gpu in enumerate(gpus):
        groups.setdefault(gpu.get("switch", f"alone{position}"), []).append(gpu)
    for key, group in groups.items():
        if isinstance(key, str) and key.startswith("alone"):
            found += _alone(group[0], taken)
        else:
            found += _switch(group, taken)
    return found


def _bus(gpu: dict[str, Any]) -> tuple[str, int]:
    domain, bus, _ = str(gpu["bus_id"]).split(":")
    return domain, int(bus, 16)


def _free(domain: str, candidates: Iterable[int], taken: set[tuple[str, int]]) -> int:
    for bus in candidates:
        if bus >= 0 and (domain, bus) not in taken:
            taken.add((domain, bus))
            return bus
    raise LabError("no-free-bus", f"no PCI bus is left for the ports above the GPUs of domain {domain}", exit_code=2)


def _switch(group: list[dict[str, Any]], taken: set[tuple[str, int]]) -> list[Device]:
    domain, first = _bus(group[0])
    last = max(_bus(gpu)[1] for gpu in group)
    inner = _free(domain, range(first - 1, -1, -1), taken)
    upper = _free(domain, range(inner - 1, -1, -1), taken)
    root_bus = _free(domain, itertools.chain([upper & 0xF0], range(upper - 1, -1, -1)), taken)
    numa = int(group[0].get("numa", 0))
    root, upstream = f"{domain}:{root_bus:02x}:01.1", f"{domain}:{upper:02x}:00.0"
    ports = [
        _port(root, (root,), config.ROOT_PORT, numa, _ROOT_IDS, (root_bus, upper, last)),
        _port(upstream, (root, upstream), config.UPSTREAM, numa, _SWITCH_IDS, (upper, inner, last)),
    ]
    for number, gpu in enumerate(group, start=3):
        bdf = f"{domain}:{inner:02x}:{number:02x}.0"
        path = (root, upstream, bdf)
        port = _port(bdf, path, config.DOWNSTREAM, numa, _SWITCH_IDS, (inner, *[_bus(gpu)[1]] * 2))
        ports += [_above(port, gpu), _gpu(gpu, path)]
    return ports


def _alone(gpu: dict[str, Any], taken: set[tuple[str, int]]) -> list[Device]:
    domain, bus = _bus(gpu)
    above = _free(domain, itertools.chain([bus & 0xF0], range(bus - 1, -1, -1)), taken)
    root = f"{domain}:{above:02x}:01.1"
    port = _port(root, (root,), config.ROOT_PORT, int(gpu.get("numa", 0)), _ROOT_IDS, (above, bus, bus))
    return [_above(port, gpu), _gpu(gpu, (root,))]


def _port(
    bdf: str, path: tuple[str, ...], kind: int, numa: int, ids: tuple[int, int], buses: tuple[int, ...]
) -> Device:
    first, second, third = buses
    return Device(bdf, path, kind, numa, ids, (first, second, third), 5, 16, 5, 16)


def _above(port: Device, gpu: dict[str, Any]) -> Device:
    """The port at the other end of a GPU's link: the link is the same."""
    speed, width = _link(gpu)
    most = int(gpu.get("pcie_gen_host_max", 5))
    target, stays = int(gpu.get("pcie_target", 0)), bool(gpu.get("pcie_stays"))
    return dataclasses.replace(port, speed=speed, width=width, max_speed=most, target=target, stays=stays)


def _gpu(gpu: dict[str, Any], path: tuple[str, ...]) -> Device:
    bdf, (speed, width) = str(gpu["bus_id"]), _link(gpu)
    most = int(gpu.get("pcie_gen_gpu_max", 5)), int(gpu.get("pcie_width_max", 16))
    numa = int(gpu.get("numa", 0))
    return Device(bdf, (*path, bdf), config.LEGACY_ENDPOINT, numa, _GPU_IDS, None, speed, width, *most, gpu)


def _link(gpu: dict[str, Any]) -> tuple[int, int]:
    """An idle link is at generation 1, and as wide as it was trained."""
    return 1, int(gpu.get("pcie_width", 16))


def tree(state: dict[str, Any], groups: dict[str, int] | None = None) -> Wanted:
    """What is mounted on /sys/bus/pci.

    Args:
        groups: bdf -> IOMMU group, where the IOMMU works.
    """
    wanted: dict[str, File | Link | None] = {"devices": None, "drivers/nvidia": None, _DEVICES: None}
    acs = state.get("acs") or {}
    for device in devices(state):
        wanted[f"devices/{device.bdf}"] = Link(f"../{device.directory}")
        for name, entry in _files(device, acs).items():
            wanted[f"{device.directory}/{name}"] = entry
        if groups and device.bdf in groups:
            # as deep as the device is, and out of bus/pci
            up = "../" * (len(device.path) + 4)
            wanted[f"{device.directory}/iommu_group"] = Link(f"{up}kernel/iommu_groups/{groups[device.bdf]}")
        if device.gpu is not None:
            wanted[f"drivers/nvidia/{device.bdf}"] = Link(f"../../{device.directory}")
            wanted[f"{device.directory}/driver"] = Link("../" * (len(device.path) + 2) + "drivers/nvidia")
    return wanted


def control(device: Device, acs: dict[str, Any]) -> int | None:
    """The ACS control register of a port; None where there is none (upstream ports, GPUs)."""
    if device.kind not in (config.ROOT_PORT, config.DOWNSTREAM):
        return None
    where = acs.get("on", False)
    on = device.bdf in where if isinstance(where, list) else bool(where)
    return int(acs.get("ctl", config.ACS_ON)) if on else 0


def _files(device: Device, acs: dict[str, Any]) -> dict[str, File | Link | None]:
    gpu = device.gpu or {}
    vendor, number = device.ids
    kind = _GPU_CLASS if device.gpu else _BRIDGE_CLASS
    function = config.Function(
        *(vendor, number, kind, device.kind, device.buses),
        *(device.speed, device.width, device.max_speed, device.max_width),
        control(device, acs),
        device.target,
        device.stays,
    )
    dead = bool(gpu.get("fell_off"))
    # a function that answers no more reads as ones, and the kernel makes this of them
    speed = "Unknown" if dead else f"{_SPEEDS[device.speed]} GT/s PCIe"
    growing = bool(gpu.get("aer_correctable_per_gb"))
    return {
        "vendor": text(f"0x{vendor:04x}"),
        "device": text(f"0x{number:04x}"),
        "class": text(f"0x{kind:06x}"),
        "revision": text("0xa1" if device.gpu else "0xb0"),
        "numa_node": text(device.numa, 0o644),
        "current_link_speed": text(speed),
        "current_link_width": text(63 if dead else device.width),
        "max_link_speed": text(f"{_SPEEDS[device.max_speed]} GT/s PCIe"),
        "max_link_width": text(device.max_width),
        # libcuda counts on in it, as whoever runs it; the kernel's is 0444
        "aer_dev_correctable": errors(_CORRECTABLE, "BadTLP", gpu.get("aer_correctable", 0), "COR", 0o666 * growing),
        "aer_dev_nonfatal": errors(_UNCORRECTABLE, "CmpltTO", gpu.get("aer_nonfatal", 0), "NONFATAL"),
        "aer_dev_fatal": errors(_UNCORRECTABLE, "DLP", gpu.get("aer_fatal", 0), "FATAL"),
        "config": File(_DEAD if dead else config.space(function), 0o600),
    }


def errors(names: Iterable[str], counted: str, count: Any, total: str, mode: int = 0) -> File:
    """One of the kernel's aer_dev_* files, with ``count`` errors of the kind ``counted``."""
    lines = [f"{name} {int(count) if name == counted else 0}" for name in names]
    return File("".join(f"{line}\n" for line in (*lines, f"TOTAL_ERR_{total} {int(count)}")).encode(), mode or 0o444)
