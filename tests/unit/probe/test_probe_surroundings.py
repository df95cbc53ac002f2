# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from rackwell.probe import surroundings
from rackwell.probe.surroundings import look

HEALTHY = {"hmm-off"}


def test_a_healthy_container(root: Path) -> None:
    seen = look(root, {})
    assert seen.findings == HEALTHY
    assert seen.kernel_module_version == "595.58.03"
    assert seen.hmm is False
    assert [node.path for node in seen.nodes if node.present][-2:] == ["/dev/nvidia0", "/dev/nvidia1"]


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


def test_hmm_on(root: Path) -> None:
    (root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm").write_text("N\n")
    assert look(root, {}).findings == {"hmm-on"}


def test_hmm_unknown_is_no_finding(root: Path) -> None:
    (root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm").unlink()
    assert look(root, {}).hmm is None
    assert not look(root, {}).findings


def test_a_node_with_an_old_major(root: Path) -> None:
    (root / "proc/devices").write_text("Character devices:\n505 nvidia-uvm\n")
    assert look(root, {}).findings == HEALTHY | {"uvm-node-stale"}  # the test's node is a plain file: its major is 0


def test_a_node_that_this_user_may_not_open(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: not str(path).endswith("nvidia1"))
    seen = look(root, {})
    assert seen.findings == HEALTHY | {"gpu-node-denied"}
    assert [node.path for node in seen.nodes if not node.usable] == ["/dev/nvidia1"]


def test_cuda_visible_devices(root: Path) -> None:
    assert look(root, {"CUDA_VISIBLE_DEVICES": ""}).findings == HEALTHY | {"visible-devices-set"}


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
