# SPDX-License-Identifier: Apache-2.0
"""The boot gate: which checks it makes, what it leaves behind, and what is left when it is ended half-way."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rackwell.probe import gate, gate_judge, gate_verdict

CONFIG: dict[str, Any] = {
    "schema": "rackwell.gate_config/1",
    "container": "glm5-01",
    "gpus": 8,
    "expect": {"floors": {}},
    "baseline": "/var/lib/rackwell/baseline/gpu.json",
    "hold_on": "fail",
    "timeout": 600,
    "size": 256,
    "full": False,
}


def report(
    verdict: str = "pass", mode: str = "quick", code: str = "p2p-corrupt", check: str = "p2p.data"
) -> dict[str, Any]:
    """A report of the checks with one finding, unless it is clean."""
    text = {"code": code, "what": f"{code} seen", "where": "GPU 0", "why": "w", "fix": "mend it."}
    found = [] if verdict == "pass" else [{**text, "check": check, "verdict": verdict}]
    problems = [] if verdict == "pass" else [text]
    return {
        "schema": "rackwell.gpu/1",
        "mode": mode,
        "verdict": verdict,
        "seconds": 4.2,
        "gpus": [{}] * 8,
        "findings": found,
        "problems": problems,
    }


class Checks:
    """Plays the check; remembers how it was asked."""

    def __init__(self, **by_mode: Any) -> None:
        self.by_mode = by_mode
        self.asked: list[dict[str, Any]] = []

    def __call__(self, **options: Any) -> Any:
        self.asked.append(options)
        answer = self.by_mode[options["mode"]]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def modes(self) -> list[str]:
        return [options["mode"] for options in self.asked]


class Clock:
    """A boot whose time passes by so many seconds at each look."""

    def __init__(self, step: float = 1.0) -> None:
        self.now, self.step = 100.0, step

    def __call__(self) -> gate_verdict.Moment:
        self.now += self.step
        return gate_verdict.Moment("boot-1", self.now, 7)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path


def run(
    place: Path, checks: Callable[..., Any], config: Any = None, clock: Clock | None = None
) -> tuple[int, dict[str, Any]]:
    (place / "gate_config.json").write_text(json.dumps(CONFIG if config is None else config))
    status = gate.run(place / "gate_config.json", place / "run/gate.json", checks, clock or Clock())
    return status, json.loads((place / "run/gate.json").read_text())


def test_a_clean_quick_check_passes_and_is_the_only_one(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = Checks(quick=report())
    status, verdict = run(place, checks)
    assert (status, verdict["verdict"], verdict["held"], verdict["code"]) == (0, "pass", False, "ok")
    assert (verdict["schema"], verdict["boot_id"], verdict["mode"]) == ("rackwell.gate/1", "boot-1", "quick")
    assert verdict["report"]["schema"] == "rackwell.gpu/1"
    assert checks.modes == ["quick"]
    asked = checks.asked[0]
    assert (asked["gpus"], asked["size"], asked["timeout"]) == (8, 256, 600.0)
    assert asked["baseline"] == Path(CONFIG["baseline"])
    assert capsys.readouterr().out == "gate passed: 8 GPUs, quick check clean, 4.2 s\n"


def test_the_verdict_is_readable_by_all_whatever_the_umask(place: Path) -> None:
    before = os.umask(0o077)
    try:
        run(place, Checks(quick=report()))
    finally:
        os.umask(before)
    assert stat.S_IMODE((place / "run/gate.json").stat().st_mode) == 0o644
    assert sorted(path.name for path in (place / "run").iterdir()) == ["gate.json", "gate.lock"]


@pytest.mark.parametrize("first", ["degraded", "fail"])
def test_a_quick_check_that_is_not_clean_brings_the_full_one(
    place: Path, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = Checks(quick=report(first), full=report("fail", "full"))
    status, verdict = run(place, checks)
    assert checks.modes == ["quick", "full"]
    assert (status, verdict["held"], verdict["mode"], verdict["code"]) == (1, True, "full", "p2p-corrupt")
    assert verdict["line"] == "p2p-corrupt: p2p-corrupt seen. Fix: mend it"
    assert verdict["first"] == {"mode": "quick", "verdict": first, "code": "p2p-corrupt"}
    assert capsys.readouterr().out == f"gate held: {verdict['line']}\n"


def test_the_full_check_has_the_time_that_is_left(place: Path) -> None:
    checks = Checks(quick=report("degraded", code="p2p-slow-pair"), full=report(mode="full"))
    run(place, checks, clock=Clock(step=100))
    assert [options["timeout"] for options in checks.asked] == [600.0, 500.0]


def test_without_time_left_the_quick_check_decides(place: Path) -> None:
    checks = Checks(quick=report("fail", code="p2p-hang"))
    status, verdict = run(place, checks, clock=Clock(step=580))
    assert (checks.modes, status, verdict["code"]) == (["quick"], 1, "p2p-hang")


@pytest.mark.parametrize("check", ["nodes", "driver", "gpus", "cuda"])
def test_where_cuda_does_not_start_the_full_check_could_tell_no_more(place: Path, check: str) -> None:
    checks = Checks(quick=report("fail", code="uvm-node-missing", check=check))
    status, _verdict = run(place, checks)
    assert (checks.modes, status) == (["quick"], 1)


def test_a_slow_pair_that_the_full_check_does_not_see_again_holds_nothing(place: Path) -> None:
    checks = Checks(quick=report("fail", code="p2p-slow-pair", check="p2p.bandwidth"), full=report(mode="full"))
    status, verdict = run(place, checks)
    assert (status, verdict["verdict"], verdict["code"]) == (0, "degraded", "p2p-slow-pair")
    assert "not again by the full one" in verdict["line"]


@pytest.mark.parametrize(
    "code", ["p2p-corrupt", "p2p-corrupt-one-way", "allreduce-wrong", "cuda-wrong-data", "p2p-hang"]
)
def test_wrong_data_seen_once_is_enough(place: Path, code: str) -> None:
    status, verdict = run(place, Checks(quick=report("fail", code=code), full=report(mode="full")))
    assert (status, verdict["verdict"], verdict["held"], verdict["code"]) == (1, "fail", True, code)


@pytest.mark.parametrize(("hold_on", "status"), [("fail", 0), ("degraded", 1)])
def test_the_declaration_says_from_which_verdict_on_it_holds(place: Path, hold_on: str, status: int) -> None:
    slow = {"code": "p2p-slow-pair", "check": "p2p.bandwidth"}
    checks = Checks(quick=report("degraded", **slow), full=report("degraded", "full", **slow))
    found, verdict = run(place, checks, {**CONFIG, "hold_on": hold_on})
    assert (found, verdict["verdict"], verdict["held"]) == (status, "degraded", bool(status))


def test_the_line_names_the_worst_problem_and_counts_the_others(place: Path) -> None:
    whole = report("fail", "full")
    milder = {"code": "hmm-enabled", "what": "HMM is on", "where": "", "why": "", "fix": ""}
    whole["problems"].insert(0, milder)
    whole["findings"].insert(0, {**milder, "check": "host", "verdict": "degraded"})
    _status, verdict = run(place, Checks(full=whole), {**CONFIG, "full": True})
    assert verdict["line"] == "p2p-corrupt: p2p-corrupt seen. Fix: mend it (and 1 more)"


def test_the_line_is_one_line(place: Path) -> None:
    whole = report("fail")
    whole["problems"][0]["what"] = "two\nlines\x1b[31m"
    whole["findings"][0]["check"] = "cuda"
    _status, verdict = run(place, Checks(quick=whole))
    assert verdict["line"].startswith("p2p-corrupt: two lines [31m.")


@pytest.mark.parametrize("way", ["config", "request"])
def test_the_full_check_when_it_is_asked_for(place: Path, way: str) -> None:
    if way == "request":
        (place / "run/gate.full").touch()
    checks = Checks(full=report(mode="full"))
    run(place, checks, {**CONFIG, "full": way == "config"})
    assert checks.modes == ["full"]
    assert not (place / "run/gate.full").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file"),
        ("{", "no JSON"),
        ("[]", "schema"),
        (json.dumps({**CONFIG, "schema": "x"}), "schema"),
        (json.dumps({**CONFIG, "gpus": "8"}), "'gpus'"),
        (json.dumps({**CONFIG, "gpus": True}), "'gpus'"),
        (json.dumps({**CONFIG, "timeout": 0}), "'timeout'"),
        (json.dumps({**CONFIG, "hold_on": "never"}), "'hold_on'"),
        (json.dumps({**CONFIG, "expect": []}), "'expect'"),
        (json.dumps({**CONFIG, "baseline": 1}), "'baseline'"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_a_configuration_that_cannot_be_used_holds(place: Path, text: str | None, why: str) -> None:
    path = place / "config.json"
    if text is not None:
        path.write_text(text)
    checks = Checks()
    assert gate.run(path, place / "run/gate.json", checks, Clock()) == 1
    verdict = json.loads((place / "run/gate.json").read_text())
    assert (verdict["held"], verdict["code"], verdict["report"]) == (True, "gate-config", None)
    assert why in verdict["line"]
    assert "rackwell provision" in verdict["line"]
    assert not checks.asked


@pytest.mark.parametrize(
    "answer", [RuntimeError("no bindings"), ImportError("cuda"), KeyError("x"), None, {}, {"verdict": "?"}]
)
def test_a_check_that_fails_itself_holds_and_is_told(place: Path, answer: Any) -> None:
    status, verdict = run(place, Checks(quick=answer))
    assert (status, verdict["held"], verdict["verdict"], verdict["code"]) == (1, True, "fail", "gate-failed")


def test_a_passing_verdict_is_gone_before_the_next_check_begins(place: Path) -> None:
    run(place, Checks(quick=report()))
    seen: list[tuple[bool, bool, str]] = []

    def look(**_options: Any) -> Any:
        out = place / "run/gate.json"
        state = gate_verdict.standing(out, Clock()()).state
        seen.append((out.exists(), gate_verdict.partial(out).exists(), state))
        return report()

    run(place, look)
    assert seen == [(False, True, "running")]


def test_a_second_gate_touches_nothing(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_LOCK_PATIENCE", 0.0)
    _status, before = run(place, Checks(quick=report()))
    handle = os.open(place / "run/gate.lock", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        checks = Checks()
        assert gate.run(place / "gate_config.json", place / "run/gate.json", checks, Clock()) == 1
    finally:
        os.close(handle)
    assert json.loads((place / "run/gate.json").read_text()) == before
    assert "another boot gate" in capsys.readouterr().err


def test_a_verdict_that_cannot_be_written_is_none(place: Path) -> None:
    run(place, Checks(quick=report()))
    full = place / "run/gate.json.new"
    full.mkdir()
    with pytest.raises(OSError, match=r"gate\.json\.new"):
        run(place, Checks(quick=report()))
    assert gate_verdict.standing(place / "run/gate.json", Clock()()).state == "interrupted"


_SLOW = """
import json, sys, time
from pathlib import Path
from rackwell.probe import child, gate

