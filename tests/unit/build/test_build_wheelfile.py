# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tinywheels
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackwell.build.probewheel import probe_wheel
from rackwell.build.wheelfile import MALFORMED, Wheel, best, from_files, patched, platforms, supported_tags


def checked_record(data: bytes) -> dict[str, bytes]:
    """All files of a wheel, after every row of RECORD was held against them."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        files = {name: archive.read(name) for name in archive.namelist()}
    (record,) = [name for name in files if name.endswith(".dist-info/RECORD")]
    rows = list(csv.reader(io.StringIO(files[record].decode())))
    assert sorted(row[0] for row in rows) == sorted(files)
    for name, digest, size in rows:
        if name == record:
            assert (digest, size) == ("", "")
        else:
            expected = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={expected}", str(len(files[name])))
    return files


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    program = "sglang-0.5.9.data/scripts/serve"
    files = {**tinywheels.ENGINE, "sglang/naïve.txt": "x", program: "#!/bin/sh\n"}
    return tinywheels.make_wheel(tmp_path, "sglang", "0.5.9", files, executable=[program])


def test_a_patched_wheel_is_whole(engine: Path, tmp_path: Path) -> None:
    changes = {"sglang/runner.py": b"changed\n", "sglang/new.py": b"new\n", "sglang/dos.py": None}
    with Wheel(engine) as wheel:
        name, data = patched(wheel, changes, "0123abcd")
        before = {entry.name: wheel.read(entry.name) for entry in wheel.entries()}
    assert name == "sglang-0.5.9-10123abcd-py3-none-any.whl"
    files = checked_record(data)
    assert b"Version: 0.5.9\n" in files["sglang-0.5.9.dist-info/METADATA"]
    assert b"Build: 10123abcd\n" in files["sglang-0.5.9.dist-info/WHEEL"]
    assert files["sglang/runner.py"] == b"changed\n"
    assert files["sglang/new.py"] == b"new\n"
    assert "sglang/dos.py" not in files
    own = {"sglang-0.5.9.dist-info/WHEEL", "sglang-0.5.9.dist-info/RECORD", *changes}
    assert {n: d for n, d in files.items() if n not in own} == {n: d for n, d in before.items() if n not in own}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.namelist()[-1].endswith("RECORD")
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in archive.infolist()}
    assert modes["sglang-0.5.9.data/scripts/serve"] == 0o755
    assert modes["sglang/new.py"] == 0o644
    # a judge of its own: wheel checks every hash when it unpacks
    path = tmp_path / "out" / name
    path.parent.mkdir()
    path.write_bytes(data)
    subprocess.run([sys.executable, "-m", "wheel", "unpack", "-d", path.parent, path], check=True, capture_output=True)


def test_the_same_bytes_whatever_the_clock_and_the_files_say(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for epoch in ("0", "1700000000"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        os.utime(engine, (int(epoch), int(epoch)))
        with Wheel(engine) as wheel:
            made.append(patched(wheel, {"sglang/runner.py": b"x"}, "01234567"))
    assert made[0] == made[1]


def test_refuses_a_wheel_with_a_build_tag(tmp_path: Path) -> None:
    path = tinywheels.make_wheel(tmp_path, "sglang", "0.5.9", {}, tag="py3-none-any")
    other = path.rename(tmp_path / "sglang-0.5.9-2-py3-none-any.whl")
    with Wheel(other) as wheel, pytest.raises(ValueError, match="build tag already"):
        patched(wheel, {}, "01234567")


@pytest.mark.parametrize("name", ["../x.py", "a/../../x.py", "/etc/x.py", "a\\..\\..\\x.py", "a/\n.py", "a/x\0y"])
def test_refuses_a_path_that_leads_out(tmp_path: Path, name: str) -> None:
    path = tinywheels.make_wheel(tmp_path, "mine", "1.0", {"mine.py": "", "a/PLACE.py": ""})
    # the writer of archives would make some of the names harmless
    place, fresh = b"a/PLACE.py", name.encode().ljust(10, b"_")
    data = path.read_bytes()
    path.write_bytes(resized(data, place, fresh))
    with pytest.raises(ValueError, match="leads out"):
        Wheel(path)


def resized(data: bytes, old: bytes, new: bytes) -> bytes:
    """An archive with a member's name exchanged."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = [(info, archive.read(info)) for info in archive.infolist()]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for info, content in infos:
            name = "P" * len(new) if info.filename == old.decode() else info.filename
            archive.writestr(name, content)
    return out.getvalue().replace(b"P" * len(new), new)


