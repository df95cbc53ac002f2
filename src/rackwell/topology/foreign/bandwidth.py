# SPDX-License-Identifier: Apache-2.0
"""``nvbandwidth -j`` and ``p2pBandwidthLatencyTest``, with every matrix turned so that the row sends.

nvbandwidth tells the direction in its description (``GPU(row) <- GPU(column)``). A bidirectional copy-engine test holds
three matrices below each other: one direction, the other, their sum. p2pBandwidthLatencyTest copies from row to column,
but in its matrix of reads, where the row's GPU pulls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rackwell.topology.foreign import text as texts
from rackwell.topology.foreign.results import Bandwidths, Figures

Matrix = list[list[float | None]]
_TITLE = re.compile(r"^(?P<title>\S.*(?:Bandwidth|Latency).* Matrix \((?P<unit>GB/s|us)\))\s*$")
_HEAD = re.compile(r"^\s+(?:D\\D|GPU|CPU)\s+0\b")
_PARTS = ("one direction", "the other", "both")


def find(text: str) -> list[Bandwidths]:
    """Every such output in `text`."""
    return [*find_nvbandwidth(text), *find_p2p_test(text)]


def find_nvbandwidth(text: str) -> list[Bandwidths]:
    """The JSON of nvbandwidth; what is around it does not matter."""
    start = text.find("{")
    if start < 0 or '"nvbandwidth"' not in text:
        return []
    try:
        document, _ = json.JSONDecoder().raw_decode(text[start:])
    except ValueError:
        return []
    body = document.get("nvbandwidth") if isinstance(document, Mapping) else None
    if not isinstance(body, Mapping):
        return []
    return [
        Bandwidths(
            program="nvbandwidth",
            version=str(body.get("version") or "").removeprefix("v") or None,
            driver_version=str(body.get("Driver Version") or "") or None,
            gpus=[str(gpu) for gpu in body.get("GPU Device list") or []],
            figures=[figures for case in body.get("testcases") or [] for figures in _case(case)],
        )
    ]


def _case(case: Mapping[str, Any]) -> Iterator[Figures]:
    told, name = str(case.get("bandwidth_description") or ""), str(case.get("name") or "")
    unit = "ns" if "(ns)" in told else "GB/s"
    rows: Matrix = [[texts.real(str(cell)) for cell in row] for row in case.get("bandwidth_matrix") or []]
    status = str(case.get("status") or "")
    turned = "GPU(row) <- GPU(column)" in told
    width = len(rows[0]) if rows else 0
    parts = [rows[i : i + width] for i in range(0, len(rows), width)] if width and len(rows) % width == 0 else [rows]
    for number, part in enumerate(parts):
        square = len(part) == width
        matrix = [list(column) for column in zip(*part, strict=True)] if turned and square else part
        title = f"{name}, {_PARTS[number]}" if len(parts) == len(_PARTS) else name
        if unit == "ns":
            matrix = [[None if cell is None else cell / 1e3 for cell in row] for row in matrix]
        yield Figures(
            key=f"{name}/{number}" if len(parts) > 1 else name,
            title=title,
            unit="us" if unit == "ns" else unit,
            matrix=matrix,
            more_is_better=unit != "ns",
            status=status,
        )


def find_p2p_test(text: str) -> list[Bandwidths]:
    """The matrices of p2pBandwidthLatencyTest; of latencies those that the GPU measured."""
    if "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]" not in text and "P2P=Enabled" not in text:
        return []
    lines = texts.plain(text).splitlines()
    found = []
    for number, line in enumerate(lines):
        title = _TITLE.match(line)
        if title is None or number + 1 >= len(lines) or not _HEAD.match(lines[number + 1]):
            continue
        matrix = _rows(lines[number + 2 :])
        if "P2P Reads" in title["title"]:
            matrix = [list(column) for column in zip(*matrix, strict=True)]
        more = title["unit"] != "us"
        # the diagonal is the GPU's own memory
        matrix = [
            [None if row == column else cell for column, cell in enumerate(cells)] for row, cells in enumerate(matrix)
        ]
        found.append(
            Figures(key=title["title"], title=title["title"], unit=title["unit"], matrix=matrix, more_is_better=more)
        )
    devices = re.findall(
        r"^Device: \d+, (.+?), pciBusID: (\w+), pciDeviceID: (\w+), pciDomainID:\s*(\w+)", text, re.MULTILINE
    )
    gpus = [
        f"{name} ({texts.bus_id(f'{domain:0>4}:{bus:0>2}:{device:0>2}.0')})" for name, bus, device, domain in devices
    ]
    return [Bandwidths(program="p2pBandwidthLatencyTest", gpus=gpus, figures=found)] if found else []


def _rows(lines: list[str]) -> Matrix:
    rows: Matrix = []
    for line in lines:
        cells = line.split()
        if not cells or cells[0] != str(len(rows)):
            break
        rows.append([texts.real(cell) for cell in cells[1:]])
    return rows if all(len(row) == len(rows) for row in rows) else []
