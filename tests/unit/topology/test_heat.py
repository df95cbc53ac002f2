# SPDX-License-Identifier: Apache-2.0
"""Matrices: what they hold, and how they look in a terminal, with and without colour."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rackwell.topology import figures, heat
from rackwell.topology.report import GpuReport

from . import samples
from .conftest import report


def drawn(found: GpuReport, number: int = 0, **options: object) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=80, **options)  # type: ignore[arg-type]
    console.print(heat.heat(figures.matrices(found)[number], found))
    return stream.getvalue()


def row(text: str, gpu: int) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"GPU {gpu} "))


@pytest.mark.parametrize("name", sorted(set(samples.ALL) - {"uvm-missing"}))
def test_it_fits_80_columns_and_needs_no_colour(name: str) -> None:
    found = report(name)
    for number in range(len(figures.matrices(found))):
        text = drawn(found, number)
        assert max(map(len, text.splitlines())) <= 80
        assert "\x1b" not in text
        assert len([line for line in text.splitlines() if line.startswith("GPU ")]) == found.count


def test_every_number_stands_where_it_belongs() -> None:
    found = report("healthy")
    cells = row(drawn(found), 2).replace("|", " ").split()[2:]
    named = figures.matrices(found)[0]
    assert cells == ["." if value is None else f"{value:.1f}" for value in named.values[2]]


def test_a_pair_of_a_finding_and_one_that_is_only_asymmetric_are_marked() -> None:
    assert "19.2!" in row(drawn(report("slow-direction")), 1)
    raw = samples.slow_direction()
    raw["findings"] = []
    text = drawn(GpuReport.model_validate(raw))
    assert "19.2<" in row(text, 1)
    assert "<" not in row(text, 6)
    assert "slower than the way back" in text
    assert "slower" not in drawn(report("healthy"))


def test_what_was_not_measured_is_a_dash_and_counted() -> None:
    text = drawn(report("quick"))
    assert "19 of 56 pairs" in text
    assert row(text, 0).count(" - ") >= 4


def test_sockets_are_divided_where_they_meet() -> None:
    assert row(drawn(report("healthy")), 0).index("|") == row(drawn(report("healthy")), 7).index("|")
    assert "|" not in drawn(report("nvlink-pair"))


def test_colour_tells_a_failed_pair_from_a_weak_one() -> None:
    failed = drawn(report("slow-pair"), force_terminal=True, color_system="truecolor")
    weak = drawn(report("slow-direction"), force_terminal=True, color_system="truecolor")
    assert "48;2;176;42;36" in failed
    assert "48;2;176;42;36" not in weak
    assert "48;2;224;169;46" in weak


def test_a_latency_is_better_when_it_is_low() -> None:
    found = report("healthy")
    remote = next(named for named in figures.matrices(found) if named.key == "latency/remote-read")
    assert remote.more_is_better is False
    assert heat._shade(min(remote.known), remote) == heat._RAMP[-1]
    assert heat._shade(max(remote.known), remote) == heat._RAMP[0]


def test_16_gpus_fit_too() -> None:
    raw = samples.healthy()
    pairs = [(s, d) for s in range(16) for d in range(16) if s != d]
    raw["gpus"] = [{"index": i} for i in range(16)]
    raw["topology"] = {}
    raw["measurements"]["p2p"]["bandwidth"] = [
        {"src": s, "dst": d, "engine": "copy", "op": "write", "ways": 1, "gb_per_s": 53.5} for s, d in pairs
    ]
    text = drawn(GpuReport.model_validate(raw))
    assert max(map(len, text.splitlines())) <= 80
    assert row(text, 15).count("54") == 15


def test_the_tree_names_sockets_roots_switches_and_gpus() -> None:
    lines = heat.tree(report("healthy")).splitlines()
    assert lines[0] == "socket 0"
    assert lines[1:4] == [
        "  root port 00:01.1",
        "    switch 01:00.0",
        "      GPU 0  06:00.0  NVIDIA RTX PRO 6000 (sample), /dev/nvidia2",
    ]
    assert sum("GPU" in line for line in lines) == 8
