# SPDX-License-Identifier: Apache-2.0
"""The builds that ship: their locks are whole, fit a Debian 12 container, and are what the index still says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rackwell import shipped
from rackwell.build import compiler, load_build, patch_requirements
from rackwell.build import lock as locks
from rackwell.build.model import BuildSpec
from rackwell.build.wheelfile import best
from rackwell.errors import RackwellError

BUILDS = sorted((shipped.catalog() / "builds").glob("*.lock"))
SERVERS = [path.stem for path in BUILDS]


def build(name: str) -> tuple[BuildSpec, locks.Lock]:
    path = shipped.catalog() / "builds" / f"{name}.yml"
    lock = locks.read_lock(path.with_name(f"{name}.lock"))
    assert lock is not None
    return load_build(path), lock


def test_there_are_the_three_that_profiles_name() -> None:
    assert {"sglang-0.5.12", "sglang-0.5.23", "story-2026-02"} <= set(SERVERS)


@pytest.mark.parametrize("name", SERVERS)
def test_the_lock_is_of_this_build(name: str) -> None:
    spec, lock = build(name)
    assert lock.inputs == locks.inputs_digest(spec, spec.python)
    assert {wheel.project: wheel.version for wheel in lock.sources} == {n: s.version for n, s in spec.sources.items()}
    for wheel in lock.sources:
        assert spec.sources[wheel.project].sha256 == wheel.sha256


@pytest.mark.parametrize("name", SERVERS)
def test_each_locked_wheel_runs_in_the_container(name: str) -> None:
    spec, lock = build(name)
    for wheel in lock.wheels:
        assert wheel.size > 0
        assert best([wheel.filename], spec.python) == wheel.filename
    names = [wheel.project for wheel in lock.wheels]
    assert len(names) == len(set(names)) > 100
    # what travels is not the light form: torch and SGLang's kernels are in it
    assert "torch" in names
    assert {"sglang-kernel", "sgl-kernel"} & set(names)


@pytest.mark.parametrize("name", SERVERS)
def test_build_and_lock_name_no_host(name: str) -> None:
    text = (shipped.catalog() / "builds" / f"{name}.lock").read_text()
    assert "://" not in text
    assert not re.search(r"\b(pypi|pythonhosted|index-url|find-links)\b", text)


@pytest.mark.parametrize("name", SERVERS)
def test_it_says_what_it_is_derived_from(name: str) -> None:
    text = " ".join(
        line.lstrip("# ") for line in (shipped.catalog() / "builds" / f"{name}.yml").read_text().splitlines()
    )
    assert "Derived from:" in text
    assert "Not run on SM120 by us" in text


@pytest.mark.parametrize("name", SERVERS)
def test_its_patches_fit_its_versions(name: str) -> None:
    spec, _ = build(name)
    needs = patch_requirements(spec, shipped.catalog())
    assert [need.name for need in needs] == [use.name for use in spec.patches]
    assert all(need.status == "recommended" and need.touches_code_path for need in needs)


@pytest.mark.parametrize("name", SERVERS)
def test_compiler_and_headers_are_of_one_toolkit(name: str) -> None:
    """Of two toolkits no FlashInfer kernel compiles; seen with nvcc 13.5.37 beside nvidia-cuda-runtime 13.0.96."""
    spec, lock = build(name)
    version = {wheel.project: wheel.version for wheel in lock.wheels}
    assert spec.cuda is not None
    if spec.cuda.home is not None:
        assert "nvidia-cuda-nvcc" not in version
        return
    parts = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
    assert {tuple(version[part].split(".")[:2]) for part in parts} == {("13", "0")}
    assert compiler.nvcc_version(spec, version.items()) == version["nvidia-cuda-nvcc"]


@pytest.mark.index
@pytest.mark.parametrize("name", SERVERS)
def test_the_index_says_the_same_of_each_wheel(name: str) -> None:
    """Resolved again from its own pins: nothing is missing, nothing is too much, each hash and size is the index's.

    Only metadata is asked for; no wheel is downloaded.
    """
    spec, lock = build(name)
    wheels = [*lock.sources, *lock.dependencies]
    pins = [f"{wheel.project}=={wheel.version}" for wheel in wheels]
    try:
        found = locks._compile(spec, pins, spec.python, follow=True)
    except RackwellError as error:
        why = error.problems[0].why
        if re.search(r"(?i)no solution|unsatisfiable|conflict", why):
            raise
        pytest.skip(f"the package index does not answer: {why[:200]}")
    assert sorted(found) == sorted(wheels)


@pytest.mark.index
def test_the_newest_build_resolves_anew() -> None:
    """From its own few lines, as `--relock` does: what they pin is what ships."""
    spec, lock = build("sglang-0.5.23")
    try:
        found = locks.resolve(spec, spec.python)
    except RackwellError as error:
        pytest.skip(f"the package index does not answer: {error.problems[0].why[:200]}")
    now = {wheel.project: wheel for wheel in found.wheels}
    for name in ("sglang", "flashinfer-python", "torch", "sglang-kernel", "sgl-deep-gemm", "nvidia-cuda-nvcc"):
        assert now[name] == next(wheel for wheel in lock.wheels if wheel.project == name)


def test_what_is_required_is_locked() -> None:
    for path in BUILDS:
        spec, lock = build(path.stem)
        names = {wheel.project for wheel in lock.wheels}
        for text in compiler.requirements(spec):
            assert canonicalize_name(Requirement(text).name) in names


def test_no_lock_lies_beside_nothing() -> None:
    for path in BUILDS:
        assert Path(path).with_suffix(".yml").is_file()


@pytest.mark.parametrize("name", SERVERS)
def test_the_page_says_what_it_weighs(name: str) -> None:
    """The installer is not counted: it travels once, and is no part of the environment."""
    _, lock = build(name)
    page = (Path(__file__).parents[3] / "docs" / "profiles.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    wheels = [*lock.sources, *lock.dependencies]
    assert any(f"| {len(wheels)} | {sum(wheel.size for wheel in wheels):,} |" in row for row in rows)
