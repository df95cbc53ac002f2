# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
import tinywheels
import yaml
from packaging.version import Version

from rackwell.build.catalogue import entry as entries
from rackwell.build.catalogue.flags import satisfied, told
from rackwell.build.catalogue.meta import load_patch
from rackwell.build.catalogue.ranges import VersionRange
from rackwell.errors import ExitCode, Problem, RackwellError

GOOD = """\
name: sglang/example
project: sglang
summary: an example
author: {who: somebody, words: "I changed a line."}
applies_to:
  "0.5.9": 0.5.9.patch
  ">=0.5.10,<0.5.13": 0.5.10.patch
upstream_since: "0.5.13"
upstream_proof:
  - {versions: ">=0.5.13,<0.6", file: sglang/runner.py, lines: [line twenty-one]}
needs_flags:
  - versions: ">=0.5.9,<0.5.11"
    flags: {old-flag: true}
  - {versions: ">=0.5.11,<0.5.13", flags: {new-flag: [auto, fast]}}
touches_code_path: {">=0.5.9,<0.5.11": false, ">=0.5.11,<0.5.13": true}
evidence: [read, tried]
measured:
  - {setup: here, result: nothing, caveat: at all}
risk: none
status: neutral
"""


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("0.5.9", ["0.5.9", "0.5.9.0"], ["0.5.9.post1", "0.5.9rc1", "0.5.10"]),
        (">=0.5.10,<0.5.13", ["0.5.10", "0.5.10.post1", "0.5.12.post1", "0.5.13rc1"], ["0.5.9", "0.5.13", "0.5.10rc1"]),
        (" >= 0.5.10 , < 0.5.13 ", ["0.5.11"], ["0.5.13.post1"]),
    ],
)
def test_ranges(text: str, inside: list[str], outside: list[str]) -> None:
    found = VersionRange.parse(text)
    assert all(version in found for version in inside)
    assert not any(version in found for version in outside)
    assert VersionRange.parse(str(found)) == found


@pytest.mark.parametrize("text", ["", "x", ">=0.5.9", "<0.5.9", ">=0.5.9,<=0.6", ">=0.6,<0.5", ">=0.5,<0.5", "~=0.5"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be one version|holds no version"):
        VersionRange.parse(text)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("0.5.9", "0.5.9", True),
        ("0.5.9", "0.5.10", False),
        ("0.5.9", ">=0.5.9,<0.6", True),
        (">=0.5.9,<0.6", ">=0.6,<0.7", False),
        (">=0.5.9,<0.6", ">=0.5.12,<0.7", True),
    ],
)
def test_overlaps(one: str, other: str, expected: bool) -> None:
    first, second = VersionRange.parse(one), VersionRange.parse(other)
    assert first.overlaps(second) is second.overlaps(first) is expected


def test_reads_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "patch.yml"
    path.write_text(GOOD)
    meta, _ = load_patch(path)
    assert meta.author is not None
    assert meta.author.who == "somebody"
    assert [meta.diff_for(v) for v in ("0.5.9", "0.5.9.post1", "0.5.10", "0.5.12.post1", "0.5.13")] == [
        "0.5.9.patch",
        None,
        "0.5.10.patch",
        "0.5.10.patch",
        None,
    ]
    assert [meta.is_upstream(version) for version in ("0.5.12", "0.5.13", "0.5.13.post1", "0.6")] == [False] + [
        True
    ] * 3
    assert meta.flags_for("0.5.9") == {"old-flag": True}
    assert meta.flags_for("0.5.12") == {"new-flag": ["auto", "fast"]}
    assert meta.flags_for("0.6") == {}
    assert [meta.touches_at(version) for version in ("0.5.10", "0.5.11")] == [False, True]
    assert meta.evidence_list() == ["read", "tried"]


def found(tmp_path: Path, text: str) -> list[Problem]:
    path = tmp_path / "patch.yml"
    path.write_text(text)
    with pytest.raises(RackwellError) as caught:
        load_patch(path)
    assert caught.value.exit_code == ExitCode.INVALID
    return caught.value.problems


@pytest.mark.parametrize(
    ("old", "new", "line", "code"),
    [
        ("risk: none", "risks: none", 19, "unknown-key"),
        ('author: {who: somebody, words: "I changed a line."}', "author: somebody", 4, "wrong-value"),
        (', words: "I changed a line."}', "}", 4, "missing-key"),
        ('">=0.5.10,<0.5.13": 0.5.10', '">=0.5.10": 0.5.10', 7, "wrong-value"),
        ("0.5.10.patch", "../0.5.10.patch", 7, "wrong-value"),
        ('">=0.5.10,<0.5.13": 0.5.10', '">=0.5.9,<0.5.13": 0.5.10', 7, "wrong-value"),
        ('">=0.5.10,<0.5.13": 0.5.10', '">=0.5.10,<0.5.14": 0.5.10', 7, "wrong-value"),
        ('upstream_since: "0.5.13"\n', "", 8, "wrong-value"),
        ("lines: [line twenty-one]", "lines: []", 10, "wrong-value"),
        ("flags: {old-flag: true}", "flag: {old-flag: true}", 13, "unknown-key"),
        ("flags: {old-flag: true}", "flags: {old-flag: 1.5}", 13, "wrong-value"),
        ('">=0.5.11,<0.5.13": true', '">=0.5.10,<0.5.13": true', 15, "wrong-value"),
        ("{setup: here, result: nothing,", "{setup: here,", 18, "missing-key"),
        ("status: neutral", "status: good", 20, "wrong-value"),
        ("risk: none\nstatus: neutral", 'risk: " "\nstatus: harmful', 20, "wrong-value"),
        ("project: sglang", "project: SGLang", 2, "wrong-value"),
    ],
)
def test_says_what_is_wrong_and_where(tmp_path: Path, old: str, new: str, line: int, code: str) -> None:
    assert GOOD.count(old) == 1
    problems = found(tmp_path, GOOD.replace(old, new))
    assert [problem.code for problem in problems] == [code]
    assert problems[0].where == f"{tmp_path / 'patch.yml'}:{line}"
    assert problems[0].what
    assert problems[0].fix


