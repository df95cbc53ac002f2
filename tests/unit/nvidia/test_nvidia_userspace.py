# SPDX-License-Identifier: Apache-2.0
"""The module nvidia_userspace on a directory in place of /, and the controller's side of it."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.rackwell.gpu.plugins.action.nvidia_userspace import ActionModule
from ansible_collections.rackwell.gpu.plugins.module_utils import nvidia_driver, nvidia_run_file
from ansible_collections.rackwell.gpu.plugins.modules import nvidia_userspace
from labmachine import OTHER, VERSION, Driver, Machine

Run = Callable[..., dict[str, Any]]
LIBRARIES = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def run(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The module's answer; it sees ``machine.root`` as /."""
    root = str(machine.root)
    (machine.root / LIBRARIES).mkdir(parents=True)
    monkeypatch.setenv("RACKWELL_LAB_ROOT", root)
    look = functools.partial(nvidia_driver.look, root=root)
    version = functools.partial(nvidia_driver.kernel_module_version, root=root)
    log = machine.root / "var/log/nvidia-installer.log"
    install = functools.partial(nvidia_run_file.install, log=str(log))
    monkeypatch.setattr(nvidia_userspace.nvidia_driver, "look", look)
    monkeypatch.setattr(nvidia_userspace.nvidia_driver, "kernel_module_version", version)
    monkeypatch.setattr(nvidia_userspace.nvidia_run_file, "install", install)
    # this machine's apt is nobody's business here
    packages = nvidia_userspace.nvidia_packages
    monkeypatch.setattr(packages, "PREFERENCES", str(machine.root / "etc/apt/preferences.d/rackwell-nvidia"))
    monkeypatch.setattr(packages, "_run", lambda words, _seconds: subprocess.CompletedProcess(words, 0, ""))
    warned: list[str] = []
    monkeypatch.setattr(nvidia_userspace.AnsibleModule, "warn", lambda module, text: warned.append(text))

    def call(check: bool = False, **arguments: Any) -> dict[str, Any]:
        given = {"_ansible_check_mode": check, "_ansible_diff": True, "_ansible_tmpdir": root, **arguments}
        with patch_module_args(given), pytest.raises(SystemExit):
            nvidia_userspace.main()
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return {**answer, "warned": list(warned)}

    return call


def file_of(driver: Driver) -> dict[str, Any]:
    """The module's options for a driver's file."""
    return {
        "run_file": str(driver.run_file),
        "sha256": hashlib.sha256(driver.run_file.read_bytes()).hexdigest(),
        "remote_src": True,
    }


def test_installs_once(run: Run, driver: Driver) -> None:
    first = run(version=VERSION, **file_of(driver))
    assert first["changed"], first
    before = "libcuda.so.1: absent\nlibnvidia-ml.so.1: absent\nnvidia-smi: absent\napt's preferences: not written\n"
    assert first["diff"]["before"] == before
    assert first["diff"]["after"] == (
        f"libcuda.so.1: {VERSION}\nlibnvidia-ml.so.1: {VERSION}\nnvidia-smi: present\napt's preferences: written\n"
    )
    assert first["rackwell_result"] == {
        "schema": "rackwell.nvidia_userspace/1",
        "version": VERSION,
        "kernel_module": VERSION,
        "installed": VERSION,
        "needed": False,
        "pending": False,
        "pinned": True,
        "mounted": [],
        "leftovers": [],
        "kmod": True,
    }
    second = run(version=VERSION, **file_of(driver))
    assert not second["changed"]
    assert "diff" not in second
    assert second["rackwell_result"] == first["rackwell_result"]


def test_check_mode_tells_and_touches_nothing(run: Run, driver: Driver, machine: Machine) -> None:
    told = run(check=True, version=VERSION, **file_of(driver))
    assert told["changed"]
    assert told["diff"]["after"] == run(version=VERSION, **file_of(driver))["diff"]["after"]
    assert not run(check=True, version=VERSION)["changed"]


def test_looks_only_without_the_file(run: Run, machine: Machine) -> None:
    told = run(version=VERSION)
    assert not told["changed"]
    assert told["rackwell_result"]["needed"]
    assert told["rackwell_free"]["available"] > 0
    assert list((machine.root / LIBRARIES).iterdir()) == []


def test_replaces_the_driver_after_the_host_was_upgraded(
    run: Run, driver: Driver, other_driver: Driver, machine: Machine
) -> None:
    (machine.root / "sys/module/nvidia/version").write_text(OTHER)
    assert run(version=OTHER, **file_of(other_driver))["changed"]
    (machine.root / "sys/module/nvidia/version").write_text(VERSION)
    told = run(version=VERSION, **file_of(driver))
    assert told["changed"]
    assert told["diff"]["before"].startswith(f"libcuda.so.1: {OTHER}\n")
    assert told["rackwell_result"]["leftovers"] == []


