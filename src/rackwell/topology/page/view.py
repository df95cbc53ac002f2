# SPDX-License-Identifier: Apache-2.0
"""What the page of a validation shows, in its order."""

from __future__ import annotations

import dataclasses
from typing import Any

from rackwell import page
from rackwell.page.scales import UNKNOWN, number
from rackwell.topology import compare, figures
from rackwell.topology.baseline import Baseline
from rackwell.topology.compare import Comparison
from rackwell.topology.figures import Named
from rackwell.topology.gate import Gate
from rackwell.topology.measured import Concurrent, Link
from rackwell.topology.model import Pair
from rackwell.topology.page import drawing
from rackwell.topology.report import Check, Finding, GpuReport

SHADES = 6
"""Steps of the shade of a cell, each a class of the style sheet."""
_GIB = 1 << 30
_CLASSES = {
    "nvlink": "NVLink",
    "same-switch": "Same switch",
    "same-root-complex": "Other root, same socket",
    "cross-socket": "Other socket",
    "unknown": "Link not known",
}
_VERDICTS = {"pass": "good", "degraded": "weak", "fail": "bad", "not-measured": "none"}


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a matrix. css: its classes. note: what a pointer at rest is told."""

    text: str
    css: str
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A matrix as it is drawn. cuts: columns (and rows) before which another socket begins."""

    key: str
    title: str
    caption: str
    rows: list[list[Cell]]


def context(report: GpuReport, baseline: Baseline | None, gate: Gate | None, title: str) -> dict[str, Any]:
    """The variables of the template."""
    compared = compare.compare(baseline, report) if baseline is not None else None
    return {
        "report": report,
        "title": title,
        "gate": gate,
        "when": page.when(report.started),
        "css": _VERDICTS,
        "headline": _headline(report),
        "facts": _facts(report, gate),
        "tiles": _tiles(report),
        "checks": [_check(check) for check in report.checks],
        "sockets": report.topology.sockets,
        "gpus": {gpu.index: gpu for gpu in report.gpus},
        "flagged_gpus": _flagged_gpus(report),
        "matrices": [_table(named, report) for named in figures.matrices(report)],
        "data_matrix": _data(report),
        "concurrent": _concurrent(report),
        "links": [_link(link, report) for link in report.measurements.links],
        "health": _health(report),
        "allreduce": drawing.allreduce(report.measurements.collectives),
        "collectives": report.measurements.collectives,
        "compared": compared,
        "deltas": _deltas(compared),
        "changes": _changes(report, compared),
        "baseline": baseline,
        "surroundings": _surroundings(report),
    }


