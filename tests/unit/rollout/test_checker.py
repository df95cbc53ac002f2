# SPDX-License-Identifier: Apache-2.0
"""The harness of real rolls (tests/roll) has a checker of its own: it must see what is wrong, and nothing else."""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rackwell.rollout.chain import Chain

RELEASE, OTHER, RUN = "a" * 64, "b" * 64, "20260101T000000Z-0000"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """tests/roll/check.py, which is no part of a package."""
    path = Path(__file__).parents[2] / "roll/check.py"
    spec = importlib.util.spec_from_file_location("roll_check", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def seen() -> dict[str, Any]:
    """What the probe tells of a host that is well after a promoted roll."""
    return {
        "unit": {"ActiveState": "active"},
        "health": 200,
        "answer": '{"text": " Paris."}',
        "release": {
            "slot": RELEASE,
            "below": "/opt/rackwell/releases",
            "complete": RELEASE,
            "manifest_sha256": RELEASE,
            "wrong_wheels": [],
        },
        "processes": {"servers": [RELEASE], "left": []},
        "units": {"rackwell-rollout-boot.service": "inactive"},
        "listening": [22, 30000, 40123],
        "change": {"run": RUN, "state": "promoted"},
        "lock": None,
        "journal": "",
        "marker": None,
        "drop_in": False,
        "temporary": [],
        "secret_in_logs": False,
    }


def test_nothing_is_found_where_all_is_well(check: ModuleType, seen: dict[str, Any]) -> None:
    assert check.at_rest("h", seen, RUN, "in", False) == []


@pytest.mark.parametrize(
    ("invariant", "path", "value"),
    [
        ("I1", ("release", "manifest_sha256"), OTHER),
        ("I1", ("release", "complete"), ""),
        ("I1", ("release", "wrong_wheels"), ["a.whl"]),
        ("I2", ("processes", "servers"), [OTHER]),
        ("I2", ("processes", "servers"), [RELEASE, RELEASE]),
        ("I2", ("answer",), "garbage"),
        ("I2", ("change", "state"), "open"),
        ("I2", ("units",), {"rackwell-rollout-return.timer": "active"}),
        ("I3", ("journal",), '{"event": "x", "hash": "0", "prev": "0", "seq": 1}\n'),
        ("I4", ("secret_in_logs",), True),
        ("I7", ("lock",), {"run": RUN}),
        ("I7", ("marker",), "{}"),
        ("I7", ("drop_in",), True),
        ("I7", ("listening",), [22, 30000, 8080]),
        ("I7", ("processes", "left"), ["bench_serving"]),
    ],
)
def test_each_fault_of_a_host_is_found(
    check: ModuleType, seen: dict[str, Any], invariant: str, path: tuple[str, ...], value: object
) -> None:
    wrong = copy.deepcopy(seen)
    place = wrong
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    assert invariant in {one.invariant for one in check.at_rest("h", wrong, RUN, "in", False)}


def test_a_host_that_does_not_serve_must_be_told_broken_and_out_of_rotation(
    check: ModuleType, seen: dict[str, Any]
) -> None:
    seen["unit"], seen["health"], seen["answer"] = {"ActiveState": "failed"}, 0, ""
    assert check.at_rest("h", seen, RUN, "out", True) == []
    assert check.at_rest("h", seen, RUN, "in", True)
    assert check.at_rest("h", seen, RUN, "out", False)


@pytest.mark.parametrize(
    ("result", "slot", "code"), [("promoted", OTHER, 0), ("returned", RELEASE, 3), ("broken", RELEASE, 1)]
)
def test_what_is_told_is_held_against_the_machine(
    check: ModuleType, seen: dict[str, Any], result: str, slot: str, code: int
) -> None:
    seen["release"]["slot"] = slot
    told = {"run": RUN, "release": RELEASE, "hosts": [{"name": "h", "result": result, "trouble": None}]}
    assert {one.invariant for one in check.agrees(told, code, {"h": seen}, {"h": OTHER})} == {"I6"}


def test_the_chain_is_read_as_it_is_written_and_a_change_is_found(check: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Chain(path) as chain:
        for number in range(3):
            chain.append({"kind": "begin", "n": number})
    with path.open("ab") as stream:
        stream.write(b'{"torn')
    with Chain(path) as chain:
        chain.append({"kind": "finish", "exit_code": 0})
    assert check.controller(path, 0, False) == []
    assert {one.invariant for one in check.controller(path, 3, False)} == {"I6"}
    path.write_text(path.read_text().replace('"n":1', '"n":7'))
    assert "I3" in {one.invariant for one in check.controller(path, 0, False)}