@pytest.mark.parametrize(
    ("module", "version", "code"),
    [
        (OTHER, VERSION, "driver-mismatch"),
        ("595.58.04", VERSION, "driver-mismatch"),
        ("595.58.03", "595.58", "driver-mismatch"),
        (None, VERSION, "driver-not-loaded"),
        (VERSION, "595", "version-unclear"),
        (VERSION, "latest", "version-unclear"),
    ],
)
def test_refuses_any_other_version(
    run: Run, driver: Driver, machine: Machine, module: str | None, version: str, code: str
) -> None:
    path = machine.root / "sys/module/nvidia/version"
    path.unlink()
    if module:
        path.write_text(module + "\n")
    for check in (True, False):
        told = run(check=check, version=version, **file_of(driver))
        assert told["failed"]
        assert told["rackwell_error"]["code"] == code
    if code == "driver-mismatch":
        assert f"declared is {version}, the host's kernel module is {module}" in told["rackwell_error"]["why"]
    assert list((machine.root / LIBRARIES).iterdir()) == []


def test_a_wrong_file_is_not_run(
    run: Run, driver: Driver, other_driver: Driver, machine: Machine, tmp_path: Path
) -> None:
    script = tmp_path / "evil.run"
    script.write_text(f"touch {tmp_path}/ran\n")
    evil = run(version=VERSION, **{**file_of(driver), "run_file": str(script)})
    assert evil["rackwell_error"]["code"] == "run-file-checksum"
    assert not (tmp_path / "ran").exists()
    other = run(version=VERSION, **file_of(other_driver))
    assert other["rackwell_error"]["code"] == "run-file-version"
    assert list((machine.root / LIBRARIES).iterdir()) == []


