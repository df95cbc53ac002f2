# SPDX-License-Identifier: Apache-2.0
"""The few lines of real wheels that the shipped patches are about, so that the table can be made without a network.

``excerpts.json`` holds, for each version that the table shows, the lines around every place that a diff changes or a
proof looks for, at their line numbers; all other lines are left blank. It is made again from the real wheels by

    python tests/unit/build/excerpts.py CACHE

where CACHE is what ``rackwell patches verify --cache CACHE`` has filled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rackwell.build.catalogue.entry import Entry, load_all
from rackwell.build.catalogue.wheels import known_wheels
from rackwell.build.wheelfile import Wheel

FILE = Path(__file__).with_suffix(".json")
CATALOG = Path(__file__).parents[3] / "catalog"
_AROUND = 2


def load() -> dict[str, dict[str, dict[str, Any]]]:
    """Project -> version -> excerpt."""
    data: dict[str, dict[str, dict[str, Any]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return data


def reader(excerpt: dict[str, Any]) -> Callable[[str], bytes | None]:
    """Reads the excerpt as if it were the wheel."""

    def read(path: str) -> bytes | None:
        file = excerpt["files"].get(path)
        if file is None:
            return None
        lines = [""] * file["lines"]
        for start, region in file["regions"]:
            lines[start - 1 : start - 1 + len(region)] = region
        return "".join(f"{line}\n" for line in lines).encode()

    return read


def _make(cache: Path) -> dict[str, dict[str, dict[str, Any]]]:
    known = known_wheels(CATALOG)
    entries, problems = load_all(CATALOG)
    assert not problems
    made: dict[str, dict[str, dict[str, Any]]] = {}
    for project, versions in known.shown.items():
        mine = [entry for entry in entries if entry.meta.project == project]
        for version in versions:
            wheel = known.wheels[project][version]
            with Wheel(cache / "blobs" / "sha256" / wheel.sha256, wheel.filename) as opened:
                files = {path: _cut(opened.read(path), list(_blocks(mine, path))) for path in sorted(_paths(mine))}
            made.setdefault(project, {})[version] = {
                "wheel": wheel.filename,
                "sha256": wheel.sha256,
                "files": {path: cut for path, cut in files.items() if cut is not None},
            }
    return made


def _paths(entries: list[Entry]) -> set[str]:
    paths = {file.path for entry in entries for diff in entry.diffs.values() for file in diff}
    return paths | {proof.file for entry in entries for proof in entry.meta.upstream_proof}


def _blocks(entries: list[Entry], path: str) -> Iterator[list[str]]:
    """Every group of lines that something looks for in `path`."""
    for entry in entries:
        for diff in entry.diffs.values():
            for hunk in (hunk for file in diff if file.path == path for hunk in file.hunks):
                yield from ([line.decode().rstrip("\n") for line in side] for side in (hunk.old, hunk.new))
        yield from (proof.lines for proof in entry.meta.upstream_proof if proof.file == path)


def _cut(content: bytes | None, blocks: list[list[str]]) -> dict[str, Any] | None:
    if content is None:
        return None
    lines = content.decode().splitlines()
    stripped = [line.strip() for line in lines]
    kept: set[int] = set()
    for block in blocks:
        wanted = [line.strip() for line in block]
        for at in range(len(lines)):
            if stripped[at : at + len(wanted)] == wanted:
                kept.update(range(max(at - _AROUND, 0), min(at + len(wanted) + _AROUND, len(lines))))
    regions: list[tuple[int, list[str]]] = []
    for at in sorted(kept):
        if regions and regions[-1][0] - 1 + len(regions[-1][1]) == at:
            regions[-1][1].append(lines[at])
        else:
            regions.append((at + 1, [lines[at]]))
    return {"lines": len(lines), "regions": regions}


if __name__ == "__main__":
    FILE.write_text(json.dumps(_make(Path(sys.argv[1])), indent=1, sort_keys=True) + "\n", encoding="utf-8")
