# SPDX-License-Identifier: Apache-2.0
"""The host's helper that makes the GPUs' device nodes before the guests start, and says which are missing and why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HELPER = Path(__file__).parents[3] / "roles" / "pve_host" / "files" / "gpu-nodes"
#: plays nvidia-modprobe: every node that it is asked for becomes a character device (a link to /dev/null, major 1)
MODPROBE = """#!/bin/sh
echo "$*" >> {place}/asked
[ -e {place}/broken ] && {{ echo 'modprobe: FATAL: Module nvidia not found' >&2; exit 1; }}
for name in nvidiactl nvidia-uvm nvidia-uvm-tools; do ln -sf /dev/null {place}/dev/$name; done
while [ $# -gt 0 ]; do [ "$1" = -c ] && ln -sf /dev/null {place}/dev/nvidia$2; shift; done
"""


class Host:
    """A Proxmox host with two GPUs whose minors are not their order."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.gpu("0000:06:00.0", 1)
        self.gpu("0000:07:00.0", 0)
        for module in ("nvidia", "nvidia_uvm"):
            (place / "sys" / module).mkdir(parents=True)
        (place / "dev").mkdir()
        (place / "tools").mkdir()
        self.devices("  1 nvidia\n  1 nvidiactl\n  1 nvidia-uvm\n")
        tool = place / "tools" / "nvidia-modprobe"
        tool.write_text(MODPROBE.format(place=place))
        tool.chmod(0o755)

    def gpu(self, bus_id: str, minor: int | None, more: str = "") -> None:
        folder = self.place / "proc/driver/nvidia/gpus" / bus_id
        folder.mkdir(parents=True, exist_ok=True)
        told = "" if minor is None else f"Device Minor: \t {minor}\n"
        (folder / "information").write_text(f"Model: \t\t NVIDIA RTX PRO 6000\n{told}{more}")

    def devices(self, text: str) -> None:
        (self.place / "proc/devices").write_text(f"Character devices:\n{text}\nBlock devices:\n  8 nvidia\n")

    def run(self, *arguments: str) -> tuple[int, list[str]]:
        places = {"PROC": "proc", "DEV": "dev", "SYS_MODULE": "sys", "TOOLS": "tools"}
        environment = {f"RACKWELL_{name}": str(self.place / folder) for name, folder in places.items()}
        # nvidia-modprobe's stand-in is a shell script
        command = [sys.executable, str(HELPER), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    @property
    def asked(self) -> list[str]:
        path = self.place / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_all_nodes_are_made_by_minor(host: Host) -> None:
    assert host.run() == (0, ["2 GPUs, all device nodes are there"])
    assert host.asked == ["-u -m -c 1 -c 0"]
    assert host.run() == (0, ["2 GPUs, all device nodes are there"])


def test_a_look_makes_nothing(host: Host) -> None:
    status, lines = host.run("--look")
    assert status == 1
    assert [line.split(" is ")[0] for line in lines] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "GPU 0000:06:00.0: /dev/nvidia1",
        "GPU 0000:07:00.0: /dev/nvidia0",
    ]
    assert host.asked == []


def test_a_module_that_is_not_loaded_is_the_one_cause(host: Host) -> None:
    for bus_id in ("0000:06:00.0", "0000:07:00.0"):
        (host.place / "proc/driver/nvidia/gpus" / bus_id / "information").unlink()
        (host.place / "proc/driver/nvidia/gpus" / bus_id).rmdir()
    (host.place / "sys/nvidia").rmdir()
    (host.place / "broken").touch()
    status, lines = host.run()
    assert status == 1
    assert lines[0].startswith("kernel module nvidia is not loaded")
    assert lines[1:] == ["nvidia-modprobe: modprobe: FATAL: Module nvidia not found"]
    # it was given the chance to load the module
    assert host.asked == ["-u -m -c 0"]


def test_uvm_that_is_not_loaded(host: Host) -> None:
    host.run()
    (host.place / "sys/nvidia_uvm").rmdir()
    status, lines = host.run("--look")
    assert status == 1
    assert lines == ["nvidia-uvm, nvidia-uvm-tools: kernel module nvidia_uvm is not loaded. Try: modprobe nvidia_uvm"]


def test_without_nvidia_modprobe_that_is_the_reason(host: Host) -> None:
    (host.place / "tools/nvidia-modprobe").unlink()
    status, lines = host.run()
    assert status == 1
    assert all("nvidia-modprobe, which makes it, is not installed" in line for line in lines)


def test_an_excluded_gpu_is_named_and_no_fault(host: Host) -> None:
    host.gpu("0000:75:00.0", 2, "GPU Excluded: \t Yes\n")
    status, lines = host.run()
    assert status == 0
    assert lines == [
        "GPU 0000:75:00.0: excluded from the driver (NVreg_ExcludedGpus), so it has no node",
        "2 GPUs, all device nodes are there",
    ]
    assert host.asked == ["-u -m -c 1 -c 0"]


def test_a_gpu_without_a_minor_is_named(host: Host) -> None:
    host.gpu("0000:75:00.0", None)
    status, lines = host.run()
    assert status == 1
    assert lines[0].startswith("GPU 0000:75:00.0: the driver gives it no device minor")


def test_a_plain_file_is_no_node(host: Host) -> None:
    host.run()
    (host.place / "dev/nvidia1").unlink()
    (host.place / "dev/nvidia1").write_text("")
    status, lines = host.run("--look")
    assert status == 1
    assert lines[0].startswith("GPU 0000:06:00.0: /dev/nvidia1 is no character device")


def test_a_major_of_the_boot_before_is_named(host: Host) -> None:
    host.run()
    host.devices("  1 nvidia\n  1 nvidiactl\n511 nvidia-uvm\n")
    status, lines = host.run("--look")
    assert status == 1
    assert [line.split(". ")[0] for line in lines] == [
        "/dev/nvidia-uvm has major number 1, the driver has 511",
        "/dev/nvidia-uvm-tools has major number 1, the driver has 511",
    ]


def test_a_driver_that_shows_no_gpu(host: Host) -> None:
    for bus_id in ("0000:06:00.0", "0000:07:00.0"):
        (host.place / "proc/driver/nvidia/gpus" / bus_id / "information").unlink()
        (host.place / "proc/driver/nvidia/gpus" / bus_id).rmdir()
    status, lines = host.run("--look")
    assert (status, len(lines)) == (1, 1)
    assert lines[0].startswith("the driver shows no GPU")