def test_failure_of_the_installer(run: Run, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACKWELL_LAB_INSTALL_FAIL", "it broke")
    told = run(version=VERSION, **file_of(driver))
    assert told["rackwell_error"]["code"] == "installer-failed"
    assert "ERROR: it broke" in told["log"]
    monkeypatch.delenv("RACKWELL_LAB_INSTALL_FAIL")
    assert run(version=VERSION, **file_of(driver))["changed"], "what was left half-way is mended"


def test_mounted_files_of_another_version_are_refused(
    run: Run, driver: Driver, other_driver: Driver, machine: Machine
) -> None:
    (machine.root / "sys/module/nvidia/version").write_text(OTHER)
    run(version=OTHER, **file_of(other_driver))
    (machine.root / "sys/module/nvidia/version").write_text(VERSION)
    (machine.root / "proc/self").mkdir()
    (machine.root / "proc/self/mountinfo").write_text(
        f"31 1 0:27 / /{LIBRARIES}/libcuda.so.{OTHER} ro,relatime - ext4 /dev/x ro\n"
    )
    told = run(version=VERSION, **file_of(driver))
    assert told["rackwell_error"]["code"] == "driver-files-mounted"
    assert told["rackwell_error"]["where"] == f"/{LIBRARIES}/libcuda.so.{OTHER}"
    assert (machine.root / LIBRARIES / f"libcuda.so.{OTHER}").exists()


def test_leftovers_are_warned_of(run: Run, driver: Driver, machine: Machine) -> None:
    (machine.root / LIBRARIES / "libcuda.so.535.183.01").write_text("")
    told = run(version=VERSION, **file_of(driver))
    assert told["rackwell_result"]["leftovers"][0]["version"] == "535.183.01"
    assert "535.183.01" in told["warned"][0]


def test_what_is_there_without_the_pin_is_pinned_and_nothing_else(run: Run, driver: Driver, machine: Machine) -> None:
    run(version=VERSION, **file_of(driver))
    preferences = machine.root / "etc/apt/preferences.d/rackwell-nvidia"
    preferences.unlink()
    assert run(version=VERSION, state="checked")["rackwell_error"]["code"] == "driver-unpinned"
    assert run(version=VERSION, check=True)["changed"]
    assert not preferences.exists()
    assert run(version=VERSION)["changed"]
    assert f"Pin: version {VERSION}*" in preferences.read_text()
    assert not run(version=VERSION)["changed"]
    assert not run(version=VERSION, state="checked").get("failed")


def test_files_of_another_version_go_with_consent_only(run: Run, driver: Driver, machine: Machine) -> None:
    run(version=VERSION, **file_of(driver))
    left = machine.root / LIBRARIES / "libcuda.so.535.183.01"
    left.write_text("")
    assert run(version=VERSION, state="checked")["rackwell_error"]["code"] == "driver-leftovers"
    assert not run(version=VERSION)["changed"]
    assert left.exists()
    assert run(version=VERSION, remove_others=True, check=True)["changed"]
    assert left.exists()


def test_another_package_in_front_of_the_installed_files(
    run: Run, driver: Driver, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installer succeeds, but a link made by another package leads elsewhere."""
    real = nvidia_userspace.nvidia_run_file.install

    def install(path: str, directory: str) -> None:
        real(path, directory)
        (machine.root / LIBRARIES / "libcuda.so.610.43.02").write_text("")
        (machine.root / LIBRARIES / "libcuda.so.1").unlink()
        (machine.root / LIBRARIES / "libcuda.so.1").symlink_to("libcuda.so.610.43.02")

    monkeypatch.setattr(nvidia_userspace.nvidia_run_file, "install", install)
    told = run(version=VERSION, **file_of(driver))
    assert told["rackwell_error"]["code"] == "not-installed"
    assert "libcuda.so.1: 610.43.02" in told["rackwell_error"]["why"]
    assert f"/{LIBRARIES}/libcuda.so.610.43.02" in told["rackwell_error"]["fix"]


class Action(ActionModule):
    """The controller's side without a container: what it would call and send is noted."""

    def __init__(self, answers: list[dict[str, Any]], check: bool = False) -> None:
        self.answers = answers
        self.calls: list[dict[str, Any]] = []
        self.sent: list[str] = []
        self._task = type("Task", (), {"check_mode": check})()
        self._loader = type("Loader", (), {"path_dwim": staticmethod(lambda path: path)})()
        shell = type("Shell", (), {"tmpdir": "/remote", "join_path": staticmethod("/".join)})()
        shell.join_path = lambda *parts: "/".join(parts)
        self._connection = type("Connection", (), {"_shell": shell})()
        self._display = type("Display", (), {"v": staticmethod(lambda text: None)})()

    def _call(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(arguments)
        return self.answers.pop(0)

    def _transfer_file(self, local: str, remote: str) -> None:
        self.sent.append(remote)

    def _fixup_perms2(self, paths: Any) -> None:
        pass

    def converge(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._converge(given, {})


def looked(needed: bool, available: int = 1 << 40) -> dict[str, Any]:
    return {
        "changed": False,
        "rackwell_result": {"needed": needed},
        "rackwell_free": {"path": "/remote", "available": available},
    }


def given(driver: Driver) -> dict[str, Any]:
    return {"version": VERSION, **file_of(driver), "remote_src": False}


def test_the_file_is_sent_only_when_it_is_needed(driver: Driver) -> None:
    action = Action([looked(False)])
    assert action.converge(given(driver)) == looked(False)
    assert action.sent == []
    assert action.calls[0]["run_file"] is None
    action = Action([looked(True), {"changed": True}])
    assert action.converge(given(driver)) == {"changed": True}
    remote = f"/remote/{driver.run_file.name}"
    assert action.sent == [remote]
    assert (action.calls[1]["run_file"], action.calls[1]["remote_src"]) == (remote, True)


def test_nothing_is_sent_in_check_mode_or_after_a_refusal(driver: Driver) -> None:
    for action in (Action([looked(True)], check=True), Action([{"failed": True}])):
        action.converge(given(driver))
        assert action.sent == []


@pytest.mark.parametrize(
    ("change", "available", "code"),
    [
        ({"sha256": "0" * 64}, 1 << 40, "run-file-checksum"),
        ({"run_file": "/does/not/exist.run"}, 1 << 40, "run-file-missing"),
        ({}, 1000, "no-space"),
    ],
)
def test_what_the_controller_refuses(driver: Driver, change: dict[str, str], available: int, code: str) -> None:
    action = Action([looked(True, available)])
    with pytest.raises(nvidia_driver.DriverError) as refused:
        action.converge({**given(driver), **change})
    assert refused.value.parts["code"] == code
    assert action.sent == []


def test_errors_name_the_file_that_the_operator_knows(driver: Driver) -> None:
    remote = f"/remote/{driver.run_file.name}"
    failure = {"failed": True, "msg": f"wrong ({remote})", "rackwell_error": {"code": "x", "where": remote}}
    told = Action([looked(True), failure]).converge(given(driver))
    assert told["msg"] == f"wrong ({driver.run_file})"
    assert told["rackwell_error"] == {"code": "x", "where": str(driver.run_file)}
