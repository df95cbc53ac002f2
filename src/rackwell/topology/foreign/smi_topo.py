# SPDX-License-Identifier: Apache-2.0
"""``nvidia-smi topo -m`` and ``nvidia-smi topo -p2p r|w|n|a|p``.

Both print a header with escapes even into a file. ``-m`` has columns of affinity behind the GPUs, two tabs before the
last of them, and rows and columns of NICs where there are RDMA ones; ``-p2p`` has none of it.
"""

from __future__ import annotations

import re

from rackwell.topology.foreign import text as texts
from rackwell.topology.foreign.results import P2pStatus, TopoMatrix

_DEVICE = re.compile(r"(?:GPU|NIC)\d+")
_ASKED = re.compile(r"topo\s+(?:-p2p|--p2pstatus)\s+([rwnap])\b")
_KINDS = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics", "p": "pcie"}


def find(text: str) -> list[TopoMatrix | P2pStatus]:
    """Every such matrix in `text`, in its order."""
    lines = texts.plain(text).splitlines()
    found: list[TopoMatrix | P2pStatus] = []
    asked = ""
    for number, line in enumerate(lines):
        command = _ASKED.search(line)
        asked = command[1] if command else asked
        head = [cell.strip() for cell in line.split("\t")]
        columns = [cell for cell in head if _DEVICE.fullmatch(cell)]
        if not columns or head[0] or columns[0] != "GPU0":
            continue
        rows = _rows(lines[number + 1 :], len(columns))
        if len(rows) != len(columns):
            continue
        cells = {name: row[: len(columns)] for name, row in rows.items()}
        if "CPU Affinity" in head:
            found.append(_topo(columns, cells, rows))
        else:
            gpus = [name for name in columns if name.startswith("GPU")]
            found.append(P2pStatus(kind=_KINDS.get(asked, ""), matrix=[cells[name][: len(gpus)] for name in gpus]))
            asked = ""
    return found


def _rows(lines: list[str], columns: int) -> dict[str, list[str]]:
    """Name -> cells of the rows that follow a header."""
    rows: dict[str, list[str]] = {}
    for line in lines:
        name, *cells = [cell.strip() for cell in line.strip("\n").split("\t")]
        if not _DEVICE.fullmatch(name) or len(cells) < columns:
            break
        rows[name] = cells
    return rows


def _topo(columns: list[str], cells: dict[str, list[str]], rows: dict[str, list[str]]) -> TopoMatrix:
    gpus = [name for name in columns if name.startswith("GPU")]
    behind = {name: [cell for cell in rows[name][len(columns) :] if cell] for name in gpus}
    return TopoMatrix(
        matrix=[[cells[row][columns.index(column)] for column in gpus] for row in gpus],
        cpus=[behind[name][0] if behind[name] else "" for name in gpus],
        numa=[texts.whole(behind[name][1]) if len(behind[name]) > 1 else None for name in gpus],
        nics={name: cells[name][: len(gpus)] for name in columns if name.startswith("NIC")},
    )
