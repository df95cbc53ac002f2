# SPDX-License-Identifier: Apache-2.0
"""``rackwell topology``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rackwell.cli.command import JsonOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.topology.foreign import Saved
    from rackwell.topology.report import GpuReport


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("topology")(topology)


def topology(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR...", help="Saved outputs; files named together belong to one machine."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Read what other tools saw of a machine, and show its GPUs.

    Knows by their content: nvidia-smi (topo -m, topo -p2p, -q, -q -x, --query-gpu with its header), lspci -vvv,
    numactl -H, lscpu, the kernel's command line, /proc/devices, /proc/driver/nvidia, nvbandwidth -j and
    p2pBandwidthLatencyTest. Prints sockets, roots, switches and GPUs, what is in the way of peer traffic, and every
    matrix. Touches no machine.
    """
    execute("topology", as_json, lambda terminal: _body(terminal, places))


def _body(terminal: Terminal, places: list[Path]) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError
    from rackwell.topology import foreign
    from rackwell.topology.foreign import machine

    terminal.safety = "topology reads files only"
    saved = foreign.read(places)
    known = [(each, machine.build(each.results)) for each in saved if each.results]
    if not known:
        raise RackwellError(
            Problem(
                "nothing-recognised",
                "no output of a known tool is in these files",
                ", ".join(map(str, places)),
                f"{sum(len(each.files) for each in saved)} files were read",
                "see: rackwell topology --help",
            ),
            ExitCode.INVALID,
        )
    result = {"machines": [_as_dict(each, report) for each, report in known]}
    return Outcome(result, show=lambda out: _show(out, known))


def _as_dict(saved: Saved, report: GpuReport) -> dict[str, Any]:
    return {
        "place": saved.place,
        "files": [{"file": str(f.file), "tools": [result.tool for result in f.results]} for f in saved.files],
        "gpus": [gpu.model_dump() for gpu in report.gpus],
        "topology": report.topology.model_dump(),
        "findings": [finding.model_dump() for finding in report.findings],
        "facts": dict(_facts(saved, report)),
        "outputs": [{"tool": result.tool, **result.model_dump()} for result in saved.results],
    }


def _show(out: Console, known: list[tuple[Saved, GpuReport]]) -> None:
    from rackwell.cli import gpus
    from rackwell.topology import heat

    for number, (saved, report) in enumerate(known):
        if number:
            out.print("")
        out.print(saved.place, style="bold")
        for file in saved.files:
            out.print(f"  {file.file.name}: {', '.join(result.tool for result in file.results) or 'not recognised'}")
        if report.gpus:
            out.print("")
            out.print(heat.tree(report))
        facts = list(_facts(saved, report))
        if facts:
            out.print("")
            for name, value in facts:
                out.print(f"{name:<8} {value}")
        _links(out, saved)
        _matrices(out, saved, report)
        gpus.findings(out, report.findings)


def _facts(saved: Saved, report: GpuReport) -> list[tuple[str, str]]:
    """What the outputs say beside the tree, in a line each."""
    from rackwell.topology.foreign import machine, results

    found = [("driver", report.driver_version or "")]
    for result in saved.results:
        if isinstance(result, results.Cpus):
            off = f", {len(result.offline)} offline" if result.offline else ""
            found.append(("CPUs", f"{result.sockets} x {result.model}, {result.count} threads{off}"))
        elif isinstance(result, results.Cmdline):
            found.append(("IOMMU", f"{machine.iommu(result)} by the kernel's command line"))
        elif isinstance(result, results.Lspci):
            found.append(("ACS", _acs(result, report)))
        elif isinstance(result, results.Majors) and "nvidia-uvm" in result.majors:
            found.append(("uvm", f"major {result.majors['nvidia-uvm']}"))
        elif isinstance(result, results.DriverVersion):
            found.append(("module", f"{result.flavour} {result.version}"))
        elif isinstance(result, results.Params) and result.values.get("RegistryDwords"):
            found.append(("registry", result.values["RegistryDwords"]))
    return [(name, value) for name, value in found if value]


def _acs(lspci: Any, report: GpuReport) -> str:
    from rackwell.topology.foreign.machine import REDIRECTING

    on_path = {bdf for gpu in report.gpus for bdf in gpu.path}
    ports = [device for device in lspci.devices if device.bdf in on_path and device.acs_ctl is not None]
    if not ports:
        return "not seen (lspci needs root for it)"
    redirecting = sum(bool(REDIRECTING & set(port.acs_ctl)) for port in ports)
    others = sorted({flag for port in ports for flag in port.acs_ctl} - REDIRECTING)
    rest = f"; {', '.join(others)} set, which redirects nothing" if others else ""
    return f"redirects peer traffic on {redirecting} of {len(ports)} ports above GPUs{rest}"


def _links(out: Console, saved: Saved) -> None:
    from rackwell.cli import tables
    from rackwell.topology.foreign.machine import merged
    from rackwell.topology.report import short

    rows = [
        [
            short(gpu.bus_id),
            f"Gen{_told(gpu.gen_now)} of {_told(gpu.gen_gpu_max or gpu.gen_max)}",
            f"x{_told(gpu.width_now)} of {_told(gpu.width_max)}",
            _told(gpu.replays),
            "-" if gpu.bar1_total is None else f"{gpu.bar1_total >> 30} GiB",
            _told(gpu.performance_state),
        ]
        for gpu in merged(saved.results).values()
    ]
    if rows:
        out.print("")
        tables.table(out, ["GPU", "link now", "width", "replays", "BAR1", "state"], rows)


def _told(value: Any) -> str:
    return "-" if value is None else str(value)


def _matrices(out: Console, saved: Saved, report: GpuReport) -> None:
    from rackwell.cli import tables
    from rackwell.topology import heat
    from rackwell.topology.figures import Named
    from rackwell.topology.foreign import results

    for result in saved.results:
        if isinstance(result, results.TopoMatrix):
            _labels(out, "Labels of nvidia-smi; they do not show the switch chip", result.matrix)
        elif isinstance(result, results.P2pStatus):
            _labels(out, f"Peer {result.kind or 'access'} as the driver claims it", result.matrix)
        elif isinstance(result, results.Bandwidths):
            for figures in result.figures:
                out.print("")
                square = all(len(row) == len(figures.matrix) for row in figures.matrix)
                named = Named(figures.key, figures.title, figures.unit, figures.matrix, figures.more_is_better)
                if square and named.known:
                    tables.plain(out, heat.heat(named, report, {}))
                else:
                    cells = "  ".join(_told(cell) for row in figures.matrix for cell in row)
                    out.print(
                        f"{figures.title}, {figures.unit}: {cells} {figures.status if not named.known else ''}".rstrip()
                    )


def _labels(out: Console, title: str, matrix: list[list[str]]) -> None:
    from rackwell.cli import tables

    out.print("")
    out.print(title, style="bold")
    rows = [[f"GPU {number}", *row] for number, row in enumerate(matrix)]
    tables.table(out, ["", *(str(number) for number in range(len(matrix)))], rows)
