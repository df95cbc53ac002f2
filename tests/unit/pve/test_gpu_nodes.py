# SPDX-License-Identifier: Apache-2.0
"""The host's helper that makes the GPUs' device nodes before the guests start, and says which are missing and why."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HELPER = Path(__file__).parents[3] / "roles" / "pve_host" / "files" / "gpu-nodes"
UVM = 511
#: plays nvidia-modprobe, whose -c are minors of nvidia-uvm with -u, and of nvidia without; a node is a text here
MODPROBE = """#!/bin/sh
echo "$*" >> {place}/asked
[ -e {place}/broken ] && {{ echo 'modprobe: FATAL: Module nvidia not found' >&2; exit 1; }}
uvm=
while [ $# -gt 0 ]; do
    case $1 in
    -u) uvm=yes ;;
    -c)
        shift
        if [ $uvm ]; then
            echo "511 $1" > {place}/dev/nvidia-uvm
            echo "511 $(($1 + 1))" > {place}/dev/nvidia-uvm-tools
        elif [ $1 = 255 ]; then
            echo "195 255" > {place}/dev/nvidiactl
        else
            [ -e {place}/kept-away-$1 ] && exit 1
            echo "195 $1" > {place}/dev/nvidia$1
        fi ;;
    esac
    shift
done
"""


def played_device(path: str) -> tuple[int, int] | None:
    words = Path(path).read_text().split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else None


class Host:
    """A Proxmox host with two GPUs whose minors are not their order."""

    def __init__(self, place: Path, helper: Any, output: pytest.CaptureFixture[str]) -> None:
        self.place, self.helper, self.output = place, helper, output
        self.gpu("0000:06:00.0", 1)
        self.gpu("0000:07:00.0", 0)
        for module in ("nvidia", "nvidia_uvm"):
            (place / "sys" / module).mkdir(parents=True)
        (place / "dev").mkdir()
        (place / "tools").mkdir()
        self.devices("195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n")
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
        self.output.readouterr()
        status = self.helper.main(list(arguments))
        return status, self.output.readouterr().out.splitlines()

    @property
    def asked(self) -> list[str]:
        path = self.place / "asked"
        return path.read_text().splitlines() if path.exists() else []


def helper_module() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("gpu_nodes", str(HELPER))
    spec = importlib.util.spec_from_loader("gpu_nodes", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Host:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    helper = helper_module()
    for name, folder in {"PROC": "proc", "DEV": "dev", "SYS_MODULE": "sys", "TOOLS": "tools"}.items():
        monkeypatch.setattr(helper, name, str(tmp_path / folder))
    monkeypatch.setattr(helper, "device", played_device)
    return Host(tmp_path, helper, capsys)


def test_all_nodes_are_made_by_minor(host: Host) -> None:
    assert host.run() == (0, ["2 GPUs, all device nodes are there"])
    assert host.asked == ["-m -c 255 -c 1 -c 0", "-u -c 0"]
    assert host.run() == (0, ["2 GPUs, all device nodes are there"])


def test_a_node_that_cannot_be_made_keeps_no_other_away(host: Host) -> None:
    (host.place / "kept-away-1").touch()
    status, lines = host.run()
    assert status == 1
    assert lines == [
        "GPU 0000:06:00.0: /dev/nvidia1 is not there (No such file or directory)",
        "nvidia-modprobe: status 1",
    ]


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
    assert host.asked[0] == "-c 255"


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
    assert host.asked == ["-m -c 255 -c 1 -c 0", "-u -c 0"]


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


def test_a_number_of_the_boot_before_is_named(host: Host) -> None:
    host.run()
    host.devices("195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n")
    (host.place / "dev/nvidia1").write_text("195 0")
    status, lines = host.run("--look")
    assert status == 1
    assert [line.split(": the driver")[0] for line in lines] == [
        "/dev/nvidia-uvm is 511:0, and has to be 510:0",
        "/dev/nvidia-uvm-tools is 511:1, and has to be 510:1",
        "GPU 0000:06:00.0: /dev/nvidia1 is 195:0, and has to be 195:1",
    ]


def test_a_driver_that_shows_no_gpu(host: Host) -> None:
    for bus_id in ("0000:06:00.0", "0000:07:00.0"):
        (host.place / "proc/driver/nvidia/gpus" / bus_id / "information").unlink()
        (host.place / "proc/driver/nvidia/gpus" / bus_id).rmdir()
    status, lines = host.run("--look")
    assert (status, len(lines)) == (1, 1)
    assert lines[0].startswith("the driver shows no GPU")
