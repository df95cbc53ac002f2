# SPDX-License-Identifier: Apache-2.0
"""A machine from other tools' outputs: where its GPUs hang, and what of it is in the way of peer traffic.

The tree comes from lspci's buses; nvidia-smi adds names, UUIDs and minor numbers by bus id. Without lspci the labels of
``topo -m`` give sockets and pairs, but no switches: they do not show which chip two GPUs share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rackwell.topology.foreign.results import (
    Cmdline,
    Lspci,
    Majors,
    Nodes,
    PciDevice,
    Result,
    SmiGpu,
    SmiLog,
    TopoMatrix,
)
from rackwell.topology.model import Pair
from rackwell.topology.report import Finding, Gpu, GpuReport, Root, Socket, Switch, Topology, short

REDIRECTING = frozenset({"ReqRedir", "CmpltRedir", "EgressCtrl"})
"""ACS flags that send peer traffic up to the root; SrcValid and UpstreamFwd alone do not."""
_LABELS = {"PIX": "same-switch", "PXB": "same-switch", "PHB": "same-root-complex", "NODE": "same-root-complex"}


def build(results: Iterable[Result]) -> GpuReport:
    """The machine that `results` describe, as a report in which nothing was measured."""
    every = list(results)
    devices = {device.bdf: device for result in every if isinstance(result, Lspci) for device in result.devices}
    smi = merged(every)
    topo = next((result for result in every if isinstance(result, TopoMatrix)), None)
    buses = sorted({bdf for bdf, device in devices.items() if device.is_gpu} | set(smi))
    if topo is not None and not buses:
        buses = [""] * len(topo.matrix)
    labels = topo.matrix if topo is not None and len(topo.matrix) == len(buses) else []
    numa = topo.numa if topo is not None and labels else []
    gpus = [_gpu(index, bus, devices, smi.get(bus), numa) for index, bus in enumerate(buses)]
    drivers = (result.driver_version for result in every if isinstance(result, SmiLog) and result.driver_version)
    topology = Topology(sockets=_sockets(gpus), classes=_classes(gpus, labels), nvlink=_nvlink(labels))
    report = GpuReport(verdict="not-measured", gpus=gpus, topology=topology, driver_version=next(drivers, None))
    return report.model_copy(update={"findings": findings(every, report, devices, smi)})


def merged(results: Iterable[Result]) -> dict[str, SmiGpu]:
    """What nvidia-smi said of each GPU; several outputs add to each other, the fullest first."""
    found: dict[str, SmiGpu] = {}
    logs = [result for result in results if isinstance(result, SmiLog)]
    for gpu in (gpu for log in logs for gpu in log.gpus):
        known = found.get(gpu.bus_id)
        more = gpu.model_dump(exclude_none=True)
        found[gpu.bus_id] = (
            gpu
            if known is None
            else known.model_copy(
                update={key: value for key, value in more.items() if getattr(known, key) in {None, ""}}
            )
        )
    return found


def _gpu(index: int, bus: str, devices: Mapping[str, PciDevice], smi: SmiGpu | None, numa: Sequence[int | None]) -> Gpu:
    path = route(bus, devices)
    device = devices.get(bus)
    upstream = [each.bdf for each in path if each.port == "upstream"]
    node = device.numa if device is not None else None
    return Gpu(
        index=index,
        uuid=smi.uuid if smi else "",
        bus_id=bus,
        name=(smi.name if smi and smi.name else device.what.partition(": ")[2] if device else ""),
        memory_total=smi.memory_total if smi else None,
        minor=smi.minor if smi else None,
        numa=node if node is not None else numa[index] if index < len(numa) else None,
        root=path[0].bdf if path and path[0].port == "root" else None,
        switch=upstream[-1] if upstream else None,
        path=[each.bdf for each in path],
    )


def route(bus: str, devices: Mapping[str, PciDevice]) -> list[PciDevice]:
    """Every port from the root to the device `bus`, itself included; empty when lspci did not list it."""
    device = devices.get(bus)
    path: list[PciDevice] = []
    while device is not None and device not in path:
        path.insert(0, device)
        device = next(
            (each for each in devices.values() if each.secondary == path[0].bus and each.domain == path[0].domain), None
        )
    return path


def _sockets(gpus: Sequence[Gpu]) -> list[Socket]:
    """GPUs by NUMA node, root port and switch; those of which no root is known hang on none."""
    sockets = []
    for numa in dict.fromkeys(gpu.numa for gpu in gpus):
        here = [gpu for gpu in gpus if gpu.numa == numa]
        roots = [
            _root(root or "?", [gpu for gpu in here if gpu.root == root])
            for root in dict.fromkeys(g.root for g in here)
        ]
        sockets.append(Socket(numa=numa, roots=roots))
    return sorted(sockets, key=lambda socket: -1 if socket.numa is None else socket.numa)


def _root(root: str, gpus: Sequence[Gpu]) -> Root:
    switches = dict.fromkeys(gpu.switch for gpu in gpus if gpu.switch is not None)
    return Root(
        root=root,
        switches=[Switch(switch=chip, gpus=[g.index for g in gpus if g.switch == chip]) for chip in switches],
        gpus=[gpu.index for gpu in gpus if gpu.switch is None],
    )


def _classes(gpus: Sequence[Gpu], labels: list[list[str]]) -> list[list[str | None]]:
    return [[None if s == d else _class((s, d), gpus, labels) for d in range(len(gpus))] for s in range(len(gpus))]


def _class(pair: Pair, gpus: Sequence[Gpu], labels: list[list[str]]) -> str:
    """NVLink from nvidia-smi, which alone sees it; else from the tree, else from nvidia-smi's label."""
    src, dst = gpus[pair[0]], gpus[pair[1]]
    label = labels[src.index][dst.index] if labels else ""
    if label.startswith("NV"):
        return "nvlink"
    if src.root is not None and dst.root is not None:
        # the path's switches: two GPUs below different chips of one cascade meet in the chip above both
        shared = [port for port in src.path if port in dst.path]
        if len(shared) > 1:
            return "same-switch"
        if src.numa is not None and dst.numa is not None and src.numa != dst.numa:
            return "cross-socket"
        return "same-root-complex"
    return "cross-socket" if label == "SYS" else _LABELS.get(label, "unknown")


