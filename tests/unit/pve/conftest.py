# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Proxmox VE part share: a host made of files, and a stand-in host without processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_cli
from ansible_collections.rackwell.gpu.plugins.modules import pve_container
from pverig import KEY, Module
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


@pytest.fixture
def host(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> Module:
    """A host with a template, and the declaration of one container."""
    (standin.host.root / "var/lib/vz/template/cache/debian-12-lab_amd64.tar.zst").touch()
    monkeypatch.setattr(
        "labpve.containers.Containers._unpack", lambda self, vmid, *_: self.lxc.directory(vmid).mkdir(parents=True)
    )
    monkeypatch.setattr(pve_cli.socket, "gethostname", lambda: "pve1")
    monkeypatch.setattr(pve_cli, "POLL_S", 0)
    for name, place in (("CONFS", "etc/pve/lxc"), ("LOCKS", "run/lock/lxc"), ("STARTED", "var/lib/lxc")):
        monkeypatch.setattr(pve_cli, name, str(standin.host.root / place))
    monkeypatch.setattr(pve_cli, "MEMBERS", str(standin.host.root / "etc/pve/.members"))
    monkeypatch.setattr(pve_cli.Pve, "being_created", lambda self, vmid: None)
    module = Module(standin)
    defaults = {name: spec.get("default") for name, spec in pve_container.SPEC.items()}
    module.params = {
        **defaults,
        "vmid": 201,
        "hostname": "glm5-01",
        "template": "local:vztmpl/debian-12-lab_amd64.tar.zst",
        "disk_size": 0,
        "gpus": [],
        # nodes and a bridge that every machine has
        "devices": ["/dev/null", "/dev/zero"],
        "bridge": "lo",
        "ip": "10.0.0.5/24",
        "ssh_public_key": KEY + "\n",
    }
    return module
