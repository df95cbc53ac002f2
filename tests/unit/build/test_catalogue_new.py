# SPDX-License-Identifier: Apache-2.0
"""An entry from an edited tree, and the wheels that it is held against."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path

import pytest
import tinywheels

from rackwell.build import fetch
from rackwell.build.catalogue import new, wheels
from rackwell.build.catalogue.entry import load_entry
from rackwell.build.catalogue.judge import Verdict, judge
from rackwell.build.catalogue.wheels import Cache, Held, KnownWheel, KnownWheels
from rackwell.build.wheelfile import Wheel
from rackwell.errors import ExitCode, RackwellError

FLASHINFER = {
    "flashinfer/__init__.py": "",
    "flashinfer/jit/comm.py": "A = 1\n" * 10 + "MAJORS = [9, 10]\n" + "B = 2\n" * 10,
    "flashinfer/data/include/flashinfer/comm/x.cuh": "#if ARCH < 1200\n#endif\n",
    "flashinfer/data/csrc/x.cu": "int x;\n",
}


def held(path: Path, project: str, version: str) -> Held:
    return Held(project, version, path.name, hashlib.sha256(path.read_bytes()).hexdigest(), path, False)


@pytest.fixture
def engine(tmp_path: Path) -> Held:
    return held(tinywheels.make_wheel(tmp_path / "w", "sglang", "0.5.9", tinywheels.ENGINE), "sglang", "0.5.9")


@pytest.fixture
def tree(engine: Held, tmp_path: Path) -> Path:
    """What the wheel unpacks to."""
    folder = tmp_path / "tree"
    with zipfile.ZipFile(engine.path) as archive:
        archive.extractall(folder)
    return folder


def edit(path: Path, old: str, new_text: str) -> None:
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new_text).encode())


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def refused(code: str, *arguments: object) -> str:
    with pytest.raises(RackwellError) as caught:
        new.make(*arguments)  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    assert (problem.code, caught.value.exit_code) == (code, ExitCode.INVALID)
    assert problem.fix
    return f"{problem.what}; {problem.where}; {problem.why}"


def test_an_entry_from_an_unpacked_wheel(engine: Held, tree: Path, tmp_path: Path) -> None:
    edit(tree / "sglang/runner.py", "line 21\n", "line twenty-one\n")
    edit(tree / "sglang/dos.py", "two\r\n", "two and a half\r\n")
    (tree / "sglang/added.py").write_text("VALUE = 1\n")
    (tree / "sglang/__pycache__").mkdir()
    (tree / "sglang/__pycache__/runner.pyc").write_bytes(b"\0")
    (tree / "sglang/runner.py.orig").write_text("noise\n")
    (tree / "another_package").mkdir()
    (tree / "another_package/__init__.py").write_text("")
    folder = tmp_path / "site/builds/patches/mine"
    made = new.make(engine, tree, folder, "mine", 'says: "so"')
    assert made.changed == {"sglang/added.py": 1, "sglang/dos.py": 1, "sglang/runner.py": 1}
    assert not made.added_to
    entry = load_entry(folder, "mine")
    assert (entry.meta.name, entry.meta.summary, entry.meta.status) == ("mine", 'says: "so"', "neutral")
    assert dict(entry.meta.applies_to) == {"0.5.9": "0.5.9.patch"}
    with Wheel(engine.path) as wheel:
        assert judge(entry, "0.5.9", wheel.read).verdict is Verdict.APPLIES
    assert sorted(path.name for path in folder.parent.iterdir()) == ["mine"]


def test_a_file_that_was_removed(engine: Held, tree: Path, tmp_path: Path) -> None:
    (tree / "sglang/dos.py").unlink()
    made = new.make(engine, tree, tmp_path / "p/mine", "mine", "without")
    assert made.changed == {"sglang/dos.py": 1}
    assert b"+++ /dev/null\n" in made.diff.read_bytes()


def test_an_entry_from_a_checkout(tmp_path: Path) -> None:
    wheel = held(
        tinywheels.make_wheel(tmp_path, "flashinfer-python", "0.6.3", FLASHINFER), "flashinfer-python", "0.6.3"
    )
    tree = tmp_path / "checkout"
    for path, text in FLASHINFER.items():
        place = tree / path.replace("flashinfer/data/", "")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (tree / "tests").mkdir()
    (tree / "tests/test_x.py").write_text("")
    (tree / "csrc/only_in_the_checkout.cu").write_text("")
    edit(tree / "flashinfer/jit/comm.py", "[9, 10]", "[9, 10, 12]")
    edit(tree / "include/flashinfer/comm/x.cuh", "1200", "1300")
    made = new.make(wheel, tree, tmp_path / "p/gates", "gates", "opens gates")
    assert set(made.changed) == {"flashinfer/jit/comm.py", "flashinfer/data/include/flashinfer/comm/x.cuh"}
    assert made.ignored == 1


def test_a_version_is_added_to_an_entry_whose_text_stays(engine: Held, tree: Path, tmp_path: Path) -> None:
    edit(tree / "sglang/runner.py", "line 21\n", "line twenty-one\n")
    folder = tmp_path / "p/mine"
    new.make(engine, tree, folder, "mine", "an example")
    before = (folder / "patch.yml").read_text()
    newer = {
        **tinywheels.ENGINE,
        "sglang/runner.py": tinywheels.ENGINE["sglang/runner.py"].replace("line 20", "line XX"),
    }
    wheel = held(tinywheels.make_wheel(tmp_path / "w", "sglang", "0.5.10", newer), "sglang", "0.5.10")
    edit(tree / "sglang/runner.py", "line 20\n", "line XX\n")
    made = new.make(wheel, tree, folder, "mine", "ignored")
    assert made.added_to
    after = (folder / "patch.yml").read_text()
    assert after == before.replace('"0.5.9": 0.5.9.patch\n', '"0.5.9": 0.5.9.patch\n  "0.5.10": 0.5.10.patch\n')
    assert list(made.entry.meta.applies_to) == ["0.5.9", "0.5.10"]
    unchanged = snapshot(folder)
    assert "says something of 0.5.10 already" in refused("patch-exists", wheel, tree, folder, "mine", "")
    assert snapshot(folder) == unchanged


def test_what_is_refused_leaves_nothing(engine: Held, tree: Path, tmp_path: Path) -> None:
    folder = tmp_path / "p/mine"
    assert "is the same" in refused("patch-changes-nothing", engine, tree, folder, "mine", "")
    (tree / "sglang/data.txt").write_bytes(b"a\0b\n")
    assert "sglang/data.txt" in refused("patch-binary", engine, tree, folder, "mine", "")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "none of the files" in refused("not-a-tree", engine, empty, folder, "mine", "")
    folder.mkdir(parents=True)
    (tree / "sglang/data.txt").write_text("text\n")
    assert "is no patch" in refused("file-exists", engine, tree, folder, "mine", "")
    assert snapshot(tmp_path / "p") == {}


def test_an_entry_of_another_project_is_not_added_to(engine: Held, tree: Path, tmp_path: Path) -> None:
    edit(tree / "sglang/runner.py", "line 21\n", "line twenty-one\n")
    folder = tmp_path / "p/mine"
    folder.mkdir(parents=True)
    (folder / "patch.yml").write_text(tinywheels.PATCH_YML.replace("project: sglang", "project: flashinfer-python"))
    (folder / "0.5.9.patch").write_text(tinywheels.PATCH)
    refused("wrong-name", engine, tree, folder, "mine", "")


@pytest.mark.parametrize("name", ["", "Mine", "a b", "../x", "flashinfer-python/x", "sglang/x/y", "-x", "x/"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(RackwellError):
        new.check_name(name, "sglang")


def test_names() -> None:
    assert new.check_name("sglang/mine-2", "sglang") == new.check_name("mine-2", "sglang") == "mine-2"


# wheels

KNOWN = KnownWheels(shown={}, wheels={})


@pytest.fixture
def cache(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    for name, value in tinywheels.index_environment(index).items():
        monkeypatch.setenv(name, value)
    return Cache(tmp_path / "cache", KNOWN, lambda _: None)


def test_a_wheel_is_fetched_once_and_noted(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache.get("sglang", "0.5.9")
    assert first.path.name == first.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
    assert not first.known
    note = json.loads((tmp_path / "cache/wheels/sglang-0.5.9.json").read_text())
    assert (note["filename"], note["sha256"]) == (first.filename, first.sha256)
    monkeypatch.setattr(wheels, "look_up", lambda *_: pytest.fail("the index was asked"))
    monkeypatch.setattr(fetch, "_run", lambda *_: pytest.fail("something was fetched"))
    assert cache.get("sglang", "0.5.9") == first


def test_newest_asks_the_index_each_time(cache: Cache) -> None:
    assert cache.get("sglang", "newest").version == "0.5.9"
    assert cache.get("sglang", "newest").filename == "sglang-0.5.9-py3-none-any.whl"


def test_a_damaged_note_or_blob_is_made_anew(cache: Cache, tmp_path: Path) -> None:
    first = cache.get("sglang", "0.5.9")
    (tmp_path / "cache/wheels/sglang-0.5.9.json").write_text("{")
    os.chmod(first.path, 0o644)  # noqa: PTH101
    first.path.write_bytes(b"damaged")
    assert cache.get("sglang", "0.5.9") == first
    assert hashlib.sha256(first.path.read_bytes()).hexdigest() == first.sha256


def test_a_known_wheel_must_have_its_hash(cache: Cache, index: Path, tmp_path: Path) -> None:
    path = index / "sglang-0.5.9-py3-none-any.whl"
    real = KnownWheel(filename=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), size=1)
    good = Cache(tmp_path / "good", KnownWheels(shown={}, wheels={"sglang": {"0.5.9": real}}), lambda _: None)
    assert good.get("sglang", "0.5.9").known
    assert good.get("sglang", "newest").known
    wrong = KnownWheel(filename=path.name, sha256="0" * 64, size=1)
    bad = Cache(tmp_path / "bad", KnownWheels(shown={}, wheels={"sglang": {"0.5.9": wrong}}), lambda _: None)
    with pytest.raises(RackwellError) as caught:
        bad.get("sglang", "0.5.9")
    assert caught.value.problems[0].code == "hash-mismatch"


def test_a_version_that_the_index_does_not_have(cache: Cache) -> None:
    with pytest.raises(RackwellError) as caught:
        cache.get("sglang", "0.5.8")
    assert (caught.value.problems[0].code, caught.value.exit_code) == ("resolve-failed", ExitCode.FAILED)


def test_versions_as_they_are_typed() -> None:
    assert wheels.check_version("0.5.10-1") == "0.5.10.post1"
    assert wheels.check_version("newest") == "newest"
    with pytest.raises(RackwellError):
        wheels.check_version("latest")


def test_a_shown_version_needs_its_wheel(tmp_path: Path) -> None:
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/wheels.yml").write_text('shown: {sglang: ["0.5.9"]}\nwheels: {}\n')
    with pytest.raises(RackwellError) as caught:
        wheels.known_wheels(tmp_path)
    assert "shows sglang 0.5.9, of which it knows no wheel" in caught.value.problems[0].why


def test_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert wheels.default_cache() == Path("/somewhere/rackwell")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert wheels.default_cache() == Path.home() / ".cache/rackwell"
