# SPDX-License-Identifier: Apache-2.0
"""`rackwell diagnose` and `rackwell rules`, as they are called."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rackwell.cli.app import call
from rackwell.diagnose import diagnoser
from rackwell.diagnose.examples import score

CATALOG = Path(__file__).parents[3] / "catalog"
#: JSON lines of known cases; they are no part of the repository
CASES = Path(os.environ.get("RACKWELL_CASES") or Path(__file__).parents[4] / "shared" / "cases" / "open.jsonl")
XID = "[12345.678901] NVRM: Xid (PCI:0000:41:00): 79, pid=31001, name=python3, GPU has fallen off the bus.\n"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = call(list(arguments))
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, _ = run(capsys, *arguments, "--json")
    data: dict[str, Any] = json.loads(out)
    assert data["exit_code"] == code
    return data


def test_a_file_is_diagnosed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_text(f"quiet\n{XID}", encoding="utf-8")
    data = told(capsys, "diagnose", str(log))
    assert data["schema"] == "rackwell.diagnose/1"
    assert data["ok"]
    first = data["result"]["findings"][0]
    assert first["area"] == "driver"
    assert first["lines"][0]["number"] == 2
    assert {
        "id",
        "area",
        "title",
        "severity",
        "confidence",
        "cause",
        "remedy",
        "not",
        "lines",
        "count",
        "evidence",
        "folded",
    } <= set(first)
    code, out, _ = run(capsys, "diagnose", str(log))
    assert code == 0
    assert first["title"] in out
    assert "Xid (PCI:0000:41:00): 79" in out


def test_several_files_are_of_one_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("quiet\n", encoding="utf-8")
    (tmp_path / "b").write_text(XID, encoding="utf-8")
    data = told(capsys, "diagnose", str(tmp_path / "a"), str(tmp_path / "b"))
    assert data["result"]["findings"][0]["lines"][0]["source"].endswith("b")


def test_what_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = told(capsys, "diagnose", str(tmp_path / "absent"))
    assert data["exit_code"] == 1
    assert data["problems"][0]["code"] == "file-unreadable"


def test_an_unknown_text_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("the flux is inverted\n", encoding="utf-8")
    data = told(capsys, "diagnose", str(tmp_path / "a"))
    assert data["exit_code"] == 0
    assert data["result"]["unknown"]
    assert data["result"]["collect"]


def test_facts_are_given_beforehand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text(XID, encoding="utf-8")
    (tmp_path / "facts.yml").write_text("sglang: 0.5.16\nflags: {tp-size: 8}\n", encoding="utf-8")
    data = told(capsys, "diagnose", str(tmp_path / "a"), "--facts", str(tmp_path / "facts.yml"))
    assert data["result"]["facts"]["versions"]["sglang"] == "0.5.16"
    assert data["result"]["facts"]["flags"]["tp_size"] == 8


def test_rules_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rules = told(capsys, "rules", "list", "--only", "driver")["result"]["rules"]
    assert rules
    assert {rule["area"] for rule in rules} == {"driver"}
    code, out, _ = run(capsys, "rules", "show", rules[0]["id"])
    assert code == 0
    assert f"id: {rules[0]['id']}" in out
    code, _, err = run(capsys, "rules", "show", "no-such-rule")
    assert code == 2
    assert "no-such-rule" in err


def test_rules_are_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "rules" / "diagnose" / "nccl"
    folder.mkdir(parents=True)
    base = "area: nccl\ntitle: t\nseverity: blocker\ncause: c\nremedy: r\nexamples: {match: [alpha], clean: [beta]}\n"
    (folder / "a.yml").write_text(f"id: a\nmatch: alpha\n{base}", encoding="utf-8")
    assert told(capsys, "rules", "test", "--catalog", str(tmp_path))["ok"]
    (folder / "b.yml").write_text(f"id: b\nmatch: alpha|beta\nrank: 60\n{base}", encoding="utf-8")
    data = told(capsys, "rules", "test", "--catalog", str(tmp_path))
    assert data["exit_code"] == 1
    assert {(f["rule"], f["kind"]) for f in data["result"]["faults"]} == {("a", "clash"), ("b", "wrong")}


def test_a_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rules.html"
    assert told(capsys, "rules", "page", "--out", str(out))["ok"]
    assert "<!DOCTYPE html>" in out.read_text(encoding="utf-8")


@pytest.mark.skipif(not CASES.is_file(), reason="no cases here: RACKWELL_CASES names a file of them")
def test_every_known_case_gets_a_finding_and_what_is_normal_no_alarm() -> None:
    wrong = []
    for line in CASES.read_text(encoding="utf-8").splitlines():
        scored = score(diagnoser(), json.loads(line))
        if scored.suspicious:
            wrong.append(f"{scored.id}: {scored.suspicious} ({scored.first})")
    assert not wrong
