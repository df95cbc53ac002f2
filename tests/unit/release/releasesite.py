# SPDX-License-Identifier: Apache-2.0
"""Releases of tiny wheels, built in a scratch site."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import Manifest

from rackwell.build import load_build, make_release

BUILD = """\
python: "{python}"
sources: {{sglang: {{version: 0.5.9}}}}
dependencies: declared
requirements: [{requirements}]
"""


@dataclasses.dataclass(frozen=True)
class Built:
    """A release on the controller. `bundle` is the build's link, `state` the site's ``.rackwell``."""

    state: Path
    bundle: Path

    @property
    def manifest(self) -> Manifest:
        return Manifest((self.bundle / "manifest.json").read_text())

    @property
    def requirements(self) -> str:
        return (self.bundle / "requirements.txt").read_text()

    @property
    def blobs(self) -> Path:
        return self.state / "blobs" / "sha256"


def build(site: Path, name: str, python: str, requirements: str) -> Built:
    path = site / "builds" / f"{name}.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(BUILD.format(python=python, requirements=requirements))
    make_release(load_build(path), site_state=site / ".rackwell", catalog=site, progress=lambda _message: None)
    return Built(site / ".rackwell", site / ".rackwell/builds" / name)