def _nvlink(labels: list[list[str]]) -> list[list[int | None]]:
    return [[int(cell[2:]) if cell[:2] == "NV" and cell[2:].isdigit() else 0 for cell in row] for row in labels]


def iommu(cmdline: Cmdline) -> str:
    """off, pt, translated, or unknown: what the words ask for. Without a word the kernel and the CPU decide."""
    words = cmdline.words
    every = [value for name in ("iommu", "amd_iommu", "intel_iommu") for value in words.get(name, [])]
    asked = {part for value in every for part in value.split(",")}
    if "off" in asked:
        return "off"
    if "pt" in asked or "1" in words.get("iommu.passthrough", []):
        return "pt"
    if (
        "on" in words.get("intel_iommu", [])
        or asked & {"nopt", "force", "strict"}
        or "0" in words.get("iommu.passthrough", [])
    ):
        return "translated"
    return "unknown"


def findings(
    results: Sequence[Result], report: GpuReport, devices: Mapping[str, PciDevice], smi: Mapping[str, SmiGpu]
) -> list[Finding]:
    """What is in the way of peer traffic, as far as such outputs show it. The codes are the validation's own."""
    found = [*_acs(report, devices), *_iommu(results), *_links(report, devices)]
    found += [each for gpu in report.gpus if gpu.bus_id in smi for each in _health(gpu, smi[gpu.bus_id])]
    return [*found, *_nodes(results)]


