# SPDX-License-Identifier: Apache-2.0
"""Each fault gets its own code, and only that; what follows from it stands below it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated import PLACES, Machine, codes, record, uuid

from rackwell.probe.codes import CHECKS, CODES, worst
from rackwell.probe.surroundings import DriverGpu, Node, Surroundings

PAIRS = Machine().topology.pairs()
CLASS = Machine().topology.link_class
UVM = "/dev/nvidia-uvm"


def rows(report: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {row["id"]: (row["verdict"], row["code"]) for row in report["checks"]}


def below(finding: dict[str, Any]) -> Iterator[str]:
    for consequence in finding["consequences"]:
        yield consequence["code"]
        yield from below(consequence)


def nodes(**changes: dict[str, Any]) -> dict[str, Any]:
    """Surroundings with some nodes changed, by their path below /dev."""
    healthy = Machine().look()
    changed = tuple(
        dataclasses.replace(node, **changes.get(node.path[5:].replace("-", "_"), {})) for node in healthy.nodes
    )
    return {"nodes": changed}


FAULTS: dict[str, tuple[dict[str, Any], str, set[str]]] = {
    # fault: (the machine, the code, what must stand below it)
    "uvm node missing": (
        {"surroundings": nodes(nvidia_uvm={"present": False}), "start_error": (999, "CUDA_ERROR_UNKNOWN")},
        "uvm-node-missing",
        {"cuda-unknown"},
    ),
    "uvm major changed": (
        {
            "surroundings": nodes(nvidia_uvm={"major": 510, "major_ok": False}),
            "start_error": (999, "CUDA_ERROR_UNKNOWN"),
        },
        "uvm-node-stale",
        {"cuda-unknown"},
    ),
    "node is a plain file": (
        {"surroundings": nodes(nvidia_uvm={"device": False}), "start_error": (999, "CUDA_ERROR_UNKNOWN")},
        "node-not-device",
        {"cuda-unknown"},
    ),
    "node mode 0660": (
        {
            "surroundings": nodes(nvidia_uvm={"usable": False, "mode": "0660"}),
            "start_error": (304, "CUDA_ERROR_OPERATING_SYSTEM"),
        },
        "node-denied",
        {"cuda-os-refused"},
    ),
    "ctl node missing": (
        {
            "surroundings": nodes(nvidiactl={"present": False}),
            "start_error": (100, "CUDA_ERROR_NO_DEVICE"),
            "nvml": {"available": False, "why": "no permission", "code": 4},
        },
        "ctl-node-missing",
        {"cuda-no-device", "nvml-failed"},
    ),
    "recovery action": ({"health": {3: {"recovery_action": "Drain and Reset"}}}, "recovery-action", set()),
    "code 3": ({"start_error": (3, "CUDA_ERROR_NOT_INITIALIZED")}, "cuda-not-initialized", set()),
    "code 3 with HMM": (
        {"start_error": (3, "CUDA_ERROR_NOT_INITIALIZED"), "surroundings": {"hmm": True}},
        "hmm-on",
        {"hmm-enabled"},
    ),
    "code 100": ({"start_error": (100, "CUDA_ERROR_NO_DEVICE")}, "cuda-no-device", set()),
    "code 304": ({"start_error": (304, "CUDA_ERROR_OPERATING_SYSTEM")}, "cuda-os-refused", set()),
    "code 802": ({"start_error": (802, "CUDA_ERROR_SYSTEM_NOT_READY")}, "cuda-fabric-not-ready", set()),
    "code 803": ({"start_error": (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")}, "driver-mismatch", set()),
    "code 804": ({"start_error": (804, "CUDA_ERROR_COMPAT")}, "cuda-compat-libraries", set()),
    "code 999": ({"start_error": (999, "CUDA_ERROR_UNKNOWN")}, "cuda-unknown", set()),
    "another code": ({"start_error": (46, "CUDA_ERROR_DEVICE_UNAVAILABLE")}, "cuda-failed", set()),
    "hang in cuInit": ({"hang": "cuInit"}, "cuda-hang", set()),
    "hang in cuInit with HMM": ({"hang": "cuInit", "surroundings": {"hmm": True}}, "cuda-hang", {"hmm-enabled"}),
    "no GPU at all": ({"gone": tuple(range(8))}, "cuda-no-device", {"gpu-missing"}),
    "one GPU gone": ({"gone": (5,)}, "gpu-missing", set()),
    "one pair corrupt": ({"corrupt": ((0, 1), (1, 0))}, "p2p-corrupt", set()),
    "one direction corrupt": ({"corrupt": ((2, 6),)}, "p2p-corrupt-one-way", set()),
    "corrupt, and so is the sum": (
        {"corrupt": ((2, 6),), "collectives": {"points": [{"bytes": 8 << 10, "us": 20.0, "busbw": 0.7, "wrong": 3}]}},
        "p2p-corrupt-one-way",
        {"allreduce-wrong"},
    ),
    "one pair at a third": ({"slow": {(2, 3): 0.33, (3, 2): 0.33}}, "p2p-slow-pair", set()),
    "one direction at a third": ({"slow": {(2, 3): 0.33}}, "p2p-slow-direction", set()),
    "all pairs of a GPU": ({"slow": {pair: 0.4 for pair in PAIRS if 2 in pair}}, "p2p-slow-gpu", set()),
    "all that a GPU sends": ({"slow": {pair: 0.4 for pair in PAIRS if pair[0] == 2}}, "p2p-slow-gpu", set()),
    "cross-root at 16 GB/s": ({"cross_root": 16.0}, "p2p-slow-cross-root", set()),
    "cross-socket only": (
        {"slow": {pair: 0.4 for pair in PAIRS if CLASS(*pair) == "cross-socket"}},
        "p2p-slow-cross-socket",
        set(),
    ),
    "ACS and cross-root at 16 GB/s": ({"acs": 0x1D, "cross_root": 16.0}, "acs-on", {"p2p-slow-cross-root"}),
    "collapse under concurrency": ({"collapse": 2.7}, "p2p-concurrent-collapse", set()),
    "trained to Gen2": ({"generation": {3: 2}}, "link-generation", {"p2p-slow-gpu"}),
    "trained to x8": ({"width": {3: 8}}, "link-width", {"p2p-slow-gpu"}),
    "staged through memory": ({"latency": 14.0}, "p2p-latency", set()),
    "allreduce hang": (
        {"collectives": {"state": "hung", "points": [], "why": "did not return"}},
        "allreduce-hang",
        set(),
    ),
    "allreduce wrong": (
        {"collectives": {"points": [{"bytes": 8 << 10, "us": 20.0, "busbw": 0.7, "wrong": 3}]}},
        "allreduce-wrong",
        set(),
    ),
    "allreduce failed": (
        {"collectives": {"state": "failed", "points": [], "why": "ncclCommInitAll: unhandled"}},
        "allreduce-failed",
        set(),
    ),
    "NVML gone in the middle": (
        {"nvml_after": {"lost": {"at": "nvmlInit, after the measurements", "code": 15, "name": "GPU_IS_LOST"}}},
        "nvml-lost",
        set(),
    ),
    "driver and library differ": (
        {
            "surroundings": {"kernel_module_version": "595.71.05"},
            "start_error": (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
            "nvml": {"available": False, "why": "mismatch", "code": 18},
        },
        "driver-mismatch",
        set(),
    ),
    "ECC": ({"health": {3: {"ecc_uncorrected": 2}}}, "ecc-uncorrected", set()),
    "BAR1": ({"links": {"bar1_total": 256 << 20}}, "bar1-small", set()),
    "replays": ({"links": {"replays": [3, 50]}}, "link-errors", set()),
    "HMM though CUDA works": ({"surroundings": {"hmm": True}}, "hmm-enabled", set()),
    "IOMMU translated": ({"surroundings": {"iommu": "translated"}}, "iommu-translated", set()),
    "IOMMU translated, and data corrupt": (
        {"surroundings": {"iommu": "translated"}, "corrupt": ((0, 1), (1, 0))},
        "iommu-translated",
        {"p2p-corrupt"},
    ),
    "no module": (
        {
            "surroundings": {
                **nodes(nvidiactl={"present": False}, nvidia_uvm={"present": False}),
                "kernel_module_version": None,
                "gpus": (),
            },
            "start_error": (100, "CUDA_ERROR_NO_DEVICE"),
            "nvml": {"available": False, "why": "driver not loaded", "code": 9},
        },
        "module-missing",
        {"uvm-node-missing", "ctl-node-missing", "cuda-no-device", "nvml-failed"},
    ),
    "nvidia_uvm not loaded": (
        {"surroundings": {"uvm_loaded": False, "hmm": None}, "start_error": (999, "CUDA_ERROR_UNKNOWN")},
        "module-missing",
        {"cuda-unknown"},
    ),
    "pair hangs": (
        {
            "pairs_part": {
                "state": "hung",
                "at": {"pair": [0, 4], "step": "copy write and compare"},
                "describe": "did not return before the deadline",
            }
        },
        "p2p-hang",
        set(),
    ),
}


def test_a_healthy_machine_passes() -> None:
    report = Machine().check()
    assert codes(report) == []
    assert report["verdict"] == "pass"
    assert set(rows(report).values()) == {("pass", "ok"), ("not-measured", "not-measured")}
    assert rows(report)["baseline"][0] == "not-measured"
    assert [row["id"] for row in report["checks"]] == list(CHECKS)


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_one_code(fault: str) -> None:
    machine, code, consequences = FAULTS[fault]
    report = Machine(**machine).check()
    found = [finding for finding in report["findings"] if finding["verdict"] != "not-measured"]
    assert [finding["code"] for finding in found] == [code]
    assert {name for finding in found for name in below(finding)} >= consequences
    entry = found[0]
    assert entry["what"]
    assert entry["where"]
    assert entry["why"]
    assert entry["fix"]
    assert "{" not in entry["fix"], "a command that was not filled in"
    # the table of checks has the same code, or says that it follows from it
    assert {row["code"] for row in report["checks"]} <= {"ok", "not-measured", code}
    assert report["verdict"] == worst([CODES[code].verdict, *(CODES[name].verdict for name in below(entry))])


@pytest.mark.parametrize("fault", ["one pair at a third", "cross-root at 16 GB/s", "trained to x8", "hang in cuInit"])
def test_so_the_quick_check(fault: str) -> None:
    machine, code, _ = FAULTS[fault]
    found = codes(Machine(**machine).check(mode="quick"))
    assert found == [code] or (fault == "one pair at a third" and found == [])  # a sample may miss a pair


def test_permuted_minors_are_no_fault() -> None:
    gpus = tuple(DriverGpu(place[0], uuid(i), 7 - i) for i, place in enumerate(PLACES))
    report = Machine(surroundings={"gpus": gpus}).check()
    assert codes(report) == []
    assert [gpu["minor"] for gpu in report["gpus"]] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert [gpu["index"] for gpu in report["gpus"]] == list(range(8))


def test_a_missing_gpu_is_named_from_the_baseline(tmp_path: Path) -> None:
    report = Machine(gone=(5,), seed=7).check(baseline=record(tmp_path / "b.json"))
    assert codes(report) == ["gpu-missing"]
    assert uuid(5) in report["findings"][0]["what"]
    assert "0000:85:00.0" in report["findings"][0]["where"]
    assert report["baseline"]["state"] == "used"
    assert (report["findings"][0]["measured"], report["findings"][0]["expected"]) == (7.0, 8.0)


def test_a_missing_gpu_is_named_from_the_hosts_facts() -> None:
    facts = {"gpus": [{"bus_id": place[0], "uuid": uuid(i)} for i, place in enumerate(PLACES)]}
    report = Machine(gone=(5,)).check(host_facts=facts)
    assert uuid(5) in report["findings"][0]["what"]
    assert "not on the PCI bus" in report["findings"][0]["why"]


def test_a_gpu_whose_node_was_not_passed_is_named_by_its_bus_id() -> None:
    changes = nodes(nvidia7={"present": False})
    # minor 7 belongs to index 5 on this machine
    gpus = tuple(DriverGpu(PLACES[i][0], uuid(i), m) for i, m in enumerate((2, 3, 0, 1, 6, 7, 4, 5)))
    machine = Machine(gone=(5,), surroundings={**changes, "gpus": gpus})
    report = machine.check()
    assert codes(report) == ["gpu-node-missing"]
    assert "0000:85:00.0" in report["findings"][0]["where"]
    assert "/dev/nvidia7" in report["findings"][0]["fix"]
    assert list(below(report["findings"][0])) == ["gpu-missing"]


def test_no_gpu_is_a_failure_even_where_nobody_said_how_many() -> None:
    report = Machine(gone=tuple(range(8))).check(gpus=None)
    assert (report["verdict"], codes(report)) == ("fail", ["cuda-no-device"])


def test_more_gpus_than_declared() -> None:
    report = Machine().check(gpus=4)
    assert codes(report) == ["gpu-extra"]
    assert report["verdict"] == "degraded"


def test_visible_devices_are_named_as_the_cause() -> None:
    report = Machine(gone=(5,), surroundings={"visible_devices": "0,1,2,3,4,6,7"}).check()
    assert "CUDA_VISIBLE_DEVICES is set to '0,1,2,3,4,6,7'" in report["findings"][0]["why"]


def test_two_faults_are_two_findings() -> None:
    report = Machine(slow={(2, 3): 0.33, (3, 2): 0.33}, corrupt=((0, 5),)).check()
    assert codes(report) == ["p2p-corrupt-one-way", "p2p-slow-pair"]


def test_a_slow_pair_beside_a_bad_link_is_told_by_itself() -> None:
    report = Machine(generation={7: 2}, slow={(2, 3): 0.33, (3, 2): 0.33}).check()
    assert sorted(codes(report)) == ["link-generation", "p2p-slow-pair"]


def test_nvlink_machines_do_not_care_for_acs_and_iommu() -> None:
    class Linked(Machine):
        def rate(self, pair: tuple[int, int]) -> float:
            return 396.0

    nvlink = {"nvlink": {"active": 18, "version": 4, "gb_per_s_one_way": None}}
    machine = Linked(nvlinks=18, link=390.0, acs=0x1D, surroundings={"iommu": "translated"}, links=nvlink)
    assert codes(machine.check()) == []


def test_corruption_under_concurrency_alone() -> None:
    class Loaded(Machine):
        def measure_concurrent(self, *args: Any) -> dict[str, Any]:
            part = super().measure_concurrent(*args)
            part["concurrent"][0]["verified"] = False
            part["data"] = [{"src": 0, "dst": 5, "engine": "copy", "op": "write", "ok": False, "bytes": 64, "wrong": 8}]
            return part

    report = Loaded().check()
    assert codes(report) == ["p2p-corrupt"]
    assert report["findings"][0]["check"] == "p2p.concurrent"
    assert report["findings"][0]["pairs"] == [[0, 5]]
    # a pair that is wrong alone is not told again
    assert codes(Loaded(corrupt=((0, 5),)).check()) == ["p2p-corrupt-one-way"]


def test_a_reading_that_what_was_copied_disproves() -> None:
    """With one GPU lost NVML does not answer, and sysfs may have been read while the link slept."""
    machine = Machine(links={"gen_load": 1})
    assert codes(machine.check()) == []


def test_declared_floors_win() -> None:
    expect = {"floors": {"cross-socket": {"gb_per_s": 45.0}}}
    report = Machine().check(expect=expect)
    assert codes(report) == ["p2p-slow-cross-socket"]
    assert report["findings"][0]["expected"] == 45.0


def test_a_link_of_which_nothing_is_known_has_no_floor() -> None:
    """In a virtual machine the tree shows neither ports nor speeds."""
    machine = Machine(cross_root=5.0, links={"gen_gpu_max": None, "width_max": None, "ports": []})
    machine.tree = dataclasses.replace(
        machine.tree,
        gpus=tuple(dataclasses.replace(gpu, path=(gpu.bus_id,), numa=None) for gpu in machine.tree.gpus),
        ports={},
    )
    report = machine.check()
    assert codes(report) == []
    row = next(row for row in report["checks"] if row["id"] == "p2p.bandwidth")
    assert "no floor" in row["summary"]


def test_xids_of_programs_are_no_fault() -> None:
    lines = ["[ 12.0] NVRM: Xid (PCI:0000:06:00): 13, pid=1, Graphics Exception"]
    assert codes(Machine().check(host_facts={"dmesg": lines})) == []
    lines += ["[ 13.0] NVRM: Xid (PCI:0000:06:00): 79, pid=1, GPU has fallen off the bus."]
    report = Machine().check(host_facts={"dmesg": lines})
    assert codes(report) == ["xid-since-boot"]
    assert report["findings"][0]["gpus"] == [0]


def test_acs_of_the_hosts_facts() -> None:
    facts = {"host": "pve1", "ports": [{"bdf": "0000:02:03.0", "kind": "downstream", "acs": {"cap": 95, "ctl": 0x1D}}]}
    report = Machine().check(host_facts=facts)
    assert codes(report) == ["acs-on"]
    assert "setpci -s 0000:02:03.0 ECAP_ACS+0x6.w=0000" in report["findings"][0]["fix"]
    assert report["findings"][0]["gpus"] == [0]


def test_acs_explains_only_pairs_behind_it() -> None:
    facts = {"ports": [{"bdf": "0000:02:03.0", "kind": "downstream", "acs": {"cap": 95, "ctl": 0x1D}}]}
    report = Machine(slow={(4, 6): 0.3, (6, 4): 0.3}).check(host_facts=facts)
    assert sorted(codes(report)) == ["acs-on", "p2p-slow-pair"]


def test_missing_registry_keys_explain_staged_reads() -> None:
    report = Machine(latency=14.0).check(host_facts={"driver": {"params": {"RegistryDwords": ""}}})
    assert "p2p-latency" in {name for finding in report["findings"] for name in (finding["code"], *below(finding))}


def test_what_was_not_measured_without_a_reason_is_a_failure() -> None:
    machine = Machine(pairs_part={"capability": [], "data": [], "bandwidth": [], "latency": []})
    report = machine.check(only=("p2p.data",))
    assert report["verdict"] == "fail"


def test_every_code_has_a_check_and_a_remedy() -> None:
    for code in CODES.values():
        assert code.check in CHECKS
        assert code.verdict in ("fail", "degraded")
        assert code.title
        assert code.why
        assert "`" in code.fix or "NCCL" in code.fix or "BIOS" in code.fix or "see" in code.why, code.code


def test_surroundings_of_the_simulated_machine_are_real() -> None:
    seen: Surroundings = Machine().look()
    assert seen.node(UVM) == Node(UVM, True, True, "0666", 195, 0, device=True)
    assert len(seen.gpu_nodes) == 8
