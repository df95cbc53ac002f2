# SPDX-License-Identifier: Apache-2.0
"""A site, a catalogue with one patch, and an index of tiny wheels."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import tinywheels
from buildsite import BUILD, Site, make_catalog


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "index: asks the machine's package index; skipped where it does not answer")


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tinywheels.make_index(tmp_path_factory.mktemp("index") / "wheels")


@pytest.fixture
def site(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site in which nothing was built."""
    for name, value in tinywheels.index_environment(index).items():
        monkeypatch.setenv(name, value)
    return Site(tmp_path / "site", make_catalog(tmp_path / "catalog"), index)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Path:
    """A site's folder after the first build of `BUILD` as ``lab``."""
    base = tmp_path_factory.mktemp("built")
    site = Site(base / "site", make_catalog(base / "catalog"), index)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in tinywheels.index_environment(index).items():
            patch.setenv(name, value)
        site.make(site.write(BUILD))
    return site.folder


@pytest.fixture
def locked(site: Site, built: Path) -> Site:
    """A site in which `BUILD` is locked and its wheels are fetched, but no release is made of them."""
    shutil.copytree(built / "builds", site.folder / "builds")
    shutil.copytree(built / ".rackwell/blobs", site.state / "blobs")
    return site
