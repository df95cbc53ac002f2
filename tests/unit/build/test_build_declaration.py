# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tinywheels
from buildsite import Site

import rackwell
from rackwell.build import load_build, patch_requirements
from rackwell.build import series as series_module
from rackwell.build.catalogue.meta import load_patch
from rackwell.build.catalogue.ranges import VersionRange
from rackwell.build.patchfile import parse
from rackwell.build.series import apply_series, find_patches
from rackwell.errors import ExitCode, Problem, RackwellError

GOOD = """\
python: "3.11"
sources:
  sglang: {version: 0.5.9}
patches: [sglang/example]
dependencies: declared
requirements:
  - helper>=1
"""


def problems(site: Site, text: str, name: str = "lab") -> list[Problem]:
    with pytest.raises(RackwellError) as caught:
        find_patches(load_build(site.write(text, name)), site.catalog)
    assert caught.value.exit_code == ExitCode.INVALID
    return caught.value.problems


def test_reads_a_build(site: Site) -> None:
    spec = load_build(site.write(GOOD))
    assert (spec.name, spec.python, spec.dependencies, spec.probe) == ("lab", "3.11", "declared", False)
    assert spec.sources["sglang"].version == "0.5.9"
    assert spec.where("requirements", 0).endswith("builds/lab.yml:7")


@pytest.mark.parametrize(
    ("old", "new", "line", "code"),
    [
        ("dependencies: declared", "dependancies: declared", 5, "unknown-key"),
        ("dependencies: declared", "dependencies: some", 5, "wrong-value"),
        ('python: "3.11"', "python: 3.11", 1, "wrong-value"),
        ('python: "3.11"\n', "", 1, "missing-key"),
        ("version: 0.5.9", "version: 0.6", 3, "wrong-value"),
        ("version: 0.5.9", "version: not-one", 3, "wrong-value"),
        ("version: 0.5.9", "version: 0.5.9, sha256: abc", 3, "wrong-value"),
        ("sglang: {", "SGLang: {", 3, "wrong-value"),
        ("helper>=1", "helper>>1", 7, "wrong-value"),
        ("helper>=1", "helper @ file:///x.whl", 7, "wrong-value"),
        ("helper>=1", "sglang", 7, "given-twice"),
        ("patches: [sglang/example]", "patches: [sglang/example, sglang/example]", 4, "given-twice"),
        ("patches: [sglang/example]", "patches: [sglang/other]", 4, "patch-unknown"),
        ("patches: [sglang/example]", "patches: [./other]", 4, "patch-unknown"),
        ("sglang: {version: 0.5.9}", "flashinfer-python: {version: 0.6.3}", 4, "patch-without-source"),
        ("version: 0.5.9", "version: 0.5.10", 4, "patch-not-for-version"),
    ],
)
def test_says_what_is_wrong_and_where(site: Site, old: str, new: str, line: int, code: str) -> None:
    assert old in GOOD
    found = problems(site, GOOD.replace(old, new))
    assert [problem.code for problem in found] == [code]
    assert found[0].where.endswith(f"builds/lab.yml:{line}")
    assert found[0].what


def test_an_empty_build_is_refused(site: Site) -> None:
    (found,) = problems(site, 'python: "3.11"\n')
    assert "names nothing to install" in found.why


def test_a_name_that_is_no_path_part_is_refused(site: Site) -> None:
    (found,) = problems(site, GOOD, name="Lab 1")
    assert found.code == "wrong-name"


def test_upstream_since_is_refused(site: Site) -> None:
    entry = site.catalog / "patches/sglang/example/patch.yml"
    entry.write_text(tinywheels.PATCH_YML + 'upstream_since: "0.5.13"\n')
    (found,) = problems(site, GOOD.replace("0.5.9", "0.5.13.post1"))
    assert (found.code, found.why) == ("patch-upstream-already", "upstream has it since 0.5.13")


def test_a_patch_by_path(site: Site) -> None:
    shutil.copytree(site.catalog / "patches/sglang/example", site.folder / "builds/patches/mine")
    spec = load_build(site.write(GOOD.replace("sglang/example", "./patches/mine")))
    (found,) = patch_requirements(spec, site.catalog)
    assert (found.name, found.project) == ("./patches/mine", "sglang")
    assert found.needs_flags == {"moe-runner-backend": "flashinfer_cutlass"}
    assert (found.status, found.touches_code_path) == ("recommended", True)
    assert found.where.endswith("lab.yml:4")


def test_a_wrong_key_of_a_patch_has_its_line(site: Site) -> None:
    entry = site.catalog / "patches/sglang/example/patch.yml"
    entry.write_text(tinywheels.PATCH_YML.replace("status:", "state:"))
    (found,) = problems(site, GOOD)
    assert found.code == "unknown-key"
    assert found.where == f"{entry}:8"


@pytest.mark.parametrize("diff", ["../example/0.5.9.patch", "/etc/hostname", "''"])
def test_the_diff_lies_beside_its_patch(site: Site, diff: str) -> None:
    entry = site.catalog / "patches/sglang/example/patch.yml"
    entry.write_text(tinywheels.PATCH_YML.replace("0.5.9.patch", diff))
    (found,) = problems(site, GOOD)
    assert (found.code, found.where) == ("wrong-value", f"{entry}:5")


