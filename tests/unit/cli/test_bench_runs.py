# SPDX-License-Identifier: Apache-2.0
"""Sweeps that are cut off lose nothing, and are gone on with only where they are still of the same thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_rig import DIGEST, Rig, point

SWEEP = "concurrency: [4, 16]\ninput_tokens: [128, 256]\noutput_tokens: 64\n"
FACTS = {
    "schema": "rackwell.bench_facts/1",
    "kernel": "6.8.12-pve",
    "driver": "595.58.03",
    "server_release": DIGEST,
    "unit_sha256": "u" * 64,
    "server_environment": {"NCCL_P2P_LEVEL": "SYS"},
}
CRASHED = {
    **point(16, valid=False),
    "status": "crashed",
    "throughput": None,
    "reasons": [{"code": "server-crashed", "what": "the server died"}],
    "lines": [
        "AttributeError: 'PrefillMetadata' object has no attribute 'page_table_1_flattened'",
        "key hunter2hunter2",
    ],
}


def asked(rig: Rig, number: int = -1) -> list[tuple[int, int]]:
    """Lengths of the prompt and streams of the points that a play was asked for."""
    plays = [options for name, options in rig.machines.calls if name == "bench"]
    return [(one["input_tokens"], one["concurrency"]) for one in plays[number]["extra"]["bench_client_points"]]


def bring(rig: Rig, *points: dict[str, Any]) -> None:
    """What the next benchmarks bring."""
    rig.machines.on(
        "bench",
        ("ok", "glm5-01", "bench_client", {"rackwell_result": FACTS}),
        *(("ok", "glm5-01", "bench_client", {"rackwell_result": one}) for one in points),
    )


@pytest.fixture
def sweep(rig: Rig) -> Rig:
    rig.site.write("bench/quick.yml", SWEEP)
    return rig


def test_an_interrupted_sweep_is_kept_and_gone_on_with(sweep: Rig) -> None:
    rig = sweep
    bring(rig, point(4), point(16))
    rig.machines.interrupted = ["bench"]
    first = rig.json("bench", "glm5-01")
    assert (first["exit_code"], first["result"]["complete"], first["result"]["missing"]) == (130, False, 2)
    assert "rackwell bench glm5-01" in first["problems"][0]["fix"]
    assert len(asked(rig)) == 4

    bring(rig, {**point(4), "input_tokens": 256}, {**point(16), "input_tokens": 256})
    second = rig.json("bench", "glm5-01")
    assert (second["exit_code"], second["result"]["complete"]) == (0, True)
    assert second["result"]["run_id"] == first["result"]["run_id"]
    assert asked(rig) == [(256, 4), (256, 16)]
    expected = rig.machines.calls[-1][1]["extra"]["bench_client_expected"]
    assert expected["server_release"] == DIGEST
    stored = json.loads(Path(second["result"]["file"]).read_text())
    assert (len(stored["points"]), stored["complete"], stored["environment"]["kernel"]) == (4, True, "6.8.12-pve")

    # what is complete is not gone on with
    third = rig.json("bench", "glm5-01")
    assert third["result"]["run_id"] != first["result"]["run_id"]
    assert rig.json("bench", "glm5-01", "--resume", first["result"]["run_id"])["exit_code"] == 2


@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        ("bench/quick.yml", "output_tokens: 64", "output_tokens: 32", "its sweep quick said something else"),
        ("profiles/toy.yml", "tp-size: 8", "tp-size: 4", "its profile toy said something else"),
    ],
    ids=["sweep", "profile"],
)
def test_points_of_something_else_are_never_mixed(sweep: Rig, file: str, old: str, new: str, why: str) -> None:
    rig = sweep
    bring(rig, point(4))
    rig.machines.interrupted = ["bench"]
    first = rig.json("bench", "glm5-01")
    rig.site.edit(file, old, new)
    second = rig.json("bench", "glm5-01")
    assert second["result"]["run_id"] != first["result"]["run_id"]
    assert why in rig.err
    assert len(asked(rig)) == 4
    # and the first run's point is still there
    assert len(json.loads(Path(first["result"]["file"]).read_text())["points"]) == 1


def test_another_server_on_the_machine_is_measured_anew(sweep: Rig) -> None:
    rig = sweep
    bring(rig, point(4))
    rig.machines.interrupted = ["bench"]
    first = rig.json("bench", "glm5-01")
    changed = {"code": "bench-server-changed", "what": "it is another", "why": "driver: 595 then, 600 now"}

    def during(name: str) -> None:
        expected = rig.machines.calls[-1][1]["extra"]["bench_client_expected"]
        if expected:
            rig.machines.on("bench", ("failed", "glm5-01", "bench_client", {"rackwell_error": changed}))
        else:
            bring(rig, point(4), point(16))

    rig.machines.during = during
    second = rig.json("bench", "glm5-01")
    assert second["result"]["run_id"] != first["result"]["run_id"]
    assert "driver: 595 then, 600 now" in rig.err
    assert [len(options["extra"]["bench_client_points"]) for _, options in rig.machines.calls] == [4, 3, 4]


def test_a_crash_is_a_result_with_its_cause_and_without_the_key(sweep: Rig) -> None:
    rig = sweep
    rig.site.edit("profiles/toy.yml", "flags:", "flags:\n  api-key: hunter2hunter2")
    rig.site.write("bench/quick.yml", "concurrency: [4, 16]\ninput_tokens: 128\noutput_tokens: 64\n")
    bring(rig, point(4), CRASHED)
    envelope = rig.json("bench", "glm5-01")
    assert (envelope["exit_code"], envelope["result"]["complete"]) == (1, True)
    stored = Path(envelope["result"]["file"]).read_text()
    crashed = json.loads(stored)["points"][1]
    assert crashed["status"] == "crashed"
    assert crashed["findings"]
    assert "hunter2" not in stored
    assert "***" in crashed["lines"][1]


def test_runs_are_listed_shown_and_exported(sweep: Rig, tmp_path: Path) -> None:
    rig = sweep
    bring(rig, point(4), point(16))
    run = rig.json("bench", "glm5-01")["result"]["run_id"]
    (row,) = rig.json("bench", "list")["result"]["runs"]
    assert (row["run"], row["points"], row["complete"]) == (run, 2, False)
    assert rig.json("bench", "show", run[-4:])["result"]["result"]["run_id"] == run
    assert rig.at_site("bench", "show", run) == 0
    assert "interrupted" in rig.out
    out = tmp_path / "points.csv"
    assert len(rig.json("bench", "export", "csv", run, "--out", str(out))["result"]["rows"]) == 2
    assert len(out.read_text().splitlines()) == 3
    assert rig.at_site("bench", "export", "jsonl", run) == 0
    assert [json.loads(line)["concurrency"] for line in rig.out.splitlines()] == [4, 16]
    assert rig.json("bench", "export", "xml", run)["exit_code"] == 2
    assert rig.json("bench", "show", "nope")["exit_code"] == 2


def test_a_container_that_is_called_like_a_command_is_measured_by_run(rig: Rig) -> None:
    assert rig.json("bench", "run", "glm5-01")["result"]["measured"] is True
    assert rig.json("bench", "--profile", "quick", "glm5-01")["result"]["measured"] is True
    assert rig.codes(rig.json("bench", "run", "list")) == ["unknown-container"]
    refused = rig.json("bench", "glm5-01", "--client", "wrk")
    assert (refused["exit_code"], rig.codes(refused)) == (2, ["usage"])
