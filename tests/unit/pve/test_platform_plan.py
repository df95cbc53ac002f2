# SPDX-License-Identifier: Apache-2.0
"""What the IOMMU's policy needs, what it may not do without consent, and how a difference is told."""

from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_checks as checks
from ansible_collections.rackwell.gpu.plugins.module_utils.clock_compare import compare, offset
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_use import Use
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_boot import CMDLINE_FILE, SYSTEMD_BOOT, Boot
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_cpus import Processors
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_facts import Platform, Unit
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_plan import Wanted, check_consent, plan
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError

HOST = Host("/nowhere")


def platform(mode: str, running: str, declared: str, **changed: object) -> Platform:
    """A host that systemd-boot boots."""
    boot = Boot(SYSTEMD_BOOT, "", tuple(running.split()), {CMDLINE_FILE: declared + "\n"}, tuple(declared.split()))
    found = Platform(boot, mode, "evidence", Processors("amd", 64, 0, 0), Unit(None, None), {}, [], {})
    return dataclasses.replace(found, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "edit", "tell", "reboot"),
    [
        (platform("pt", "iommu=pt", "iommu=pt"), False, False, False),
        (platform("translated", "quiet", "quiet"), True, True, True),
        # whether the loader knows cannot be seen: it is told once more
        (platform("translated", "quiet", "iommu=pt"), False, True, True),
        # the BIOS may have it off: then no boot of ours helps
        (platform("off", "iommu=pt", "iommu=pt"), False, False, False),
        (platform("pt", "quiet", "quiet"), True, True, False),
    ],
)
def test_what_a_policy_needs(found: Platform, edit: bool, tell: bool, reboot: bool) -> None:
    todo = plan(HOST, found, Wanted(iommu="pt"))
    assert (bool(todo.edit), todo.tell, bool(todo.reboot)) == (edit, tell, reboot)
    if todo.boot or todo.reboot:
        with pytest.raises(PveError) as caught:
            check_consent(todo, Use(("container 201 (glm5-01)",), ()), False, "pve1")
        assert caught.value.finding.code == "reboot-needed"
        assert caught.value.extra == {"held": True}
        assert ("container 201 (glm5-01)" in caught.value.finding.why) == reboot
    check_consent(todo, Use((), ()), True, "pve1")


def test_keep_touches_nothing() -> None:
    todo = plan(HOST, platform("translated", "quiet", "quiet"), Wanted())
    assert (todo.boot, todo.reboot, todo.unit) == (False, (), False)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (platform("off", "", "", processors=Processors("amd", 384, 0, 0)), "iommu-off-costs-processors"),
        (platform("pt", "", "", processors=Processors("", 64, 0, 0)), "processor-unknown"),
        (platform("pt", "", "", boot=Boot("", "no loader", (), {})), "boot-loader-unknown"),
    ],
)
def test_what_is_refused(found: Platform, code: str) -> None:
    with pytest.raises(PveError) as caught:
        plan(HOST, found, Wanted(iommu="off"))
    assert caught.value.finding.code == code
    assert caught.value.finding.fix


def told(found: Platform, want: Wanted) -> dict[str, str]:
    return {finding.code: verdict for row in checks.rows(found, want) for verdict, finding in row.findings}


def test_what_is_declared_fails_and_what_is_not_is_told() -> None:
    translated = platform("translated", "quiet", "quiet", acs={"0000:10:03.0": 0x1D})
    assert told(translated, Wanted()) == {"iommu-translated": "degraded", "acs-on": "degraded"}
    wanted = Wanted(iommu="pt", acs="clear", helper="h", unit="u")
    assert told(translated, wanted) == {
        "iommu-not-declared-at-boot": "fail",
        "iommu-not-as-declared": "fail",
        "acs-on": "fail",
        "acs-unit": "fail",
    }


def test_words_that_do_not_do_it_are_the_bios_s() -> None:
    off = platform("off", "iommu=pt", "iommu=pt")
    row = next(row for row in checks.rows(off, Wanted(iommu="pt")) if row.item == "iommu")
    assert "BIOS" in row.findings[0][1].fix


@pytest.mark.parametrize(("there", "ahead"), [(100.5, 0.0), (99.0, -1.0), (103.0, 2.0)])
def test_the_time_of_the_way_is_no_difference(there: float, ahead: float) -> None:
    assert offset(100.0, there, 101.0) == ahead


@pytest.mark.parametrize(("there", "verdict"), [(100.0, "pass"), (110.0, "degraded"), (100.0 - 7200, "fail")])
def test_a_clock_is_told_and_then_refused(there: float, verdict: str) -> None:
    result, wrong = compare("pve1", 100.0, there, 100.1, 60.0, (True, False))
    assert result["checks"][0]["verdict"] == verdict
    assert (wrong is not None) == (verdict == "fail")
    if wrong is not None:
        # who is wrong is who is not synchronized
        assert "set this machine's clock" in wrong.fix
