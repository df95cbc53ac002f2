# SPDX-License-Identifier: Apache-2.0
"""GPUs, nodes and modules of a host made of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_checks import Places, check
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_gpu import (
    choose,
    kernel_version,
    make_node_command,
    read_gpus,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import Finding, PveError
from ansible_collections.rackwell.gpu.plugins.modules import pve_host
from pvestandin import MINORS, uuid

MODULES = ["nvidia", "nvidia_uvm", "nvidia_modeset"]


def run(
    driver: Path, version: str = "595.58.03", gpus: int = len(MINORS), hmm: bool = True
) -> tuple[dict, list[Finding]]:
    return check(version, gpus, MODULES, hmm, Places(str(driver / "proc"), str(driver / "module"), str(driver / "dev")))


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def test_a_healthy_host_has_no_problem_and_tells_its_facts(driver: Path) -> None:
    facts, findings = run(driver)
    assert findings == []
    assert (facts["driver_version"], facts["flavour"], facts["hmm_disabled"]) == ("595.58.03", "open", True)
    assert [(gpu["bus_id"], gpu["node"]) for gpu in facts["gpus"]] == [
        (bus_id, f"/dev/nvidia{minor}") for bus_id, minor in MINORS.items()
    ]
    assert set(facts["nodes"]) >= {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia2"}
    assert facts["modules"] == dict.fromkeys(MODULES, True)


def test_every_problem_is_told_at_once_with_its_fix(driver: Path) -> None:
    (driver / "module/nvidia/version").write_text("570.133.07\n")
    (driver / "module/nvidia_modeset/parameters").rmdir()
    (driver / "module/nvidia_modeset").rmdir()
    (driver / "module/nvidia_uvm/parameters/uvm_disable_hmm").write_text("N\n")
    (driver / "dev/nvidia2").unlink()
    _, findings = run(driver, gpus=8)
    assert codes(findings) == ["module-not-loaded", "driver-version", "hmm-enabled", "gpu-count", "device-missing"]
    assert all(finding.fix and finding.why and finding.where for finding in findings)
    by_code = {finding.code: finding for finding in findings}
    assert "modprobe nvidia_modeset" in by_code["module-not-loaded"].fix
    assert "uvm_disable_hmm=1" in by_code["hmm-enabled"].fix
    assert by_code["device-missing"].fix.startswith("nvidia-modprobe -c 2;")
    assert "570.133.07" in by_code["driver-version"].what


class EndedError(Exception):
    """What the module ended with."""


class FakeModule:
    def __init__(self, **_: object) -> None:
        self.params = {"driver_version": "595.58.03", "gpus": 8, "modules": MODULES, "disable_hmm": True}

    def fail_json(self, **result: object) -> None:
        raise EndedError(result)

    exit_json = fail_json


@pytest.mark.parametrize("version", ["595.58.03", "570.133.07"])
def test_the_report_itself_says_what_is_wrong(driver: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Whoever judges the report must not take a failed host for a good one."""
    monkeypatch.setattr(pve_host, "AnsibleModule", FakeModule)
    monkeypatch.setattr(pve_host, "check", lambda *_: run(driver, version))
    with pytest.raises(EndedError) as ended:
        pve_host.main()
    result = ended.value.args[0]["rackwell_result"]
    assert [problem["code"] for problem in result["problems"]] == ([] if version == "595.58.03" else ["driver-version"])


def test_no_driver_at_all_is_one_problem_of_the_driver(driver: Path) -> None:
    places = Places(str(driver / "none"), str(driver / "none"), str(driver / "dev"))
    _, findings = check("595.58.03", 0, ["nvidia"], True, places)
    assert codes(findings) == ["driver-missing"]


def test_blackwell_wants_the_open_modules(driver: Path) -> None:
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.58.03  Wed Mar 18 19:06:05 UTC 2026\n"
    (driver / "proc/driver/nvidia/version").write_text(text)
    facts, findings = run(driver)
    assert facts["flavour"] == "proprietary"
    assert codes(findings) == ["driver-flavour"]


def test_hmm_may_stay_on_where_that_is_declared(driver: Path) -> None:
    file = driver / "module/nvidia_uvm/parameters/uvm_disable_hmm"
    file.write_text("N\n")
    facts, findings = run(driver, hmm=False)
    assert (facts["hmm_disabled"], findings) == (False, [])
    file.unlink()
    facts, findings = run(driver)
    assert (facts["hmm_disabled"], findings) == (None, [])


