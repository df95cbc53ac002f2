# SPDX-License-Identifier: GPL-3.0-or-later
"""Module gpu_gate: what it writes, when it runs the gate, and what it makes of the verdict. systemd is played."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.rackwell.gpu.plugins.module_utils import gpu_gate as gates
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import CommandError
from ansible_collections.rackwell.gpu.plugins.modules import gpu_gate

from rackwell.probe import gate, gate_judge

USER = pwd.getpwuid(os.geteuid()).pw_name
PROBLEMS = [
    {"code": "p2p-corrupt", "what": "GPU 0 to 1 loses data", "where": "0000:06:00.0", "why": "w", "fix": "iommu off"},
    {"code": "hmm-enabled", "what": "HMM is on", "where": "host", "why": "w", "fix": "f"},
]
CLEAN: dict[str, Any] = {
    "verdict": "pass",
    "mode": "quick",
    "gpus": [{}] * 8,
    "seconds": 4.0,
    "findings": [],
    "problems": [],
}
CORRUPT: dict[str, Any] = {
    **CLEAN,
    "verdict": "fail",
    "findings": [{**PROBLEMS[0], "check": "p2p.data", "verdict": "fail"}],
    "problems": PROBLEMS,
}
_COMMANDS = """
import argparse
from rackwell.probe import gate
parser = argparse.ArgumentParser()
gate.register(parser.add_subparsers())
arguments = parser.parse_args()
raise SystemExit(arguments.run(arguments))
"""


class Machine:
    """systemd with the gate's unit, and the probe that it starts."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.places = gates.Places(str(place / "etc/unit"), str(place / "etc/gate.json"), str(place / "run/gate.json"))
        self.calls: list[str] = []
        self.is_enabled = False
        self.report: Any = CLEAN
        self.modes: list[str] = []
        self.starts = True
        python = place / "opt/probe/env/bin/python"
        python.parent.mkdir(parents=True)
        # without -I, since the probe is found by PYTHONPATH here
        python.write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} -c "{_COMMANDS}" "$@"\n')
        python.chmod(0o755)

    # System
    def show(self, _unit: str) -> Any:
        return SimpleNamespace(enabled=self.is_enabled)

    def systemctl(self, *arguments: str) -> None:
        self.calls.append(arguments[0])
        if arguments[0] == "enable":
            self.is_enabled = True
        if arguments[0] == "disable":
            self.is_enabled = False
        if arguments[0] == "restart":
            self._run()

    def _run(self) -> None:
        if not self.starts:
            raise CommandError("Job failed: status=203/EXEC")
        (self.place / "run").mkdir(exist_ok=True)

        def check(**options: Any) -> Any:
            self.modes.append(options["mode"])
            return self.report

        if gate.run(Path(self.places.config), Path(self.places.out), check):
            raise CommandError("Job for rackwell-gpu-gate.service failed")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    monkeypatch.setattr(gates, "Places", lambda: found.places)
    monkeypatch.setattr(gpu_gate, "System", lambda: found)
    return found


