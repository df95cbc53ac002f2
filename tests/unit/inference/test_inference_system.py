# SPDX-License-Identifier: Apache-2.0
"""What systemd and its journal say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_log
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import (
    System,
    parse_journal,
    parse_show,
    run_condition,
)

KILLED = """\
LoadState=loaded
ActiveState=failed
InvocationID=7c0f5b0a2f1f4d0f9a9f6f8a7f6e5d4c
Result=signal
ExecMainCode=2
ExecMainStatus=9
UnitFileState=enabled
ActiveEnterTimestampMonotonic=1500000
"""


def test_a_killed_unit() -> None:
    state = parse_show(KILLED)
    assert state.ended
    assert (state.loaded, state.enabled, state.exit_text, state.started_monotonic) == (True, True, "signal 9", 1.5)


def test_a_unit_that_is_not_there() -> None:
    state = parse_show("LoadState=not-found\nActiveState=inactive\nInvocationID=\n")
    assert (state.loaded, state.ended, state.enabled, state.exit_text) == (False, True, False, "")


def test_a_unit_that_systemd_is_about_to_restart_has_not_ended() -> None:
    assert not parse_show("LoadState=loaded\nActiveState=activating\n").ended


def test_journal_lines() -> None:
    records = [
        {"MESSAGE": "one", "__CURSOR": "a"},
        {"MESSAGE": list(b"  0%\r 50%\r100%"), "__CURSOR": "b"},
        {"__CURSOR": "c"},
    ]
    text = "\n".join([*map(json.dumps, records), "not json"])
    assert parse_journal(text) == (["one", "100%"], "c")
    assert parse_journal("") == ([], "")


def test_of_a_server_that_has_served_for_weeks_only_the_end_of_the_journal_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journalctl = tmp_path / "journalctl"
    journalctl.write_text('#!/bin/sh\nprintf \'{"MESSAGE": "%s", "__CURSOR": "c2"}\' "$*"\n')
    journalctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    lines, cursor = System().journal("abc")
    assert cursor == "c2"
    assert f"--lines={inference_log.MANY_LINES} _SYSTEMD_INVOCATION_ID=abc" in lines[0]
    later = System().journal("abc", cursor)[0][0]
    assert ("--after-cursor=c2" in later, "--lines" in later) == (True, False)


def test_a_server_with_very_many_lines_is_past_its_loading() -> None:
    assert inference_log.said_ready(["decode"] * inference_log.MANY_LINES)
    assert not inference_log.said_ready(["loading"] * 3)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("raise SystemExit(0)", ""),
        ("import sys; sys.exit('held by the boot gate: x')", "held by the boot gate: x"),
        ("print('a\\nb'); raise SystemExit(3)", "a b"),
        ("raise SystemExit(3)", f"{sys.executable} ended with status 3"),
    ],
)
def test_the_condition_is_asked_as_systemd_asks_it(program: str, why: str) -> None:
    assert run_condition([sys.executable, "-c", program]) == why


def test_a_condition_that_cannot_be_asked_does_not_hold(tmp_path: Path) -> None:
    assert "No such file" in run_condition([str(tmp_path / "python"), "-m", "rackwell.probe"])


def test_a_unit_left_down_by_its_condition() -> None:
    text = "LoadState=loaded\nActiveState=inactive\nResult=exec-condition\n"
    assert parse_show(text).held
    assert not parse_show(text.replace("exec-condition", "success")).held
    assert not parse_show(text.replace("inactive", "active")).held
