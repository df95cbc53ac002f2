# SPDX-License-Identifier: Apache-2.0
"""What a build may not do with its patches, and what is told of what it may."""

from __future__ import annotations

from pathlib import Path

import pytest
import tinywheels
from buildsite import BUILD, Site

from rackwell.build import load_build, patch_requirements, patchfile
from rackwell.build.series import find_patches
from rackwell.errors import ExitCode, Problem, RackwellError

HARMFUL = tinywheels.PATCH_YML.replace(
    "status: recommended",
    "status: harmful\nrisk: It is slow.\nmeasured:\n  - {setup: one machine, result: 3740 to 236 tok/s}",
)
ACCEPTED = BUILD.replace("[sglang/example]", '[{name: sglang/example, accept_risk: " to measure it again "}]')


def entry(site: Site, name: str, text: str, diffs: dict[str, str] | None = None) -> Path:
    folder = site.catalog / "patches" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "patch.yml").write_text(text)
    for filename, diff in (diffs or {"0.5.9.patch": tinywheels.PATCH}).items():
        (folder / filename).write_text(diff)
    return folder


def refused(site: Site, text: str) -> list[Problem]:
    with pytest.raises(RackwellError) as caught:
        find_patches(load_build(site.write(text)), site.catalog)
    assert caught.value.exit_code == ExitCode.INVALID
    return caught.value.problems


def test_a_harmful_patch_is_refused_with_what_is_known_of_it(site: Site) -> None:
    entry(site, "sglang/example", HARMFUL)
    (problem,) = refused(site, BUILD)
    assert (problem.code, problem.what) == ("patch-harmful", "patch sglang/example is known to be harmful")
    assert problem.where.endswith("lab.yml:5")
    assert problem.why == "It is slow. Measured: one machine: 3740 to 236 tok/s."
    assert "{name: sglang/example, accept_risk:" in problem.fix


def test_an_accepted_risk_is_in_the_manifest_and_told(locked: Site) -> None:
    entry(locked, "sglang/example", HARMFUL)
    release = locked.make(locked.write(ACCEPTED))
    (patch,) = release.manifest["patches"]
    assert (patch["status"], patch["accept_risk"]) == ("harmful", "to measure it again")
    said = "\n".join(locked.said)
    assert "WARNING: harmful patch sglang/example: It is slow." in said
    assert "lab.yml:5: to measure it again" in said


def test_the_reason_is_part_of_the_digest_and_nothing_else_is_new_in_it(locked: Site) -> None:
    plain = locked.make(locked.write(BUILD))
    assert plain.manifest["patches"][0] == {
        "name": "sglang/example",
        "project": "sglang",
        "file": "0.5.9.patch",
        "sha256": plain.manifest["patches"][0]["sha256"],
        "files": ["sglang/runner.py"],
        "needs_flags": {"moe-runner-backend": "flashinfer_cutlass"},
        "status": "recommended",
        "touches_code_path": True,
    }
    as_mapping = locked.make(locked.write(BUILD.replace("[sglang/example]", "[{name: sglang/example}]")))
    assert as_mapping.digest == plain.digest
    entry(locked, "sglang/example", HARMFUL)
    first = locked.make(locked.write(ACCEPTED))
    other = locked.make(locked.write(ACCEPTED.replace("measure it again", "see")))
    assert len({plain.digest, first.digest, other.digest}) == 3


def test_accept_risk_on_another_patch_is_refused(site: Site) -> None:
    (problem,) = refused(site, ACCEPTED)
    assert (problem.code, problem.where[-9:]) == ("patch-not-harmful", "lab.yml:5")


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ('{name: sglang/example, accept_risk: " "}', "wrong-value"),
        ("{name: sglang/example, accept_risk: true}", "wrong-value"),
        ("{name: sglang/example, accept: why}", "unknown-key"),
        ("{accept_risk: why}", "missing-key"),
        ("7", "wrong-value"),
        ('""', "wrong-value"),
    ],
)
def test_an_item_that_does_not_hold_has_its_line(site: Site, item: str, code: str) -> None:
    (problem,) = refused(site, BUILD.replace("[sglang/example]", f"\n  - {item}"))
    assert problem.code == code
    assert problem.where.endswith("lab.yml:6")


def test_a_patch_twice_is_refused_in_either_form(site: Site) -> None:
    (problem,) = refused(site, BUILD.replace("[sglang/example]", "[sglang/example, {name: sglang/example}]"))
    assert problem.code == "given-twice"


COMPANION = """\
name: flashinfer-python/companion
project: flashinfer-python
summary: the other half
applies_to:
  ">=0.6.3,<0.6.17": 0.6.3.patch
upstream_since: "0.6.17"
"""
OTHER_HALF = "--- /dev/null\n+++ b/flashinfer/new.py\n@@ -0,0 +1 @@\n+VALUE = 1\n"
NEEDING = tinywheels.PATCH_YML + "needs_patches: [flashinfer-python/companion]\n"


