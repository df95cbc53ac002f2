# SPDX-License-Identifier: Apache-2.0
"""The shipped catalogue against the lines of real wheels that it is about (see excerpts.py), and the page's table."""

from __future__ import annotations

from pathlib import Path

import excerpts
import pytest

from rackwell.build.catalogue.entry import Entry, load_all
from rackwell.build.catalogue.judge import Verdict, judge
from rackwell.build.catalogue.meta import load_patch
from rackwell.build.catalogue.table import Table
from rackwell.build.catalogue.wheels import Held, known_wheels

CATALOG = excerpts.CATALOG
PAGE = CATALOG.parent / "docs" / "patches.md"
KNOWN = known_wheels(CATALOG)
EXCERPTS = excerpts.load()


def entries(project: str) -> list[Entry]:
    found, problems = load_all(CATALOG)
    assert problems == []
    return [entry for entry in found if entry.meta.project == project]


def table(project: str) -> Table:
    wheels = [
        Held(project, version, cut["wheel"], cut["sha256"], Path(cut["wheel"]), True)
        for version, cut in ((version, EXCERPTS[project][version]) for version in KNOWN.shown[project])
    ]
    rows = [
        (entry, tuple(judge(entry, w.version, excerpts.reader(EXCERPTS[project][w.version])) for w in wheels))
        for entry in entries(project)
    ]
    return Table(project, tuple(wheels), tuple(rows))


@pytest.mark.parametrize("project", list(KNOWN.shown))
def test_every_patch_does_what_it_says(project: str) -> None:
    made = table(project)
    assert made.rows
    assert made.contradictions() == []


@pytest.mark.parametrize("project", list(KNOWN.shown))
def test_the_table_of_the_page_is_what_comes_out(project: str) -> None:
    assert table(project).markdown() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("project", list(KNOWN.shown))
def test_the_excerpts_are_of_the_wheels_that_the_catalogue_knows(project: str) -> None:
    assert set(EXCERPTS[project]) == set(KNOWN.shown[project])
    for version, cut in EXCERPTS[project].items():
        wheel = KNOWN.wheels[project][version]
        assert (cut["wheel"], cut["sha256"]) == (wheel.filename, wheel.sha256)


@pytest.mark.parametrize("project", list(KNOWN.shown))
def test_each_patch_is_held_against_a_version_of_every_diff(project: str) -> None:
    """A range of which no version is tried would be a claim that nobody looks at; wheels.yml is what `--all` tries."""
    for entry in entries(project):
        tried = {entry.meta.diff_for(version) for version in KNOWN.wheels[project]}
        assert set(entry.diffs) <= tried


def test_a_change_of_one_line_of_a_source_is_noticed() -> None:
    read = excerpts.reader(EXCERPTS["sglang"]["0.5.9"])
    (entry,) = [entry for entry in entries("sglang") if entry.name == "sglang/flashinfer-autotune-cutlass"]

    def changed(path: str) -> bytes | None:
        content = read(path)
        return content and content.replace(b'"flashinfer_mxfp4",', b'"flashinfer_mxfp4", "another",')

    assert judge(entry, "0.5.9", read).verdict is Verdict.APPLIES
    cell = judge(entry, "0.5.9", changed)
    assert cell.verdict is Verdict.DOES_NOT_APPLY
    assert cell.contradiction.startswith("it says that it applies to 0.5.9, and it does not: ")
    assert "line 1840" in cell.reason


def test_a_proof_that_is_gone_is_noticed() -> None:
    read = excerpts.reader(EXCERPTS["sglang"]["0.5.23"])
    (entry,) = [entry for entry in entries("sglang") if entry.name == "sglang/flashinfer-autotune-cutlass"]
    cell = judge(entry, "0.5.23", lambda path: (read(path) or b"").replace(b"flashinfer_cutlass", b"gone") or None)
    assert cell.contradiction.startswith("it says that 0.5.23 has the change, and it does not: ")


def test_the_truth_about_the_five() -> None:
    metas = {meta.name: meta for meta, _ in (load_patch(path) for path in CATALOG.glob("patches/*/*/patch.yml"))}
    autotune = metas["sglang/flashinfer-autotune-cutlass"]
    assert (autotune.status, autotune.upstream_since) == ("recommended", "0.5.13")
    guards = metas["flashinfer-python/trtllm-allreduce-guards-sm120"]
    assert (guards.status, guards.touches_code_path, guards.upstream_since) == ("neutral", False, "0.6.17")
    jit = metas["flashinfer-python/trtllm-comm-jit-sm120"]
    assert (jit.status, jit.upstream_since) == ("harmful", "0.6.17")
    gate, auto = metas["sglang/allreduce-fusion-sm120"], metas["sglang/allreduce-fusion-auto-sm120"]
    assert (gate.status, auto.status) == ("harmful", "harmful")
    assert gate.upstream_since is None
    assert auto.upstream_since is None
    assert (auto.touches_at("0.5.9"), auto.touches_at("0.5.10.post1"), auto.touches_at("0.5.11")) == (
        False,
        False,
        True,
    )
    assert gate.flags_for("0.5.13.post1") == {"enable-flashinfer-allreduce-fusion": True}
    assert gate.flags_for("0.5.14") == {"flashinfer-allreduce-fusion-backend": ["auto", "trtllm"]}
    for meta in metas.values():
        assert meta.author is not None
        assert meta.evidence_list()
        if meta.status == "harmful":
            assert any("236" in measured.result for measured in meta.measured)


def test_what_a_patch_needs_is_in_the_catalogue() -> None:
    found, _ = load_all(CATALOG)
    names = {entry.name for entry in found}
    for entry in found:
        assert set(entry.meta.needs_patches) <= names - {entry.name}