def test_refuses_a_link_and_a_name_twice(tmp_path: Path) -> None:
    path = tinywheels.make_wheel(tmp_path, "mine", "1.0", {"mine.py": ""})
    whole = path.read_bytes()
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("mine/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc")
    with pytest.raises(ValueError, match="is a link"):
        Wheel(path)
    path.write_bytes(whole)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("mine.py", "other")
    with pytest.raises(ValueError, match="twice"):
        Wheel(path)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1500), st.binary(min_size=1, max_size=8))
def test_a_damaged_wheel_is_patched_or_refused(engine: Path, at: int, noise: bytes) -> None:
    data = engine.read_bytes()
    at %= len(data)
    damaged = engine.with_name("sglang-0.5.9-py3-none-any.whl.damaged")
    damaged.write_bytes(data[:at] + noise + data[at + len(noise) :])
    with contextlib.suppress(*MALFORMED), Wheel(damaged, engine.name) as wheel:
        assert patched(wheel, {"sglang/new.py": b"x"}, "a" * 8)[0].endswith(".whl")


def test_refuses_a_wheel_that_hides_a_file(tmp_path: Path) -> None:
    path = tinywheels.make_wheel(tmp_path, "sglang", "0.5.9", {"sglang/a.py": "a"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("sglang/hidden.py", "h")
    with Wheel(path) as wheel, pytest.raises(ValueError, match=r"does not list sglang/hidden\.py"):
        patched(wheel, {"sglang/a.py": b"b"}, "01234567")


def test_best_wheel() -> None:
    names = [
        "n-1-py3-none-any.whl",
        "n-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "n-1-cp311-cp311-manylinux_2_28_x86_64.whl",
        "n-1-cp39-abi3-manylinux_2_34_x86_64.whl",
        "n-1-cp311-cp311-manylinux_2_35_x86_64.whl",
        "n-1-cp311-cp311-musllinux_1_2_x86_64.whl",
        "n-1-cp311-cp311-manylinux_2_28_aarch64.whl",
        "n-1-cp313-cp313-manylinux_2_28_x86_64.whl",
    ]
    assert best(names, "3.11") == names[2]
    assert best(names, "3.13") == names[7]
    assert best(names, "3.12") == names[3]
    assert best(names[:1], "3.13") == names[0]
    assert best(names[4:7], "3.11") is None
    assert best(["n-1-1a-py3-none-any.whl", "n-1-2-py3-none-any.whl"], "3.11") == "n-1-2-py3-none-any.whl"


def test_tags_do_not_hang_on_the_machine() -> None:
    assert platforms()[0] == "manylinux_2_34_x86_64"
    assert {"manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"} <= set(platforms())
    assert str(supported_tags("3.13")[0]) == "cp313-cp313-manylinux_2_34_x86_64"
    assert str(supported_tags("3.13")[-1]) == "py30-none-any"


def test_probe_wheel_carries_the_probe_alone() -> None:
    name, data = probe_wheel()
    files = checked_record(data)
    assert name.startswith("rackwell_probe-")
    assert {"rackwell/__init__.py", "rackwell/probe/__init__.py"} <= files.keys()
    outside = [
        n for n in files if not n.startswith(("rackwell/probe/", "rackwell_probe-")) and n != "rackwell/__init__.py"
    ]
    assert outside == []
    assert not [n for n in files if n.endswith(".pyc")]
    assert probe_wheel() == (name, data)


def test_from_files_does_not_hang_on_the_order() -> None:
    one = from_files("p-1", {"p/a.py": b"a", "p/b.py": b"b"}, "Name: p\n")
    two = from_files("p-1", {"p/b.py": b"b", "p/a.py": b"a"}, "Name: p\n")
    assert one == two
    checked_record(one[1])
