# SPDX-License-Identifier: Apache-2.0
"""Which options of systemd's sandbox are kept, by what transient units answered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import sandbox_probe
from ansible_collections.rackwell.gpu.plugins.module_utils.sandbox_options import Needs, groups
from ansible_collections.rackwell.gpu.plugins.module_utils.sandbox_probe import Places, Tried, found, probe

NEEDS = Needs("rackwell", (), ("/srv/models/toy",))
REACHED = {"the device node /dev/nvidia0", "the file /proc/driver/nvidia/version"}
NAMES = [name for group in groups(NEEDS) for name, _ in group.options]
WITH_MOUNTS = [name for group in groups(NEEDS) if group.mounts for name, _ in group.options]


class Machine:
    """Answers as systemd does: `refused` options end a unit, `hiding` ones hide something."""

    def __init__(self, refused: Sequence[str] = (), hiding: dict[str, str] | None = None, together: int = 99) -> None:
        self.refused = refused
        self.hiding = hiding or {}
        self.together = together
        self.units = 0

    def __call__(self, options: Sequence[tuple[str, str]]) -> Tried:
        self.units += 1
        names = [name for name, _ in options]
        if bad := [name for name in names if name in self.refused]:
            return Tried(frozenset(), f"status 226/NAMESPACE: {bad[0]}")
        if len(names) > self.together:
            return Tried(frozenset(), "status 226/NAMESPACE: together")
        reached = REACHED - {self.hiding[name] for name in names if name in self.hiding}
        return Tried(frozenset(reached | ({"rackwell-probe"} if "LoadCredential" in names else set())), "")


def test_where_everything_holds_two_units_tell_it() -> None:
    machine = Machine()
    kept = probe(NEEDS, machine)
    assert (kept.form, [name for name, _ in kept.options], kept.credentials) == ("full", NAMES, True)
    assert machine.units == 2


def test_an_option_that_hides_a_gpu_is_left_out_alone() -> None:
    kept = probe(NEEDS, Machine(hiding={"ProtectKernelLogs": "the device node /dev/nvidia0"}))
    assert kept.form == "partial"
    assert [name for name, _ in kept.options] == [name for name in NAMES if name != "ProtectKernelLogs"]
    assert [tuple(one) for one in kept.dropped] == [("ProtectKernelLogs", "the device node /dev/nvidia0")]


def test_without_mount_namespaces_the_reduced_form_remains() -> None:
    kept = probe(NEEDS, Machine(refused=[*WITH_MOUNTS, "LoadCredential"]))
    assert (kept.form, kept.credentials) == ("reduced", False)
    assert [name for name, _ in kept.options] == [name for name in NAMES if name not in WITH_MOUNTS]
    assert all("226/NAMESPACE" in one.why for one in kept.dropped)


def test_exceptions_go_with_what_they_are_exceptions_of() -> None:
    kept = probe(NEEDS, Machine(refused=["ProtectSystem"]))
    assert "ReadWritePaths" not in [name for name, _ in kept.options]
    assert "PrivateTmp" in [name for name, _ in kept.options]


def test_options_that_hold_only_apart_lose_those_that_mount() -> None:
    kept = probe(NEEDS, Machine(together=15))
    assert kept.form == "reduced"
    assert [name for name, _ in kept.options] == [name for name in NAMES if name not in WITH_MOUNTS]


def test_a_machine_that_runs_no_unit_gets_the_reduced_form_and_is_asked_again(tmp_path: Path) -> None:
    places = Places(str(tmp_path / "start"), str(tmp_path / "record"))
    kept = found(NEEDS, places, lambda _options: Tried(frozenset(), "no bus"))
    assert (kept.form, kept.problem, kept.credentials) == ("reduced", "no bus", False)
    assert found(NEEDS, places, Machine()).form == "full"


def test_one_start_of_the_machine_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_probe, "_version", lambda: "systemd 252")
    places = Places(str(tmp_path / "start"), str(tmp_path / "record"))
    first = found(NEEDS, places, Machine(refused=["PrivateTmp"]))
    machine = Machine()
    again = found(NEEDS, places, machine)
    assert (again, machine.units) == (first, 0)
    assert sandbox_probe.record_text(again, 3.9) == sandbox_probe.record_text(first, 3.9)
    # another need is another question, and a damaged file is none
    found(NEEDS._replace(writable=("/srv/out",)), places, machine)
    assert machine.units == 2
    Path(places.start).write_text("[]")
    assert found(NEEDS, places, machine).form == "full"


def test_looking_keeps_nothing(tmp_path: Path) -> None:
    places = Places(str(tmp_path / "start"), str(tmp_path / "record"))
    found(NEEDS, places, Machine(), keep=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("needs", "line"),
    [
        (Needs("u"), ("ProtectHome", "yes")),
        (Needs("u", (), ("/home/models/x",)), ("ProtectHome", "read-only")),
        (Needs("u", ("/srv/a b",)), ("ReadWritePaths", '-/var/cache/rackwell "-/srv/a b"')),
    ],
)
def test_what_is_needed_decides(needs: Needs, line: tuple[str, str]) -> None:
    assert line in [option for group in groups(needs) for option in group.options]


def test_a_path_cannot_bring_an_option_of_its_own() -> None:
    with pytest.raises(ValueError, match="unit file"):
        groups(Needs("u", ("/a\nUser=root",)))


def test_the_record_is_json_with_the_form_and_the_score() -> None:
    record = json.loads(sandbox_probe.record_text(probe(NEEDS, Machine()), 3.9))
    assert (record["schema"], record["form"], record["exposure"]) == ("rackwell.unit_sandbox/1", "full", 3.9)
