# SPDX-License-Identifier: Apache-2.0
"""The mirror as a directory: what comes in is whole, what goes out is what the manifest says.."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from rackwell.build import fetch
from rackwell.build.fetch import Blobs
from rackwell.build.lock import LockedWheel
from rackwell.errors import RackwellError
from rackwell.mirror import store
from rackwell.mirror.store import Entry, Mirror, Writer, copy


def wheel(folder: Path, name: str) -> LockedWheel:
    """A small wheel, and its line of a lock."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"NAME = {name!r}\n")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return LockedWheel(name, "1.0", path.name, sha256, path.stat().st_size)


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, LockedWheel]:
    """A mirror with one wheel."""
    locked = wheel(tmp_path, "one")
    writer = Writer(tmp_path / "mirror")
    entry = Entry(f"blobs/{locked.sha256}/{locked.filename}", locked.sha256, 0, "wheel", locked.filename)
    writer.take(entry, copy(tmp_path / locked.filename))
    writer.keep()
    return tmp_path / "mirror", locked


def code_of(raised: pytest.ExceptionInfo[RackwellError]) -> str:
    return raised.value.problems[0].code


def test_what_comes_wrong_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "mirror")
    entry = Entry(f"blobs/{'0' * 64}/driver.run", "0" * 64, 3, "driver", "driver.run")
    (tmp_path / "driver.run").write_text("not it")
    with pytest.raises(RackwellError) as raised:
        writer.take(entry, copy(tmp_path / "driver.run"))
    assert code_of(raised) == "hash-mismatch"
    assert [path for path in (tmp_path / "mirror").rglob("*") if path.is_file()] == []


def test_an_interrupted_fill_keeps_what_came_and_brings_only_the_rest(
    filled: tuple[Path, LockedWheel], tmp_path: Path
) -> None:
    folder, locked = filled
    other = wheel(tmp_path, "two")
    writer = Writer(folder)
    writer.take(
        Entry(f"blobs/{other.sha256}/b.whl", other.sha256, 0, "wheel", "b.whl"), copy(tmp_path / other.filename)
    )
    writer.keep()
    held = Mirror(str(folder))
    assert {entry.sha256 for entry in held.named("wheel")} == {locked.sha256, other.sha256}
    assert (writer.added, list(store.damaged(folder))) == (1, [])


def test_a_manifest_that_leads_out_of_the_mirror_is_refused(tmp_path: Path) -> None:
    files = {"../../etc/passwd": {"sha256": "0" * 64, "size": 1, "kind": "wheel"}}
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": store.SCHEMA, "files": files}))
    with pytest.raises(RackwellError) as raised:
        _ = Mirror(str(tmp_path)).manifest
    assert code_of(raised) == "mirror-malformed"


def test_wheels_come_from_the_mirror_and_pip_is_never_started(
    filled: tuple[Path, LockedWheel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, locked = filled
    monkeypatch.setattr(fetch, "_run", lambda *_: pytest.fail("pip was started"))
    blobs = Blobs(tmp_path / "state", Mirror(str(folder)))
    work = tmp_path / "state" / "work"
    work.mkdir(parents=True)
    assert fetch.fetch([locked], "3.11", blobs, work, lambda _: None) == 1
    assert blobs.holds(locked.sha256)

    with pytest.raises(RackwellError) as raised:
        fetch.fetch([wheel(tmp_path, "two")], "3.11", blobs, work, lambda _: None)
    assert code_of(raised) == "mirror-incomplete"

    path = folder / f"blobs/{locked.sha256}/{locked.filename}"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    blobs.path(locked.sha256).unlink()
    with pytest.raises(RackwellError) as raised:
        fetch.fetch([locked], "3.11", blobs, work, lambda _: None)
    assert code_of(raised) == "mirror-damaged"
    assert not blobs.path(locked.sha256).exists()
