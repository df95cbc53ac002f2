# SPDX-License-Identifier: Apache-2.0
"""The profiles that ship: found by name, linted as a site does it, and each says what it was derived from."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.filter import shipped as filters

from rackwell import shipped
from rackwell.provision import declared
from rackwell.site import declaration, validation, yamlsource
from rackwell.site.declaration import Site
from rackwell.site.profile import Profile

PAIRS = {
    "glm5-nvfp4": ("sglang-0.5.23", "GLM-5-NVFP4"),
    "glm5-nvfp4-mtp": ("sglang-0.5.23", "GLM-5-NVFP4-MTP"),
    "glm5-nvfp4-conservative": ("sglang-0.5.12", "GLM-5-NVFP4"),
    "kimi-k2-thinking-nvfp4": ("sglang-0.5.23", "Kimi-K2-Thinking-NVFP4"),
    "story-2026-02": ("story-2026-02", "GLM-5-NVFP4"),
}
"""Profile -> its build, and the name of the weights' directory."""
DESERVED = {"story-2026-02": {"RW202", "RW307"}}
FOLDER = shipped.catalog() / "profiles"


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example site as an operator has filled it in."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("key")
    (home / ".ssh" / "id_ed25519.pub").write_text("ssh-ed25519 AAAA me\n")
    monkeypatch.setenv("HOME", str(home))
    site = Path(shutil.copytree(shipped.example(), tmp_path / "site"))
    run_file = site / "NVIDIA-Linux-x86_64-595.58.03.run"
    run_file.write_text("installer")
    for path in site.rglob("*.yml"):
        text = path.read_text().replace("FILL_IN the 64 hex digits", '"' + "0" * 64 + '" #')
        path.write_text(re.sub(r"FILL_IN /srv/drivers/\S+", str(run_file), text).replace("FILL_IN ", ""))
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIEvF0o1b7fXh8sT0yKxJm8m4yqf0Q3uXr4z8n1wq2d5e"
    (site / "known_hosts").write_text(f"192.0.2.10 ssh-ed25519 {key}\n")
    return site


def using(site: Path, profile: str, build: str, weights: str) -> Site:
    shared, own = site / "group_vars" / "gpu_containers.yml", site / "host_vars" / "glm5-01.yml"
    text = re.sub(r"(?m)^release_build: .*$", f"release_build: {build}", shared.read_text())
    shared.write_text(re.sub(r"(?m)^(inference_server_profile): .*$", rf"\1: {profile}", text))
    own.write_text(own.read_text().replace("/srv/models/GLM-5-NVFP4", f"/srv/models/{weights}"))
    return declaration.load(site)


def test_each_profile_has_its_build() -> None:
    assert {path.stem for path in FOLDER.glob("*.yml")} == set(PAIRS)


@pytest.mark.parametrize("name", PAIRS)
def test_the_lint_finds_what_is_deserved(filled: Path, name: str) -> None:
    build, weights = PAIRS[name]
    checked = declared.check(using(filled, name, build, weights))
    assert checked.problems == []
    assert {finding.code for finding in checked.findings if not finding.ignored} == DESERVED.get(name, set())


@pytest.mark.parametrize("name", PAIRS)
def test_it_says_what_it_is_derived_from(name: str) -> None:
    text = (FOLDER / f"{name}.yml").read_text()
    head = " ".join(line.lstrip("# ") for line in text[: text.index("model:")].splitlines())
    assert "Derived from:" in head
    assert "Not run on SM120 by us" in head
    # the build it is made for is named, too
    assert PAIRS[name][0] in head


@pytest.mark.parametrize("name", PAIRS)
def test_the_page_has_it(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "profiles.md").read_text()
    assert f"`{name}`" in page
    assert f"`{PAIRS[name][0]}`" in page


def test_a_wrong_flag_would_be_found(filled: Path) -> None:
    """What the check above is worth: the sparse backend of 0.5.23 on the release that does not know it."""
    site = using(filled, "glm5-nvfp4", "sglang-0.5.12", "GLM-5-NVFP4")
    codes = {problem.code for problem in declared.check(site).problems}
    assert "RW103" in codes


def test_the_sites_own_profile_wins(filled: Path) -> None:
    container = "glm5-01"
    site = declaration.load(filled)
    assert site.profile_file(site.container(container)) == FOLDER / "glm5-nvfp4.yml"
    assert Path(filters.profile_file("glm5-nvfp4", str(filled))).samefile(FOLDER / "glm5-nvfp4.yml")
    own = filled / "profiles" / "glm5-nvfp4.yml"
    own.write_text((FOLDER / "glm5-nvfp4.yml").read_text().replace("served_name: glm-5", "served_name: mine"))
    site = declaration.load(filled)
    assert site.profile_file(site.container(container)) == own
    assert site.profile(site.container(container)).model.served_name == "mine"
    assert filters.profile_file("glm5-nvfp4", str(filled)) == str(own)


def test_a_profile_that_nobody_has(filled: Path) -> None:
    site = using(filled, "glm5-nvfp5", "sglang-0.5.23", "GLM-5-NVFP4")
    problem = next(problem for problem in declared.problems(site) if problem.code == "file-missing")
    assert "glm5-nvfp4" in problem.fix
    expected = str(filled / "profiles" / "glm5-nvfp5.yml")
    assert problem.why == expected
    assert filters.profile_file("glm5-nvfp5", str(filled)) == expected


def test_sparse_attention_is_what_0_5_23_admits_on_sm120() -> None:
    """Its backends' validation takes fp8_e4m3 with flashinfer_sparse_mla alone (or triton_sparse_mla for prefill)."""
    for name in ("glm5-nvfp4", "glm5-nvfp4-mtp"):
        flags = validation.validate(Profile, yamlsource.load(FOLDER / f"{name}.yml"), "profile").flags
        assert flags["kv-cache-dtype"] == "fp8_e4m3"
        assert flags["dsa-prefill-backend"] == flags["dsa-decode-backend"] == "flashinfer_sparse_mla"
        assert "attention-backend" not in flags


def test_the_two_glm5_profiles_differ_by_the_drafting_alone() -> None:
    plain, drafting = (
        validation.validate(Profile, yamlsource.load(FOLDER / f"{name}.yml"), "profile")
        for name in ("glm5-nvfp4", "glm5-nvfp4-mtp")
    )
    changed = {key for key in plain.flags | drafting.flags if plain.flags.get(key) != drafting.flags.get(key)}
    assert {key for key in changed if not key.startswith("speculative-")} == {"max-running-requests"}
    assert plain.environment == drafting.environment


def test_the_filter_finds_the_catalogue_of_an_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = tmp_path / "ansible_collections" / "rackwell" / "gpu"
    ships = tmp_path / "rackwell" / "data" / "catalog" / "profiles" / "one.yml"
    collection.mkdir(parents=True)
    ships.parent.mkdir(parents=True)
    ships.write_text("")
    monkeypatch.setattr(filters, "_COLLECTION", collection)
    assert filters.profile_file("one", str(tmp_path / "site")) == str(ships)


def test_the_page_shows_what_the_lint_says_of_the_story(filled: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "profiles.md").read_text()
    findings = declared.check(using(filled, "story-2026-02", *PAIRS["story-2026-02"])).findings
    assert findings
    for finding in findings:
        assert f"{finding.severity}[{finding.code}]: {finding.what}" in page
        assert finding.why in page
        assert finding.fix in page
