# SPDX-License-Identifier: Apache-2.0
"""The laboratory's /sys/bus/pci: what is where, and a configuration space that can be walked as a real one."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import pytest
from rwlab import config_space, gpus, machine, pci, shown
from rwlab.errors import LabError


@pytest.fixture
def state() -> dict[str, Any]:
    return gpus.healthy("pve1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory in the place of /sys/bus/pci; two above it is that of /sys."""
    return tmp_path / "sys/bus/pci"


def shown_at(root: Path, state: dict[str, Any]) -> Path:
    shown.show(root, pci.tree(state, machine.groups(state)))
    return root / "devices"


def ids(devices: Path, bus_id: str) -> list[str]:
    """bdfs from the root port down, as software finds them: in the real path."""
    return [part for part in (devices / bus_id).resolve().parts if part.count(":") == 2]


def ordered(state: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(state["gpus"], key=lambda gpu: str(gpu["bus_id"]))


def walked(data: bytes) -> tuple[int, int | None]:
    """Port type and ACS control register, by the chains of capabilities."""
    assert struct.unpack_from("<H", data, 6)[0] & 0x10
    at, port = data[0x34], None
    while at:
        if data[at] == 0x10:
            port = struct.unpack_from("<H", data, at + 2)[0] >> 4 & 0xF
        at = data[at + 1]
    assert port is not None
    at, control = 0x100, None
    while at:
        head = struct.unpack_from("<I", data, at)[0]
        if head & 0xFFFF == 0x000D:
            control = struct.unpack_from("<H", data, at + 6)[0]
        at = head >> 20
    return port, control


class TestTree:
    def test_two_gpus_share_a_switch_and_no_switch_shares_a_root_port(self, root: Path, state: dict[str, Any]) -> None:
        devices = shown_at(root, state)
        paths = [ids(devices, gpu["bus_id"]) for gpu in ordered(state)]
        assert [len(path) for path in paths] == [4] * 8
        for first, second in zip(paths[::2], paths[1::2], strict=True):
            assert first[:2] == second[:2]
            assert first[2] != second[2]
        assert len({path[0] for path in paths}) == 4

    def test_the_root_bus_is_the_first_of_the_path(self, root: Path, state: dict[str, Any]) -> None:
        parts = (shown_at(root, state) / state["gpus"][0]["bus_id"]).resolve().parts
        bus = next(part for part in parts if part.startswith("pci0000:"))
        assert parts[parts.index(bus) + 1].startswith(f"{bus.removeprefix('pci')}:")

    def test_every_function_has_an_address_of_its_own(self, state: dict[str, Any]) -> None:
        found = [device.bdf for device in pci.devices(state)]
        assert len(found) == len(set(found)) == 8 + 8 + 4 * 2

    def test_bridges_name_the_buses_below_them(self, root: Path, state: dict[str, Any]) -> None:
        devices = shown_at(root, state)
        for gpu in state["gpus"]:
            path = ids(devices, gpu["bus_id"])
            for above, below in itertools.pairwise(path):
                primary, secondary, subordinate = (devices / above / "config").read_bytes()[0x18:0x1B]
                assert primary == int(above.split(":")[1], 16)
                assert secondary == int(below.split(":")[1], 16)
                assert secondary <= subordinate

    def test_a_gpu_without_a_switch_has_its_own_root_port(self, root: Path, state: dict[str, Any]) -> None:
        for gpu in state["gpus"]:
            gpu.pop("switch")
        devices = shown_at(root, state)
        paths = [ids(devices, gpu["bus_id"]) for gpu in state["gpus"]]
        assert {len(path) for path in paths} == {2}
        assert len({path[0] for path in paths}) == 8

    def test_no_room_for_ports_is_told(self, state: dict[str, Any]) -> None:
        state["gpus"][0]["bus_id"] = "0000:01:00.0"
        with pytest.raises(LabError) as caught:
            pci.devices(state)
        assert caught.value.code == "no-free-bus"

    def test_text_of_the_kernel(self, root: Path, state: dict[str, Any]) -> None:
        device = shown_at(root, state) / state["gpus"][-1]["bus_id"]
        texts = {path.name: path.read_text() for path in device.iterdir() if path.is_file() and path.name != "config"}
        assert texts["current_link_speed"] == "2.5 GT/s PCIe\n"
        assert texts["max_link_speed"] == "32.0 GT/s PCIe\n"
        assert (texts["current_link_width"], texts["numa_node"]) == ("16\n", "1\n")
        assert texts["aer_dev_correctable"].startswith("RxErr 0\nBadTLP 0\n")
        assert texts["aer_dev_fatal"].endswith("TOTAL_ERR_FATAL 0\n")

    def test_both_ends_of_a_narrow_link_show_it(self, root: Path, state: dict[str, Any]) -> None:
        gpu = ordered(state)[2]
        gpu["pcie_width"] = 8
        devices = shown_at(root, state)
        path = ids(devices, gpu["bus_id"])
        widths = [(devices / bdf / "current_link_width").read_text().strip() for bdf in path]
        assert widths == ["16", "16", "8", "8"]
        assert struct.unpack_from("<H", (devices / path[-1] / "config").read_bytes(), 0x40 + 0x12)[0] == 8 << 4 | 1

    def test_a_gpu_that_answers_no_more_reads_as_ones(self, root: Path, state: dict[str, Any]) -> None:
        state["gpus"][1]["fell_off"] = True
        device = shown_at(root, state) / state["gpus"][1]["bus_id"]
        assert set((device / "config").read_bytes()) == {0xFF}
        assert (device / "current_link_speed").read_text() == "Unknown\n"

    def test_links_lead_where_they_should(self, root: Path, state: dict[str, Any]) -> None:
        state["iommu"] = "translated"
        devices = shown_at(root, state)
        shown.show(root.parents[1] / "kernel/iommu_groups", machine.iommu_groups(state))
        device = devices / state["gpus"][0]["bus_id"]
        group = (device / "iommu_group").resolve(strict=True)
        assert (group / "type").read_text() == "DMA-FQ\n"
        assert (group / "devices" / device.name).resolve(strict=True) == device.resolve()
        assert (device / "driver").resolve(strict=True) == root / "drivers/nvidia"


class TestConfigSpace:
    def test_kinds_of_ports(self, root: Path, state: dict[str, Any]) -> None:
        devices = shown_at(root, state)
        path = ids(devices, state["gpus"][0]["bus_id"])
        found = [walked((devices / bdf / "config").read_bytes()) for bdf in path]
        assert found == [
            (config_space.ROOT_PORT, 0),
            (config_space.UPSTREAM, None),
            (config_space.DOWNSTREAM, 0),
            (config_space.LEGACY_ENDPOINT, None),
        ]

    def test_access_control_everywhere_or_on_one_port(self, root: Path, state: dict[str, Any]) -> None:
        devices = shown_at(root, state | {"acs": {"on": True}})
        path = ids(devices, state["gpus"][0]["bus_id"])
        controls = [walked((devices / bdf / "config").read_bytes())[1] for bdf in path]
        assert controls == [0x1D, None, 0x1D, None]
        shown_at(root, state | {"acs": {"on": [path[2]], "ctl": 0x11}})
        controls = [walked((devices / bdf / "config").read_bytes())[1] for bdf in path]
        assert controls == [0, None, 0x11, None]

    def test_root_alone_may_read_it(self, root: Path, state: dict[str, Any]) -> None:
        file = shown_at(root, state) / state["gpus"][0]["bus_id"] / "config"
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.stat().st_size == 4096


class TestErrorCounters:
    def test_counts_are_in_the_kernels_form(self, root: Path, state: dict[str, Any]) -> None:
        state["gpus"][0]["aer_correctable"] = 7
        file = shown_at(root, state) / state["gpus"][0]["bus_id"] / "aer_dev_correctable"
        counts = dict(line.split() for line in file.read_text().splitlines())
        assert (counts["BadTLP"], counts["TOTAL_ERR_COR"]) == ("7", "7")
        assert file.stat().st_mode & 0o777 == 0o444

    def test_a_growing_one_is_the_drivers_to_write_until_it_is_taken_back(
        self, root: Path, state: dict[str, Any]
    ) -> None:
        gpu = state["gpus"][0]
        gpu["aer_correctable_per_gb"] = 2
        file = shown_at(root, state) / gpu["bus_id"] / "aer_dev_correctable"
        assert file.stat().st_mode & 0o777 == 0o666
        file.write_text("RxErr 0\nTOTAL_ERR_COR 40\n")
        state["gpus"][5]["pcie_width"] = 8
        shown_at(root, state)
        assert file.read_text().endswith("TOTAL_ERR_COR 40\n")
        del gpu["aer_correctable_per_gb"]
        shown_at(root, state)
        assert file.read_text().endswith("TOTAL_ERR_COR 0\n")


class TestShown:
    def test_what_is_not_wanted_goes(self, tmp_path: Path) -> None:
        shown.show(tmp_path, {"a/b": shown.text(1), "a/c": shown.Link("b"), "d": None, "e/f/g": shown.text(2)})
        kept = (tmp_path / "a/b").stat()
        shown.show(tmp_path, {"a/b": shown.text(1), "a/c": None, "d": shown.text(3)})
        assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["a", "a/b", "a/c", "d"]
        assert (tmp_path / "a/c").is_dir()
        assert (tmp_path / "a/b").stat().st_ino == kept.st_ino
