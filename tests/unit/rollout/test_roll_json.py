# SPDX-License-Identifier: Apache-2.0
"""The JSON of a roll's commands: fields may be added, none may vanish or change its type (see tests/contract)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))

from test_json import ENVELOPE, NUMBER, TEXT, every, table

from .conftest import NAMES, Hosts

SKIPPED = ("--skip-gate", "bench", "--reason", "a test")
STATE = table(
    run=TEXT,
    build=TEXT,
    release={"type": "string", "pattern": "^[0-9a-f]{64}$"},
    finished={"type": ["integer", "null"]},
    stopping=TEXT,
    skipped_gates={"type": "object", "additionalProperties": TEXT},
    hosts=every(
        table(
            name=TEXT,
            phase=TEXT,
            result={"enum": ["promoted", "returned", "present", "untouched", "broken", "lost", None]},
            verdict={"enum": ["ok", "fail", "inconclusive", None]},
            trouble={"enum": ["fail", "unreachable", "refused", None]},
            drained={"type": "boolean"},
            why=TEXT,
        )
    ),
)
ROLLED = {"allOf": [STATE, table(journal=TEXT, undeclared=every(TEXT))]}
PLAN = table(
    build=TEXT,
    release=TEXT,
    on_failure={"enum": ["return", "keep"]},
    skipped_gates={"type": "object"},
    settings={"type": "object"},
    hosts=every(
        {
            **table(
                batch={"type": "integer"},
                host=TEXT,
                to=TEXT,
                baseline=TEXT,
                note=TEXT,
                drained_by=every(TEXT),
                details=every(TEXT),
            ),
            "required": ["batch", "host", "from", "to", "baseline", "note", "drained_by", "details"],
        }
    ),
)
CHANGE = {"anyOf": [table(run=TEXT, state=TEXT, returns_in_s=NUMBER), {"type": "null"}]}
UNLOCKED = table(
    container=TEXT, run=TEXT, unlocked={"type": "boolean"}, lock={"type": "object"}, proof=TEXT, change=CHANGE
)


def test_the_commands_of_a_roll(hosts: Hosts) -> None:
    def told(command: str, schema: dict[str, Any], *arguments: str) -> dict[str, Any]:
        envelope = hosts.rig.json(command, *arguments)
        jsonschema.validate(envelope, ENVELOPE)
        assert (envelope["schema"], envelope["ok"]) == (f"rackwell.{command}/1", True), envelope["problems"]
        jsonschema.validate(envelope["result"], schema)
        result: dict[str, Any] = envelope["result"]
        return result

    told("roll", PLAN, "next", *SKIPPED, "--plan")
    run = told("roll", ROLLED, "next", *SKIPPED)["run"]
    told("history", table(rolls=every(STATE)))
    told("history", {"allOf": [STATE, table(records=every(table(kind=TEXT, seq={"type": "integer"})))]}, run)
    line = table(time={"type": "number"}, where=TEXT, text=TEXT)
    told("logs", table(run=TEXT, journal=TEXT, lines=every(line)), run)
    told("unlock", UNLOCKED, NAMES[0], "--run", run)
    told("rollback", ROLLED, run)


def test_nothing_was_rolled_yet(hosts: Hosts) -> None:
    for command in ("resume", "abort", "rollback", "logs"):
        envelope = hosts.rig.json(command)
        jsonschema.validate(envelope, ENVELOPE)
        assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (2, ["unknown-roll"])
    assert hosts.rig.json("history")["result"] == {"rolls": []}


@pytest.mark.parametrize("command", ["roll", "resume", "abort", "rollback", "history", "logs", "unlock"])
def test_each_says_what_it_does(hosts: Hosts, command: str) -> None:
    assert hosts.rig.run(command, "--help") == 0
    assert hosts.rig.out.startswith("Usage: rackwell " + command)
