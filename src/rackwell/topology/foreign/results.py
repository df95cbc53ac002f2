# SPDX-License-Identifier: Apache-2.0
"""What the parsers give. Addresses are bus ids as sysfs writes them; None is what a tool did not say."""

from __future__ import annotations

from typing import ClassVar

import pydantic

from rackwell.topology.model import Part


class Result(Part):
    """One tool's output, understood. tool: for people."""

    tool: ClassVar[str] = ""


class TopoMatrix(Result):
    """``nvidia-smi topo -m``. matrix: labels such as PIX, NODE, SYS, NV18 from row to column, ``X`` on the diagonal.

    Attributes:
        cpus: CPU affinity of each GPU, as printed. numa: its NUMA node. nics: NIC -> label to each GPU.
    """

    tool: ClassVar[str] = "nvidia-smi topo -m"
    matrix: list[list[str]]
    cpus: list[str] = pydantic.Field(default_factory=list)
    numa: list[int | None] = pydantic.Field(default_factory=list)
    nics: dict[str, list[str]] = pydantic.Field(default_factory=dict)


class P2pStatus(Result):
    """``nvidia-smi topo -p2p``. kind: read, write, nvlink, atomics, pcie, or "" where the output does not say.

    OK in it is the driver's claim, not a proof.
    """

    tool: ClassVar[str] = "nvidia-smi topo -p2p"
    kind: str = ""
    matrix: list[list[str]]


class SmiGpu(Part):
    """A GPU as nvidia-smi describes it. Memory in bytes; generations and widths as numbers."""

    bus_id: str
    index: int | None = None
    uuid: str = ""
    name: str = ""
    minor: int | None = None
    addressing_mode: str | None = None
    gen_max: int | None = None
    gen_now: int | None = None
    gen_gpu_max: int | None = None
    gen_host_max: int | None = None
    width_max: int | None = None
    width_now: int | None = None
    replays: int | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    bar1_total: int | None = None
    ecc_uncorrected: int | None = None
    recovery_action: str | None = None
    performance_state: str | None = None


class SmiLog(Result):
    """``nvidia-smi -q`` as text or XML, or ``--query-gpu`` as CSV."""

    tool: ClassVar[str] = "nvidia-smi -q"
    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: list[SmiGpu] = pydantic.Field(default_factory=list)


class PciDevice(Part):
    """A PCI device of ``lspci -vvv``.

    Attributes:
        what: class and name as printed. port: root, upstream, downstream, endpoint, bridge or "".
        secondary, subordinate: the range of buses below a bridge.
        acs_cap, acs_ctl: flags that are set, such as ReqRedir; None without the capability or the right to see it.
        errors: flags of AER's status registers that are set. bar_bytes: the largest memory region.
    """

    bdf: str
    what: str = ""
    port: str = ""
    numa: int | None = None
    secondary: int | None = None
    subordinate: int | None = None
    max_speed_gt_s: float | None = None
    max_width: int | None = None
    speed_gt_s: float | None = None
    width: int | None = None
    acs_cap: list[str] | None = None
    acs_ctl: list[str] | None = None
    errors: list[str] = pydantic.Field(default_factory=list)
    bar_bytes: int | None = None

    @property
    def domain(self) -> str:
        """The PCI domain."""
        return self.bdf[:4]

    @property
    def bus(self) -> int:
        """The number of the bus that it sits on."""
        return int(self.bdf[5:7], 16)

    @property
    def is_gpu(self) -> bool:
        """Whether it is an NVIDIA GPU: a display controller, not the sound or USB function of one."""
        kind = self.what.partition(":")[0]
        return "NVIDIA" in self.what and kind in {"3D controller", "VGA compatible controller", "Display controller"}


class Lspci(Result):
    """``lspci -vvv``, of all devices or of some."""

    tool: ClassVar[str] = "lspci -vvv"
    devices: list[PciDevice]


class Numa(Result):
    """``numactl -H`` or ``lscpu``: node -> its CPUs. memory: bytes. distances: from row to column."""

    tool: ClassVar[str] = "numactl -H"
    cpus: dict[int, list[int]] = pydantic.Field(default_factory=dict)
    memory: dict[int, int] = pydantic.Field(default_factory=dict)
    distances: list[list[int]] = pydantic.Field(default_factory=list)


class Cpus(Result):
    """``lscpu``."""

    tool: ClassVar[str] = "lscpu"
    model: str = ""
    vendor: str = ""
    sockets: int | None = None
    count: int | None = None
    offline: list[int] = pydantic.Field(default_factory=list)
    numa: dict[int, list[int]] = pydantic.Field(default_factory=dict)


class Cmdline(Result):
    """The kernel's command line. words: name -> values, in order; "" for a bare word."""

    tool: ClassVar[str] = "kernel command line"
    text: str
    words: dict[str, list[str]] = pydantic.Field(default_factory=dict)


class Majors(Result):
    """``/proc/devices``: character device -> major."""

    tool: ClassVar[str] = "/proc/devices"
    majors: dict[str, int]


class Nodes(Result):
    """``ls -l /dev/nvidia*``: path -> (major, minor, mode such as ``crw-rw-rw-``)."""

    tool: ClassVar[str] = "ls -l /dev"
    nodes: dict[str, tuple[int, int, str]]


class Params(Result):
    """``/proc/driver/nvidia/params``."""

    tool: ClassVar[str] = "/proc/driver/nvidia/params"
    values: dict[str, str]


class DriverVersion(Result):
    """``/proc/driver/nvidia/version``."""

    tool: ClassVar[str] = "/proc/driver/nvidia/version"
    version: str
    flavour: str


class Figures(Part):
    """One matrix of another tool, from row (the sender) to column (the receiver)."""

    key: str
    title: str
    unit: str
    matrix: list[list[float | None]]
    more_is_better: bool = True
    status: str = ""


class Bandwidths(Result):
    """``nvbandwidth`` or ``p2pBandwidthLatencyTest``."""

    tool: ClassVar[str] = "bandwidth test"
    program: str
    version: str | None = None
    driver_version: str | None = None
    gpus: list[str] = pydantic.Field(default_factory=list)
    figures: list[Figures] = pydantic.Field(default_factory=list)
