# SPDX-License-Identifier: Apache-2.0
"""A machine under a host's own side of a roll: its clock, its systemd, and the server that it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.rackwell.gpu.plugins.module_utils.inference_activation import (
    Check,
    GateError,
    Healthy,
    Paths,
    Snapshot,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import CommandError, UnitState
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_lock import Moment

CHECK = Check("127.0.0.1", 30000, "glm-5", "The capital of France is", "Paris", 16, 100, "sk-marked-secret")
OLD, NEW = "a" * 64, "b" * 64
WANTED = {
    "unit": "[Service]\n",
    "environment": "HF_TOKEN=hf-marked-secret\n",
    "release": NEW,
    "check": CHECK._asdict(),
    "fatal": [],
    "user": "root",
    "model_path": "",
    "condition": [],
}


@dataclasses.dataclass
class Node:
    """The machine.

    Attributes:
        good: releases that serve. ordered: long work that nobody has done yet. timer: what the deadline does.
        put: unit and environment file.
    """

    directory: Path
    moment: Moment = dataclasses.field(default_factory=lambda: Moment("boot-1", 1000.0))
    release: str = OLD
    serves: bool = True
    good: frozenset[str] = frozenset({OLD, NEW})
    ordered: list[list[str]] = dataclasses.field(default_factory=list)
    timer: list[str] | None = None
    put: tuple[str, str] = ("unit", "env")

    def __post_init__(self) -> None:
        self.paths = Paths("u", "e", str(self.directory), str(self.directory))
        self.unit, self.gate, self.proxy = "rackwell-inference.service", self, None

    # systemd
    def show(self, _unit: str) -> UnitState:
        return UnitState(True, "inactive", "", "", "", True, 0.0)

    def show_all(self, units: Sequence[str]) -> list[UnitState]:
        return [self.show(unit) for unit in units]

    def run_now(self, _name: str, command: list[str]) -> None:
        self.ordered.append(command)

    def run_later(self, _name: str, _seconds: int, command: list[str]) -> None:
        self.timer = command

    def systemctl(self, *_arguments: str) -> None:
        if self.timer is None:
            raise CommandError("no such timer")
        self.timer = None

    # activation
    def present(self) -> Snapshot:
        unit, environment = self.put
        return Snapshot(unit, environment, self.release, self.serves, True, CHECK)

    def begin(self, _wanted: Snapshot, present: Snapshot) -> Snapshot:
        return present

    def switch(self, wanted: Snapshot, _check: Check) -> Healthy:
        self.release, self.put = str(wanted.release), (str(wanted.unit), str(wanted.environment))
        self._start()
        return Healthy("i", 1.0, " Paris.")

    def _start(self) -> None:
        self.serves = self.release in self.good
        if not self.serves:
            raise GateError("never-ready", "the engine did not get ready", "after 100 s")

    def return_to(self, back: Snapshot, _check: Check) -> tuple[bool, Healthy | None, str]:
        self.release, self.put = str(back.release), (str(back.unit), str(back.environment))
        try:
            self._start()
        except GateError:
            return True, None, "what ran before does not serve"
        return True, Healthy("j", 1.0, " Paris."), "what ran before is back"

    def put_back(self, back: Snapshot) -> None:
        self.release, self.put = str(back.release), (str(back.unit), str(back.environment))

    def start_present(self, _check: Check) -> Healthy:
        self._start()
        return Healthy("k", 1.0, " Paris.")

    def verify(self, _check: Check, _invocation: str, _timeout: float) -> str:
        self._start()
        return " Paris."

    def installed(self, *releases: str) -> None:
        """Have these releases lie there whole."""
        for release in releases:
            (self.directory / "releases" / release).mkdir(parents=True)
            (self.directory / "releases" / release / "complete").touch()
