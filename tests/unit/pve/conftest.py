# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Proxmox VE part share: a host made of files, and a stand-in host without processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pvestandin import MINORS, Standin, uuid


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A directory with proc/, module/ and dev/ of a healthy host."""
    nvidia = tmp_path / "proc/driver/nvidia"
    for bus_id, minor in MINORS.items():
        (nvidia / "gpus" / bus_id).mkdir(parents=True)
        (nvidia / "gpus" / bus_id / "information").write_text(
            f"Model: \t\t NVIDIA RTX PRO 6000 Blackwell Server Edition\nIRQ:   \t\t 120\nGPU UUID: \t {uuid(bus_id)}\n"
            f"Bus Type: \t PCIe\nBus Location: \t {bus_id}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
    (nvidia / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.58.03  Release Build  (builder)\n"
        "GCC version:  gcc version 14.2.0\n"
    )
    for name in ("nvidia", "nvidia_uvm", "nvidia_modeset"):
        (tmp_path / "module" / name / "parameters").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_text("595.58.03\n")
    (tmp_path / "module/nvidia_uvm/parameters/uvm_disable_hmm").write_text("Y\n")
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{minor}" for minor in MINORS.values())):
        # /dev/null stands for any device node: a test must not need mknod
        (tmp_path / "dev" / name).symlink_to("/dev/null")
    return tmp_path


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    """A stand-in host without containers."""
    monkeypatch.setattr("labpve.guest.set_up", lambda *_: None)
    monkeypatch.setattr("labpve.containers.device_id", lambda path: None)
    return Standin(tmp_path / "host")
