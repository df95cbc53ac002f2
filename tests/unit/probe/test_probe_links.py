# SPDX-License-Identifier: Apache-2.0
"""Links and health before and after, and under load, on a stand-in for NVML and a sysfs of files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rackwell.probe import links
from rackwell.probe.topology import Gpu, Topology

HERE = Path(__file__).parent
FAKES = HERE / "fakes_nvml"
SOURCES = HERE.parents[2] / "src"
#: the way to two GPUs behind one switch: root port, switch's upstream port, its downstream ports
PATHS = {
    "0000:06:00.0": ["0000:00:01.1", "0000:01:00.0", "0000:02:00.0", "0000:06:00.0"],
    "0000:07:00.0": ["0000:00:01.1", "0000:01:00.0", "0000:02:01.0", "0000:07:00.0"],
}
TOPOLOGY = Topology(tuple(Gpu(i, bus, tuple(path)) for i, (bus, path) in enumerate(PATHS.items())))
VIRTUAL = Topology((Gpu(0, "0000:06:00.0", ("0000:06:00.0",)),))
AER = {"correctable": "RxErr 0\nBadTLP {0}\nTOTAL_ERR_COR {0}\n", "nonfatal": "TOTAL_ERR_NONFATAL 0\n"}
Order = Callable[..., None]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Order:
    def order(**faults: Any) -> None:
        monkeypatch.setenv("RACKWELL_FAKE_NVML", json.dumps(faults))

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), str(SOURCES)]))
    order()
    return order


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    for path in PATHS.values():
        place = tmp_path / "sys/devices/pci0000:00"
        for bdf in path:
            place /= bdf
            if place.exists():
                continue
            place.mkdir(parents=True)
            (tmp_path / "sys/bus/pci/devices" / bdf).symlink_to(place)
            write(tmp_path, bdf, "vendor", "0x10de" if bdf in PATHS else "0x1000")
            write(tmp_path, bdf, "class", "0x030200" if bdf in PATHS else "0x060400")
            write(tmp_path, bdf, "max_link_speed", "32.0 GT/s PCIe")
            write(tmp_path, bdf, "max_link_width", "16")
            write(tmp_path, bdf, "current_link_speed", "2.5 GT/s PCIe" if bdf in PATHS else "32.0 GT/s PCIe")
            write(tmp_path, bdf, "current_link_width", "16")
            errors(tmp_path, bdf, 0)
    return tmp_path


def write(root: Path, bdf: str, name: str, text: str) -> None:
    (root / "sys/bus/pci/devices" / bdf / name).write_text(text + "\n")


def errors(root: Path, bdf: str, correctable: int) -> None:
    for kind, text in {**AER, "fatal": "TOTAL_ERR_FATAL 0\n"}.items():
        write(root, bdf, f"aer_dev_{kind}", text.format(correctable))


def look(root: Path, topology: Any = TOPOLOGY, **load: Any) -> tuple[Any, Any, Any]:
    return links.after(links.before(topology, root=root), load or None)


def test_what_nvml_and_sysfs_tell(nvml: Order, sysfs: Path) -> None:
    found, health, state = look(sysfs)
    assert [link["gpu"] for link in found] == [0, 1]
    link = found[0]
    assert (link["bus_id"], link["gen_gpu_max"], link["gen_host_max"], link["idle_gen"]) == ("0000:06:00.0", 5, 5, 1)
    assert (link["gen_load"], link["width_load"]) == (None, None)
    assert link["width_max"] == 16
    assert link["bar1_total"] == 131072 << 20
    assert link["replays"] == [0, 0]
    assert link["nvlink"] is None
    assert [(port["bdf"], port["kind"]) for port in link["ports"]] == [
        ("0000:00:01.1", "root"),
        ("0000:01:00.0", "upstream"),
        ("0000:02:00.0", "downstream"),
        ("0000:06:00.0", "gpu"),
    ]
    assert link["ports"][0]["speed_gt_s"] == 32.0
    assert link["ports"][0]["aer"] == {"correctable": [0, 0], "nonfatal": [0, 0], "fatal": [0, 0]}
    assert health[1] == {
        "gpu": 1,
        "bus_id": "0000:07:00.0",
        "uuid": "GPU-1",
        "ecc_uncorrected": 0,
        "recovery_action": "None",
        "remapped_pending": False,
        "processes": 1,
        "memory_used": 1 << 30,
        "utilization": 7,
    }
    assert state["available"] is True
    assert (state["driver_version"], state["count"], state["lost"]) == ("595.58.03", 2, None)


def test_counters_are_told_before_and_after(nvml: Order, sysfs: Path) -> None:
    state = links.before(TOPOLOGY, root=sysfs)
    nvml(values={"nvmlDeviceGetPcieReplayCounter": 12})
    errors(sysfs, "0000:02:01.0", 5)
    found, _, _ = links.after(state)
    assert found[0]["replays"] == [0, 12]
    assert found[0]["ports"][2]["aer"]["correctable"] == [0, 0]
    assert found[1]["ports"][2]["aer"]["correctable"] == [0, 5]


def test_the_reading_under_load_is_taken_over(nvml: Order, sysfs: Path) -> None:
    reading = {"gen": 2, "width": 8, "ports": {"0000:02:00.0": {"speed_gt_s": 5.0, "width": 8}}}
    found, _, _ = look(sysfs, **{"0000:06:00.0": reading})
    assert (found[0]["gen_load"], found[0]["width_load"]) == (2, 8)
    assert (found[0]["ports"][2]["speed_gt_s"], found[0]["ports"][2]["width"]) == (5.0, 8)
    assert found[0]["ports"][2]["max_width"] == 16
    assert found[1]["gen_load"] is None


def test_the_host_limits_the_generation(nvml: Order, sysfs: Path) -> None:
    write(sysfs, "0000:02:00.0", "max_link_speed", "16.0 GT/s PCIe")
    found, _, _ = look(sysfs)
    assert [link["gen_host_max"] for link in found] == [4, 5]


def test_in_a_virtual_machine_only_a_lower_limit_is_known(nvml: Order, tmp_path: Path) -> None:
    found, _, _ = look(tmp_path, VIRTUAL)
    assert (found[0]["gen_host_max"], found[0]["ports"][0]["width"], found[0]["width_max"]) == (None, None, 16)
    nvml(values={"nvmlDeviceGetMaxPcieLinkGeneration": 4})
    found, _, _ = look(tmp_path, VIRTUAL)
    assert found[0]["gen_host_max"] == 4


def test_without_a_topology_nvml_and_sysfs_make_one(nvml: Order, sysfs: Path) -> None:
    found, health, _ = look(sysfs, None)
    assert [[port["bdf"] for port in link["ports"]] for link in found] == list(PATHS.values())
    assert [entry["gpu"] for entry in health] == [0, 1]


def test_readings_that_are_not_offered_are_null(nvml: Order, sysfs: Path) -> None:
    nvml(
        errors={"nvmlDeviceGetPcieReplayCounter": 3, "nvmlDeviceGetTotalEccErrors": 3, "nvmlDeviceGetFieldValues": 13},
        lacks=["nvmlDeviceGetRemappedRows", "nvmlDeviceGetGpuMaxPcieLinkGeneration"],
    )
    (sysfs / "sys/bus/pci/devices/0000:00:01.1/aer_dev_fatal").unlink()
    found, health, state = look(sysfs)
    assert (found[0]["replays"], found[0]["gen_gpu_max"], found[0]["ports"][0]["aer"]) == (None, None, None)
    assert (health[0]["ecc_uncorrected"], health[0]["recovery_action"], health[0]["remapped_pending"]) == (None,) * 3
    assert state["lost"] is None


@pytest.mark.parametrize(("action", "word"), [(1, "GPU Reset Required"), (4, "Drain and Reset"), (77, "action 77")])
def test_a_recovery_action_is_named(nvml: Order, sysfs: Path, action: int, word: str) -> None:
    nvml(recovery=action)
    assert look(sysfs)[1][0]["recovery_action"] == word


def test_nvml_that_does_not_start(nvml: Order, sysfs: Path) -> None:
    nvml(errors={"nvmlInit": 18})
    found, health, state = look(sysfs)
    assert (state["available"], state["code"], state["name"]) == (False, 18, "NVML_ERROR_LIB_RM_VERSION_MISMATCH")
    assert state["lost"] is None
    assert health == []
    assert found[0]["gen_gpu_max"] is None
    assert found[0]["ports"][0]["width"] == 16


@pytest.mark.parametrize(
    ("faults", "code", "at"),
    [
        ({"errors": {"nvmlInit": 9}}, 9, "nvmlInit"),
        ({"errors": {"nvmlDeviceGetHandleByIndex@1": 15}}, 15, "nvmlDeviceGetHandleByIndex of GPU 1"),
        ({"errors": {"nvmlDeviceGetPcieReplayCounter@1": 15}}, 15, "of GPU 1 at 0000:07:00.0"),
        ({"gpus": 1}, None, "1 of 2 GPUs"),
    ],
)
def test_nvml_that_is_gone_afterwards(nvml: Order, sysfs: Path, faults: dict[str, Any], code: int, at: str) -> None:
    state = links.before(TOPOLOGY, root=sysfs)
    nvml(**faults)
    found, health, told = links.after(state)
    assert told["available"] is True
    assert told["lost"]["code"] == code
    assert at in told["lost"]["at"]
    assert told["lost"]["at"].endswith("after the measurements")
    assert [link["idle_gen"] for link in found] == [1, 1]
    assert [entry["memory_used"] for entry in health] == [1 << 30, 1 << 30]


def test_a_gpu_that_is_lost_at_first_does_not_hide_the_other(nvml: Order, sysfs: Path) -> None:
    nvml(errors={"nvmlDeviceGetHandleByIndex@0": 15})
    found, health, state = look(sysfs)
    assert [entry["gpu"] for entry in health] == [1]
    assert [link["idle_gen"] for link in found] == [None, 1]
    assert state["lost"] == {
        "at": "nvmlDeviceGetHandleByIndex of GPU 0",
        "code": 15,
        "name": "NVML_ERROR_GPU_IS_LOST",
    }


def test_a_hang_is_ended(nvml: Order, sysfs: Path) -> None:
    state = links.before(TOPOLOGY, root=sysfs)
    nvml(hang="nvmlDeviceGetUUID")
    _, _, told = links.after(state, deadline=1)
    assert told["lost"]["name"] == "HANG"
    told = links.before(TOPOLOGY, deadline=1, root=sysfs)["nvml"]
    assert (told["available"], told["name"]) == (False, "HANG")
    assert "did not return before the deadline" in told["why"]


def test_nvlinks(nvml: Order, sysfs: Path) -> None:
    nvml(nvlinks=18)
    state = links.before(TOPOLOGY, root=sysfs)
    assert (state["bus_ids"], state["nvlink"]) == (list(PATHS), [[0, 18], [18, 0]])
    assert links.after(state)[0][0]["nvlink"] == {"active": 18, "version": 4, "gb_per_s_one_way": 478.1}
    assert links.nvlink_matrix(state, ["0000:06:00.0", "0000:07:00.0", "0000:08:00.0"]) == [
        [0, 18, 0],
        [18, 0, 0],
        [0, 0, 0],
    ]
    nvml()
    assert links.nvlink_matrix(links.before(TOPOLOGY, root=sysfs), list(PATHS)) == [[0, 0], [0, 0]]


def test_the_reader_reads_now(nvml: Order, sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKES))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    links._session.cache_clear()
    read = links.reader("0000:07:00.0", sysfs)
    assert (read()["gen"], read()["width"]) == (1, 16)
    write(sysfs, "0000:02:01.0", "current_link_speed", "5.0 GT/s PCIe")
    assert read()["ports"]["0000:02:01.0"] == {"speed_gt_s": 5.0, "width": 16}
    links._session.cache_clear()


def test_the_reader_does_without_nvml(nvml: Order, sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_session", lambda: (None, {}))
    read = links.reader("0000:06:00.0", sysfs)
    write(sysfs, "0000:06:00.0", "current_link_speed", "32.0 GT/s PCIe")
    write(sysfs, "0000:06:00.0", "current_link_width", "8")
    assert (read()["gen"], read()["width"]) == (5, 8)
    nothing = links.reader("0000:0a:00.0", sysfs)()
    assert nothing == {"gen": None, "width": None, "ports": {"0000:0a:00.0": {"speed_gt_s": None, "width": None}}}