def test_a_node_with_another_major_than_the_drivers_is_stale(driver: Path) -> None:
    # the tests' nodes are /dev/null: major 1
    (driver / "proc/devices").write_text(
        "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
    )
    _, findings = run(driver)
    assert set(codes(findings)) == {"device-stale"}
    uvm = next(finding for finding in findings if finding.where == "/dev/nvidia-uvm")
    assert "/proc/devices says 511" in uvm.why
    (driver / "proc/devices").write_text("Character devices:\n  1 nvidia\n  1 nvidia-uvm\n")
    assert run(driver)[1] == []


def test_a_plain_file_in_place_of_a_node_is_a_problem(driver: Path) -> None:
    (driver / "dev/nvidiactl").unlink()
    (driver / "dev/nvidiactl").touch()
    _, findings = run(driver)
    assert [(finding.code, finding.why) for finding in findings] == [("device-missing", "it is not a device")]


def test_a_gpu_without_minor_is_told_not_guessed(driver: Path) -> None:
    file = driver / "proc/driver/nvidia/gpus/0000:06:00.0/information"
    file.write_text(file.read_text().replace("Device Minor: \t 2", "Device Minor: \t N/A"))
    _, findings = run(driver)
    assert "gpu-unreadable" in codes(findings)


@pytest.mark.parametrize(
    ("wanted", "nodes"),
    [
        ("all", ["/dev/nvidia2", "/dev/nvidia3", "/dev/nvidia0", "/dev/nvidia4"]),
        (["0000:75:00.0", "0000:06:00.0"], ["/dev/nvidia2", "/dev/nvidia0"]),
        (["75:00.0", "00000000:F4:00.0"], ["/dev/nvidia0", "/dev/nvidia4"]),
        ([uuid("0000:f4:00.0"), "0000:F4:00.0"], ["/dev/nvidia4"]),
        ([], []),
    ],
)
def test_declared_gpus_are_found_by_bus_id_or_uuid_and_go_by_bus_id(
    driver: Path, wanted: object, nodes: list[str]
) -> None:
    gpus = read_gpus(str(driver / "proc/driver/nvidia"))
    assert [gpu.node for gpu in choose(wanted, gpus)] == nodes


def test_an_absent_gpu_is_told_with_those_that_are_there(driver: Path) -> None:
    gpus = read_gpus(str(driver / "proc/driver/nvidia"))
    with pytest.raises(PveError) as caught:
        choose(["0000:99:00.0"], gpus)
    assert caught.value.finding.code == "gpu-missing"
    assert "0000:06:00.0" in caught.value.finding.why


@pytest.mark.parametrize(
    ("wanted", "code"), [("all", "gpu-missing"), ({"a": 1}, "gpus-invalid"), ([1], "gpus-invalid")]
)
def test_gpus_that_cannot_be_chosen(wanted: object, code: str) -> None:
    with pytest.raises(PveError) as caught:
        choose(wanted, [])
    assert caught.value.finding.code == code


def test_version_falls_back_to_the_proc_file(driver: Path) -> None:
    (driver / "module/nvidia/version").unlink()
    assert kernel_version(str(driver / "proc/driver/nvidia"), str(driver / "module")) == ("595.58.03", "open")


def test_every_nvidia_node_has_a_command_that_makes_it() -> None:
    assert make_node_command("/dev/nvidia12") == "nvidia-modprobe -c 12"
    assert make_node_command("/dev/nvidia-uvm-tools") == "nvidia-modprobe -c 0 -u"
    assert make_node_command("/dev/nvidia-modeset") == "nvidia-modprobe -m"
    assert "/dev/fuse" in make_node_command("/dev/fuse")


@pytest.mark.parametrize("minor", ["", "²", "٣", "9" * 5000, "-1", "N/A"])
def test_a_minor_that_is_no_number_is_told(driver: Path, minor: str) -> None:
    file = next((driver / "proc/driver/nvidia/gpus").iterdir()) / "information"
    file.write_text(f"Device Minor: \t {minor}\n")
    with pytest.raises(PveError) as caught:
        read_gpus(str(driver / "proc/driver/nvidia"))
    assert caught.value.finding.code == "gpu-unreadable"
    file.unlink()
    file.mkdir()
    with pytest.raises(PveError):
        read_gpus(str(driver / "proc/driver/nvidia"))
