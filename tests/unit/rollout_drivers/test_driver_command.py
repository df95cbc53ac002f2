# SPDX-License-Identifier: Apache-2.0
"""`rackwell roll --driver` up to the point where it touches a machine."""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "site"))
sys.path.insert(0, str(Path(__file__).parents[1] / "topology"))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from cli_rig import Rig, make_rig
from driverworld import Box, Container, World

from rackwell.rollout.drivers import fleet
from rackwell.rollout.drivers.fleet import DriverFleet
from rackwell.rollout.drivers.waiting import waiting
from rackwell.rollout.steps import Ended, Outcome

NEW = "595.71.05"
FACTS = {"loaded": "595.58.03", "userspace": "595.58.03", "running": "6.17.4-1-pve", "pinned": "", "kept": {}}
WAITS = ["the loaded module is 595.58.03, and 595.71.05 is loaded at a boot"]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rig:
    found = make_rig(tmp_path, monkeypatch, capsys)
    run_file = found.site.root / "new.run"
    run_file.write_text("an installer")
    sha256 = hashlib.sha256(b"an installer").hexdigest()
    pair = f'{{version: "{NEW}", run_file: {run_file}, sha256: "{sha256}", kernel: 6.17.13-2-pve}}'
    found.site.add("group_vars/pve.yml", f"pve_host_drivers:\n  - {pair}\n")
    return found


def looked(rig: Rig, reboot: list[str] = WAITS, **facts: Any) -> None:
    """What the host tells."""
    told = {
        "schema": "rackwell.pve_driver/1",
        "facts": {**FACTS, **facts},
        "todo": {"run": True, "build": [], "options": False, "pin": True, "packages": [], "reboot": reboot},
        "disturbs": "it ends container 201 (glm5-01)",
    }
    rig.machines.on("driver_look", ("ok", "pve1", "pve_host", {"rackwell_result": told}))


def refused(rig: Rig, *words: str) -> tuple[int, dict[str, str]]:
    envelope = rig.json("roll", *words)
    problem = envelope["problems"][0]
    assert problem["what"]
    return envelope["exit_code"], problem


def plays(rig: Rig) -> set[str]:
    return {name for name, _options in rig.machines.calls}


def test_a_driver_that_is_not_declared(rig: Rig) -> None:
    code, problem = refused(rig, "--driver", "610.43.03", "--allow-reboot")
    assert (code, problem["code"]) == (2, "driver-undeclared")
    assert NEW in problem["why"]
    assert not plays(rig)


def test_without_consent_it_says_what_is_disturbed(rig: Rig) -> None:
    looked(rig, kept={"595.58.03": "b" * 64})
    code, problem = refused(rig, "--driver", NEW)
    assert (code, problem["code"]) == (4, "reboot-needed")
    assert "container 201 (glm5-01)" in problem["why"]
    assert "--allow-reboot" in problem["fix"]
    assert plays(rig) == {"driver_look"}


def test_a_host_that_could_not_return_is_refused(rig: Rig) -> None:
    looked(rig)
    code, problem = refused(rig, "--driver", NEW, "--allow-reboot")
    assert (code, problem["code"]) == (2, "driver-previous-unknown")
    assert '"595.58.03"' in problem["fix"]
    assert plays(rig) == {"driver_look"}


def test_a_file_of_another_hash(rig: Rig) -> None:
    (rig.site.root / "new.run").write_text("another one")
    code, problem = refused(rig, "--driver", NEW, "--allow-reboot")
    assert (code, problem["code"]) == (2, "run-file-checksum")
    assert not plays(rig)


def test_a_container_that_does_not_come_back_by_itself(rig: Rig) -> None:
    rig.site.add("host_vars/glm5-01.yml", "pve_container_onboot: false\n")
    code, problem = refused(rig, "--driver", NEW, "--allow-reboot")
    assert (code, problem["code"]) == (2, "container-not-at-boot")


@pytest.mark.parametrize(
    "words", [(), ("next", "--driver", NEW), ("next", "--kernel", "k"), ("--driver", NEW, "--interleave", "1")]
)
def test_what_is_to_be_rolled(rig: Rig, words: tuple[str, ...]) -> None:
    code, problem = refused(rig, *words)
    assert (code, problem["code"]) == (2, "usage")


def test_a_plan_says_what_would_be_done_and_asks_for_no_consent(rig: Rig) -> None:
    looked(rig, kept={"595.58.03": "b" * 64})
    hook = rig.site.root / "hooks" / "drain"
    hook.parent.mkdir()
    hook.touch()
    envelope = rig.json("roll", "--driver", NEW, "--plan")
    assert (envelope["problems"], envelope["exit_code"]) == ([], 0)
    (line,) = envelope["result"]["hosts"]
    assert (line["host"], line["from"], line["to"]) == ("pve1", "595.58.03 6.17.4-1-pve", f"{NEW} 6.17.13-2-pve")
    assert line["drained_by"] == ["hooks/drain"]
    assert "needs --allow-reboot" in line["note"]
    assert "glm5-01: it told nothing" in line["note"]
    done = "\n".join(line["details"])
    assert "built by DKMS for every kernel" in done
    assert "pin kernel 6.17.13-2-pve" in done
    assert f"reboot: {WAITS[0]}; it ends container 201 (glm5-01)" in done
    assert plays(rig) == {"driver_look"}
    assert not list((rig.site.root / ".rackwell").glob("rolls/*"))


