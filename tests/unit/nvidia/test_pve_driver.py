# SPDX-License-Identifier: Apache-2.0
"""The module pve_driver on a directory in place of /, with the laboratory's installer and dkms and the real modinfo."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.rackwell.gpu.plugins.module_utils import nvidia_driver, pve_driver_facts, pve_driver_steps
from ansible_collections.rackwell.gpu.plugins.modules import pve_driver
from hostmachine import NEW, OLD, PveMachine, make
from labmachine import OTHER, VERSION, Driver

Run = Callable[..., dict[str, Any]]
# OTHER is the older one
BEFORE, AFTER = OTHER, VERSION


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PveMachine:
    if os.geteuid() != 0 or not (shutil.which("modinfo") and shutil.which("depmod")):
        pytest.skip("needs root and kmod")
    machine = make(tmp_path / "host")
    monkeypatch.setenv("RACKWELL_LAB_ROOT", str(machine.root))
    monkeypatch.setenv("PATH", f"{machine.at('/programs')}:{os.environ['PATH']}")
    monkeypatch.delenv("TMPDIR", raising=False)
    return machine


@pytest.fixture
def run(host: PveMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The module's answer."""
    monkeypatch.setattr(pve_driver, "HOST", pve_driver_facts.Host(str(host.root)))

    def call(driver: Driver | None = None, check: bool = False, **arguments: Any) -> dict[str, Any]:
        if driver is not None:
            name = driver.run_file.name.removeprefix("NVIDIA-Linux-x86_64-").removesuffix(".run")
            sha256 = hashlib.sha256(driver.run_file.read_bytes()).hexdigest()
            arguments = {"version": name, "run_file": str(driver.run_file), "sha256": sha256, **arguments}
        given = {"_ansible_check_mode": check, "_ansible_diff": True, "_ansible_tmpdir": str(host.root), **arguments}
        with patch_module_args(given), pytest.raises(SystemExit):
            pve_driver.main()
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return call


@pytest.fixture
def old(run: Run, host: PveMachine, other_driver: Driver) -> PveMachine:
    """A host that rackwell brought to the older pair."""
    answer = run(other_driver)
    assert not answer.get("failed"), answer
    host.loaded(BEFORE)
    return host


