# SPDX-License-Identifier: Apache-2.0
"""The laboratory's .run file takes what NVIDIA's takes and refuses what NVIDIA's refuses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_run_file import CONTAINER_FLAGS
from labmachine import GPU, NOBODY, OTHER, VERSION, Driver, Machine, build

FLAGS = list(CONTAINER_FLAGS)
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def run(driver: Driver, machine: Machine, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run the installer for that machine's root."""
    (machine.root / LIBRARIES).mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        ["sh", str(driver.run_file), *arguments],
        env=machine.environment(LC_ALL="C", **extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def installed(machine: Machine) -> set[str]:
    return {path.name for path in (machine.root / LIBRARIES).iterdir()}


def test_says_what_it_is(driver: Driver, machine: Machine) -> None:
    told = run(driver, machine, "--info")
    assert told.returncode == 0
    name = re.search(r"^\s*Identification\s*:\s*(.*)$", told.stdout, re.MULTILINE)
    assert name
    assert name.group(1) == f"NVIDIA Accelerated Graphics Driver for Linux-x86_64 {VERSION}"


def test_equal_inputs_give_equal_bytes(driver: Driver, tmp_path: Path) -> None:
    assert build(tmp_path / "elsewhere", VERSION).run_file.read_bytes() == driver.run_file.read_bytes()


def test_is_not_built_again(driver: Driver) -> None:
    before = driver.run_file.stat().st_mtime_ns
    build(driver.run_file.parent, VERSION)
    assert driver.run_file.stat().st_mtime_ns == before


@pytest.mark.parametrize("version", ["595", "../595.1", "595.58.", "a.b"])
def test_builds_driver_versions_only(tmp_path: Path, version: str) -> None:
    refused = subprocess.run(
        [str(GPU / "build.sh"), str(tmp_path), version], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "is no driver version" in refused.stderr


def test_installs_and_uninstalls(driver: Driver, machine: Machine) -> None:
    done = run(driver, machine, *FLAGS)
    assert done.returncode == 0, done.stdout
    folder = machine.root / LIBRARIES
    for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        assert (folder / f"{name}.so.1").readlink() == Path(f"{name}.so.{VERSION}")
        assert (folder / f"{name}.so.{VERSION}").is_file()
    log = (machine.root / "var/log/nvidia-installer.log").read_text()
    assert "    --no-kernel-modules\n" in log
    assert "is now complete." in log
    told = subprocess.run(
        [machine.root / "usr/bin/nvidia-smi", "-L"],
        env=machine.environment(LD_LIBRARY_PATH=str(folder)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.count("\n") == 8
    assert run(driver, machine, "--uninstall").returncode == 0
    assert installed(machine) == set()
    assert run(driver, machine, "--uninstall").returncode == 1


def test_replaces_another_version(driver: Driver, other_driver: Driver, machine: Machine) -> None:
    assert run(other_driver, machine, *FLAGS).returncode == 0
    assert f"libcuda.so.{OTHER}" in installed(machine)
    assert run(driver, machine, *FLAGS).returncode == 0
    assert not [name for name in installed(machine) if OTHER in name]
    assert f"libcuda.so.{VERSION}" in installed(machine)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([*FLAGS, "--colour"], 'unrecognized option: "--colour"'),
        (["--silent"], "ERROR: An NVIDIA kernel module 'nvidia-uvm' appears to already be loaded in your kernel."),
        ([flag for flag in FLAGS if flag != "--silent"], "give --silent"),
        ([*FLAGS, "--tmpdir=/does/not/exist"], "the temporary directory '/does/not/exist' does not exist"),
        ([*FLAGS, "--kernel-module-type=closed"], 'unrecognized option: "--kernel-module-type=closed"'),
        ([*FLAGS, "--log-file-name"], "requires an argument"),
    ],
)
def test_refuses(driver: Driver, machine: Machine, arguments: list[str], text: str) -> None:
    refused = run(driver, machine, *arguments)
    assert refused.returncode == 1
    assert text in refused.stdout
    assert installed(machine) == set()


def test_refuses_another_user_than_root(driver: Driver, machine: Machine) -> None:
    refused = subprocess.run(
        ["sh", str(driver.run_file), *FLAGS],
        user=NOBODY,
        env={"PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "ERROR: nvidia-installer must be run as root" in refused.stderr


def test_refuses_without_kmod(driver: Driver, machine: Machine, tmp_path: Path) -> None:
    tools = "sh tail head md5sum sha256sum cut mktemp tar rm cat date id dirname mkdir sed"
    for tool in tools.split(" "):
        found = shutil.which(tool)
        assert found
        (tmp_path / tool).symlink_to(found)
    refused = run(driver, machine, *FLAGS, PATH=str(tmp_path))
    assert refused.returncode == 1
    assert "Unable to find the module utility `modprobe`" in refused.stdout


def test_refuses_a_damaged_archive(driver: Driver, machine: Machine, tmp_path: Path) -> None:
    content = bytearray(driver.run_file.read_bytes())
    content[-5000] ^= 1
    damaged = Driver(tmp_path / "damaged.run", driver.libraries)
    damaged.run_file.write_bytes(content)
    for arguments in (["--check"], FLAGS):
        refused = run(damaged, machine, *arguments)
        assert refused.returncode == 1
        assert "Error in MD5 checksums" in refused.stdout
    assert installed(machine) == set()


def test_leaves_nothing_behind(driver: Driver, machine: Machine, tmp_path: Path) -> None:
    for arguments in (FLAGS, ["--silent"]):
        run(driver, machine, *arguments, TMPDIR=str(tmp_path))
        assert list(tmp_path.iterdir()) == []


def test_runs_with_the_glibc_of_bookworm(driver: Driver) -> None:
    for name in (f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}", "nvidia-smi"):
        table = subprocess.run(
            ["objdump", "-T", driver.libraries / name], capture_output=True, text=True, check=True
        ).stdout
        needed = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", table)}
        assert needed
        assert max(needed) <= (2, 36)