def _acs(report: GpuReport, devices: Mapping[str, PciDevice]) -> Iterable[Finding]:
    ports = sorted({bdf for gpu in report.gpus for bdf in gpu.path if REDIRECTING & set(devices[bdf].acs_ctl or [])})
    if ports:
        flags = sorted({flag for bdf in ports for flag in REDIRECTING & set(devices[bdf].acs_ctl or [])})
        yield Finding(
            code="acs-on",
            check="host",
            verdict="degraded",
            what=f"ACS redirects peer traffic on {len(ports)} ports above GPUs",
            where=", ".join(map(short, ports)),
            measured=len(ports),
            expected=0,
            unit="ports",
            basis="rule",
            why=f"{', '.join(flags)} set: requests between GPUs go up to the root complex, not through the switch",
            fix="clear ACSCtl of these ports at each boot: setpci -s BDF ECAP_ACS+0x6.w=0000",
        )


def _iommu(results: Sequence[Result]) -> Iterable[Finding]:
    for result in results:
        if isinstance(result, Cmdline) and iommu(result) == "translated":
            yield Finding(
                code="iommu-translated",
                check="host",
                verdict="degraded",
                what="the kernel's command line puts the IOMMU in translated mode",
                where="kernel command line",
                why="peer traffic through a translating IOMMU is slow, and on some machines silently dropped",
                fix="iommu=pt, or off where no VM needs it; then reboot the host",
                basis="rule",
            )


def _links(report: GpuReport, devices: Mapping[str, PciDevice]) -> Iterable[Finding]:
    """Widths only: an idle link may rest at Gen1, so a snapshot's speed says nothing."""
    for gpu in report.gpus:
        port = devices.get(gpu.bus_id)
        if port is None or port.width is None or port.max_width is None or port.width >= port.max_width:
            continue
        yield Finding(
            code="link-width",
            check="links",
            verdict="fail",
            what=f"{report.name(gpu.index)} runs at x{port.width}, x{port.max_width} is possible",
            where=gpu.bus_id,
            measured=port.width,
            expected=port.max_width,
            unit="lanes",
            basis="rule",
            fix="reseat the card, and look at the slot's width and bifurcation in the BIOS",
            gpus=[gpu.index],
        )


def _health(gpu: Gpu, smi: SmiGpu) -> Iterable[Finding]:
    if smi.bar1_total is not None and smi.memory_total is not None and smi.bar1_total < smi.memory_total:
        yield Finding(
            code="bar1-small",
            check="links",
            verdict="degraded",
            what=f"BAR1 of GPU {gpu.index} is smaller than its memory",
            where=gpu.bus_id,
            measured=smi.bar1_total >> 20,
            expected=smi.memory_total >> 20,
            unit="MiB",
            basis="rule",
            fix="switch on Above 4G Decoding and Resizable BAR in the BIOS",
            gpus=[gpu.index],
        )
    if smi.recovery_action not in {None, "None"}:
        yield Finding(
            code="recovery-action",
            check="health",
            verdict="fail",
            what=f"GPU {gpu.index} asks for: {smi.recovery_action}",
            where=gpu.bus_id,
            fix="do what it asks for; a power cycle where a reset does not help",
            gpus=[gpu.index],
        )
    if smi.ecc_uncorrected:
        yield Finding(
            code="ecc-uncorrected",
            check="health",
            verdict="fail",
            what=f"GPU {gpu.index} counted {smi.ecc_uncorrected} uncorrectable ECC errors since its driver was loaded",
            where=gpu.bus_id,
            measured=smi.ecc_uncorrected,
            expected=0,
            gpus=[gpu.index],
        )


def _nodes(results: Sequence[Result]) -> Iterable[Finding]:
    majors = next((result.majors for result in results if isinstance(result, Majors)), {})
    nodes = next((result.nodes for result in results if isinstance(result, Nodes)), {})
    uvm, wanted = nodes.get("/dev/nvidia-uvm"), majors.get("nvidia-uvm")
    if uvm is not None and wanted is not None and uvm[0] != wanted:
        yield Finding(
            code="uvm-node-stale",
            check="nodes",
            verdict="fail",
            what=f"/dev/nvidia-uvm has major {uvm[0]}, the module has {wanted}",
            where="/dev/nvidia-uvm",
            measured=uvm[0],
            expected=wanted,
            fix="nvidia-modprobe -u -c 0 on the host, then restart the container",
        )
