# SPDX-License-Identifier: Apache-2.0
"""The ports above the GPUs: what clears ACS on them, and which link is a fault and which is only idle."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_checks as checks
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_facts as facts
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_pci as pci
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_boot import Boot
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_cpus import Processors, _count
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_plan import Todo as ToDo
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_plan import Wanted, unit_plan

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

from rwlab import gpus, shown
from rwlab import pci as standin

HELPER = Path(__file__).parents[3] / "roles/pve_host/files/gpu-acs"
SWITCH_PORT, ROOT_PORT, GPU = "0000:10:03.0", "0000:00:01.1", "0000:11:00.0"
SMI = "#!/bin/sh\ncat {0}/smi\n"

Make = Callable[..., Host]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """``make(smi=[(bus id, busy, generation)], acs={"on": True}, first={"pcie_width": 8})`` -> a host made of files."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")

    def host(smi: list[tuple[str, int, int]] | None = None, acs: Any = None, **first: Any) -> Host:
        state = gpus.healthy("pve1")
        state["acs"] = acs or {}
        state["gpus"][0] |= first
        shown.show(tmp_path / "sys/bus/pci", standin.tree(state, {}))
        lines = [f"0000{bus}, {busy}, {now}, 16" for bus, busy, now in smi or []]
        (tmp_path / "smi").write_text("\n".join(lines) + "\n")
        (tools / "nvidia-smi").write_text(SMI.format(tmp_path))
        (tools / "nvidia-smi").chmod(0o755)
        return Host(str(tmp_path))

    return host


def links(host: Host, **declared: int) -> list[str]:
    """Codes of what is wrong with the links."""
    seen = pci.tree(host.root)
    found = facts.Platform(
        Boot("", "", (), {}), "off", "", Processors("amd", 2, 0, 0), facts.Unit(None, None), pci.controls(seen),
        pci.links(host, seen, lambda _: None), {},
    )  # fmt: skip
    row = next(row for row in checks.rows(found, Wanted(**declared)) if row.item == "links")
    return [finding.code for _, finding in row.findings]


def first_bus() -> str:
    return str(gpus.healthy("pve1")["gpus"][0]["bus_id"])


def test_an_idle_link_is_no_fault(make: Make) -> None:
    assert links(make()) == []
    assert links(make([(first_bus(), 0, 1)])) == []


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"pcie_width": 8}, "link-width"),
        ({"pcie_target": 3}, "link-capped"),
        ({"pcie_stays": True}, "link-frozen"),
        ({"smi": [(first_bus(), 90, 4)]}, "link-generation"),
    ],
)
def test_a_link_that_no_load_lifts(make: Make, given: dict[str, Any], code: str) -> None:
    assert links(make(**given)) == [code]


def test_a_busy_gpu_at_full_speed_is_no_fault_whatever_sysfs_showed(make: Make) -> None:
    assert links(make([(first_bus(), 90, 5)], pcie_stays=True)) == []


def test_a_slot_that_is_less_than_declared(make: Make) -> None:
    host = make(pcie_gen_host_max=4)
    assert links(host) == []
    assert links(host, link_generation=5) == ["link-slot"]
    assert links(host, link_width=32) == ["link-slot"] * 8


def helper(root: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    loader = importlib.machinery.SourceFileLoader("gpu_acs", str(HELPER))
    spec = importlib.util.spec_from_loader("gpu_acs", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    monkeypatch.setattr(module, "DEVICES", f"{root}/sys/bus/pci/devices")
    monkeypatch.setattr(module, "LOCKDOWN", f"{root}/lockdown")
    return module


def writable(root: str) -> None:
    for path in Path(root).rglob("config"):
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def test_acs_is_cleared_on_root_and_switch_ports_and_read_back(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = make(acs={"on": True})
    writable(host.root)
    before = {path: path.read_bytes() for path in Path(host.root).rglob("config")}
    assert len(pci.redirecting(pci.tree(host.root))) == 12
    program = helper(host.root, monkeypatch)
    assert program.main(["--look"]) == 1
    assert program.main([]) == 0
    assert "0000:10:03.0: ACSCtl was 0x001d, is 0x0000" in capsys.readouterr().out
    assert pci.redirecting(pci.tree(host.root)) == {}
    # two bytes of each port, and nothing else
    for path, old in before.items():
        new = path.read_bytes()
        assert len(new) == len(old)
        assert sum(a != b for a, b in zip(old, new, strict=True)) == (1 if b"\x1d\x00" in old[0x176:0x178] else 0)
    assert program.main([]) == 0


def test_a_port_that_refuses_is_told_with_its_cause(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = make(acs={"on": [SWITCH_PORT]})
    assert list(pci.redirecting(pci.tree(host.root))) == [SWITCH_PORT]
    (Path(host.root) / "lockdown").write_text("none [integrity] confidentiality\n")
    program = helper(host.root, monkeypatch)

    def refuse(bdf: str, offset: int) -> None:
        raise PermissionError(1, "Operation not permitted", f"{bdf} {offset}")

    monkeypatch.setattr(program, "write", refuse)
    assert program.main([]) == 1
    out = capsys.readouterr().out
    assert "Operation not permitted" in out
    assert "locked down (integrity)" in out


@pytest.mark.parametrize(
    ("unit", "on", "todo"),
    [
        (facts.Unit(None, None), False, ("files", "enable", "run")),
        (facts.Unit("h", "u", True, True), False, ()),
        (facts.Unit("h", "u", True, True), True, ("run",)),
        (facts.Unit("h", "u", False, True), False, ("enable",)),
        (facts.Unit("h", "edited", True, True), False, ("files", "enable", "run")),
    ],
)
def test_what_is_done_about_acs(unit: facts.Unit, on: bool, todo: tuple[str, ...]) -> None:
    found = facts.Platform(
        Boot("", "", (), {}), "off", "", Processors("amd", 2, 0, 0), unit, {SWITCH_PORT: 0x1D if on else 0}, [], {}
    )
    made = unit_plan(found, Wanted(acs="clear", helper="h", unit="u"), ToDo())
    assert tuple(name for name in ("files", "enable", "run", "remove") if getattr(made, name)) == todo
    gone = unit_plan(found, Wanted(), ToDo())
    assert gone.remove == (unit.text is not None)


def test_flags_are_lspci_s() -> None:
    told = "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"
    assert pci.flags(0x1D) == told


def test_processors_are_counted_from_the_kernel_s_ranges() -> None:
    assert (_count("0-238,240-255"), _count("239"), _count("")) == (255, 1, 0)
    assert Processors("amd", 256, 0, 0).lost_without_iommu == 1
    assert Processors("amd", 192, 0, 4).lost_without_iommu == 4