@pytest.mark.parametrize("name", ["sglang/../../builds", "sglang/" + "x" * 300])
def test_no_name_leads_out_of_the_catalogue(site: Site, name: str) -> None:
    (site.catalog / "builds/patch.yml").write_text(tinywheels.PATCH_YML)
    (found,) = problems(site, GOOD.replace("sglang/example", name))
    assert found.code == "patch-unknown"


def series(site: Site, text: str) -> list[Problem]:
    (site.catalog / "patches/sglang/example/0.5.9.patch").write_text(text)
    patches = find_patches(load_build(site.write(GOOD)), site.catalog)
    files = {name: data.encode() for name, data in tinywheels.ENGINE.items()}
    with pytest.raises(RackwellError) as caught:
        apply_series(patches, "0.5.9", files.get)
    assert caught.value.exit_code == ExitCode.INVALID
    return caught.value.problems


def test_a_patch_that_does_not_apply_is_named_with_file_hunk_and_reason(site: Site) -> None:
    (found,) = series(site, tinywheels.PATCH.replace("-line 21", "-line XXI"))
    assert found.code == "patch-does-not-apply"
    assert found.what == "patch sglang/example does not apply to sglang 0.5.9"
    assert found.where.endswith("0.5.9.patch:3")
    assert found.why.startswith("sglang/runner.py, hunk 1: ")
    assert found.why.endswith("line 21 is 'line 21', the patch expects 'line XXI'")


def test_a_patch_that_applies_only_with_fuzz_is_refused_as_such(site: Site) -> None:
    (found,) = series(site, tinywheels.PATCH.replace(" line 20", " line twenty"))
    assert found.code == "patch-needs-fuzz"
    assert found.what == "patch sglang/example applies only with fuzz to sglang 0.5.9"
    assert "line 20 is 'line 20', the patch expects 'line twenty'" in found.why
    assert found.why.endswith("it would fit at line 19 if 2 lines of context were ignored")


def test_a_patch_that_is_there_already_is_refused(site: Site) -> None:
    swapped = tinywheels.PATCH.replace("-line 21\n+line twenty-one", "-line twenty-one\n+line 21")
    (found,) = series(site, swapped)
    assert found.code == "patch-upstream-already"
    assert "sglang/runner.py" in found.why


def test_a_patch_that_changes_nothing_is_refused(site: Site) -> None:
    (found,) = series(site, tinywheels.PATCH.replace("+line twenty-one", "+line 21"))
    assert found.code == "patch-changes-nothing"


def test_a_patch_cannot_reach_the_metadata(site: Site) -> None:
    (found,) = series(site, tinywheels.PATCH.replace("sglang/runner.py", "sglang-0.5.9.dist-info/METADATA"))
    assert "own metadata" in found.why


def test_a_missing_file_is_said(site: Site) -> None:
    (found,) = series(site, tinywheels.PATCH.replace("sglang/runner.py", "sglang/gone.py"))
    assert found.why == "sglang/gone.py: there is no such file"


def test_patches_build_on_each_other(site: Site) -> None:
    second = site.folder / "builds/second"
    second.mkdir(parents=True)
    (second / "patch.yml").write_text(tinywheels.PATCH_YML.replace("sglang/example", "second"))
    text = tinywheels.PATCH.replace("+line twenty-one", "+line 21b").replace("-line 21\n", "-line twenty-one\n")
    (second / "0.5.9.patch").write_text(text)
    spec = load_build(site.write(GOOD.replace("[sglang/example]", "[sglang/example, ./second]")))
    files = {name: data.encode() for name, data in tinywheels.ENGINE.items()}
    changes = apply_series(find_patches(spec, site.catalog), "0.5.9", files.get)
    assert changes.keys() == {"sglang/runner.py"}
    assert b"line 21b\n" in (changes["sglang/runner.py"] or b"")
    spec = load_build(site.write(GOOD.replace("[sglang/example]", "[./second, sglang/example]")))
    with pytest.raises(RackwellError):
        apply_series(find_patches(spec, site.catalog), "0.5.9", files.get)


CATALOG = Path(rackwell.__file__).parents[2] / "catalog"


@pytest.mark.parametrize("entry", sorted(CATALOG.glob("patches/*/*/patch.yml")), ids=lambda path: path.parent.name)
def test_every_shipped_patch_is_well_formed(entry: Path, site: Site) -> None:
    name = "/".join(entry.parent.parts[-2:])
    project = entry.parent.parts[-2]
    listed = {path.name for path in entry.parent.glob("*.patch")}
    meta, _ = load_patch(entry)
    accept = ', accept_risk: "a test"' if meta.status == "harmful" else ""
    used = set()
    for text in meta.applies_to:
        # a patch that needs others is not alone in a build; that is another test's matter
        spec = load_build(
            site.write(
                f'python: "3.11"\nsources: {{{project}: {{version: {VersionRange.parse(text).low}}}}}\n'
                f"patches: [{{name: {name}{accept}}}]\n"
            )
        )
        patch = series_module._find(spec, spec.patches[0], "lab.yml:3", CATALOG)
        assert patch.meta.name == name
        assert parse(patch.diff.read_bytes())
        assert patch.meta.evidence, "a shipped patch says what is known about it"
        used.add(patch.diff.name)
    assert used == listed


@pytest.mark.parametrize("path", sorted(CATALOG.glob("builds/*.yml")), ids=lambda path: path.stem)
def test_every_shipped_build_holds(path: Path) -> None:
    find_patches(load_build(path), CATALOG)
