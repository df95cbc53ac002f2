# SPDX-License-Identifier: Apache-2.0
"""A matrix of GPUs for the terminal: numbers first, colour on top, so that a pipe and a colour-blind eye lose nothing.

A mark stands behind each number that needs one: ``!`` a finding names this pair, ``<`` this direction is more than a
tenth slower than the way back. Lines are drawn between sockets. 8 GPUs take 56 columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rackwell.topology import figures
from rackwell.topology.figures import Named
from rackwell.topology.model import Pair
from rackwell.topology.report import GpuReport, short

if TYPE_CHECKING:
    from rich.text import Text

_NONE, _SELF = "-", "."
# from little to much, dark enough for white text and told apart in shades of grey as well
_RAMP = ("#3b2f63", "#39477a", "#2f5f80", "#23757c", "#2a8a6c", "#4b9a4f")
_BAD, _WEAK = "bold white on #b02a24", "bold black on #e0a92e"


def heat(named: Named, report: GpuReport, flags: Mapping[Pair, str] | None = None) -> Text:
    """The matrix as text with colours.

    Args:
        flags: pair -> verdict (``fail`` or ``degraded``) of the finding that names it; else the report's own findings.
    """
    from rich.text import Text

    if flags is None:
        flags = {pair: finding.verdict for pair, finding in report.flagged(latency=not named.more_is_better).items()}
    count = len(named.values)
    cuts = borders(report)
    width = _width(named, count)
    label = max(6, len(str(count)) + 5)
    out = Text(f"{named.title}, {named.unit}\n", style="bold")
    out.append("row sends, column receives\n", style="dim")
    out.append(" " * label)
    for column in range(count):
        out.append("|" if column in cuts else "", style="dim")
        out.append(f"{column:>{width - 1}} ", style="dim")
    out.append("\n")
    for row in range(count):
        if row in cuts:
            out.append(_rule(label, width, count, cuts), style="dim")
        out.append(f"GPU {row}".ljust(label), style="dim")
        for column in range(count):
            out.append("|" if column in cuts else "", style="dim")
            cell, style = _cell(named, (row, column), flags, width)
            out.append(cell, style=style)
        out.append("\n")
    out.append(_legend(named, flags), style="dim")
    return out


def borders(report: GpuReport) -> set[int]:
    """The indices of GPUs before which another socket begins, where the order by bus id keeps sockets together."""
    socket = {
        gpu: number
        for number, each in enumerate(report.topology.sockets)
        for root in each.roots
        for gpu in [*root.gpus, *(gpu for switch in root.switches for gpu in switch.gpus)]
    }
    order = [socket.get(index) for index in range(report.count)]
    cuts = {i for i in range(1, len(order)) if order[i] != order[i - 1]}
    return cuts if len(cuts) < len(set(order)) else set()


def _width(named: Named, count: int) -> int:
    """Of a cell, with its mark; so many columns that 80 are enough for 12 GPUs."""
    longest = max((len(_number(value, count)) for value in named.known), default=1)
    return max(5 if count <= 12 else 4, longest + 2)


def _number(value: float, count: int) -> str:
    if count > 12:
        return f"{value:.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _cell(named: Named, pair: Pair, flags: Mapping[Pair, str], width: int) -> tuple[str, str]:
    value = named.values[pair[0]][pair[1]]
    verdict = flags.get(pair, "")
    if pair[0] == pair[1]:
        return f"{_SELF:>{width - 1}} ", "dim"
    if value is None:
        mark = "!" if verdict else " "
        return f"{_NONE:>{width - 1}}{mark}", _BAD if verdict == "fail" else "dim"
    mark = "!" if verdict else "<" if _slower(named, pair) else " "
    text = f"{_number(value, len(named.values)):>{width - 1}}{mark}"
    if verdict:
        return text, _BAD if verdict == "fail" else _WEAK
    return text, f"white on {_shade(value, named)}"


def _slower(named: Named, pair: Pair) -> bool:
    """Whether this direction is the worse one of the two."""
    if named.unit == "%":
        return False  # a change has no way back to be held against
    src, dst = pair if named.more_is_better else (pair[1], pair[0])
    return figures.asymmetric(named.values, src, dst)


def _shade(value: float, named: Named) -> str:
    highest, lowest = max(named.known), min(named.known)
    if highest <= 0 or highest == lowest:
        return _RAMP[-1]
    place = (value - lowest) / (highest - lowest)
    place = place if named.more_is_better else 1 - place
    # what differs by noise only gets one colour
    place = 1.0 if highest / max(lowest, 1e-9) < 1.05 else place
    return _RAMP[min(len(_RAMP) - 1, math.floor(place * len(_RAMP)))]


def _rule(label: int, width: int, count: int, cuts: set[int]) -> str:
    line = "".join(("+" if column in cuts else "") + "-" * width for column in range(count))
    return " " * label + line + "\n"


def _legend(named: Named, flags: Mapping[Pair, str]) -> str:
    count = len(named.values)
    pairs = [(s, d) for s in range(count) for d in range(count) if s != d]
    known = sum(named.values[s][d] is not None for s, d in pairs)
    parts = [f"{min(named.known):.4g} to {max(named.known):.4g} {named.unit}, {known} of {len(pairs)} pairs"]
    if any(pair in flags for pair in pairs):
        parts.append("! see the findings")
    if any(pair not in flags and _slower(named, pair) for pair in pairs):
        parts.append("< slower than the way back")
    return "; ".join(parts) + "\n"


def tree(report: GpuReport) -> str:
    """Sockets, roots, switches and GPUs as an indented text."""
    lines: list[str] = []
    of = {gpu.index: gpu for gpu in report.gpus}
    for socket in report.topology.sockets:
        lines.append("socket ?" if socket.numa is None else f"socket {socket.numa}")
        for root in socket.roots:
            lines.append(f"  root port {short(root.root)}" if root.root else "  no root port to be seen")
            for switch in root.switches:
                lines.append(f"    switch {short(switch.switch)}")
                lines += _gpus(switch.gpus, of, 6)
            lines += _gpus(root.gpus, of, 4)
    return "\n".join(lines)


def _gpus(indices: Sequence[int], of: Mapping[int, object], indent: int) -> Iterable[str]:
    for index in indices:
        gpu = of.get(index)
        bus, name, minor = (getattr(gpu, key, None) for key in ("bus_id", "name", "minor"))
        node = "" if minor is None else f", /dev/nvidia{minor}"
        yield f"{' ' * indent}GPU {index}  {short(bus or '?')}  {name or ''}{node}".rstrip()
