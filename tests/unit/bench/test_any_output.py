# SPDX-License-Identifier: Apache-2.0
"""Whatever client and recorder leave: numbers that count, or a reason. Never a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import bench_client, bench_clients, bench_unit
from ansible_collections.rackwell.gpu.plugins.module_utils.bench_reading import Reading

from .conftest import DATA, OPTIONS, ORIGIN, record

VALUES = [None, True, -1, float("inf"), 10**400, "x", [], [None], ["x"], [[1]], {}, {"a": 1}, [{}]]
KEYS = ["duration", "completed", "total_input_tokens", "request_throughput", "concurrency", "ttfts", "itls"]
KEYS += ["output_lens", "errors", "server_info", "accept_length"]


class Server:
    """A server that lived through it."""

    unit = "rackwell-inference.service"

    def state(self) -> str:
        return "1"

    def answers(self) -> bool:
        return True

    def lines(self) -> list[str]:
        return []

    def known_answer(self, _sane: object, _when: str) -> list[dict[str, str]]:
        return []


def read(folder: Path, line: str, telemetry: str | None = None) -> dict[str, Any]:
    """What is made of a client's line and a recorder's file. Must be JSON."""
    client = folder / bench_unit.CLIENT
    client.mkdir()
    (folder / "context.json").write_text(json.dumps({"server": "1"}))
    (client / "outcome").write_text("success exited 0\n")
    (client / "out.jsonl").write_text(line)
    if telemetry is not None:
        (client / "telemetry.json").write_text(telemetry)
    result = Reading(str(folder), OPTIONS, bench_clients.Client("/"), Server(), os.geteuid()).read()
    json.dumps(result, allow_nan=False)
    for reason in result["reasons"]:
        assert reason["what"]
        assert reason["fix"]
    assert result["valid"] == (result["status"] == "measured" and not result["reasons"])
    return result


@pytest.fixture
def good() -> dict[str, Any]:
    line = bench_client.parse_output((DATA / "measured-c4.jsonl").read_text())
    assert line is not None
    return line


def test_the_line_itself_counts(tmp_path: Path, good: dict[str, Any]) -> None:
    assert read(tmp_path, json.dumps(good))["status"] == "measured"


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:12])
def test_a_line_with_any_value(tmp_path: Path, good: dict[str, Any], key: str, value: object) -> None:
    result = read(tmp_path, json.dumps({**good, key: value}))
    if key == "duration" and not (isinstance(value, int) and abs(value) < 10):
        assert [reason["code"] for reason in result["reasons"]] == ["bench-output-malformed"]
        assert not result["valid"]


@pytest.mark.parametrize("key", ["ttfts", "itls", "output_lens"])
def test_lists_of_different_lengths_are_no_measurement(tmp_path: Path, good: dict[str, Any], key: str) -> None:
    result = read(tmp_path, json.dumps({**good, key: good[key][:-1]}))
    assert [reason["code"] for reason in result["reasons"]] == ["bench-output-malformed"]


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"a":' + "9" * 5000 + "}", "null", "\0", "5"])
def test_a_line_that_is_none(tmp_path: Path, text: str) -> None:
    result = read(tmp_path, text)
    assert (result["status"], result["reasons"][0]["code"]) == ("failed", "bench-client-failed")


PLACES: list[list[str | int]] = [["window_start"], ["clock", "wall"], ["clock", "monotonic"], ["lines"], ["lines", 0]]
PLACES += [["devices"], ["devices", 0], ["samples"], ["samples", 0], ["samples", 0, "t"], ["samples", 0, "gpus"]]
PLACES += [["samples", 0, "gpus", 0, "temperature_c"], ["samples", 0, "gpus", 0, "power_limit_w"], ["telemetry"]]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_a_recorder_with_any_value(tmp_path: Path, good: dict[str, Any], place: list[str | int]) -> None:
    for number, value in enumerate(VALUES):
        telemetry: Any = json.loads(json.dumps(record(lambda _t, _gpu: 250.0, seconds=20, start=1)))
        telemetry.setdefault("lines", [{"t": ORIGIN + 1, "text": bench_client.START_PATTERN}])
        spot = telemetry
        for part in place[:-1]:
            spot = spot[part]
        spot[place[-1]] = value
        folder = tmp_path / str(number)
        folder.mkdir()
        result = read(folder, json.dumps(good), json.dumps(telemetry))
        assert result["status"] == "measured"
        assert result["telemetry"] is not None or any("No GPU telemetry" in remark for remark in result["remarks"])


@pytest.mark.parametrize("text", ["", "[" * 100_000, "null", "\0"])
def test_a_recorder_that_left_nothing(tmp_path: Path, good: dict[str, Any], text: str) -> None:
    result = read(tmp_path, json.dumps(good), text)
    assert result["telemetry"] is None
    assert "No GPU telemetry: the recorder left no window." in result["remarks"]