def test_a_plan_over_what_is_there(rig: Rig) -> None:
    told = {
        "schema": "rackwell.pve_driver/1",
        "facts": {**FACTS, "loaded": NEW, "userspace": NEW},
        "todo": {"run": False, "build": [], "options": False, "pin": False, "packages": [], "reboot": []},
        "disturbs": "",
    }
    rig.machines.on(
        "driver_look",
        ("ok", "pve1", "pve_host", {"rackwell_result": told}),
        ("ok", "glm5-01", "r", {"rackwell_result": {"schema": "rackwell.rollout_host/1", "release": "a" * 64}}),
        ("ok", "glm5-01", "n", {"rackwell_result": {"schema": "rackwell.nvidia_userspace/1", "needed": False}}),
    )
    (line,) = rig.json("roll", "--driver", NEW, "--plan")["result"]["hosts"]
    assert (line["note"], line["details"], line["baseline"]) == ("it is there already: not touched", [], "-")
    assert rig.run("roll", "--driver", NEW, "--plan", "-i", str(rig.site.root)) == 0
    assert "drained by" in rig.out


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """The one host of the site, in the place of Ansible and ssh."""
    had = FACTS["loaded"]
    box = Box("pve1", [Container("glm5-01", version=had)], disk=had, loaded=had)
    found = World([box], random.Random(1))

    def drained(value: bool) -> Any:
        def step(_self: DriverFleet, host: Any, _plan: Any) -> Ended:
            found.containers[host.name].drained = value
            return Ended(Outcome.OK)

        return step

    # nobody waits for a host that is away
    monkeypatch.setattr(fleet, "BOOT_WAIT_S", 0.0)
    monkeypatch.setattr(DriverFleet, "_play", lambda _self, name, hosts, extra, **_: found.play(name, hosts, extra))
    monkeypatch.setattr(DriverFleet, "_ask", lambda _self, host, request, timeout=0: found.ask(host.name, request))
    monkeypatch.setattr(DriverFleet, "_preflight", lambda *_: Ended(Outcome.OK))
    monkeypatch.setattr(DriverFleet, "_drain", drained(True))
    monkeypatch.setattr(DriverFleet, "_undrain", drained(False))
    return found


SKIPPED = ("--allow-reboot", "--skip-gate", "bench", "--reason", "a test")


def test_a_roll_to_its_end_and_back(rig: Rig, world: World) -> None:
    looked(rig, kept={"595.58.03": "b" * 64})
    envelope = rig.json("roll", "--driver", NEW, *SKIPPED)
    assert (envelope["problems"], envelope["exit_code"]) == ([], 0)
    assert [(host["name"], host["result"]) for host in envelope["result"]["hosts"]] == [("pve1", "promoted")]
    # the site declares the driver of before still
    assert envelope["result"]["undeclared"] == ["pve1"]
    assert world.boxes["pve1"].at(NEW)
    assert world.containers["glm5-01"].lock is None
    back = rig.json("rollback")
    assert (back["problems"], back["exit_code"]) == ([], 0)
    assert world.boxes["pve1"].at("595.58.03")
    assert not world.containers["glm5-01"].drained


def test_a_driver_that_does_not_install_is_told_with_what_became_of_the_host(rig: Rig, world: World) -> None:
    looked(rig, kept={"595.58.03": "b" * 64})
    world.boxes["pve1"].stuck = frozenset({NEW})
    envelope = rig.json("roll", "--driver", NEW, *SKIPPED)
    assert envelope["exit_code"] == 3
    assert [problem["code"] for problem in envelope["problems"]] == ["roll-returned"]
    assert world.boxes["pve1"].at("595.58.03")


def test_people_are_told_of_hosts_and_drivers(rig: Rig, world: World) -> None:
    """And not of containers, builds and releases."""
    looked(rig, kept={"595.58.03": "b" * 64})
    assert rig.at_site("roll", "--driver", NEW, *SKIPPED) == 0
    assert "batch  host  state" in rig.out
    assert "pve1 is declared with another driver: set driver_version" in rig.out
    assert f"to driver {NEW} and kernel 6.17.13-2-pve" in rig.err
    world.boxes["pve1"].stuck = frozenset({"595.58.03"})
    assert rig.at_site("rollback") == 1
    assert "neither driver was seen to serve here" in rig.err
    assert "rackwell verify CONTAINER, for each of glm5-01" in rig.err


def test_what_mends_a_host_stands_beside_what_ails_it(rig: Rig, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looked(rig, kept={"595.58.03": "b" * 64})
    world.boxes["pve1"].refuses = frozenset({NEW})
    failed = Ended(Outcome.FAIL, "DKMS did not build the module", {"fix": "choose a newer driver"})
    monkeypatch.setattr(fleet, "of_play", lambda _name, played: failed if played.failures else Ended(Outcome.OK))
    assert rig.at_site("roll", "--driver", NEW, *SKIPPED) == 3
    assert "DKMS did not build the module; to mend it: choose a newer driver" in rig.err
    assert "the new driver was not accepted; the pair of before runs again, verified" in rig.err


def test_status_tells_of_a_host_that_a_roll_has(rig: Rig, world: World) -> None:
    """Its container looks well from outside: it serves, with a driver that nobody has accepted yet."""
    looked(rig, kept={"595.58.03": "b" * 64})
    world.boxes["pve1"].gone_with = NEW
    assert rig.at_site("roll", "--driver", NEW, *SKIPPED) == 6
    (told,) = waiting(rig.site.root / ".rackwell")
    assert told[0] == "pve1"
    assert told[1].startswith("given up, perhaps half-way and out of rotation, by roll ")
    world.boxes["pve1"].away = False
    assert rig.at_site("resume") == 3
    assert not list(waiting(rig.site.root / ".rackwell"))
