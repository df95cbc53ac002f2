# SPDX-License-Identifier: Apache-2.0
"""Outputs of other tools, recognised by their content: nvidia-smi, lspci, numactl, lscpu, nvbandwidth and more."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.topology.foreign import bandwidth, host, lspci, smi_query, smi_topo
from rackwell.topology.foreign.results import Result

__all__ = ["Found", "Saved", "find", "read"]

MOST_BYTES = 64 << 20
"""Larger files are no output of such a tool."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What a file holds; no results when nothing in it is known."""

    file: Path
    results: list[Result]


@dataclasses.dataclass(frozen=True)
class Saved:
    """The files of one machine: those of one directory, or those that were named together."""

    place: str
    files: list[Found]

    @property
    def results(self) -> list[Result]:
        """Everything in them."""
        return [result for file in self.files for result in file.results]


def find(text: str) -> list[Result]:
    """Everything in `text` that a parser knows; a file may hold the outputs of several commands."""
    return [
        *smi_topo.find(text),
        *smi_query.find(text),
        *lspci.find(text),
        *host.find_numa(text),
        *host.find_cpus(text),
        *host.find_cmdline(text),
        *host.find_driver(text),
        *bandwidth.find(text),
    ]


def read(places: Iterable[Path]) -> list[Saved]:
    """Read saved outputs.

    Args:
        places: files, which belong to one machine together; and directories, of which each (and each below it) is one.

    Raises:
        RackwellError: a place is not there or cannot be read (exit 2).
    """
    together: list[Found] = []
    machines = []
    for place in places:
        try:
            if not place.is_dir():
                together.append(_file(place))
                continue
            for folder in sorted({path.parent for path in place.rglob("*") if path.is_file()}):
                files = [_file(path) for path in sorted(folder.iterdir()) if path.is_file()]
                machines.append(Saved(str(folder), files))
        except OSError as error:
            raise RackwellError(
                Problem("file-unreadable", "the file cannot be read", str(place), error.strerror or str(error)),
                ExitCode.INVALID,
            ) from None
    first = [Saved(", ".join(str(found.file) for found in together), together)] if together else []
    return [*first, *machines]


def _file(path: Path) -> Found:
    if path.stat().st_size > MOST_BYTES:
        return Found(path, [])
    return Found(path, find(path.read_text(encoding="utf-8", errors="replace")))