def tree(host: PveMachine) -> dict[str, str]:
    """Everything that lies there."""
    return {
        str(path.relative_to(host.root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(host.root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def code(answer: dict[str, Any]) -> str:
    assert answer.get("failed"), answer
    error = answer["rackwell_error"]
    assert all(error[part] for part in ("code", "what", "why", "fix")), error
    return str(error["code"])


def test_a_fresh_host_gets_the_pair_and_needs_no_reboot(run: Run, host: PveMachine, driver: Driver) -> None:
    predicted = run(driver, check=True)
    first = run(driver)
    assert first["changed"], first
    assert predicted["diff"] == first["diff"]
    result = first["rackwell_result"]
    assert not result["reboot_required"]
    for kernel in result["facts"]["kernels"]:
        assert {name: module["version"] for name, module in kernel["modules"].items()} == {
            "nvidia": VERSION,
            "nvidia-uvm": VERSION,
            "nvidia-modeset": VERSION,
        }
        assert {module["kernel"] for module in kernel["modules"].values()} == {kernel["release"]}
    assert host.at("/etc/kernel/proxmox-boot-pin").read_text().strip() == NEW
    assert "blacklist nouveau" in host.initramfs(OLD)
    host.loaded(VERSION)
    again = run(driver)
    assert not again["changed"], again["rackwell_result"]["todo"]
    assert not run(driver, state="checked").get("failed")
    assert host.at(f"/var/lib/rackwell/driver/{VERSION}.run").read_bytes() == driver.run_file.read_bytes()


def test_without_consent_it_says_what_is_disturbed_and_touches_nothing(
    run: Run, old: PveMachine, driver: Driver
) -> None:
    before = tree(old)
    for check in (True, False):
        answer = run(driver, check=check)
        assert code(answer) == "reboot-needed"
        assert "container 201 (glm5-01)" in answer["rackwell_error"]["why"]
        assert "glm5-02" not in answer["rackwell_error"]["why"]
        assert "allow-reboot" in answer["rackwell_error"]["fix"]
        assert answer["disturbs"]["guests"] == ["container 201 (glm5-01)"]
    assert tree(old) == before


def test_a_module_in_use_is_told_with_its_processes(run: Run, old: PveMachine, driver: Driver) -> None:
    (old.at("/proc/4711/fd")).mkdir(parents=True)
    (old.at("/proc/4711/fd/5")).symlink_to("/dev/nvidia-uvm")
    old.put("/proc/4711/comm", "sglang::schedul\n")
    old.put("/proc/4711/cgroup", "0::/lxc/201/ns/system.slice/rackwell-inference.service\n")
    before = tree(old)
    answer = run(driver)
    assert code(answer) == "module-in-use"
    assert "sglang::schedul (pid 4711, container 201)" in answer["rackwell_error"]["why"]
    assert tree(old) == before


def test_with_consent_the_pair_moves_and_a_boot_completes_it(run: Run, old: PveMachine, driver: Driver) -> None:
    answer = run(driver, allow_reboot=True, kernel=OLD)
    assert answer["changed"], answer
    result = answer["rackwell_result"]
    assert result["reboot_required"]
    assert result["facts"]["previous"] == {
        "version": BEFORE,
        "sha256": result["facts"]["kept"][BEFORE],
        "kernel": NEW,
    }
    assert result["facts"]["current"]["version"] == AFTER
    found = run(driver, state="checked", kernel=OLD)
    assert code(found) == "driver-host-only"
    assert "driver-not-loaded" in {each["code"] for each in found["problems"]}
    old.boot()
    assert old.at("/proc/sys/kernel/osrelease").read_text().strip() == OLD
    assert not run(driver, state="checked", kernel=OLD).get("failed")
    # and back, from what the host has kept: no file is given
    sha256 = result["facts"]["previous"]["sha256"]
    back = run(version=BEFORE, sha256=sha256, run_file="/absent.run", kernel=NEW, allow_reboot=True)
    assert back["changed"], back
    old.boot()
    kept = run(version=BEFORE, sha256=sha256, run_file="/absent.run", kernel=NEW, state="checked")
    assert not kept.get("failed"), kept


def test_nouveau_needs_a_boot(run: Run, host: PveMachine, driver: Driver) -> None:
    host.at("/sys/module/nouveau").mkdir()
    before = tree(host)
    answer = run(driver)
    assert code(answer) == "nouveau-loaded"
    assert tree(host) == before
    assert run(driver, allow_reboot=True)["rackwell_result"]["reboot_required"]
    assert "blacklist nouveau" in host.initramfs(NEW)


def test_headers_missing(run: Run, host: PveMachine, driver: Driver) -> None:
    host.at(f"/usr/src/linux-headers-{OLD}/Makefile").unlink()
    before = tree(host)
    looked = run(driver, state="looked")
    assert looked["rackwell_result"]["todo"]["packages"] == [f"proxmox-headers-{OLD}"]
    answer = run(driver)
    assert code(answer) == "kernel-headers-missing"
    assert f"apt install proxmox-headers-{OLD}" in answer["rackwell_error"]["fix"]
    assert tree(host) == before


def test_the_meta_package_is_missing(run: Run, host: PveMachine, driver: Driver) -> None:
    host.put("/no-meta")
    answer = run(driver)
    assert code(answer) == "kernel-headers-missing"
    assert "the next kernel comes without its headers" in answer["rackwell_error"]["why"]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("silent", "has no module nvidia; dkms status says: nvidia/"),
        ("other", "is 550.54.14, needed is"),
        ("fail", "drm_helper_mode_fill_fb_struct"),
    ],
)
def test_what_dkms_says_is_no_proof(run: Run, old: PveMachine, driver: Driver, fault: str, why: str) -> None:
    """The other kernel is built silently wrong: told, and the pair of before is whole again."""
    old.faults(AFTER, _6_17_4_1_pve=fault)
    answer = run(driver, allow_reboot=True)
    assert code(answer) == "dkms-build-failed"
    assert why in answer["rackwell_error"]["why"], answer["rackwell_error"]["why"]
    assert OLD in answer["rackwell_error"]["what"]
    assert (answer["rolled_back"], answer["rollback_verified"]) == (True, True), answer["rackwell_error"]["why"]
    sha256 = hashlib.sha256(old.at(f"/var/lib/rackwell/driver/{BEFORE}.run").read_bytes()).hexdigest()
    left = run(version=BEFORE, sha256=sha256, state="checked")
    assert not left.get("failed"), left
    old.boot()
    assert old.at("/sys/module/nvidia/version").read_text().strip() == BEFORE


def test_the_installer_itself_fails_to_build(run: Run, old: PveMachine, driver: Driver) -> None:
    old.faults(AFTER, _6_17_13_2_pve="fail")
    answer = run(driver, allow_reboot=True)
    assert code(answer) == "dkms-build-failed"
    assert answer["rollback_verified"], answer["rackwell_error"]["why"]
    assert "drm_helper_mode_fill_fb_struct" in answer["rackwell_error"]["why"], "what the compiler said"


def test_what_cannot_be_returned_to_must_not_be_booted(run: Run, old: PveMachine, driver: Driver) -> None:
    old.at(f"/var/lib/rackwell/driver/{BEFORE}.run").unlink()
    old.faults(AFTER, _6_17_4_1_pve="silent")
    answer = run(driver, allow_reboot=True)
    assert code(answer) == "dkms-build-failed"
    assert not answer["rollback_verified"]
    assert answer["rackwell_error"]["fix"].startswith("do not reboot this host")


def test_a_new_kernel_without_module(run: Run, old: PveMachine, other_driver: Driver) -> None:
    """As apt leaves it: a kernel more, for which DKMS built nothing."""
    old.kernel("6.18.1-1-pve", headers=False)
    found = run(other_driver, state="checked")
    assert code(found) == "kernel-without-module"
    assert "6.18.1-1-pve" in found["rackwell_error"]["what"]
    assert "apt install proxmox-headers-6.18.1-1-pve" in found["rackwell_error"]["fix"]
    old.kernel("6.18.1-1-pve")
    assert run(other_driver)["changed"]
    assert not run(other_driver, state="checked").get("failed")
    assert not run(other_driver)["changed"]


@pytest.mark.parametrize("check", [False, True])
def test_a_wrong_hash_is_not_run(run: Run, host: PveMachine, driver: Driver, check: bool) -> None:
    before = tree(host)
    answer = run(driver, sha256="0" * 64, check=check)
    if not check:
        assert code(answer) == "run-file-checksum"
        assert "pve_host_drivers" in answer["rackwell_error"]["fix"]
    assert tree(host) == before


def test_another_version_in_the_file(run: Run, host: PveMachine, driver: Driver) -> None:
    before = tree(host)
    answer = run(driver, version=OTHER)
    assert code(answer) == "run-file-version"
    assert tree(host) == before


def test_no_space(run: Run, host: PveMachine, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(host)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(pve_driver_steps.shutil, "disk_usage", lambda _path: usage._replace(free=10))
    answer = run(driver)
    assert code(answer) == "no-space"
    assert tree(host) == before


def test_no_file(run: Run, host: PveMachine) -> None:
    assert code(run(version=VERSION)) == "run-file-missing"


def test_secure_boot_refuses_the_module(run: Run, host: PveMachine, driver: Driver) -> None:
    host.put("/locked")
    assert code(run(driver)) == "module-signature"


def test_a_kernel_that_is_not_installed(run: Run, old: PveMachine, driver: Driver) -> None:
    answer = run(driver, kernel="6.99.1-1-pve", allow_reboot=True)
    assert code(answer) == "kernel-missing"
    assert "proxmox-kernel-6.99.1-1-pve-signed" in answer["rackwell_error"]["fix"]


def test_hmm_that_was_loaded_on_needs_a_boot(run: Run, old: PveMachine, other_driver: Driver) -> None:
    old.loaded(BEFORE, hmm=True)
    assert code(run(other_driver)) == "reboot-needed"


def test_the_proprietary_module_is_no_pair(run: Run, old: PveMachine, other_driver: Driver) -> None:
    old.put(f"/usr/src/nvidia-{BEFORE}/rackwell-lab-proprietary")
    for file in old.at(f"/lib/modules/{OLD}/updates/dkms").iterdir():
        file.unlink()
    answer = run(other_driver)
    assert code(answer) == "dkms-build-failed"
    assert "proprietary" in answer["rackwell_error"]["why"]


def test_user_space_is_read_from_the_host(host: PveMachine) -> None:
    assert functools.partial(nvidia_driver.look, root=str(host.root))(VERSION).version == ""


def test_an_installation_that_goes_on_without_its_controller_is_waited_for(
    run: Run, old: PveMachine, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pve_driver_steps, "BUSY_S", 0.0)
    with old.at(pve_driver_steps.BUSY).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for state in ("looked", "present"):
            before = tree(old)
            answer = run(driver, state=state, allow_reboot=True)
            assert (code(answer), tree(old)) == ("driver-busy", before)
    assert not run(driver, state="looked", allow_reboot=True).get("failed")
