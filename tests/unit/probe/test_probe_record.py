# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rackwell.probe import record as recorder
from rackwell.probe import telemetry

Order = Callable[..., None]
#: a benchmark in small: it loads, measures, and takes a while to end
LOAD = """
import time
print("loading")
time.sleep(0.4)
print("Starting main run")
time.sleep(0.8)
print("Result")
time.sleep(0.4)
"""


def run(out: Path, *arguments: str, code: str = LOAD) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "rackwell.probe", "record", "--out", str(out), *arguments, "--"]
    done = subprocess.run([*command, sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, json.loads(out.read_text()), done.stdout


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "telemetry.json"


def test_window_lines_and_samples_are_on_one_clock(out: Path) -> None:
    status, record, printed = run(
        out, "--hz", "20", "--window-start-pattern", "main run", "--window-end-pattern", "Result"
    )
    assert status == 0
    assert printed == "loading\nStarting main run\nResult\n"
    assert [line["text"] for line in record["lines"]] == printed.splitlines()
    assert (record["window_start"], record["window_end"]) == (record["lines"][1]["t"], record["lines"][2]["t"])
    inside = [s for s in record["samples"] if record["window_start"] <= s["t"] <= record["window_end"]]
    assert record["summary"]["samples"] == len(inside)
    assert 0 < len(inside) < len(record["samples"])
    # sampling began before the command and went on to its end
    assert record["samples"][0]["t"] < record["lines"][0]["t"]
    assert record["samples"][-1]["t"] > record["window_end"]
    assert record["problems"] == []


def test_summary_is_of_the_fakes_figures(out: Path) -> None:
    _, record, _ = run(out, "--hz", "20", "--window-start-pattern", "main run", "--window-end-pattern", "Result")
    first, second = record["summary"]["gpus"]
    assert (first["power_mean_w"], first["power_max_w"], first["power_limit_w"]) == (250, 250, 600)
    assert first["power_share_of_limit_mean"] == pytest.approx(250 / 600, abs=1e-4)
    assert (first["utilization_mean_pct"], second["utilization_mean_pct"]) == (90, 10)
    assert first["power_is_instant"] is True
    assert record["summary"]["total"]["power_mean_w"] == 350
    # a joule a reading: as many as lie between the samples at both edges
    assert first["energy_j"] == second["energy_j"] == round(first["energy_j"])
    assert record["summary"]["samples"] - 1 <= first["energy_j"] <= record["summary"]["samples"] + 1
    assert record["devices"][0]["bus_id"] == "0000:01:00.0"
    overhead = record["telemetry"]["overhead"]
    assert overhead["samples"] == len(record["samples"])
    assert overhead["cpu_seconds"] > 0


def reading(power: float | None, energy: int | None, use: int = 50) -> dict[str, Any]:
    return {
        "power_w": power,
        "power_instant": True,
        "power_limit_w": 600.0,
        "utilization_pct": use,
        "memory_used_mib": 1000,
        "temperature_c": 50,
        "sm_clock_mhz": 2000,
        "energy_mj": energy,
    }


def sampler_with(readings: list[dict[str, Any]]) -> Any:
    """A sampler that took one of these a second."""
    samples = [{"t": float(second), "gpus": [gpu]} for second, gpu in enumerate(readings)]
    return types.SimpleNamespace(devices=[{"uuid": "GPU-0", "bus_id": "0000:01:00.0"}], samples=samples)


def test_summary_counts_only_what_lies_in_the_window() -> None:
    # idle at 88 W, a window at 200 and 300 W, idle again: the story's mistake was to read after the end
    power = [88, 88, 200, 300, 300, 88, 88]
    energy = [0, 88_000, 176_000, 376_000, 676_000, 976_000, 1_064_000]
    sampler = sampler_with([reading(w, e) for w, e in zip(power, energy, strict=True)])
    found = recorder.summary(sampler, 1.6, 4.4)
    assert found
    gpu = found["gpus"][0]
    assert (found["samples"], gpu["power_mean_w"], gpu["power_max_w"]) == (3, 266.667, 300)
    assert (gpu["power_share_of_limit_max"], gpu["energy_j"], gpu["energy_seconds"]) == (0.5, 500.0, 2.0)


def test_a_counter_that_was_reset_gives_no_energy() -> None:
    sampler = sampler_with([reading(100, 5000), reading(100, 100), reading(None, None)])
    assert recorder.summary(sampler, 0, 1)["gpus"][0]["energy_j"] is None  # type: ignore[index]
    last = recorder.summary(sampler, 1.5, 2)
    assert last
    assert (last["gpus"][0]["power_mean_w"], last["total"]["power_mean_w"], last["total"]["energy_j"]) == (
        None,
        None,
        None,
    )


def test_average_power_is_said_to_be_no_instant(out: Path, fake_nvml: Order) -> None:
    fake_nvml(no_instant=True, missing=["nvmlDeviceGetClockInfo"])
    _, record, _ = run(out)
    gpu = record["summary"]["gpus"][0]
    assert (gpu["power_mean_w"], gpu["power_is_instant"], gpu["sm_clock_mean_mhz"]) == (249, False, None)


def test_without_a_pattern_the_window_is_the_command(out: Path) -> None:
    _, record, _ = run(out, code="print('x')")
    assert record["window_start"] == record["clock"]["monotonic"]
    assert record["window_end"] >= record["lines"][0]["t"]


def test_a_window_that_never_opens_has_no_summary(out: Path) -> None:
    status, record, _ = run(out, "--window-start-pattern", "never printed", code="print('x')")
    assert status == 0
    assert (record["window_start"], record["summary"]) == (None, None)
    assert "never printed" in record["window"]["why"]


def test_nvml_missing_does_not_keep_the_command_from_running(out: Path, fake_nvml: Order) -> None:
    fake_nvml(init_error=12)
    status, record, printed = run(out, code="print('served'); raise SystemExit(7)")
    assert (status, printed) == (7, "served\n")
    assert record["telemetry"] == {"available": False, "why": "NVML: fake error 12"}
    assert [problem["code"] for problem in record["problems"]] == ["nvml-unavailable"]
    assert record["samples"] == []


def test_nvml_that_hangs_does_not_either(out: Path, fake_nvml: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(hang="nvmlInit")
    monkeypatch.setattr(telemetry, "START_DEADLINE", 1.0)
    assert recorder.record([sys.executable, "-c", "print('x')"], out, 5, None) == 0
    record = json.loads(out.read_text())
    assert record["telemetry"]["why"].startswith("NVML did not answer")


@pytest.mark.parametrize(
    ("code", "status"), [("import os; os._exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_exit_status_is_the_commands(out: Path, code: str, status: int) -> None:
    assert run(out, code=code)[0] == status
    assert json.loads(out.read_text())["exit_code"] == status


@pytest.mark.parametrize(("command", "status"), [(["/nonexistent"], 127), (["/etc/passwd"], 126)])
def test_a_command_that_cannot_be_started(out: Path, command: list[str], status: int) -> None:
    assert recorder.record(command, out, 5, None) == status
    assert json.loads(out.read_text())["problems"][0]["code"] == "command-not-started"


#: says when it listens, ends with 5 on the signal
TRAP = """
import signal, sys, threading
def end(number, frame):
    print("signal", number)
    sys.exit(5)
signal.signal(signal.{name}, end)
print("listening")
threading.Event().wait()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signals_are_passed_on_and_the_record_is_still_written(out: Path, name: str) -> None:
    number = getattr(signal, name)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "rackwell.probe",
            "record",
            "--out",
            str(out),
            "--",
            sys.executable,
            "-c",
            TRAP.format(name=name),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "listening\n"
    process.send_signal(number)
    assert process.stdout.read() == f"signal {int(number)}\n"
    assert process.wait() == 5
    assert json.loads(out.read_text())["exit_code"] == 5


def test_the_command_does_not_outlive_a_killed_recorder(out: Path) -> None:
    code = "import os, threading; print(os.getpid()); threading.Event().wait()"
    process = subprocess.Popen(
        [sys.executable, "-m", "rackwell.probe", "record", "--out", str(out), "--", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    command = os.pidfd_open(int(process.stdout.readline()))
    process.kill()
    process.wait()
    with process.stdout, os.fdopen(command):
        assert select.select([command], [], [], 60)[0], "the command is still running"


def test_very_many_lines_keep_the_last(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_LINES", 10)
    lines = recorder.Lines()
    for number in range(25):
        lines.add(f"{number} " + "x" * 1000, float(number))
    assert (len(lines.kept), lines.dropped) == (10, 15)
    assert lines.kept[-1]["text"].startswith("24 ")
    assert len(lines.kept[-1]["text"]) == recorder.MAX_LINE


def test_the_record_replaces_the_old_one_in_one_piece(out: Path) -> None:
    out.write_text("old")
    with pytest.raises(TypeError):
        recorder.write(out, {"not json": object()})
    assert out.read_text() == "old"
    assert list(out.parent.iterdir()) == [out]


def test_the_directory_must_exist(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rackwell.probe", "record", "--out", str(tmp_path / "no/x.json"), "--", "true"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
