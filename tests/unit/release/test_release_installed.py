# SPDX-License-Identifier: Apache-2.0
"""Installed files against their wheels: what was damaged is told, and mended without the rest being touched."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import tinywheels
from ansible_collections.rackwell.gpu.plugins.module_utils.release_installed import SETTLED_NS, damaged
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import ReleaseError
from ansible_collections.rackwell.gpu.plugins.module_utils.release_target import Store
from releasesite import Built
from test_release_target import is_right, stage


def installed(store: Store, built: Built, name: str) -> Path:
    (found,) = Path(store.release(built.manifest.digest)).glob(f"env/lib/*/site-packages/{name}")
    return found


def mend(store: Store, built: Built, user: str) -> bool:
    store.lock()
    try:
        return store.install(built.manifest, built.requirements, user, {}, True)
    finally:
        store.unlock()


def flip(path: Path) -> None:
    """Change one bit in place, as a disk does: every link to the file sees it, and its time stays."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with path.open("r+b") as stream:
        stream.write(data)
    import os

    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.truncate(3)


def replace_by_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


DAMAGES = pytest.mark.parametrize("damage", [flip, cut, Path.unlink, replace_by_link])


@DAMAGES
def test_a_damaged_file_is_told_and_mended(
    store: Store, one: Built, user: str, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    stage(store, one, user, tmp_path)
    assert store.damaged(one.manifest) == []
    leaf, other = installed(store, one, "leaf.py"), installed(store, one, "sglang/__init__.py")
    untouched = other.stat().st_ino
    damage(leaf)
    (found,) = store.damaged(one.manifest)
    assert (found.project, found.path.endswith("site-packages/leaf.py")) == ("leaf", True)
    assert found.why
    assert mend(store, one, user)
    assert store.damaged(one.manifest) == []
    assert is_right(store, one)
    assert other.stat().st_ino == untouched, "what runs from the rest keeps its files"
    assert not mend(store, one, user)


def test_a_release_made_of_damaged_copies_never_counts(
    store: Store, one: Built, two: Built, user: str, tmp_path: Path
) -> None:
    """uv links to what it unpacked before; a bit that flipped there is in each new environment."""
    stage(store, one, user, tmp_path)
    flip(installed(store, one, "leaf.py"))
    steps: list[str] = []
    store.reached = steps.append  # type: ignore[method-assign]
    stage(store, two, user, tmp_path)
    assert store.damaged(two.manifest) == []
    assert "unpacked copies dropped" in steps
    assert is_right(store, two)


def test_without_a_sound_copy_the_release_stays_incomplete(
    store: Store, one: Built, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flips(step: str) -> None:
        if step == "wheels installed":
            flip(installed(store, one, "leaf.py"))

    store.reached = flips  # type: ignore[method-assign]
    with pytest.raises(ReleaseError) as caught:
        stage(store, one, user, tmp_path, slot="current")
    assert caught.value.parts["code"] == "environment-damaged"
    assert "leaf.py" in caught.value.parts["why"]
    assert store.slot("current") is None
    assert "environment" in store.unfinished(one.manifest, user)


def test_a_list_of_files_that_was_changed_with_them_helps_nobody(
    store: Store, one: Built, user: str, tmp_path: Path
) -> None:
    stage(store, one, user, tmp_path)
    installed(store, one, "leaf.py").write_text("VALUE = 4\n")
    (record,) = Path(store.release(one.manifest.digest)).glob("env/lib/*/site-packages/leaf-*.dist-info/RECORD")
    kept = [line for line in record.read_text().splitlines() if not line.startswith("leaf.py")]
    record.unlink()
    record.write_text("\n".join(kept) + "\n")
    assert [found.project for found in store.damaged(one.manifest)] == ["leaf"]
    record.unlink()
    assert len(store.damaged(one.manifest)) == 2


def test_files_are_older_than_what_is_compiled_from_them(store: Store, one: Built, user: str, tmp_path: Path) -> None:
    stage(store, one, user, tmp_path)
    assert installed(store, one, "leaf.py").stat().st_mtime_ns == SETTLED_NS


def test_compiled_python_is_no_damage(store: Store, one: Built, user: str, tmp_path: Path) -> None:
    stage(store, one, user, tmp_path)
    python = Path(store.release(one.manifest.digest)) / "env/bin/python"
    subprocess.run([python, "-c", "import leaf"], check=True)
    assert store.damaged(one.manifest) == []


def test_a_wheel_whose_own_list_is_wrong_is_no_damage(tmp_path: Path) -> None:
    wheel = tinywheels.make_wheel(tmp_path, "odd", "1.0", {"odd.py": "X = 1\n"})
    names = {}
    with zipfile.ZipFile(wheel) as archive:
        names = {name: archive.read(name) for name in archive.namelist()}
    record = next(name for name in names if name.endswith("RECORD"))
    names[record] = b"odd.py,sha256=AAAA,5\n" + record.encode() + b",,\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in names.items():
            archive.writestr(name, data)
    site = tmp_path / "env/lib/python3.11/site-packages"
    for name, data in names.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
    assert damaged(str(tmp_path / "env"), "3.11", [("odd", str(wheel))]) == []
    (site / "odd.py").write_text("X = 2\n")
    assert len(damaged(str(tmp_path / "env"), "3.11", [("odd", str(wheel))])) == 1


def test_a_file_that_two_wheels_bring_may_be_either(tmp_path: Path) -> None:
    """flashinfer-python and torch-c-dlpack-ext both bring a build_backend.py, each its own."""
    names = ("one", "two")
    wheels = [(n, str(tinywheels.make_wheel(tmp_path, n, "1.0", {"both.py": f"X = {n!r}\n"}))) for n in names]
    env = tmp_path / "env"
    site = env / "lib/python3.11/site-packages"
    for _, path in wheels:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(site)
    for name in names:
        (site / "both.py").write_text(f"X = {name!r}\n")
        assert damaged(str(env), "3.11", wheels) == []
    (site / "both.py").write_text("X = 3\n")
    assert {one.project for one in damaged(str(env), "3.11", wheels)} == set(names)


def test_a_wheel_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no archive")
    (found,) = damaged(str(tmp_path), "3.11", [("x", str(tmp_path / "x"))])
    assert "cannot be compared" in found.why