@pytest.fixture
def halves(site: Site) -> Site:
    entry(site, "sglang/example", NEEDING)
    entry(site, "flashinfer-python/companion", COMPANION, {"0.6.3.patch": OTHER_HALF})
    return site


def test_a_patch_without_its_companion_is_refused(halves: Site) -> None:
    (problem,) = refused(halves, BUILD)
    assert (problem.code, problem.where[-9:]) == ("patch-needs-patch", "lab.yml:5")
    assert problem.what == "patch sglang/example does not work without flashinfer-python/companion"
    assert "upstream since 0.6.17; the build pins flashinfer-python 0.6.3" in problem.why
    assert problem.fix == "add flashinfer-python/companion to `patches`"


def test_the_companion_in_the_build_will_do(halves: Site) -> None:
    text = BUILD.replace("[sglang/example]", "[sglang/example, flashinfer-python/companion]")
    assert len(find_patches(load_build(halves.write(text)), halves.catalog)) == 2


def test_a_version_that_has_the_companion_will_do(halves: Site) -> None:
    assert find_patches(load_build(halves.write(BUILD.replace("0.6.3", "0.6.17"))), halves.catalog)


def test_a_companion_whose_project_is_not_pinned_is_told(halves: Site) -> None:
    (problem,) = refused(halves, BUILD.replace("  flashinfer-python: {version: 0.6.3}\n", ""))
    assert problem.code == "patch-needs-patch"
    assert problem.fix == "add flashinfer-python to `sources`"


def test_ranges_flags_and_effect_are_those_of_the_pinned_version(site: Site) -> None:
    text = """\
name: sglang/example
project: sglang
summary: an example
applies_to:
  ">=0.5.9,<0.5.10": 0.5.9.patch
  ">=0.5.10,<0.5.12": 0.5.10.patch
needs_flags:
  - {versions: ">=0.5.9,<0.5.10", flags: {old: true}}
  - {versions: ">=0.5.10,<0.5.12", flags: {new: [auto, fast]}}
hindering_flags: {stop: true}
touches_code_path: {">=0.5.10,<0.5.12": false}
"""
    entry(site, "sglang/example", text, {"0.5.9.patch": tinywheels.PATCH, "0.5.10.patch": tinywheels.PATCH})
    (old,) = patch_requirements(load_build(site.write(BUILD)), site.catalog)
    assert (old.needs_flags, old.touches_code_path, old.hindering_flags) == ({"old": True}, True, {"stop": True})
    newer = load_build(site.write(BUILD.replace("0.5.9", "0.5.11.post1")))
    (new,) = patch_requirements(newer, site.catalog)
    assert (new.needs_flags, new.touches_code_path) == ({"new": ["auto", "fast"]}, False)
    (patch,) = find_patches(newer, site.catalog)
    assert patch.diff.name == "0.5.10.patch"
    (problem,) = refused(site, BUILD.replace("0.5.9", "0.5.12"))
    assert problem.why == "it applies to >=0.5.9,<0.5.10, >=0.5.10,<0.5.12"


def test_a_patch_off_the_path_is_told(locked: Site) -> None:
    entry(locked, "sglang/example", tinywheels.PATCH_YML + "touches_code_path: false\n")
    locked.make(locked.write(BUILD))
    assert "note: the engine does not run what patch sglang/example changes in 0.5.9" in locked.said


FILE = b"".join(b"line %d\n" % number for number in range(1, 41))


def fuzz(old: str, new: str) -> patchfile.PatchError:
    (file,) = patchfile.parse(tinywheels.PATCH.replace(old, new).encode())
    with pytest.raises(patchfile.PatchError) as caught:
        patchfile.apply(FILE, file)
    return caught.value


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (" line 19\n", " other\n", 1),
        (" line 20\n", " other\n", 2),
        (" line 23\n", " other\n", 1),
        (" line 22\n", " other\n", 2),
        ("-line 21\n", "-other\n", 0),
    ],
)
def test_how_much_context_a_lenient_tool_would_ignore(old: str, new: str, expected: int) -> None:
    error = fuzz(old, new)
    assert error.fuzz == expected
    assert ("it would fit at line 19 if" in error.reason) is (expected > 0)
    assert not error.present


def test_a_hunk_that_no_fuzz_would_mend_counts_for_the_file() -> None:
    second = "@@ -30,3 +30,3 @@\n line 30\n-other\n+line thirty-one\n line 32\n"
    (file,) = patchfile.parse((tinywheels.PATCH.replace(" line 19\n", " other\n") + second).encode())
    with pytest.raises(patchfile.PatchError) as caught:
        patchfile.apply(FILE, file)
    assert (caught.value.hunk, caught.value.fuzz) == (2, 0)
