# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rackwell.probe import surroundings
from rackwell.probe.surroundings import look

HEALTHY = {"hmm-off"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A healthy container with two GPUs. What stands for a node is a link to a device that every machine has."""
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).symlink_to("/dev/null")
    for name, text in {
        "sys/module/nvidia/version": "595.58.03\n",
        "sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "Y\n",
        "proc/devices": "Character devices:\n  1 mem\n\nBlock devices:\n  8 sd\n",
        "proc/sys/kernel/osrelease": "6.17.13-2-pve\n",
        "proc/sys/kernel/random/boot_id": "1c7b\n",
        "sys/class/dmi/id/board_name": "K14PG\n",
        "proc/driver/nvidia/gpus/0000:06:00.0/information": (
            "Model: \t\t NVIDIA RTX PRO 6000\nGPU UUID:   \t GPU-0a1b2c3d-0000-0000-0000-000000000000\n"
            "Bus Location: \t 0000:06:00.0\nDevice Minor: \t 1\n"
        ),
        "proc/driver/nvidia/gpus/0000:07:00.0/information": (
            "GPU UUID:   \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n"
        ),
    }.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return tmp_path


def test_a_healthy_container(root: Path) -> None:
    seen = look(root, {})
    assert seen.findings == HEALTHY
    assert seen.kernel_module_version == "595.58.03"
    assert seen.hmm is False
    assert [node.path for node in seen.gpu_nodes] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert all(node.device and node.usable and node.major_ok for node in seen.nodes)
    assert dict(seen.machine) == {
        "kernel": "6.17.13-2-pve",
        "boot_id": "1c7b",
        "board": "K14PG",
        "product": None,
        "bios_version": None,
    }


@pytest.mark.parametrize(
    ("gone", "finding"),
    [
        ("dev/nvidia-uvm", "uvm-node-missing"),
        ("dev/nvidiactl", "ctl-node-missing"),
        ("sys/module/nvidia/version", "module-missing"),
    ],
)
def test_what_is_missing_is_found(root: Path, gone: str, finding: str) -> None:
    (root / gone).unlink()
    assert look(root, {}).findings == HEALTHY | {finding}


def test_no_gpu_node(root: Path) -> None:
    for node in (root / "dev").glob("nvidia[0-9]"):
        node.unlink()
    assert look(root, {}).findings == HEALTHY | {"gpu-node-missing"}


def test_which_gpu_has_no_node(root: Path) -> None:
    """Known by its bus id: its minor is not its index."""
    assert look(root, {}).without_node() == ()
    (root / "dev/nvidia1").unlink()
    assert [(gpu.bus_id, gpu.minor) for gpu in look(root, {}).without_node()] == [("0000:06:00.0", 1)]


def test_a_uuid_that_the_driver_does_not_know_yet_is_none(root: Path) -> None:
    assert [gpu.uuid for gpu in look(root, {}).gpus] == ["GPU-0a1b2c3d-0000-0000-0000-000000000000", None]


@pytest.mark.parametrize("name", ["nvidia-uvm", "nvidiactl", "nvidia1"])
def test_a_plain_file_in_a_nodes_place(root: Path, name: str) -> None:
    (root / "dev" / name).unlink()
    (root / "dev" / name).write_text("")
    seen = look(root, {})
    assert seen.findings == HEALTHY | {"node-not-device"}
    assert [node.path for node in seen.nodes if not node.device] == [f"/dev/{name}"]


def test_hmm_on(root: Path) -> None:
    (root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm").write_text("N\n")
    assert look(root, {}).findings == {"hmm-on"}


def test_hmm_unknown_is_no_finding(root: Path) -> None:
    (root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm").unlink()
    assert look(root, {}).hmm is None
    assert not look(root, {}).findings


def test_whether_uvm_is_loaded(root: Path) -> None:
    assert look(root, {}).uvm_loaded is True
    shutil.rmtree(root / "sys/module/nvidia_uvm")
    assert look(root, {}).uvm_loaded is False
    (root / "proc/devices").write_text("Character devices:\n505 nvidia-uvm\n")
    assert look(root, {}).uvm_loaded is True
    assert look(root / "dev", {}).uvm_loaded is None  # a tree without /sys


@pytest.mark.parametrize(("served", "findings"), [(505, {"uvm-node-stale"}), (1, set())])
def test_the_major_of_uvm(root: Path, served: int, findings: set[str]) -> None:
    """/dev/null has major 1."""
    (root / "proc/devices").write_text(f"Character devices:\n{served} nvidia-uvm\n\nBlock devices:\n505 nvidia-uvm\n")
    seen = look(root, {})
    assert seen.findings == HEALTHY | findings
    assert seen.uvm_major == served


def test_a_node_that_this_user_may_not_open(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: not str(path).endswith("nvidia1"))
    seen = look(root, {})
    assert seen.findings == HEALTHY | {"gpu-node-denied"}
    assert [node.path for node in seen.nodes if not node.usable] == ["/dev/nvidia1"]


def test_cuda_visible_devices(root: Path) -> None:
    seen = look(root, {"CUDA_VISIBLE_DEVICES": ""})
    assert seen.findings == HEALTHY | {"visible-devices-set"}
    assert seen.visible_devices == ""


def test_compat_libraries_that_the_loader_finds(root: Path) -> None:
    place = root / "usr/local/cuda/compat"
    place.mkdir(parents=True)
    (root / "etc/ld.so.conf.d").mkdir(parents=True)
    (root / "etc/ld.so.conf.d/cuda.conf").write_text("/usr/local/cuda/compat\n")
    assert look(root, {}).compat == ()  # the directory is empty
    (place / "libcuda.so.610.43").touch()
    seen = look(root, {"LD_LIBRARY_PATH": "/nowhere:/usr/local/cuda/compat"})
    assert seen.compat == ("/usr/local/cuda/compat",)
    assert seen.findings == HEALTHY | {"compat-libraries"}


def test_the_version_of_the_library_here(root: Path) -> None:
    place = root / "usr/lib/x86_64-linux-gnu"
    place.mkdir(parents=True)
    (place / "libcuda.so.595.58.03").touch()
    (place / "libcuda.so.1").symlink_to("libcuda.so.595.58.03")
    assert look(root, {}).library_version == "595.58.03"
    (place / "libcuda.so.590.48.01").touch()
    assert look(root, {}).library_version is None  # two of them: which one is loaded is not known


@pytest.mark.parametrize(
    ("types", "mode"),
    [([], "off"), (["identity", "identity"], "pt"), (["identity", "DMA-FQ"], "translated"), (["DMA"], "translated")],
)
def test_the_iommus_mode(root: Path, types: list[str], mode: str) -> None:
    groups = root / "sys/kernel/iommu_groups"
    groups.mkdir(parents=True)
    for number, kind in enumerate(types):
        (groups / str(number)).mkdir()
        (groups / str(number) / "type").write_text(kind + "\n")
    assert look(root, {}).iommu == mode


def test_without_groups_the_mode_is_unknown(root: Path) -> None:
    assert look(root, {}).iommu == "unknown"


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("libcuda.so.595.58.03", "595.58.03"),
        ("libcuda.so.610.43", "610.43"),
        ("libcuda.so.1", None),
        ("libcuda.so", None),
    ],
)
def test_version_in_a_librarys_name(tmp_path: Path, name: str, version: str | None) -> None:
    assert surroundings.version_of(tmp_path / name) == version


def test_version_follows_the_link(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.595.58.03").touch()
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.595.58.03")
    assert surroundings.version_of(tmp_path / "libcuda.so.1") == "595.58.03"
