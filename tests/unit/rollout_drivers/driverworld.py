# SPDX-License-Identifier: Apache-2.0
"""Proxmox hosts with containers, made up: what plays and requests of a roll of a driver do there, with faults."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections import deque
from typing import Any

from rackwell.rollout.drivers.fleet import DRIVER, USERSPACE, DriverFleet
from rackwell.rollout.plan import Plan
from rackwell.rollout.state import Host, State
from rackwell.rollout.steps import Ended, Outcome, Step

BEFORE, AFTER = "590.48.01", "595.58.03"


@dataclasses.dataclass
class Container:
    """One container. ``broken``: versions with which its server does not serve. ``dies``: right after its benchmark."""

    name: str
    version: str = BEFORE
    drained: bool = False
    serves: bool = True
    broken: frozenset[str] = frozenset()
    lock: tuple[str, int] | None = None
    epoch: int = 0
    bench: Outcome = Outcome.OK
    dies: bool = False


@dataclasses.dataclass
class Box:
    """One Proxmox host. ``refuses``: versions that do not install. ``stuck``: versions that are not loaded by a boot.

    Attributes:
        flaky: chance that the answer to a play is lost. gone_with: the version with whose boot it stays away.
    """

    name: str
    containers: list[Container]
    disk: str = BEFORE
    loaded: str = BEFORE
    refuses: frozenset[str] = frozenset()
    stuck: frozenset[str] = frozenset()
    flaky: float = 0.0
    gone_with: str = ""
    away: bool = False

    def at(self, version: str) -> bool:
        return self.disk == self.loaded == version and all(one.version == version for one in self.containers)

    def check(self) -> None:
        """Whether each server runs follows from libraries and module."""
        for one in self.containers:
            one.serves = one.version == self.loaded and one.version not in one.broken


@dataclasses.dataclass
class Played:
    """As much of a play's result as is read."""

    told: dict[tuple[str, str], list[dict[str, Any]]]
    hosts: set[str]
    failures: list[Any]
    results: list[Any] = dataclasses.field(default_factory=list)

    def payloads(self, schema: str, host: str) -> list[dict[str, Any]]:
        assert "/" not in schema, "payloads are asked for without their version"
        return self.told.get((schema, host), [])


@dataclasses.dataclass
class Failed:
    """A task that failed."""

    host: str
    unreachable: bool = False
    locked: bool = False
    problems: list[Any] = dataclasses.field(default_factory=list)


class World:
    """All of it. ``reboots``: (host, drained containers all) of each boot."""

    def __init__(self, boxes: list[Box], dice: random.Random) -> None:
        self.boxes = {box.name: box for box in boxes}
        self.containers = {one.name: one for box in boxes for one in box.containers}
        self.box_of = {one.name: box for box in boxes for one in box.containers}
        self.dice = dice
        self.consent = True
        #: hosts of which a person knows that they are out
        self.may_be_out: set[str] = set()

    def play(self, name: str, hosts: list[str], extra: dict[str, Any]) -> Played:
        played = Played({}, set(), [])
        version = str(extra.get("driver_version") or "")
        for each in hosts:
            box = self.boxes.get(each) or self.box_of[each]
            if box.away or self.dice.random() < box.flaky / 2:
                played.failures.append(Failed(each, unreachable=True))
                continue
            played.hosts.add(each)
            if name == "driver_look":
                self._looked(each, version, played)
            elif not self._done(name, each, version):
                played.failures.append(Failed(each))
            if name != "driver_look" and self.dice.random() < box.flaky / 2:
                played.hosts.discard(each)
        return played

    def _done(self, play: str, name: str, version: str) -> bool:
        if play == "driver_host":
            return self._host(self.boxes[name], version)
        return play != "driver_containers" or self._container(name, version)

    def _looked(self, name: str, version: str, played: Played) -> None:
        if name in self.boxes:
            box = self.boxes[name]
            todo = {"run": box.disk != version, "build": [], "options": False, "pin": False, "packages": []}
            todo["reboot"] = ["it is not loaded"] if box.loaded != version else []
            played.told[(DRIVER, name)] = [{"todo": todo, "facts": {"loaded": box.loaded}, "disturbs": ""}]
        elif self.containers[name].version == version:
            played.told[(USERSPACE, name)] = [{"needed": False}]

    def _host(self, box: Box, version: str) -> bool:
        assert self.consent, "a host was changed without consent"
        if version in box.refuses:
            return False  # the module has put back what was there
        box.disk = version
        if box.loaded != version:
            assert all(one.drained for one in box.containers), "a host with containers in rotation was rebooted"
            others = [other for other in self.boxes.values() if other is not box]
            whole = [other.at(BEFORE) or other.at(AFTER) for other in others if other.name not in self.may_be_out]
            assert all(whole), "two hosts at a time"
            if version in box.stuck:
                box.check()
                return False
            box.loaded = version
            box.away = version == box.gone_with
        box.check()
        return not box.away

    def _container(self, name: str, version: str) -> bool:
        one, box = self.containers[name], self.box_of[name]
        assert one.drained, "a container in rotation was changed"
        if box.loaded != version:
            return False  # nvidia_userspace refuses another version than the module's
        one.version = version
        box.check()
        return one.serves

    def ask(self, name: str, request: dict[str, Any]) -> Ended:
        """A request or its answer may be lost."""
        flaky = 2.0 if self.box_of[name].away else self.box_of[name].flaky / 4
        if self.dice.random() < flaky / 2:
            return Ended(Outcome.UNREACHABLE, "the connection was lost")
        ended = self._answer(name, request)
        return Ended(Outcome.UNREACHABLE, "the connection was lost") if self.dice.random() < flaky / 2 else ended

    def _answer(self, name: str, request: dict[str, Any]) -> Ended:
        one = self.containers[name]
        op, run = request["op"], str(request.get("run") or "")
        if op == "check":
            return Ended(Outcome.OK, data={"healthy": one.serves, "why": ""})
        if op == "look":
            return Ended(Outcome.OK, data={"ours": one.lock is not None and one.lock[0] == run, "release": "r"})
        if op == "lock":
            if one.lock is not None and one.lock[0] != run:
                return Ended(Outcome.REFUSED, "held by another run")
            one.epoch += 1
            one.lock = (run, one.epoch)
            return Ended(Outcome.OK, data={"epoch": one.epoch})
        if one.lock != (run, request["epoch"]):
            return Ended(Outcome.REFUSED, "the epoch is over")
        if op == "unlock":
            one.lock = None
        return Ended(Outcome.OK)


