# SPDX-License-Identifier: Apache-2.0
"""A scratch site to build in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import tinywheels

from rackwell.build import Release, load_build, make_release

BUILD = """\
python: "3.11"
sources:
  sglang: {version: 0.5.9}
  flashinfer-python: {version: 0.6.3}
patches: [sglang/example]
dependencies: declared
requirements: [helper, native]
"""


def make_catalog(folder: Path) -> Path:
    """A catalogue with one patch."""
    entry = folder / "patches" / "sglang" / "example"
    entry.mkdir(parents=True)
    (entry / "patch.yml").write_text(tinywheels.PATCH_YML)
    (entry / "0.5.9.patch").write_text(tinywheels.PATCH)
    (folder / "builds").mkdir()
    return folder


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
