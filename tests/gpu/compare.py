# SPDX-License-Identifier: Apache-2.0
"""The probe's figures inside and outside a container, beside those of other tools on the same machine.

A row is one figure: ``{"what", "pair", "unit", "inside", "outside", "peer", "peer_name", "to_peer", "to_outside",
"limit"}``; ``to_peer`` and ``to_outside`` are differences as fractions of the other's figure, ``limit`` what issue and
docs promise of them.
"""

from __future__ import annotations

import statistics
from typing import Any

Key = tuple[str, int, int]

#: of the probe's figure against the peer's
LIMITS = {"bandwidth": 0.01, "latency": 0.05, "concurrent": 0.01, "allreduce": 0.03}

#: nvbandwidth's test -> the probe's engine and operation, and whether its row is the source of the bytes.
#: Read in its source: a read is started by the row's GPU, which pulls from the column's, whatever its arrow says.
_COPIES = {
    "device_to_device_memcpy_read_ce": ("copy", "read", 1, False),
    "device_to_device_memcpy_write_ce": ("copy", "write", 1, True),
    "device_to_device_bidirectional_memcpy_read_ce": ("copy", "read", 2, False),
    "device_to_device_bidirectional_memcpy_write_ce": ("copy", "write", 2, True),
    "device_to_device_memcpy_read_sm": ("kernel", "read", 1, False),
    "device_to_device_memcpy_write_sm": ("kernel", "write", 1, True),
    "device_to_device_bidirectional_memcpy_read_sm": ("kernel", "read", 2, False),
    "device_to_device_bidirectional_memcpy_write_sm": ("kernel", "write", 2, True),
}
ALLREDUCE_PEERS = ("nccl_tests", "torch")
_PATTERNS = {"all_to_one_write_ce": "all-to-one", "one_to_all_write_ce": "one-to-all"}


def compare(inside: dict[str, Any], outside: dict[str, Any], peers: dict[str, Any]) -> list[dict[str, Any]]:
    """All figures that at least two of the three have. Reports are rackwell.gpu/1, peers rackwell.gpu_peers/1."""
    ours, without = figures(inside), figures(outside)
    theirs = peer_figures(peers)
    rows = []
    for key, value in sorted(ours.items()):
        peer = theirs.get(key)
        other = without.get(key)
        if peer is None and other is None:
            continue
        what, src, dst = key
        kind = what.split()[0]
        rows.append(
            {
                "what": what,
                "pair": [src, dst],
                "unit": {"latency": "us", "allreduce": "GB/s"}.get(kind, "GB/s"),
                "inside": value,
                "outside": other,
                "peer": peer,
                "to_peer": _difference(value, peer),
                "to_outside": _difference(value, other),
                "limit": LIMITS[kind],
            }
        )
    return rows


def figures(report: dict[str, Any]) -> dict[Key, float]:
    """What a report of the probe measured."""
    measured = report.get("measurements") or {}
    p2p = measured.get("p2p") or {}
    found: dict[Key, float] = {}
    for entry in p2p.get("bandwidth") or []:
        name = f"bandwidth {entry['engine']} {entry['op']} {entry['ways']}-way"
        found[name, entry["src"], entry["dst"]] = entry["gb_per_s"]
    for entry in p2p.get("latency") or []:
        if entry["kind"] == "remote-read":
            found["latency remote-read", entry["src"], entry["dst"]] = entry["us"]
    patterns: dict[Key, list[float]] = {}
    for entry in p2p.get("concurrent") or []:
        if entry["pattern"] not in _PATTERNS.values() or entry["op"] != "write":
            continue
        one = entry["flows"][0][1 if entry["pattern"] == "all-to-one" else 0]
        patterns.setdefault((f"concurrent {entry['pattern']}", one, one), []).append(entry["gb_per_s"])
    found |= {key: statistics.median(values) for key, values in patterns.items()}
    for point in (measured.get("collectives") or {}).get("points") or []:
        if point.get("dtype", "float32") == "float32" and not point.get("in_place"):
            for peer in ALLREDUCE_PEERS:
                found[_allreduce(point, peer), -1, -1] = point["busbw"]
    return found


def peer_figures(peers: dict[str, Any]) -> dict[Key, float]:
    """The peers' figures under the probe's names; of repeated tests the median."""
    samples: dict[Key, list[float]] = {}
    for run in peers.get("nvbandwidth") or []:
        for key, value in _nvbandwidth(run):
            samples.setdefault(key, []).append(value)
    found = {key: round(statistics.median(values), 4) for key, values in samples.items()}
    for peer in ALLREDUCE_PEERS:
        for point in (peers.get(peer) or {}).get("points") or []:
            found[_allreduce(point, peer), -1, -1] = point["busbw"]
    return found


def _allreduce(point: dict[str, Any], peer: str) -> str:
    return f"allreduce busbw {point['bytes']:>9} B, {peer}"


def _nvbandwidth(run: dict[str, Any]) -> list[tuple[Key, float]]:
    matrix = run.get("matrix") or []
    if run["test"] in _COPIES:
        engine, op, ways, row_is_source = _COPIES[run["test"]]
        name = f"bandwidth {engine} {op} {ways}-way"
        if matrix:  # both ways prints three matrices below each other: each direction's, and the sum
            matrix = matrix[: len(matrix[0])]
    elif run["test"] == "device_to_device_latency_sm":
        name, row_is_source = "latency remote-read", False
        matrix = [[None if cell is None else cell / 1e3 for cell in row] for row in matrix]
    elif run["test"] in _PATTERNS:
        name = f"concurrent {_PATTERNS[run['test']]}"
        return [((name, gpu, gpu), value) for gpu, value in enumerate(matrix[0] if matrix else []) if value is not None]
    else:
        return []
    return [
        ((name, *((r, c) if row_is_source else (c, r))), value)
        for r, row in enumerate(matrix)
        for c, value in enumerate(row)
        if value is not None
    ]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as text; what is beyond its limit ends with an exclamation mark."""
    lines = [f"{'what':40} {'pair':8} {'inside':>9} {'outside':>9} {'peer':>9} {'to peer':>9} {'to outside':>10}"]
    for row in rows:
        pair = "" if row["pair"][0] < 0 else f"{row['pair'][0]} -> {row['pair'][1]}"
        beyond = any(row[key] is not None and abs(row[key]) > row["limit"] for key in ("to_peer", "to_outside"))
        lines.append(
            f"{row['what']:40} {pair:8} {_cell(row['inside'])} {_cell(row['outside'])} {_cell(row['peer'])} "
            f"{_percent(row['to_peer']):>9} {_percent(row['to_outside']):>10}{' !' if beyond else ''}"
        )
    return lines


def _difference(value: float, other: float | None) -> float | None:
    return None if not other else round(value / other - 1, 5)


def _cell(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.3f' if value < 10 else '.1f'):>9}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:+.2f} %"