class Benches:
    """The gate's verdicts, made up."""

    def __init__(self, world: World) -> None:
        self._world = world

    def judge(self, host: Host, _plan: Plan) -> Ended:
        one = self._world.containers[host.name]
        assert one.serves, "what does not serve is measured"
        one.serves = not one.dies
        return Ended(one.bench)


class Fleet(DriverFleet):
    """The real fleet, with plays and requests of a made-up world."""

    def __init__(self, world: World, settings: dict[str, Any]) -> None:
        from rackwell.rollout.drivers.pair import Pair

        self.world = world
        self._of = {name: list(told["containers"]) for name, told in settings["hosts"].items()}
        self._before = {name: Pair(**told["before"]) for name, told in settings["hosts"].items()}
        self._after = {name: Pair(**told["after"]) for name, told in settings["hosts"].items()}
        self._consent, self._owner = True, "a test"
        self._epochs, self._held = {}, {}
        self._benches = Benches(world)  # type: ignore[assignment]
        self._connecting = threading.Lock()

    def _play(self, name: str, hosts: list[str], extra: dict[str, Any], *, check: bool = False) -> Any:
        return self.world.play(name, hosts, extra)

    def _ask(self, host: Host, request: dict[str, Any], timeout: float = 60.0) -> Ended:
        return self.world.ask(host.name, request)

    def _learn(self, played: Any) -> None:
        """Every container is reached."""

    def _say(self, name: str, text: str) -> None:
        """Nobody looks on."""

    def _reach(self, name: str) -> None:
        """Every container is reached."""

    def _preflight(self, host: Host, plan: Plan) -> Ended:
        healthy = self.world.containers[host.name].serves
        return Ended(Outcome.OK) if healthy else Ended(Outcome.FAIL, "what it serves now could not be returned to")

    def _drain(self, host: Host, plan: Plan) -> Ended:
        self.world.containers[host.name].drained = True
        return Ended(Outcome.OK)

    def _undrain(self, host: Host, plan: Plan) -> Ended:
        self.world.containers[host.name].drained = False
        return Ended(Outcome.OK)


class Workers:
    """A step at a time, in this thread."""

    def __init__(self, fleet: Fleet, state: State) -> None:
        self._fleet, self._plan = fleet, state.plan
        self._begun: deque[tuple[Host, Step]] = deque()

    def begin(self, host: Host, step: Step) -> None:
        self._begun.append((dataclasses.replace(host), step))

    def wait(self) -> tuple[str, Step, Ended] | None:
        host, step = self._begun.popleft()
        return host.name, step, self._fleet.perform(step, host, self._plan)


def plan_of(world: World) -> Plan:
    """A roll over all of it, a host at a time."""
    hosts = {
        box.name: {
            "containers": [one.name for one in box.containers],
            "before": {"version": BEFORE, "run_file": "/b.run", "sha256": "b" * 64, "kernel": "k"},
            "after": {"version": AFTER, "run_file": "/a.run", "sha256": "a" * 64, "kernel": "k"},
        }
        for box in world.boxes.values()
    }
    settings = {"driver": AFTER, "hosts": hosts, "allow_reboot": True}
    batches = tuple((name,) for name in world.boxes)
    return Plan("20261130T083954Z-8818", f"driver {AFTER}", "d" * 64, batches, "return", {}, settings)