def told(value: Any, unit: str | None = None) -> str:
    """A figure with its unit; a dash for what is not known."""
    if value is None:
        return UNKNOWN
    text = str(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = f"{value:,.0f}" if value == round(value) else number(value)
    return f"{text} {unit}" if unit else text


def _headline(report: GpuReport) -> tuple[str, str]:
    """The verdict in a few words, and what comes behind it."""
    count = len(report.gpus)
    gpus = f"{count} GPU{'' if count == 1 else 's'}"
    if report.verdict == "pass":
        return "Pass", f"{gpus}, every check that was made"
    found = [finding for finding in report.findings if finding.verdict == report.verdict] or report.findings
    first = found[0].what if found else "see the table"
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return {"degraded": "Degraded", "fail": "Fail"}.get(report.verdict, "Not measured"), f"{first}{more}"


def _facts(report: GpuReport, gate: Gate | None) -> list[tuple[str, str]]:
    host = report.host_facts or {}
    seen = report.surroundings.get("machine") or {}
    dmi = {**seen, **{key: value for key, value in (host.get("dmi") or {}).items() if value}}
    kernel = host.get("kernel") or seen.get("kernel")
    board = " ".join(str(part) for part in (dmi.get("product"), dmi.get("board")) if part)
    found = [
        ("GPUs", _names(report)),
        ("Driver", _pair(report.driver_version, report.user_space_version)),
        ("CUDA", told(report.cuda_version)),
        ("Kernel", told(kernel)),
        ("Machine", f"{board}, BIOS {dmi.get('bios_version') or UNKNOWN}" if board else ""),
        ("Proxmox host", str(host.get("host") or "")),
        ("Boot", str(report.boot_id or "")[:8]),
        ("Check", _how(report)),
        ("Boot gate", gate.cell if gate else ""),
        ("Probe", told(report.probe_version)),
    ]
    return [(name, value) for name, value in found if value and value != UNKNOWN]


def _names(report: GpuReport) -> str:
    names = sorted({gpu.name for gpu in report.gpus if gpu.name})
    return f"{len(report.gpus)} x {', '.join(names)}" if names else ""


def _pair(kernel: str | None, user: str | None) -> str:
    if kernel and user and kernel != user:
        return f"kernel {kernel}, user space {user}"
    return kernel or user or UNKNOWN


def _how(report: GpuReport) -> str:
    took = f" in {number(report.seconds)} s" if report.seconds is not None else ""
    return f"{report.mode}{', beside a running server' if report.beside_server else ''}{took}"


def _tiles(report: GpuReport) -> list[dict[str, str]]:
    """The machine at a glance: the median of each link class, and what comes of many at once."""
    p2p, collectives = report.measurements.p2p, report.measurements.collectives
    tiles = []
    plain = next((named for named in figures.matrices(report) if named.more_is_better), None)
    for kind, name in _CLASSES.items():
        values = _of_class(report, plain, kind) if plain else []
        if values:
            note = f"{number(min(values))} to {number(max(values))}, {len(values)} pairs"
            tiles.append(_tile(name, number(figures.median(values)), "GB/s", note))
    latency = next((named for named in figures.matrices(report) if not named.more_is_better), None)
    if latency is not None:
        note = f"{number(min(latency.known))} to {number(max(latency.known))}"
        tiles.append(
            _tile(
                latency.title.removeprefix("Latency of a ").capitalize(),
                number(figures.median(latency.known)),
                "us",
                note,
            )
        )
    at_once = [row for row in (p2p.concurrent if p2p else []) if row.pattern == "all-to-all"][:1]
    tiles += [
        _tile("All to all", number(row.gb_per_s), "GB/s", f"{len(row.flows)} transfers at once") for row in at_once
    ]
    if collectives is not None and collectives.points:
        last = max(collectives.points, key=lambda point: point.bytes)
        tiles.append(_tile("Allreduce", number(last.busbw), "GB/s", f"bus bandwidth at {drawing.size(last.bytes)}"))
    return tiles


def _tile(label: str, value: str, unit: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "unit": unit, "note": note}


def _of_class(report: GpuReport, named: Named, kind: str) -> list[float]:
    return [
        value
        for src, row in enumerate(named.values)
        for dst, value in enumerate(row)
        if value is not None and report.topology.link_class((src, dst)) == kind
    ]


def _check(check: Check) -> dict[str, Any]:
    shown = check.verdict.replace("-", " ")
    expected = told(check.expected, check.unit)
    if check.basis and expected != UNKNOWN:
        expected += f" ({check.basis})"
    return {
        "id": check.id,
        "title": check.title,
        "css": _VERDICTS[check.verdict],
        "verdict": shown,
        "code": "" if check.code in {"ok", "not-measured"} else check.code,
        "measured": told(check.measured, check.unit),
        "expected": expected,
        "known": check.measured is not None,
        "summary": check.summary,
    }


def _flagged_gpus(report: GpuReport) -> dict[int, str]:
    found: dict[int, str] = {}
    for finding in report.all_findings():
        for gpu in finding.gpus if len(finding.gpus) < max(2, report.count) else []:
            if found.get(gpu) != "bad":
                found[gpu] = _VERDICTS[finding.verdict]
    return found


def _table(named: Named, report: GpuReport) -> Table:
    flags = report.flagged(latency=not named.more_is_better)
    rows = [
        [_cell(named, (src, dst), flags.get((src, dst)), report) for dst in range(len(named.values))]
        for src in range(len(named.values))
    ]
    known, pairs = len(named.known), len(named.values) * (len(named.values) - 1)
    caption = f"{number(min(named.known))} to {number(max(named.known))} {named.unit}"
    caption += f", {known} of {pairs} pairs" if known != pairs else ""
    return Table(named.key.replace("/", "-"), f"{named.title}, {named.unit}", caption, rows)


def _cell(named: Named, pair: Pair, finding: Finding | None, report: GpuReport) -> Cell:
    src, dst = pair
    value = named.values[src][dst]
    if src == dst:
        return Cell("", "self")
    css = _VERDICTS[finding.verdict] if finding else ""
    route = f"{report.name(src)} to {report.name(dst)}, {report.topology.link_class(pair)}"
    if value is None:
        return Cell(UNKNOWN, css or "none", f"{route}: not measured")
    slower = figures.asymmetric(named.values, *(pair if named.more_is_better else (dst, src)))
    mark = "!" if finding else "<" if slower else ""
    text = f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
    note = f"{route}: {number(value)} {named.unit}" + (f". {finding.code}: {finding.what}" if finding else "")
    return Cell(text + mark, css or f"h{shade(value, named)}", note)


def shade(value: float, named: Named) -> int:
    """From 0 (the worst there is) to the highest shade; all the same where values differ by noise only."""
    low, high = min(named.known), max(named.known)
    if high <= low * 1.05:
        return SHADES - 1
    place = (value - low) / (high - low)
    return min(SHADES - 1, int((place if named.more_is_better else 1 - place) * SHADES))


def _data(report: GpuReport) -> dict[str, Any] | None:
    """What was compared byte by byte, in words; None when nothing was."""
    p2p = report.measurements.p2p
    if p2p is None or not p2p.data:
        return None
    wrong = [row for row in p2p.data if not row.ok]
    return {
        "transfers": f"{len(p2p.data):,}",
        "pairs": len({(row.src, row.dst) for row in p2p.data}),
        "bytes": drawing.size(sum(row.bytes for row in p2p.data)),
        "kinds": ", ".join(dict.fromkeys(f"{row.engine} {row.op}".strip() for row in p2p.data)),
        "wrong": [
            [
                f"{report.name(row.src)} to {report.name(row.dst)}",
                f"{row.engine} {row.op}",
                f"{row.wrong:,}",
                told(row.first),
                row.kind or UNKNOWN,
                {True: "yes", False: "no", None: UNKNOWN}[row.source_intact],
            ]
            for row in wrong
        ],
    }


def _concurrent(report: GpuReport) -> dict[str, list[list[str]]]:
    """Every pattern once with its lowest and highest sum, and each arrangement of it."""
    rows = report.measurements.p2p.concurrent if report.measurements.p2p else []
    kinds = list(dict.fromkeys((row.pattern, row.op) for row in rows))
    grouped = [[row for row in rows if (row.pattern, row.op) == kind] for kind in kinds]
    return {"patterns": [_pattern(group) for group in grouped], "all": [_arrangement(row) for row in rows]}


def _pattern(rows: list[Concurrent]) -> list[str]:
    known = [row for row in rows if row.gb_per_s is not None]
    lowest = min(known, key=lambda row: row.gb_per_s or 0.0) if known else rows[0]
    highest = max((row.gb_per_s for row in known if row.gb_per_s is not None), default=None)
    wrong = sum(row.verified is False for row in rows)
    data = f"wrong in {wrong}" if wrong else "right" if all(row.verified for row in rows) else "not compared"
    count = f"{len(rows)} x {_flows(len(lowest.flows))}"
    return [rows[0].pattern, rows[0].op, count, told(lowest.gb_per_s), told(highest), data, _routes(lowest)]


def _arrangement(row: Concurrent) -> list[str]:
    flows = [value for value in row.flow_gb_per_s if value is not None]
    spread = f"{number(min(flows))} to {number(max(flows))}" if flows else UNKNOWN
    data = {True: "right", False: "wrong", None: "not compared"}[row.verified]
    return [row.pattern, row.op, told(row.gb_per_s), spread, data, _routes(row)]


def _flows(count: int) -> str:
    return f"{count} transfer{'' if count == 1 else 's'}"


def _routes(row: Concurrent) -> str:
    routes = ", ".join(f"{src}\u2192{dst}" for src, dst in row.flows[:8])
    return routes + (" \u2026" if len(row.flows) > 8 else "")


def _link(link: Link, report: GpuReport) -> list[str]:
    gpu = next((gpu for gpu in report.gpus if gpu.index == link.gpu), None)
    gen_max = min((gen for gen in (link.gen_gpu_max, link.gen_host_max) if gen is not None), default=None)
    nvlink = link.nvlink
    return [
        f"GPU {link.gpu}",
        link.bus_id or (gpu.bus_id if gpu else UNKNOWN),
        f"Gen{told(link.gen_load)} of {told(gen_max)}",
        f"x{told(link.width_load)} of {told(link.width_max)}",
        told(link.idle_gen),
        _grown(link.replays),
        _aer(link),
        told(link.bar1_total // _GIB, "GiB") if link.bar1_total is not None else UNKNOWN,
        f"{nvlink.active} links" if nvlink is not None and nvlink.active else UNKNOWN,
    ]


def _grown(counter: list[int | None] | None) -> str:
    if not counter or len(counter) < 2 or counter[0] is None or counter[1] is None:
        return UNKNOWN
    return f"{counter[1]:,}" if counter[0] == counter[1] else f"{counter[1]:,} (+{counter[1] - counter[0]:,})"


def _aer(link: Link) -> str:
    """Errors of all ports on the way, with what came while it was measured; a dash where no port counts them."""
    pairs = [value for port in link.ports for value in (port.aer or {}).values() if value and None not in value]
    if not pairs:
        return UNKNOWN
    before, after = (sum(pair[i] or 0 for pair in pairs) for i in (0, 1))
    return _grown([before, after])


def _health(report: GpuReport) -> list[list[str]]:
    memory = {row.gpu: row.gb_per_s for row in (report.measurements.p2p.memory if report.measurements.p2p else [])}
    return [
        [
            f"GPU {row.gpu}",
            told(row.ecc_uncorrected),
            row.recovery_action or UNKNOWN,
            {True: "pending", False: "none", None: UNKNOWN}[row.remapped_pending],
            told(row.processes),
            told(round(row.memory_used / _GIB, 1), "GiB") if row.memory_used is not None else UNKNOWN,
            told(memory.get(row.gpu), "GB/s"),
        ]
        for row in report.measurements.health
    ]


def _deltas(compared: Comparison | None) -> list[dict[str, Any]]:
    """The figures that are worse than noise explains, and the links' means; the worst first."""
    if compared is None or not compared.fits:
        return []
    rows = [*compared.links, *(delta for delta in compared.worse if delta not in compared.links)]
    shown = [
        {
            "key": delta.name,
            "then": number(delta.then),
            "now": number(delta.now),
            "change": f"{100 * delta.change:+.1f} %",
            "allowed": f"{100 * delta.allowed:.1f} %",
            "worse": delta.worse,
        }
        for delta in rows
    ]
    return sorted(shown, key=lambda row: not row["worse"])[:60]


def _changes(report: GpuReport, compared: Comparison | None) -> Table | None:
    if compared is None or not compared.fits:
        return None
    key = next((named.key for named in figures.matrices(report)), "")
    values = compare.changes(report, compared, key) if key else []
    worse = compare.worse_pairs(compared)
    rows = []
    for src, row in enumerate(values):
        cells = []
        for dst, value in enumerate(row):
            css = "self" if src == dst else "none" if value is None else ""
            if value is not None and (src, dst) in worse:
                css = "weak"
            cells.append(Cell("" if src == dst else UNKNOWN if value is None else f"{value:+.1f}", css))
        rows.append(cells)
    if not any(cell.text not in {"", UNKNOWN} for row in rows for cell in row):
        return None
    title = next(named.title for named in figures.matrices(report) if named.key == key)
    return Table("changes", f"Change of {title[0].lower()}{title[1:]}, percent", "now against the baseline", rows)


def _surroundings(report: GpuReport) -> list[tuple[str, str]]:
    host = report.host_facts or {}
    iommu, driver = host.get("iommu") or {}, host.get("driver") or {}
    ports = [port for port in host.get("ports") or [] if isinstance(port, dict)]
    redirecting = [port for port in ports if ((port.get("acs") or {}).get("ctl") or 0) & 0x2C]
    known = [port for port in ports if port.get("acs") is not None]
    found = [
        ("IOMMU", f"{iommu.get('mode', '')}{', ' + str(iommu['evidence']) if iommu.get('evidence') else ''}"),
        ("ACS", f"redirects on {len(redirecting)} of {len(known)} ports" if known else ""),
        ("HMM", {True: "on", False: "off"}.get(bool(host["hmm"]), "") if host.get("hmm") is not None else ""),
        ("Driver", f"{driver.get('flavour', '')} {driver.get('version', '')}".strip()),
        ("Kernel command line", str(host.get("cmdline") or "")),
        ("Kernel log", "\n".join(str(line) for line in (host.get("dmesg") or [])[-20:])),
    ]
    return [(name, value) for name, value in found if value]
