# SPDX-License-Identifier: Apache-2.0
"""The laboratory's nvidia-modprobe and dmesg, as programs."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from rwlab.paths import SOURCE

DEVICES = (
    "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n195 nvidia-modeset\n240 nvidia-uvm\n\nBlock devices:\n"
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host's root directory with all modules loaded and no nodes."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/devices").write_text(DEVICES)
    return tmp_path


def modprobe(root: Path, *words: str) -> int:
    program = SOURCE / "host/nvidia-modprobe"
    environment = {**os.environ, "RACKWELL_LAB_ROOT": str(root)}
    return subprocess.run([program, *words], env=environment, check=False, capture_output=True).returncode


def nodes(root: Path) -> dict[str, tuple[int, int]]:
    found = {path.name: path.stat() for path in (root / "dev").iterdir()}
    assert all(stat.S_ISCHR(entry.st_mode) and entry.st_mode & 0o777 == 0o666 for entry in found.values())
    return {name: (os.major(entry.st_rdev), os.minor(entry.st_rdev)) for name, entry in found.items()}


def test_numbers_are_those_of_gpus(root: Path) -> None:
    assert modprobe(root, "-m", "-c", "255", "-c", "0", "--create-nvidia-device-file=3") == 0
    assert nodes(root) == {
        "nvidiactl": (195, 255),
        "nvidia0": (195, 0),
        "nvidia3": (195, 3),
        "nvidia-modeset": (195, 254),
    }


def test_with_u_they_are_those_of_uvm(root: Path) -> None:
    assert modprobe(root, "-u", "-c", "0") == 0
    assert nodes(root) == {"nvidia-uvm": (240, 0), "nvidia-uvm-tools": (240, 1)}
    # as NVIDIA's: the last number stands, and no GPU's node is made
    assert modprobe(root, "-u", "-c0", "-c1", "-c7") == 0
    assert nodes(root) == {"nvidia-uvm": (240, 7), "nvidia-uvm-tools": (240, 8)}


def test_what_stands_in_a_nodes_place_is_made_anew(root: Path) -> None:
    (root / "dev/nvidia-uvm").write_text("a program without the driver wrote this")
    os.mknod(root / "dev/nvidia-uvm-tools", stat.S_IFCHR | 0o600, os.makedev(234, 1))
    assert modprobe(root, "-u", "-c", "0") == 0
    assert nodes(root) == {"nvidia-uvm": (240, 0), "nvidia-uvm-tools": (240, 1)}


@pytest.mark.parametrize("words", [["-c", "0"], ["-u", "-c", "0"], ["-m"]])
def test_a_module_that_is_not_loaded(root: Path, words: list[str]) -> None:
    (root / "proc/devices").write_text("Character devices:\n  1 mem\n240 nvidia-uvm-other\n\nBlock devices:\n")
    assert modprobe(root, *words) == 1
    assert nodes(root) == {}


def test_a_node_that_was_taken_away_cannot_be_made(root: Path) -> None:
    (root / "proc/driver/nvidia/rackwell-lab-nodes.json").write_text('{"kept_away": ["nvidia1"]}')
    assert modprobe(root, "-c", "0", "-c", "1", "-c", "2") == 1
    assert nodes(root) == {"nvidia0": (195, 0)}


@pytest.mark.parametrize("words", [["-z"], ["-c", "x"], ["word"], ["-s"], ["-f", "/proc/x"]])
def test_what_it_cannot_do_makes_nothing(root: Path, words: list[str]) -> None:
    assert modprobe(root, *words) == 1
    assert nodes(root) == {}
