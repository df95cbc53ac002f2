# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from pci_tree import SPEEDS, config, device, eight_gpus
from simulated import PLACES

from rackwell.probe import sysfs


def test_the_machine_with_eight_gpus(tmp_path: Path) -> None:
    tree = sysfs.read(eight_gpus(tmp_path))
    assert [gpu.bus_id for gpu in tree.gpus] == [place[0] for place in PLACES]
    assert [gpu.path for gpu in tree.gpus] == [(p[1], p[2], p[3], p[0]) for p in PLACES]
    assert [gpu.numa for gpu in tree.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert tree.numa_nodes == 2
    assert set(tree.ports) == {bdf for place in PLACES for bdf in place[:4]}  # the BMC's bridge is on no GPU's path
    assert {port.kind for port in tree.ports.values()} == {"root", "upstream", "downstream", "gpu"}


def test_what_a_port_tells(tmp_path: Path) -> None:
    tree = sysfs.read(eight_gpus(tmp_path))
    idle, uplink = tree.ports["0000:06:00.0"], tree.ports["0000:01:00.0"]
    assert (idle.speed_gt_s, idle.width, idle.max_speed_gt_s, idle.max_width) == (2.5, 16, 32.0, 16)
    assert uplink.max_generation == 5
    assert tree.ports["0000:00:01.1"].acs == {"cap": 0x5F, "ctl": 0x11}
    assert uplink.acs is None
    assert idle.aer == {"correctable": 3, "nonfatal": 0, "fatal": 1}


def test_the_tree_may_lie_anywhere(tmp_path: Path) -> None:
    """The laboratory mounts its own over /sys/bus/pci: the real path has another beginning."""
    whole = eight_gpus(tmp_path / "elsewhere")
    seen = tmp_path / "here/sys/bus"
    seen.mkdir(parents=True)
    (seen / "pci").symlink_to(whole / "sys/bus/pci")
    tree = sysfs.read(tmp_path / "here")
    assert tree.gpus[0].path == ("0000:00:01.1", "0000:01:00.0", "0000:02:03.0", "0000:06:00.0")


def test_only_the_gpus_asked_for(tmp_path: Path) -> None:
    tree = sysfs.read(eight_gpus(tmp_path), ["0000:F4:00.0", "0000:07:00.0"])
    assert [(gpu.index, gpu.bus_id) for gpu in tree.gpus] == [(0, "0000:07:00.0"), (1, "0000:f4:00.0")]


def test_a_gpu_that_is_not_in_the_tree_has_no_place(tmp_path: Path) -> None:
    tree = sysfs.read(tmp_path, ["0000:06:00.0"])
    assert tree.gpus[0].path == ("0000:06:00.0",)
    assert tree.gpus[0].root is None
    assert tree.gpus[0].numa is None


def test_nothing_there_at_all(tmp_path: Path) -> None:
    assert sysfs.read(tmp_path).gpus == ()
    assert sysfs.numa_nodes(tmp_path) == 0


@pytest.mark.parametrize(("speed", "expected"), [("Unknown", None), ("8.0 GT/s PCIe", 8.0), ("", None)])
def test_speeds(tmp_path: Path, speed: str, expected: float | None) -> None:
    device(tmp_path, ("0000:00:01.0", "0000:01:00.0"), "gpu", 0, speed=speed)
    assert sysfs.read(tmp_path).ports["0000:01:00.0"].speed_gt_s == expected


@pytest.mark.parametrize(("width", "expected"), [("8", 8), ("0", None), ("255", None), ("x", None)])
def test_widths(tmp_path: Path, width: str, expected: int | None) -> None:
    device(tmp_path, ("0000:00:01.0", "0000:01:00.0"), "gpu", 0, width=width)
    assert sysfs.read(tmp_path).ports["0000:01:00.0"].width == expected


def test_a_configuration_that_is_cut_off_says_nothing_of_acs(tmp_path: Path) -> None:
    """Whoever is not root of the host gets 64 bytes."""
    device(tmp_path, ("0000:00:01.0", "0000:01:00.0"), "gpu", 0, config_size=64)
    assert sysfs.read(tmp_path).ports["0000:01:00.0"].acs is None


def test_a_chain_of_capabilities_that_turns_round_ends() -> None:
    space = bytearray(config(None))
    space[0x100:0x104] = (0x0001 | 2 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert sysfs.acs(bytes(space)) is None


def test_numa_minus_one_is_not_told(tmp_path: Path) -> None:
    device(tmp_path, ("0000:00:01.0", "0000:01:00.0"), "gpu", -1)
    assert sysfs.read(tmp_path).gpus[0].numa is None


def test_other_devices_are_no_gpus(tmp_path: Path) -> None:
    device(tmp_path, ("0000:00:01.0", "0000:01:00.0"), "gpu", 0)
    sound = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device(tmp_path, ("0000:00:01.0", "0000:01:00.1"), "gpu", 0, speed=SPEEDS[4])
    (tmp_path / "sys/bus/pci/devices/0000:01:00.1/class").write_text("0x040300\n")
    assert sysfs.nvidia_gpus(tmp_path) == [sound.name]
