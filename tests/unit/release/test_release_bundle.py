# SPDX-License-Identifier: Apache-2.0
"""The release on the controller, before anything of it is sent."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.action.release_store import Bundle
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import ReleaseError
from releasesite import Built


@pytest.fixture
def state(one: Built, tmp_path: Path) -> Path:
    """A copy of the site's state, to damage."""
    folder = tmp_path / "state"
    shutil.copytree(one.state, folder, symlinks=True)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o644)
    return folder


def test_a_whole_release_is_taken(state: Path, one: Built) -> None:
    bundle = Bundle(str(state / "builds/one"))
    assert bundle.manifest.digest == one.manifest.digest
    for sha256 in one.manifest.blobs:
        assert bundle.blob(sha256) == str(state / "blobs/sha256" / sha256)


@pytest.mark.parametrize("damage", [lambda path: path.write_text(path.read_text() + "x==1\n"), Path.unlink])
def test_changed_requirements_are_refused(state: Path, damage: Callable[[Path], object]) -> None:
    damage((state / "builds/one").resolve() / "requirements.txt")
    with pytest.raises(ReleaseError) as caught:
        Bundle(str(state / "builds/one"))
    assert caught.value.parts["code"] in {"bundle-damaged", "bundle-missing"}
    assert caught.value.parts["fix"] == "run `rackwell build one`"


def test_a_changed_manifest_is_refused(state: Path) -> None:
    path = (state / "builds/one").resolve() / "manifest.json"
    path.write_text(path.read_text().replace('"one"', '"two"'))
    with pytest.raises(ReleaseError) as caught:
        Bundle(str(state / "builds/one"))
    assert caught.value.parts["code"] == "bundle-damaged"


def test_a_damaged_or_missing_wheel_is_refused(state: Path, one: Built) -> None:
    bundle = Bundle(str(state / "builds/one"))
    sha256 = next(iter(one.manifest.blobs))
    path = state / "blobs/sha256" / sha256
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    for _ in range(2):
        with pytest.raises(ReleaseError) as caught:
            bundle.blob(sha256)
        assert (caught.value.parts["code"], caught.value.parts["where"]) == ("bundle-damaged", str(path))
        path.unlink(missing_ok=True)
