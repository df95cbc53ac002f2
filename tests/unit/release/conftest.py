# SPDX-License-Identifier: Apache-2.0
"""A built release of tiny wheels, and a store on this machine to stage it in."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "build"))
import tinywheels
from ansible_collections.rackwell.gpu.plugins.module_utils.release_target import Store
from releasesite import Built, build


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with the builds ``one``, ``two`` (one wheel more) and ``old`` (for a Python that no machine has)."""
    base = tmp_path_factory.mktemp("site")
    index = tinywheels.make_index(base / "wheels")
    python = tinywheels.running_python()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in tinywheels.index_environment(index).items():
            patch.setenv(name, value)
        build(base, "one", python, "leaf")
        build(base, "two", python, "leaf, helper")
        build(base, "old", "3.99", "leaf")
    return base


@pytest.fixture(scope="session")
def one(site: Path) -> Built:
    return Built(site / ".rackwell", site / ".rackwell/builds/one")


@pytest.fixture(scope="session")
def two(site: Path) -> Built:
    return Built(site / ".rackwell", site / ".rackwell/builds/two")


@pytest.fixture(scope="session")
def old(site: Path) -> Built:
    return Built(site / ".rackwell", site / ".rackwell/builds/old")


@pytest.fixture
def python_folder(tmp_path: Path) -> Path:
    """What ``/usr/bin`` is in a container: a folder with the Python that runs the tests."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / f"python{tinywheels.running_python()}").symlink_to(sys._base_executable)
    return folder


@pytest.fixture
def store(tmp_path: Path, python_folder: Path) -> Store:
    return Store(str(tmp_path / "opt"), str(tmp_path / "cache"), str(python_folder))


@pytest.fixture
def user() -> str:
    return getpass.getuser()
