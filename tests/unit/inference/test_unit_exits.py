# SPDX-License-Identifier: Apache-2.0
"""Ends of a unit that are systemd's own: what failed, on which line of the journal, and which drop-in may be why."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import unit_exits
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import UnitState

UNIT = "rackwell-inference.service"
# as systemd 252 wrote them
JOURNAL = [
    "Starting rackwell-inference.service - Inference server...",
    f"{UNIT}: Failed to set up mount namespacing: /run/systemd/unit-root/no/such: No such file or directory",
    f"{UNIT}: Failed at step NAMESPACE spawning /opt/python: No such file or directory",
    f"{UNIT}: Main process exited, code=exited, status=226/NAMESPACE",
    "Failed to start rackwell-inference.service - Inference server.",
]


class Machine:
    """Systemd's journal and drop-ins."""

    def __init__(self, lines: list[str], drop_ins: list[str]) -> None:
        self.lines, self.found = lines, drop_ins

    def journal_of(self, _unit: str) -> list[str]:
        return self.lines

    def condition_exit(self, _unit: str) -> str:
        return "exit code 226"

    def drop_ins(self, _unit: str) -> list[str]:
        return self.found


def told(exit_text: str, lines: list[str], *drop_ins: str) -> Any:
    machine: Any = Machine(lines, list(drop_ins))
    return unit_exits.told(machine, UNIT, UnitState(True, "failed", "i", "exit-code", exit_text, True, 0.0))


def test_a_namespace_that_cannot_be_is_told_with_its_path_and_drop_in() -> None:
    found = told("exit code 226", JOURNAL, "/run/systemd/system/x.d/50-rackwell-gate.conf", "/etc/x.d/10-mine.conf")
    assert found.code == "unit-sandbox"
    assert "/no/such" in found.why
    assert found.why.endswith("; drop-ins: /etc/x.d/10-mine.conf")
    assert "nesting=1" in found.fix


@pytest.mark.parametrize(
    ("status", "code"), [(243, "unit-credential"), (217, "unit-user"), (203, "unit-program"), (233, "unit-setup")]
)
def test_each_end_has_a_remedy(status: int, code: str) -> None:
    found = told(f"exit code {status}", [])
    assert found.code == code
    assert "rackwell provision" in found.fix
    assert "{" not in found.fix


@pytest.mark.parametrize("exit_text", ["", "exit code 1", "exit code 2", "signal 9", "exit code 255"])
def test_the_end_of_the_engine_itself_is_none_of_these(exit_text: str) -> None:
    assert told(exit_text, JOURNAL) is None


def test_a_condition_that_could_not_be_asked_is_no_verdict_of_the_gate() -> None:
    machine: Any = Machine(JOURNAL, [])
    state = UnitState(True, "inactive", "i", "exec-condition", "", True, 0.0)
    found = unit_exits.told(machine, UNIT, state)
    assert found is not None
    assert (found.code, "/no/such" in found.why) == ("unit-sandbox", True)
