# SPDX-License-Identifier: Apache-2.0
"""A site, a catalogue with one patch, and an index of tiny wheels."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import tinywheels

from rackwell.build import Release, load_build, make_release


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "index: asks the machine's package index; skipped where it does not answer")


@dataclasses.dataclass
class Site:
    """A scratch site with its catalogue; `make` builds, `said` collects the progress."""

    folder: Path
    catalog: Path
    index: Path
    said: list[str] = dataclasses.field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / ".rackwell"

    def write(self, text: str, name: str = "lab") -> Path:
        path = self.folder / "builds" / f"{name}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def make(self, path: Path, progress: Callable[[str], None] | None = None, **options: object) -> Release:
        return make_release(
            load_build(path),
            site_state=self.state,
            catalog=self.catalog,
            progress=progress or self.said.append,
            **options,  # type: ignore[arg-type]
        )


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tinywheels.make_index(tmp_path_factory.mktemp("index") / "wheels")


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    folder = tmp_path / "catalog"
    entry = folder / "patches" / "sglang" / "example"
    entry.mkdir(parents=True)
    (entry / "patch.yml").write_text(tinywheels.PATCH_YML)
    (entry / "0.5.9.patch").write_text(tinywheels.PATCH)
    (folder / "builds").mkdir()
    return folder


@pytest.fixture
def site(tmp_path: Path, catalog: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name, value in tinywheels.index_environment(index).items():
        monkeypatch.setenv(name, value)
    return Site(tmp_path / "site", catalog, index)
