# SPDX-License-Identifier: GPL-3.0-or-later
"""The module around the activation: what it logs and shows, and what it does when another run was faster."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils import basic
from ansible.module_utils.testing import patch_module_args
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_activation import (
    Check,
    GateError,
    Healthy,
    Snapshot,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import UnitState
from ansible_collections.rackwell.gpu.plugins.modules import inference_server

TOKEN = "hf_abcdefghij"
ENVIRONMENT = f'# made\nHF_TOKEN="{TOKEN}"\nNCCL_P2P_LEVEL="SYS"\nTOKENIZERS_PARALLELISM="false"\n'
CHECK = Check("127.0.0.1", 30000, "glm-5", "The capital of France is", "Paris", 16, 100)
OLD, NEW = "a" * 64, "b" * 64


def test_secrets_reach_neither_the_log_nor_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(basic.AnsibleModule, "log", lambda self, msg, log_args=None: logged.append(f"{msg} {log_args}"))

    class Ends:
        def __init__(self, module: basic.AnsibleModule) -> None:
            self.module = module

        def started(self) -> None:
            self.module.exit_json(diff=self.module.params["environment"], unit=self.module.params["unit"])

    monkeypatch.setattr(inference_server, "Server", Ends)
    arguments = {
        "unit": f"[Service]\nExecStart=/x \\\n    --admin-api-key {TOKEN}2 \\\n    --port 1\n",
        "environment": ENVIRONMENT,
        "release": NEW,
        "served_name": "glm-5",
        "sane": {"prompt": "p", "expect": "e"},
    }
    with patch_module_args(arguments), pytest.raises(SystemExit):
        inference_server.main()
    out = capsys.readouterr().out
    assert logged
    assert TOKEN not in "".join(logged)
    assert TOKEN not in out
    shown = json.loads(out)
    assert 'NCCL_P2P_LEVEL="SYS"' in shown["diff"]
    assert 'TOKENIZERS_PARALLELISM="false"' in shown["diff"]
    assert "--port 1" in shown["unit"]


def snapshot(release: str, **more: Any) -> Snapshot:
    return Snapshot("u", "e", release, active=True, enabled=True, **more)


def looked(first: Snapshot, now: Snapshot) -> Any:
    """A run that saw ``first`` before it had the lock, and sees ``now`` under it."""
    server: Any = inference_server.Server.__new__(inference_server.Server)
    server.module = SimpleNamespace(params={"unit": "u", "environment": "e", "secrets": ""})
    server.release = NEW
    server.present = first
    server.activation = SimpleNamespace(present=lambda: now, interrupted=lambda: False)
    server._keep_if_healthy = lambda: ["asked again"]
    return server


def test_what_must_be_returned_to_is_read_under_the_lock() -> None:
    other = snapshot("c" * 64, check=CHECK)
    server = looked(snapshot(OLD), other)
    assert server._still(["release"], ["release"]) == ["release"]
    assert server.present is other


def test_what_another_run_brought_there_meanwhile_is_only_verified() -> None:
    server = looked(snapshot(OLD), snapshot(NEW))
    assert server._still(["release"], ["release"]) == ["asked again"]


def test_a_server_that_was_found_ill_is_not_asked_twice() -> None:
    server = looked(snapshot(NEW), snapshot(NEW))
    assert server._still([], ["it does not serve"]) == ["it does not serve"]


def test_whatever_ends_a_switch_leads_to_the_return(monkeypatch: pytest.MonkeyPatch) -> None:
    def switch(wanted: Snapshot, check: Check) -> None:
        raise KeyError("a file of another shape")

    server = looked(snapshot(OLD), snapshot(OLD))
    server.check = CHECK
    server.activation.begin = lambda wanted, present: present
    server.activation.switch = switch
    went: list[Any] = []
    server._go_back = lambda error, back: went.append((error.code, back))
    monkeypatch.setattr(inference_server.signal, "signal", lambda *_: None)
    server._activate(["release"], [])
    assert went == [("activation-error", snapshot(OLD))]


@pytest.mark.parametrize("healthy", [Healthy("1", 2.0, "Paris"), None])
def test_a_return_is_verified_only_when_it_serves(healthy: Healthy | None) -> None:
    server: Any = object.__new__(inference_server.Server)
    server.check = CHECK
    server.activation = SimpleNamespace(return_to=lambda *_: (True, healthy, "it is back"))
    told: list[dict[str, Any]] = []
    server._gate_failed = lambda _error, **extra: told.append(extra)
    server._go_back(GateError("never-ready", "what", "why"), None)
    assert told == [{"rolled_back": True, "rollback_verified": healthy is not None}]


@pytest.mark.parametrize("check_mode", [True, False])
def test_check_mode_enables_nothing(check_mode: bool) -> None:
    class EndedError(Exception):
        pass

    def end(**result: Any) -> None:
        raise EndedError(result["changed"])

    called: list[tuple[str, ...]] = []
    server: Any = object.__new__(inference_server.Server)
    server.unit, server.check = "rackwell-inference.service", CHECK
    server.module = SimpleNamespace(check_mode=check_mode, exit_json=end)
    server.system = SimpleNamespace(
        show=lambda _unit: SimpleNamespace(invocation="1", enabled=False, started_monotonic=0.0),
        journal=lambda _invocation: ([], ""),
        systemctl=lambda *words: called.append(words),
    )
    server._ask = lambda *_: Healthy("1", 2.0, "Paris")
    server._result = lambda *_, **__: {}
    server._diff = list
    server.activation = SimpleNamespace(open_files=list, close_files=lambda: called.append(("chmod",)))
    with pytest.raises(EndedError, match="True"):
        server._keep_if_healthy()
    assert called == ([] if check_mode else [("enable", server.unit), ("chmod",)])


@pytest.mark.parametrize("check_mode", [True, False])
def test_neither_check_mode_nor_a_run_beside_another_activates(
    monkeypatch: pytest.MonkeyPatch, check_mode: bool
) -> None:
    class EndedError(Exception):
        pass

    def end(**result: Any) -> None:
        raise EndedError(result.get("rackwell_error", {}).get("code", "told"))

    server: Any = object.__new__(inference_server.Server)
    server.unit, server.check, server.release = "rackwell-inference.service", CHECK, NEW
    server.module = SimpleNamespace(check_mode=check_mode, exit_json=end, fail_json=end)
    server.present = SimpleNamespace(active=True)
    server.paths = SimpleNamespace(lock="/x/lock", marker="/x/marker")
    server._differences = lambda: ["release"]
    server._preflight = list
    server.roll = {}
    server._nobody_rolls = lambda: None
    server._diff = dict
    server._activate = lambda *_: end(rackwell_error={"code": "activated"})
    server._still = lambda *_: ["release"]
    monkeypatch.setattr(inference_server.files, "exclusive", lambda _path: contextlib.nullcontext(False))
    with pytest.raises(EndedError, match="told" if check_mode else "activation-running"):
        server.started()


class EndedError(Exception):
    """The module ended."""


def asked(*, active: bool, condition: list[str], **params: Any) -> tuple[Any, dict[str, Any]]:
    """A module on a unit in this state, and what it ended with."""
    ended: dict[str, Any] = {}

    def end(**result: Any) -> None:
        ended.update(result)
        raise EndedError

    state = UnitState(True, "active" if active else "inactive", "i", "", "", True, 0.0)
    server: Any = object.__new__(inference_server.Server)
    server.unit, server.check, server.release, server.root = "rackwell-inference.service", CHECK, NEW, "/opt/rackwell"
    server.user = "root"
    server.module = SimpleNamespace(
        check_mode=params.pop("check_mode", False),
        params={
            "condition": condition,
            "model_path": "",
            "secrets": "",
            "allow_stop": False,
            "return_after": 0,
            **params,
        },
        exit_json=end,
        fail_json=end,
    )
    server.present = snapshot(OLD)
    server.paths = SimpleNamespace(lock="/x/lock", marker="/x/marker")
    server.system = SimpleNamespace(show=lambda _unit: state, journal=lambda *_: ([], ""))
    return server, ended


HELD = [sys.executable, "-c", "import sys; sys.exit('held by the boot gate: p2p-corrupt: x')"]
PASSED = [sys.executable, "-c", ""]


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A release that is staged, and a port that is free."""
    (tmp_path / "releases" / NEW).mkdir(parents=True)
    (tmp_path / "releases" / NEW / "complete").touch()
    monkeypatch.setattr(inference_server.preflight.ports, "port_owners", lambda _host, _port: [])
    return tmp_path


