# SPDX-License-Identifier: Apache-2.0
"""What stands before every start of the server: no verdict but a passing one of this boot lets it start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rackwell.probe import gate_verdict
from rackwell.probe.gate_verdict import Moment

NOW = Moment("boot-2", 500.0, 4711)
PASSED: dict[str, Any] = {
    "schema": "rackwell.gate/1",
    "verdict": "pass",
    "held": False,
    "boot_id": "boot-2",
    "init": 4711,
    "uptime": 90.0,
    "started": "2026-11-30T02:00:00Z",
    "seconds": 6.0,
    "mode": "quick",
    "code": "ok",
    "line": "8 GPUs, quick check clean, 6.0 s",
    "report": {},
}


def standing(tmp_path: Path, content: Any) -> gate_verdict.Standing:
    out = tmp_path / "gate.json"
    out.write_text(content if isinstance(content, str) else json.dumps(content))
    return gate_verdict.standing(out, NOW)


@pytest.mark.parametrize(
    "more", [{}, {"verdict": "degraded", "code": "p2p-slow-pair"}, {"init": None}, {"uptime": 500.0}]
)
def test_a_verdict_of_this_boot_that_holds_nothing_passes(tmp_path: Path, more: dict[str, Any]) -> None:
    assert standing(tmp_path, {**PASSED, **more}).passed


@pytest.mark.parametrize("more", [{"held": True}, {"verdict": "fail"}, {"held": True, "verdict": "degraded"}])
def test_a_held_verdict_is_told_with_its_code_and_line(tmp_path: Path, more: dict[str, Any]) -> None:
    found = standing(tmp_path, {**PASSED, "code": "p2p-corrupt", "line": "p2p-corrupt: x\ny", **more})
    assert (found.state, found.code, found.line) == ("held", "p2p-corrupt", "p2p-corrupt: x y")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"boot_id": "boot-1"}, "boot id boot-1, now boot-2"),
        ({"uptime": 501.0}, "given 501 s after a boot"),
        ({"init": 4712}, "started again"),
    ],
)
def test_a_verdict_of_another_boot_never_passes(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    found = standing(tmp_path, {**PASSED, **more})
    assert found.state == "other-boot"
    assert why in found.line


def test_a_clock_that_was_set_changes_nothing(tmp_path: Path) -> None:
    """NTP may set it back right after boot; what counts is the time since boot."""
    assert standing(tmp_path, {**PASSED, "started": "2099-01-01T00:00:00Z"}).passed


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "null",
        "[]",
        "\x00" * 20,
        "[" * 100_000,
        json.dumps(PASSED)[:-40],
        {**PASSED, "schema": "rackwell.gate/2"},
        {**PASSED, "verdict": "not-measured"},
        {**PASSED, "verdict": None},
        {**PASSED, "verdict": ["pass"]},
        {**PASSED, "held": 0},
        {**PASSED, "held": None},
        {**PASSED, "boot_id": None},
        {**PASSED, "uptime": None},
        {**PASSED, "uptime": True},
        {**PASSED, "uptime": -1},
        {**PASSED, "uptime": float("nan")},
        {**PASSED, "started": "yesterday"},
        {**PASSED, "line": 1},
        {key: value for key, value in PASSED.items() if key != "held"},
    ],
)
def test_a_damaged_verdict_never_passes(tmp_path: Path, content: Any) -> None:
    found = standing(tmp_path, content)
    assert (found.state, found.code) == ("damaged", "gate-damaged")
    assert "\n" not in found.line


def test_bytes_that_are_no_text_never_pass(tmp_path: Path) -> None:
    (tmp_path / "gate.json").write_bytes(b"\xff\xfe{}")
    assert gate_verdict.standing(tmp_path / "gate.json", NOW).state == "damaged"


def test_a_directory_in_its_place_never_passes(tmp_path: Path) -> None:
    (tmp_path / "gate.json").mkdir()
    assert gate_verdict.standing(tmp_path / "gate.json", NOW).state == "damaged"


def test_a_gate_that_never_ran(tmp_path: Path) -> None:
    found = gate_verdict.standing(tmp_path / "absent" / "gate.json", NOW)
    assert (found.state, found.code) == ("absent", "gate-absent")


def test_a_gate_that_was_ended_tells_when_it_began(tmp_path: Path) -> None:
    (tmp_path / "gate.partial").write_text(json.dumps({"started": "2026-11-30T02:00:00Z"}))
    found = gate_verdict.standing(tmp_path / "gate.json", NOW)
    assert found.state == "interrupted"
    assert "2026-11-30T02:00:00Z" in found.line


@pytest.mark.parametrize("content", ["", "[]", "7", '{"started": 5}'])
def test_a_damaged_mark_of_a_run_is_no_obstacle(tmp_path: Path, content: str) -> None:
    (tmp_path / "gate.partial").write_text(content)
    assert gate_verdict.standing(tmp_path / "gate.json", NOW).state == "interrupted"


def test_this_machine_knows_its_boot() -> None:
    first, second = gate_verdict.moment(), gate_verdict.moment()
    assert len(first.boot_id) == 36
    assert (first.boot_id, first.init) == (second.boot_id, second.init)
    assert 0 < first.uptime <= second.uptime


def require(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rackwell.probe", "require", "--gate", str(out), "--container", "glm5-01", *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def verdict_now(**more: Any) -> str:
    now = gate_verdict.moment()
    return json.dumps({**PASSED, "boot_id": now.boot_id, "init": now.init, "uptime": now.uptime, **more})


def test_the_condition_of_the_server_lets_a_passed_gate_through_silently(tmp_path: Path) -> None:
    (tmp_path / "gate.json").write_text(verdict_now())
    done = require(tmp_path / "gate.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_condition_of_the_server_says_in_one_line_why_and_what_releases_it(tmp_path: Path) -> None:
    (tmp_path / "gate.json").write_text(verdict_now(held=True, line="p2p-corrupt: GPU 0 to 1. Fix: iommu off"))
    done = require(tmp_path / "gate.json")
    advice = "Then: rackwell verify glm5-01 --release-gate"
    assert done.returncode == 1
    assert done.stderr == f"held by the boot gate: p2p-corrupt: GPU 0 to 1. Fix: iommu off. {advice}\n"


@pytest.mark.parametrize("content", [None, "", "{}"])
def test_without_a_verdict_it_is_one_line_too(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "gate.json").write_text(content)
    done = require(tmp_path / "gate.json")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "rackwell verify glm5-01 --release-gate" in done.stderr


def test_for_programs_it_gives_state_and_code(tmp_path: Path) -> None:
    done = require(tmp_path / "gate.json", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["state"], said["code"]) == (1, "absent", "gate-absent")
    assert said["fix"] == "rackwell verify glm5-01 --release-gate"


def test_it_loads_neither_cuda_nor_nvml(tmp_path: Path) -> None:
    """It stands before every start of the server, and must not hang where the driver does."""
    program = (
        "import sys\nfrom rackwell.probe.__main__ import main\n"
        f"main(['require', '--gate', {str(tmp_path / 'gate.json')!r}])\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('cuda', 'pynvml', 'ctypes', 'subprocess')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
