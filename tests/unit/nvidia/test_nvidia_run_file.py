# SPDX-License-Identifier: Apache-2.0
"""How the collection checks and runs a .run file: against the laboratory's, and against files that are none."""

from __future__ import annotations

import hashlib
import os
from collections import namedtuple
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import nvidia_run_file
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_driver import DriverError
from labmachine import OTHER, VERSION, Driver, Machine

MIB = 1 << 20


def test_hash(driver: Driver, tmp_path: Path) -> None:
    path = str(driver.run_file)
    right = hashlib.sha256(driver.run_file.read_bytes()).hexdigest()
    nvidia_run_file.check_sha256(path, right)
    with pytest.raises(DriverError) as wrong:
        nvidia_run_file.check_sha256(path, "0" * 64)
    assert wrong.value.parts["code"] == "run-file-checksum"
    assert right in wrong.value.parts["why"]
    with pytest.raises(DriverError) as missing:
        nvidia_run_file.check_sha256(str(tmp_path / "nothing.run"), right)
    assert missing.value.parts["code"] == "run-file-missing"


@pytest.mark.parametrize("text", ["", "abc", "0" * 63, "0" * 63 + "G", "0" * 64 + "\n"])
def test_form_of_the_hash(text: str) -> None:
    with pytest.raises(DriverError) as wrong:
        nvidia_run_file.check_sha256_form(text)
    assert wrong.value.parts["code"] == "sha256-unclear"


def test_version(driver: Driver) -> None:
    nvidia_run_file.check_version(str(driver.run_file), VERSION)
    with pytest.raises(DriverError) as wrong:
        nvidia_run_file.check_version(str(driver.run_file), OTHER)
    assert wrong.value.parts["code"] == "run-file-version"
    assert VERSION in wrong.value.parts["why"]


def test_version_in_the_spelling_of_makeself(tmp_path: Path) -> None:
    path = tmp_path / "x.run"
    path.write_text(f"echo 'Identification: NVIDIA Accelerated Graphics Driver for Linux-x86_64 {VERSION}'\n")
    nvidia_run_file.check_version(str(path), VERSION)


@pytest.mark.parametrize("script", ["echo Identification: backup of 595.58.03; exit 1\n", "echo hello\n", "exit 3\n"])
def test_no_driver_at_all(tmp_path: Path, script: str) -> None:
    path = tmp_path / "x.run"
    path.write_text(script)
    with pytest.raises(DriverError) as wrong:
        nvidia_run_file.check_version(str(path), VERSION)
    assert wrong.value.parts["code"] == "run-file-unknown"


Place = namedtuple("Place", "f_bavail f_frsize f_flag")
Stat = namedtuple("Stat", "st_dev")


@pytest.mark.parametrize(
    ("tmp", "var", "usr", "chosen"),
    [
        # (device, free MiB, flags) of /tmp, /var/tmp and the libraries; the file has 100 MiB
        ((1, 300, 0), (2, 0, 0), (2, 200, 0), "/tmp"),
        ((1, 299, 0), (2, 500, 0), (2, 500, 0), "/var/tmp"),
        ((1, 300, os.ST_NOEXEC), (2, 500, 0), (2, 500, 0), "/var/tmp"),
        ((1, 299, 0), (2, 499, 0), (2, 499, 0), None),
        ((1, 900, 0), (2, 199, 0), (2, 199, 0), None),
        ((2, 499, 0), (2, 499, 0), (2, 499, 0), None),
        ((2, 500, 0), (2, 500, 0), (2, 500, 0), "/tmp"),
    ],
)
def test_place_to_unpack(
    monkeypatch: pytest.MonkeyPatch,
    tmp: tuple[int, int, int],
    var: tuple[int, int, int],
    usr: tuple[int, int, int],
    chosen: str | None,
) -> None:
    places = {"/tmp": tmp, "/var/tmp": var, "/usr/lib": usr}
    monkeypatch.setattr(os, "statvfs", lambda path: Place(places[path][1], MIB, places[path][2]))
    monkeypatch.setattr(os, "stat", lambda path: Stat(places[path][0]))
    if chosen:
        assert nvidia_run_file.place_to_unpack(100 * MIB, ("/tmp", "/var/tmp"), "/usr/lib") == chosen
        return
    with pytest.raises(DriverError) as wrong:
        nvidia_run_file.place_to_unpack(100 * MIB, ("/tmp", "/var/tmp"), "/usr/lib")
    assert wrong.value.parts["code"] == "no-space"
    assert "MiB free, needed are" in wrong.value.parts["why"]
    assert "nothing was touched" in wrong.value.parts["why"]


@pytest.fixture
def inside(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The installer, started by the collection, works on this machine's directory."""
    (machine.root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    for name, value in machine.environment().items():
        if name.startswith("RACKWELL_"):
            monkeypatch.setenv(name, value)
    return machine


def test_install(driver: Driver, inside: Machine, tmp_path: Path) -> None:
    log = inside.root / "var/log/nvidia-installer.log"
    nvidia_run_file.install(str(driver.run_file), str(tmp_path), str(log))
    assert (inside.root / f"usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}").is_file()
    assert list(tmp_path.iterdir()) == []
    for flag in nvidia_run_file.CONTAINER_FLAGS:
        assert f"    {flag}\n" in log.read_text()


def test_failure_tells_the_log(
    driver: Driver, inside: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RACKWELL_LAB_INSTALL_FAIL", "Unable to write 'libcuda.so': No space left on device")
    log = inside.root / "var/log/nvidia-installer.log"
    with pytest.raises(DriverError) as failed:
        nvidia_run_file.install(str(driver.run_file), str(tmp_path), str(log))
    assert failed.value.parts["code"] == "installer-failed"
    assert failed.value.parts["why"] == "Unable to write 'libcuda.so': No space left on device"
    lines = failed.value.extra["log"]
    assert isinstance(lines, list)
    assert lines[-2:] == [
        "ERROR: Unable to write 'libcuda.so': No space left on device",
        "ERROR: Installation has failed.  Please see the file '/var/log/nvidia-installer.log' for details.",
    ]


def test_the_installer_has_a_deadline(inside: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_run_file, "DEADLINE_S", 0.2)
    hanging = tmp_path / "x.run"
    hanging.write_text("echo Unpacking; sleep 600; true\n")
    with pytest.raises(DriverError) as late:
        nvidia_run_file.install(str(hanging), str(tmp_path), str(tmp_path / "log"))
    parts = late.value.parts
    assert parts["code"] == "timed-out"
    assert str(hanging) in parts["where"]
    assert parts["fix"]


def test_an_old_log_is_not_taken_for_this_failure(inside: Machine, tmp_path: Path) -> None:
    log = tmp_path / "nvidia-installer.log"
    log.write_text("ERROR: of last year\n")
    os.utime(log, (1, 1))
    broken = tmp_path / "x.run"
    broken.write_text("echo Verifying archive integrity...; echo Extraction failed. >&2; exit 1\n")
    with pytest.raises(DriverError) as failed:
        nvidia_run_file.install(str(broken), str(tmp_path), str(log))
    assert failed.value.parts["why"] == "it ended with 1 and printed: Extraction failed."
    assert failed.value.extra["log"] == ["Verifying archive integrity...", "Extraction failed."]
