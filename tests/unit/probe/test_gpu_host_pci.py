# SPDX-License-Identifier: Apache-2.0
"""ACS, kinds and links out of a tree made from lspci's text: two GPUs behind a switch, one at a root port."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import gpu_host_pci as pci
from lspci_tree import build

TEXT = (Path(__file__).parent / "data/lspci-switch-and-direct.txt").read_text()
#: a real machine's text lies beside the repository on the project's own machines, and nowhere else
REAL = Path(__file__).parents[4] / "shared/samples/rtx-pro-6000-x8/lspci-vvv-bridges-gpus.txt"
ALL_CAPABILITIES = 0x5F


@pytest.fixture
def tree(tmp_path: Path) -> str:
    build(tmp_path, TEXT)
    return str(tmp_path)


def test_gpus_and_their_paths(tree: str) -> None:
    assert pci.gpus(tree) == ["0000:03:00.0", "0000:04:00.0", "0000:81:00.0"]
    assert pci.path_of(tree, "0000:04:00.0") == ["0000:00:01.1", "0000:01:00.0", "0000:02:01.0", "0000:04:00.0"]
    assert pci.path_of(tree, "0000:81:00.0") == ["0000:80:01.1", "0000:81:00.0"]
    assert pci.path_of(tree, "0000:99:00.0") == []
    assert pci.numa(tree, pci.gpus(tree)) == {"0000:03:00.0": 0, "0000:04:00.0": 0, "0000:81:00.0": 1}


def test_ports(tree: str) -> None:
    found = pci.ports(tree, [pci.path_of(tree, bus_id) for bus_id in pci.gpus(tree)])
    assert [(port["bdf"], port["kind"]) for port in found] == [
        ("0000:00:01.1", "root"),
        ("0000:01:00.0", "upstream"),
        ("0000:02:00.0", "downstream"),
        ("0000:03:00.0", "gpu"),
        ("0000:02:01.0", "downstream"),
        ("0000:04:00.0", "gpu"),
        ("0000:80:01.1", "root"),
        ("0000:81:00.0", "gpu"),
    ]
    by_bdf = {port["bdf"]: port for port in found}
    assert {bdf: port["acs"] and port["acs"]["ctl"] for bdf, port in by_bdf.items()} == {
        "0000:00:01.1": 0x11,
        "0000:01:00.0": None,
        "0000:02:00.0": 0x11,
        "0000:02:01.0": 0x15,
        "0000:03:00.0": None,
        "0000:04:00.0": None,
        "0000:80:01.1": 0x1D,
        "0000:81:00.0": None,
    }
    assert by_bdf["0000:00:01.1"]["acs"]["cap"] == ALL_CAPABILITIES
    gpu = by_bdf["0000:03:00.0"]
    assert (gpu["speed_gt_s"], gpu["width"], gpu["max_speed_gt_s"], gpu["max_width"]) == (2.5, 16, 32.0, 16)
    assert gpu["aer"] == {"correctable": 0, "nonfatal": 0, "fatal": 0}


def test_counters_that_are_not_there_are_null(tree: str) -> None:
    place = Path(tree) / "sys/bus/pci/devices/0000:03:00.0"
    (place / "aer_dev_correctable").write_text("RxErr 2\nTOTAL_ERR_COR 2\n")
    (port,) = pci.ports(tree, [["0000:03:00.0"]])
    assert port["aer"]["correctable"] == 2
    (place / "aer_dev_fatal").unlink()
    assert pci.ports(tree, [["0000:03:00.0"]])[0]["aer"] is None


def test_without_root_there_is_no_acs(tree: str) -> None:
    config = (Path(tree) / "sys/bus/pci/devices/0000:00:01.1/config").read_bytes()
    assert pci.acs(config[:64]) is None
    assert pci.kind(config[:64]) is None
    assert pci.acs(b"") is None
    assert pci.kind(b"") is None


@pytest.mark.parametrize("dead", [b"\xff" * 4096, b"\0" * 4096])
def test_a_device_that_does_not_answer(dead: bytes) -> None:
    assert pci.acs(dead) is None
    assert pci.kind(dead) is None


def test_a_chain_that_leads_back_ends() -> None:
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x01 | 1 << 16 | 0x200 << 20)
    struct.pack_into("<I", config, 0x200, 0x02 | 1 << 16 | 0x100 << 20)
    config[6], config[0x34] = 0x10, 0x40
    config[0x40], config[0x41] = 0x05, 0x40
    assert pci.acs(bytes(config)) is None
    assert pci.kind(bytes(config)) is None


def test_a_link_that_is_down(tree: str) -> None:
    place = Path(tree) / "sys/bus/pci/devices/0000:03:00.0"
    (place / "current_link_speed").write_text("Unknown\n")
    (place / "current_link_width").write_text("63\n")
    (port,) = pci.ports(tree, [["0000:03:00.0"]])
    assert (port["speed_gt_s"], port["width"]) == (None, None)


@pytest.mark.skipif(not REAL.exists(), reason="the real machine's text is not beside the repository")
def test_the_real_machine(tmp_path: Path) -> None:
    build(tmp_path, REAL.read_text())
    root = str(tmp_path)
    gpus = pci.gpus(root)
    assert [bus_id[5:7] for bus_id in gpus] == ["06", "07", "75", "76", "84", "85", "f4", "f5"]
    paths = [pci.path_of(root, bus_id) for bus_id in gpus]
    assert [path[0] for path in paths] == [f"0000:{bus}:01.1" for bus in ("00", "70", "80", "f0") for _ in range(2)]
    assert {len(path) for path in paths} == {4}
    assert list(pci.numa(root, gpus).values()) == [0] * 4 + [1] * 4
    found = pci.ports(root, paths)
    kinds = [port["kind"] for port in found]
    assert (kinds.count("root"), kinds.count("upstream"), kinds.count("downstream"), kinds.count("gpu")) == (4, 4, 8, 8)
    words = {port["kind"]: port["acs"] for port in found if port["acs"]}
    assert words == {kind: {"cap": ALL_CAPABILITIES, "ctl": 0x11} for kind in ("root", "downstream")}
