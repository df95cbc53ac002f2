# SPDX-License-Identifier: Apache-2.0
"""The host's facts from a directory in the host's place, and from parts that fail or hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import gpu_host_facts as facts
from ansible_collections.rackwell.gpu.plugins.module_utils import gpu_host_read
from lspci_tree import build

TEXT = (Path(__file__).parent / "data/lspci-switch-and-direct.txt").read_text()
#: a real machine's command line lies beside the repository on the project's own machines, and nowhere else
REAL_CMDLINE = Path(__file__).parents[4] / "shared/samples/rtx-pro-6000-x8/cmdline.txt"
GPUS = ["0000:03:00.0", "0000:04:00.0", "0000:81:00.0"]
INFORMATION = "Model: \t\t Some GPU\nGPU UUID: \t GPU-{0}\nBus Location: \t {1}\nDevice Minor: \t {2}\n"
FILES = {
    "proc/sys/kernel/hostname": "pve1",
    "proc/sys/kernel/osrelease": "6.17.13-2-pve",
    "proc/sys/kernel/random/boot_id": "0d6c6f3a-0000-4000-8000-000000000001",
    "proc/cmdline": "BOOT_IMAGE=/vmlinuz ro quiet",
    "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu vme sse2\n",
    "proc/devices": "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.58.03  Release Build\n",
    "proc/driver/nvidia/params": 'EnableResizableBar: 1\nDmaRemapPeerMmio: 1\nRegistryDwords: "ForceP2P=0x11;"\n',
    "sys/module/nvidia/version": "595.58.03",
    "sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "Y",
    "sys/class/dmi/id/board_name": "K14PG-D24",
    "sys/class/dmi/id/product_name": "ESC8000A",
    "sys/class/dmi/id/bios_version": "1203",
    "sys/class/dmi/id/bios_date": "03/11/2026",
}


def put(root: Path, name: str, content: str) -> None:
    place = root / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content + "\n")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host without an IOMMU whose GPUs have the minors 2, 0 and 1; dmesg prints what stands in its file dmesg."""
    root = tmp_path / "root"
    build(root, TEXT)
    for name, content in FILES.items():
        put(root, name, content)
    for bus_id, minor in zip(GPUS, (2, 0, 1), strict=True):
        put(root, f"proc/driver/nvidia/gpus/{bus_id}/information", INFORMATION.format(minor, bus_id, minor))
    for directory in ("sys/kernel/iommu_groups", "sys/class/iommu"):
        (root / directory).mkdir(parents=True)
    (root / "dev").mkdir()
    (root / "dev/nvidia1").symlink_to("/dev/null")
    (root / "dev/nvidia2").touch()
    program(tmp_path, "dmesg", f"cat {root}/dmesg")
    program(tmp_path, "journalctl", f"cat {root}/journal")
    put(root, "dmesg", "[    0.000000] Linux version 6.17")
    put(root, "journal", "-- No entries --")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return root


def program(place: Path, name: str, script: str) -> None:
    file = place / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def collect(host: Path) -> dict[str, Any]:
    return facts.collect(str(host), 30)