def test_nothing_is_switched_to_a_unit_that_the_gate_would_hold(ready: Path) -> None:
    server, ended = asked(active=True, condition=HELD)
    server.root = str(ready)
    with pytest.raises(EndedError):
        server._preflight()
    assert ended["rackwell_error"]["code"] == "gate-held"
    assert ended["rackwell_error"]["why"] == "held by the boot gate: p2p-corrupt: x"
    assert ended["held"] is True


def test_check_mode_tells_of_a_gate_that_has_still_to_pass(ready: Path) -> None:
    server, ended = asked(active=True, condition=HELD, check_mode=True)
    server.root = str(ready)
    assert server._preflight() == ["held by the boot gate: p2p-corrupt: x"]
    assert not ended


@pytest.mark.parametrize("condition", [[], PASSED])
def test_a_gate_that_passed_or_is_not_declared_holds_nothing(ready: Path, condition: list[str]) -> None:
    server, _ended = asked(active=True, condition=condition)
    server.root = str(ready)
    assert server._preflight() == []


def test_a_server_that_runs_is_stopped_with_consent_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []
    monkeypatch.setattr(inference_server.files, "exclusive", lambda _path: contextlib.nullcontext(True))
    server, ended = asked(active=True, condition=[])
    ordered: list[int] = []
    server._nobody_rolls = lambda: None
    server.activation = SimpleNamespace(
        stop=lambda: stopped.append(True), return_by_itself=ordered.append, returns=lambda: False
    )
    with pytest.raises(EndedError):
        server.stopped()
    assert (ended["rackwell_error"]["code"], ended["held"], stopped) == ("server-running", True, [])
    server.module.params.update(allow_stop=True, return_after=600)
    with pytest.raises(EndedError):
        server.stopped()
    assert (ended["changed"], stopped, ordered) == (True, [True], [600])