def catalogue(tmp_path: Path, text: str = tinywheels.PATCH_YML) -> Path:
    folder = tmp_path / "patches/sglang/example"
    folder.mkdir(parents=True)
    (folder / "patch.yml").write_text(text)
    (folder / "0.5.9.patch").write_text(tinywheels.PATCH)
    return folder


def test_an_entry_has_all_of_its_diffs(tmp_path: Path) -> None:
    folder = catalogue(tmp_path)
    (folder / "0.5.9.patch").rename(folder / "0.5.8.patch")
    loaded, problems = entries.load_all(tmp_path)
    assert loaded == []
    assert [problem.code for problem in problems] == ["patch-unreadable", "patch-stray"]
    assert problems[0].where == f"{folder / 'patch.yml'}:5"


def test_an_entry_is_called_as_its_place(tmp_path: Path) -> None:
    folder = catalogue(tmp_path, tinywheels.PATCH_YML.replace("sglang/example", "sglang/other"))
    loaded, problems = entries.load_all(tmp_path)
    assert [entry.name for entry in loaded] == ["sglang/example"]
    assert [(problem.code, problem.where) for problem in problems] == [("wrong-value", f"{folder / 'patch.yml'}:1")]


def test_a_diff_that_is_none_has_its_line(tmp_path: Path) -> None:
    folder = catalogue(tmp_path)
    (folder / "0.5.9.patch").write_text(tinywheels.PATCH.replace("@@ -19,5", "@@ -19,6"))
    _, (problem,) = entries.load_all(tmp_path)
    assert problem.code == "patch-malformed"
    assert problem.where.startswith(f"{folder / '0.5.9.patch'}:")


def test_a_patch_is_found_by_its_last_part(tmp_path: Path) -> None:
    catalogue(tmp_path)
    assert entries.find("example", tmp_path).name == entries.find("sglang/example", tmp_path).name == "sglang/example"
    site = tmp_path / "site"
    own = site / "builds/patches/example"
    own.parent.mkdir(parents=True)
    catalogue(tmp_path / "other").rename(own)
    assert entries.find("./patches/example", tmp_path, site).folder == own
    for name, word in (("example", "several patches"), ("exampel", "there is no patch")):
        with pytest.raises(RackwellError) as caught:
            entries.find(name, tmp_path, site)
        assert word in caught.value.problems[0].what
        assert "sglang/example" in caught.value.problems[0].fix


def test_flags_of_a_profile() -> None:
    flags = {"on": True, "off": False, "one": 1, "name": "auto"}
    assert satisfied(flags, "on", True)
    assert not satisfied(flags, "one", True)
    assert not satisfied(flags, "absent", True)
    assert satisfied(flags, "off", False)
    assert satisfied(flags, "absent", False)
    assert not satisfied(flags, "on", False)
    assert satisfied(flags, "name", ["fast", "auto"])
    assert not satisfied(flags, "name", ["fast"])
    assert told("name", ["fast", "auto"]) == "name: fast or auto"
    assert told("on", True) == "on: true"


def test_versions_of_the_shipped_wheels_are_in_order() -> None:
    from rackwell.build.catalogue.wheels import known_wheels

    known = known_wheels(Path(__file__).parents[3] / "catalog")
    for project, wheels in known.wheels.items():
        assert list(wheels) == sorted(wheels, key=Version)
        assert all(wheel.filename.startswith(f"{project.replace('-', '_')}-{v}-") for v, wheel in wheels.items())


ODD = [
    None,
    True,
    7,
    1.5,
    "",
    " ",
    "x",
    "\u00e9\n",
    [],
    [[]],
    [None],
    {},
    {"x": None},
    {1: 2},
    {"0.5.9": {}},
    [{"versions": 1}],
]


@pytest.mark.parametrize("key", sorted(yaml.safe_load(GOOD)))
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_no_value_ends_in_anything_but_a_problem_with_its_line(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "patch.yml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(GOOD), key: value}, sort_keys=False))
    caught: RackwellError | None = None
    try:
        meta, _ = load_patch(path)
    except RackwellError as error:
        caught = error
    if caught is not None:
        assert caught.exit_code == ExitCode.INVALID
        assert all(p.where.startswith(f"{path}:") and p.what and p.fix for p in caught.problems), caught.problems
        return
    for version in ("0.5.9", "0.6"):
        meta.flags_for(version)
        meta.touches_at(version)
        meta.is_upstream(version)
    assert meta.model_dump(mode="json")