def check(**options):
    child.run("probe_sleeper:sleep", {"mark": sys.argv[3]}, 600)
    return {"verdict": "pass", "mode": "quick", "gpus": [], "seconds": 0}

raise SystemExit(gate.run(Path(sys.argv[1]), Path(sys.argv[2]), check))
"""
_SLEEPER = """
import os, time
from pathlib import Path

def sleep(emit, arguments):
    Path(arguments["mark"]).write_text(str(os.getpid()))
    time.sleep(600)
"""


def wait_for(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + 60
    while not (found := what()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_gate_leaves_no_verdict_and_no_child(
    place: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(place, Checks(quick=report()))
    (place / "probe_sleeper.py").write_text(_SLEEPER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), os.environ["PYTHONPATH"]]))
    out, mark = place / "run/gate.json", place / "mark"
    arguments = [sys.executable, "-c", _SLOW, str(place / "gate_config.json"), str(out), str(mark)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        sleeper = int(wait_for(lambda: mark.exists() and mark.read_text()))
        assert gate_verdict.standing(out, gate_verdict.moment()).state == "running"
        process.send_signal(number)
        told, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    wait_for(
        lambda: not Path(f"/proc/{sleeper}").exists() or "Z" in Path(f"/proc/{sleeper}/stat").read_text().split(")")[1]
    )
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 1)
    assert "Traceback" not in errors
    assert told == (
        ""
        if number == signal.SIGKILL
        else f"gate interrupted: {number.name} while it was at work; there is no verdict\n"
    )
    assert not out.exists()
    assert gate_verdict.standing(out, gate_verdict.moment()).state == "interrupted"


def test_the_server_is_seen_by_its_control_group(tmp_path: Path) -> None:
    procs = tmp_path / "cgroup.procs"
    assert not gate_judge.server_runs((procs,))
    procs.write_text("")
    assert not gate_judge.server_runs((procs,))
    procs.write_text("123\n")
    assert gate_judge.server_runs((tmp_path / "other", procs))