@pytest.mark.parametrize("awaited", [False, True])
def test_a_server_that_is_down_needs_no_consent(monkeypatch: pytest.MonkeyPatch, awaited: bool) -> None:
    """And comes back after this run only when an interrupted one before it had stopped it."""
    monkeypatch.setattr(inference_server.files, "exclusive", lambda _path: contextlib.nullcontext(True))
    ordered: list[int] = []
    server, ended = asked(active=False, condition=[], return_after=600)
    server._nobody_rolls = lambda: None
    server.activation = SimpleNamespace(stop=lambda: None, return_by_itself=ordered.append, returns=lambda: awaited)
    with pytest.raises(EndedError):
        server.stopped()
    assert (ended["changed"], ended["rackwell_result"]["stopped"]) == (awaited, awaited)
    assert ordered == ([600] if awaited else [])


def test_asking_a_server_that_the_gate_held_tells_what_the_gate_says_now() -> None:
    server, ended = asked(active=False, condition=HELD)
    held = UnitState(True, "inactive", "i", "exec-condition", "", True, 0.0)
    server.system = SimpleNamespace(
        show=lambda _unit: held,
        journal=lambda *_: (["held by the boot gate: old"], ""),
        condition_exit=lambda _unit: "exit code 1",
    )
    with pytest.raises(EndedError):
        server.checked()
    assert ended["rackwell_error"]["code"] == "gate-held"
    assert ended["rackwell_error"]["why"] == "held by the boot gate: p2p-corrupt: x"
