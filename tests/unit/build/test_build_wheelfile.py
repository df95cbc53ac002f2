# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
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

from rackwell.build.probewheel import probe_wheel
from rackwell.build.wheelfile import Wheel, best, from_files, patched, platforms, supported_tags


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