def test_all_facts(host: Path) -> None:
    found = collect(host)
    assert json.loads(json.dumps(found)) == found
    assert found["schema"] == "rackwell.gpu_host/1"
    assert (found["host"], found["kernel"], found["virtual"]) == ("pve1", "6.17.13-2-pve", False)
    assert found["boot_id"].endswith("0001")
    assert found["cmdline"] == "BOOT_IMAGE=/vmlinuz ro quiet"
    assert found["dmi"] == {
        "board": "K14PG-D24",
        "product": "ESC8000A",
        "bios_version": "1203",
        "bios_date": "03/11/2026",
    }
    assert found["driver"] == {
        "version": "595.58.03",
        "flavour": "open",
        "params": {"EnableResizableBar": "1", "DmaRemapPeerMmio": "1", "RegistryDwords": "ForceP2P=0x11;"},
    }
    assert (found["hmm"], found["uvm_major"]) == (False, 511)
    assert found["gpus"][0] == {
        "bus_id": "0000:03:00.0",
        "uuid": "GPU-2",
        "minor": 2,
        "node_present": False,  # a plain file
        "path": ["0000:00:01.1", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"],
    }
    assert [gpu["node_present"] for gpu in found["gpus"]] == [False, False, True]
    assert found["numa"]["0000:81:00.0"] == 1
    assert {port["bdf"]: port["acs"]["ctl"] for port in found["ports"] if port["acs"]}["0000:80:01.1"] == 0x1D
    assert (found["dmesg"], found["unread"]) == ([], {})


def test_a_gpu_that_the_driver_does_not_have_is_still_on_the_bus(host: Path) -> None:
    (host / f"proc/driver/nvidia/gpus/{GPUS[1]}/information").unlink()
    (host / f"proc/driver/nvidia/gpus/{GPUS[1]}").rmdir()
    gpu = collect(host)["gpus"][1]
    assert (gpu["bus_id"], gpu["minor"], gpu["node_present"], len(gpu["path"])) == (GPUS[1], None, None, 4)


@pytest.mark.parametrize(("value", "hmm"), [("N", True), ("Y", False), (None, None)])
def test_hmm(host: Path, value: str | None, hmm: bool | None) -> None:
    place = host / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm"
    place.unlink()
    if value:
        place.write_text(value)
    assert collect(host)["hmm"] is hmm


def test_a_host_without_driver(host: Path) -> None:
    for name in ("proc/driver/nvidia/version", "proc/driver/nvidia/params", "sys/module/nvidia/version"):
        (host / name).unlink()
    assert collect(host)["driver"] is None


def test_a_virtual_machine(host: Path) -> None:
    put(host, "proc/cpuinfo", "flags\t\t: fpu hypervisor lahf_lm")
    assert collect(host)["virtual"] is True


def groups(host: Path, **types: str) -> None:
    """IOMMU groups: a bus id's digits of the bus -> type."""
    put(host, "sys/class/iommu/ivhd0/amd-iommu/features", "x")
    for number, (bus, kind) in enumerate(types.items()):
        put(host, f"sys/kernel/iommu_groups/{number}/type", kind)
        (host / f"sys/kernel/iommu_groups/{number}/devices/0000:{bus[1:]}:00.0").mkdir(parents=True)


@pytest.mark.parametrize(
    ("types", "mode"),
    [
        ({"_03": "identity", "_04": "identity", "_81": "identity"}, "pt"),
        ({"_03": "identity", "_04": "DMA-FQ", "_81": "identity"}, "translated"),
        ({"_03": "DMA", "_04": "DMA", "_81": "DMA"}, "translated"),
        # the network card's group says nothing of the GPUs
        ({"_03": "identity", "_04": "identity", "_81": "identity", "_44": "DMA-FQ"}, "pt"),
        ({"_03": "unmanaged"}, "unknown"),
        ({"_44": "DMA-FQ"}, "translated"),
    ],
)
def test_iommu(host: Path, types: dict[str, str], mode: str) -> None:
    groups(host, **types)
    found = collect(host)["iommu"]
    assert (found["mode"], found["groups"]) == (mode, len(types))


def test_iommu_by_the_devices_own_link(host: Path) -> None:
    groups(host, _44="DMA-FQ")
    for number, bus_id in enumerate(GPUS, 7):
        put(host, f"sys/kernel/iommu_groups/{number}/type", "identity")
        (host / "sys/bus/pci/devices" / bus_id / "iommu_group").symlink_to(host / f"sys/kernel/iommu_groups/{number}")
    found = collect(host)["iommu"]
    assert (found["mode"], found["groups"]) == ("pt", 4)
    assert "group 7 is identity" in found["evidence"]


def test_no_iommu(host: Path) -> None:
    put(host, "proc/cmdline", "ro amd_iommu=on iommu=pt")
    found = collect(host)["iommu"]
    assert (found["mode"], found["groups"]) == ("off", 0)
    assert "started with amd_iommu=on iommu=pt" in found["evidence"]


@pytest.mark.parametrize(("cmdline", "mode"), [("ro amd_iommu=off iommu=off", "off"), ("ro quiet", "unknown")])
def test_without_sysfs_the_command_line_decides(host: Path, cmdline: str, mode: str) -> None:
    (host / "sys/kernel/iommu_groups").rmdir()
    (host / "sys/class/iommu").rmdir()
    put(host, "proc/cmdline", cmdline)
    assert collect(host)["iommu"]["mode"] == mode


@pytest.mark.skipif(not REAL_CMDLINE.exists(), reason="the real machine's text is not beside the repository")
def test_the_real_command_line(host: Path) -> None:
    put(host, "proc/cmdline", REAL_CMDLINE.read_text())
    assert "amd_iommu=off iommu=off" in collect(host)["iommu"]["evidence"]


XID = "[  912.123456] NVRM: Xid (PCI:0000:03:00): 79, pid=1, GPU has fallen off the bus."
FAULT = "[  913.000000] AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0001 address=0x1000 flags=0x0000]"
CORRECTED = "[  914.000000] pcieport 0000:00:01.1: AER: Corrected error received: 0000:03:00.0"


def test_the_kernel_log(host: Path) -> None:
    lines = [
        "[    0.000000] Linux version 6.17",
        "[    1.000000] pcieport 0000:00:01.1: AER: enabled with IRQ 42",
        "[    1.000001] pcieport 0000:00:01.1: PME: Signaling with IRQ 42",
        "[    2.000000] e1000e: link up",
        XID,
        FAULT,
        CORRECTED,
    ]
    put(host, "dmesg", "\n".join(lines))
    assert collect(host)["dmesg"] == [XID, FAULT, CORRECTED]


def test_a_flood_does_not_push_out_a_grave_line() -> None:
    found = facts.matching([XID, *[CORRECTED] * 500, FAULT])
    assert len(found) == facts.KEPT
    assert (found[0], found[-1]) == (XID, FAULT)
    graves = facts.matching([CORRECTED, *[XID] * 500])
    assert graves == [CORRECTED, *[XID] * (facts.KEPT - 1)]


def test_a_ring_that_has_lost_its_beginning_is_made_good_by_the_journal(host: Path) -> None:
    put(host, "dmesg", CORRECTED)
    assert collect(host)["dmesg"] == [CORRECTED]
    put(host, "journal", f"{XID}\n{CORRECTED}")
    assert collect(host)["dmesg"] == [XID, CORRECTED]


def test_a_log_that_cannot_be_read_is_told(host: Path) -> None:
    program(host.parent, "dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted'; exit 1")
    found = collect(host)
    assert found["dmesg"] == []
    assert "Operation not permitted" in found["unread"]["dmesg"]


def test_a_log_that_hangs_is_ended(host: Path) -> None:
    program(host.parent, "dmesg", "exec sleep infinity")
    lines, why = facts.kernel_log(0.3)
    assert (lines, why) == ([], "dmesg did not end in 0.3 s")


def test_a_part_that_hangs_takes_only_itself(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "driver", lambda root: threading.Event().wait())
    found = facts.collect(str(host), 1.0)
    assert found["unread"] == {"driver": "it did not answer in 1 s"}
    assert (found["driver"], found["hmm"], found["uvm_major"]) == (None, None, None)
    assert found["gpus"][0]["minor"] == 2
    assert found["kernel"] == "6.17.13-2-pve"


def test_nothing_that_can_be_read_is_still_the_same_shape(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = collect(host)

    def broken(root: str) -> None:
        raise OSError("input/output error")

    for name in ("machine", "iommu", "tree", "driver", "driver_gpus"):
        monkeypatch.setattr(facts, name, broken)
    found = collect(host)
    assert set(found) == set(whole)
    assert set(found["unread"]) == {"machine", "iommu", "pci", "driver", "gpus"}
    assert set(found["unread"].values()) == {"input/output error"}
    assert found["iommu"]["mode"] == "unknown"


def died() -> None:
    os._exit(3)


@pytest.mark.parametrize(
    ("function", "why"),
    [(died, "the process that read it died"), (lambda: int("x"), "invalid literal for int() with base 10: 'x'")],
)
def test_parts_after_one_that_fails(function: Callable[[], Any], why: str) -> None:
    values, unread = gpu_host_read.read_parts([("a", lambda: 1), ("b", function), ("c", lambda: "x" * 200_000)], 30)
    assert values == {"a": 1, "c": "x" * 200_000}
    assert unread == {"b": why}


def test_the_module_itself(tmp_path: Path) -> None:
    """As ansible starts it, on this machine: whatever it has, the shape is right."""
    if os.getuid():
        pytest.skip("needs root")
    arguments = tmp_path / "arguments.json"
    arguments.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": {"timeout": 10}}))
    command = [sys.executable, "-m", "ansible_collections.rackwell.gpu.plugins.modules.gpu_host", str(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["changed"]) == (0, False)
    assert answer["rackwell_result"]["schema"] == "rackwell.gpu_host/1"
    assert answer["rackwell_result"]["kernel"]