@pytest.fixture
def apply(machine: Machine, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the module; its result."""

    def run(state: str = "passed", check_mode: bool = False, **options: Any) -> dict[str, Any]:
        given = {"container": "glm5-01", "root": str(machine.place / "opt"), "user": USER, "state": state, **options}
        machine.calls.clear()
        machine.modes.clear()
        capsys.readouterr()
        given.update(_ansible_check_mode=check_mode, _ansible_diff=True)
        with patch_module_args(given), pytest.raises(SystemExit):
            gpu_gate.main()
        said: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
        return said

    return run


def test_a_bare_container_gets_its_gate_and_a_verdict(machine: Machine, apply: Any) -> None:
    done = apply(gpus=4, expect={"floors": {"nvlink": {"gb_per_s": 100}}}, timeout=300)
    assert done["changed"] is True
    assert (done["rackwell_result"]["schema"], done["rackwell_result"]["state"]) == ("rackwell.gate/1", "passed")
    assert done["rackwell_result"]["report"]["verdict"] == "pass"
    assert machine.is_enabled
    config = json.loads(Path(machine.places.config).read_text())
    assert (config["gpus"], config["timeout"], config["hold_on"], config["full"]) == (4, 300, "fail", False)
    assert config["expect"] == {"floors": {"nvlink": {"gb_per_s": 100}}}
    unit = Path(machine.places.unit).read_text()
    assert f"User={USER}\n" in unit
    assert "TimeoutStartSec=480\n" in unit
    assert "Before=rackwell-inference.service\n" in unit
    assert [entry["after_header"] for entry in done["diff"]] == [machine.places.config, machine.places.unit]


def test_again_it_changes_and_runs_nothing(machine: Machine, apply: Any) -> None:
    apply()
    done = apply()
    assert (done["changed"], machine.calls, done["diff"]) == (False, [], [])


def test_a_restarted_container_has_no_verdict_and_gets_one(machine: Machine, apply: Any) -> None:
    apply()
    Path(machine.places.out).unlink()
    done = apply()
    assert (done["changed"], machine.modes) == (True, ["quick"])


@pytest.mark.parametrize(
    ("option", "runs"), [({"gpus": 4}, True), ({"expect": {"floors": {}}}, True), ({"hold_on": "degraded"}, True),
                         ({"timeout": 100}, False), ({"size": 64}, False)],
)  # fmt: skip
def test_only_what_decides_asks_for_another_verdict(
    machine: Machine, apply: Any, option: dict[str, Any], runs: bool
) -> None:
    apply()
    done = apply(**option)
    assert done["changed"] is True
    assert ("restart" in machine.calls) is runs


def test_a_held_gate_fails_with_what_the_checks_found(machine: Machine, apply: Any) -> None:
    machine.report = CORRUPT
    done = apply()
    assert done["failed"] is True
    assert done["held"] is True
    error = done["rackwell_error"]
    assert error["code"] == "gate-held"
    assert "p2p-corrupt: GPU 0 to 1 loses data" in error["why"]
    assert "rackwell verify glm5-01 --release-gate" in error["fix"]
    assert done["problems"] == PROBLEMS
    assert done["rackwell_result"]["state"] == "held"
    # the quick check is not clean
    assert machine.modes == ["quick", "full"]


def test_a_held_gate_is_run_again_by_the_next_provision(machine: Machine, apply: Any) -> None:
    machine.report = CORRUPT
    apply()
    machine.report = CLEAN
    assert apply()["rackwell_result"]["state"] == "passed"


def test_rerun_makes_the_full_check_once(machine: Machine, apply: Any) -> None:
    apply()
    done = apply("rerun")
    assert (done["changed"], machine.modes) == (True, ["full"])
    apply("rerun")
    Path(machine.places.out).unlink()
    apply("passed")
    assert machine.modes == ["quick"]


def test_rerun_on_a_container_whose_gate_never_ran(machine: Machine, apply: Any) -> None:
    apply("rerun")
    assert machine.modes == ["full"]


def test_a_gate_that_systemd_cannot_start_is_no_pass(machine: Machine, apply: Any) -> None:
    machine.starts = False
    done = apply()
    assert done["rackwell_error"]["code"] == "gate-held"
    assert "203/EXEC" in done["rackwell_error"]["why"]
    assert "problems" not in done


def test_checked_only_reads(machine: Machine, apply: Any) -> None:
    absent = apply("checked")
    assert (absent["rackwell_error"]["code"], absent["rackwell_result"]["state"]) == ("gate-held", "absent")
    apply("passed")
    done = apply("checked", report=False)
    assert (done["changed"], machine.calls) == (False, [])
    assert done["rackwell_result"]["state"] == "passed"
    assert "report" not in done["rackwell_result"]


def test_a_damaged_verdict_is_told_and_replaced(machine: Machine, apply: Any) -> None:
    apply()
    Path(machine.places.out).write_text("{")
    assert apply("checked")["rackwell_result"]["state"] == "damaged"
    assert apply()["rackwell_result"]["state"] == "passed"


def test_check_mode_foretells(machine: Machine, apply: Any) -> None:
    done = apply(check_mode=True)
    assert (done["changed"], done["rackwell_result"]["would_run"]) == (True, True)
    assert not Path(machine.places.config).exists()
    assert machine.calls == []
    apply()
    done = apply(check_mode=True)
    assert (done["changed"], done["rackwell_result"]["would_run"]) == (False, False)
    done = apply(check_mode=True, gpus=4)
    assert (done["changed"], done["rackwell_result"]["would_run"]) == (True, True)
    done = apply("rerun", check_mode=True)
    assert (done["changed"], machine.calls) == (True, [])


def test_check_mode_where_the_probe_is_still_to_come(machine: Machine, apply: Any) -> None:
    (machine.place / "opt/probe/env/bin/python").unlink()
    done = apply(check_mode=True)
    assert done["rackwell_result"] == {"schema": "rackwell.gate/1", "state": "absent", "would_run": True}
    assert apply()["rackwell_error"]["code"] == "probe-missing"


def test_a_probe_without_the_command_is_told(machine: Machine, apply: Any) -> None:
    python = machine.place / "opt/probe/env/bin/python"
    python.write_text("#!/bin/sh\necho 'invalid choice: require' >&2\nexit 2\n")
    done = apply()
    assert done["rackwell_error"]["code"] == "probe-failed"
    assert "invalid choice" in done["rackwell_error"]["why"]


def test_without_a_gate_nothing_of_it_is_left(machine: Machine, apply: Any) -> None:
    apply()
    done = apply(gate=False)
    assert done["changed"] is True
    assert machine.calls[0] == "disable"
    assert not any(Path(path).exists() for path in machine.places)
    assert apply(gate=False)["changed"] is False
    assert apply("checked", gate=False)["changed"] is False


@pytest.mark.parametrize("option", ["gpus", "timeout", "size"])
def test_numbers_below_one_are_refused_by_name(machine: Machine, apply: Any, option: str) -> None:
    done = apply(**{option: 0})
    assert (done["rackwell_error"]["code"], done["rackwell_error"]["where"]) == ("invalid-option", option)


def test_a_root_that_systemd_would_read_otherwise_is_refused(apply: Any) -> None:
    assert apply(root="/opt/%h")["rackwell_error"]["code"] == "invalid-option"


def test_module_and_probe_mean_the_same_configuration(machine: Machine, apply: Any) -> None:
    apply("present")
    assert gate_judge.read_config(Path(machine.places.config))["container"] == "glm5-01"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze on this machine")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    wanted = gates.Wanted("/opt/rackwell", "root", 8, {}, "fail", 600, 256, "glm5-01", "/b")
    text = gates.unit_text(wanted, gates.Places()).replace(gates.python(wanted.root), "/bin/true")
    unit = tmp_path / gates.UNIT
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert gates.UNIT not in done.stderr, done.stderr
