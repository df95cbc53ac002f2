# SPDX-License-Identifier: Apache-2.0
"""The switch, the gate and the return, on a systemd that is played by the test."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_activation import (
    Activation,
    Check,
    Gate,
    GateError,
    Paths,
    Snapshot,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_client import Reply
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_ports import Owner
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import CommandError, UnitState
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_follow import FollowError

UNIT = "rackwell-inference.service"
CHECK = Check("127.0.0.1", 30000, "glm-5", "The capital of France is", "Paris", 16, 100)
OURS = [Owner(7, "python", (f"/system.slice/{UNIT}",))]
OLD, NEW = "a" * 64, "b" * 64
READY = Reply(200, "")


@dataclasses.dataclass
class Start:
    """How one start of the unit goes. ``lives``: how often its state is asked before it ends."""

    health: list[Reply] = dataclasses.field(
        default_factory=lambda: [Reply(0, "Connection refused"), Reply(503, ""), READY]
    )
    lives: int = 1000
    lines: list[str] = dataclasses.field(default_factory=list)
    answer: str = " Paris."
    names: str = "glm-5"
    held: bool = False


class World:
    """systemd, the engine's HTTP side and the clock."""

    def __init__(self, paths: Paths, starts: list[Start], *, active: bool) -> None:
        self.paths = paths
        self.starts = starts
        self.active = active
        self.loaded = active
        self.enabled = active
        self.now = 0.0
        self.count = 0
        self.asked = 0
        self.calls: list[str] = []
        self.held: list[bool] = []

    @property
    def start(self) -> Start:
        return self.starts[self.count - 1]

    # System
    def systemctl(self, verb: str, *rest: str) -> None:
        self.calls.append(verb)
        if verb == "start":
            self.count += 1
            # systemd counts a start whose ExecCondition does not hold as done
            self.active, self.asked = not self.start.held, 0
            drop_in = Path(self.paths.runtime_units) / f"{UNIT}.d" / "50-rackwell-gate.conf"
            self.held.append(drop_in.exists())
        elif verb == "stop" and rest == (UNIT,):
            self.active = False
        elif verb == "daemon-reload":
            self.loaded = Path(self.paths.unit_file).exists()
        elif verb in ("enable", "disable"):
            self.enabled = verb == "enable"

    def run_later(self, name: str, seconds: int, command: list[str]) -> None:
        self.calls.append(f"{name} in {seconds} s: {' '.join(command)}")

    def show(self, _unit: str) -> UnitState:
        self.asked += 1
        if self.count and self.active and self.asked > self.start.lives:
            self.active = False
        held = bool(self.count) and self.start.held and not self.active
        state = "active" if self.active else "failed" if self.count and not held else "inactive"
        result = "exec-condition" if held else ""
        return UnitState(self.loaded, state, f"start{self.count}", result, "signal 9", self.enabled, 0.0)

    def condition_exit(self, _unit: str) -> str:
        return "exit code 1"

    def journal(self, _invocation: str, cursor: str = "") -> tuple[list[str], str]:
        return ([] if cursor else self.start.lines), "end"

    # Client
    def healthy(self) -> Reply:
        health = self.start.health
        return health.pop(0) if len(health) > 1 else health[0]

    def ask(self, _path: str) -> Reply:
        return Reply(200, json.dumps({"data": [{"id": self.start.names}]}))

    def complete(self, *_args: Any, **_more: Any) -> Reply:
        return Reply(200, json.dumps({"choices": [{"text": self.start.answer}]}))

    # clock
    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    (tmp_path / "opt").mkdir()
    return Paths(
        str(tmp_path / "etc" / UNIT),
        str(tmp_path / "etc" / "inference.env"),
        str(tmp_path / "opt"),
        str(tmp_path / "state"),
        str(tmp_path / "run"),
    )


def make(
    paths: Paths, starts: list[Start], *, active: bool, owners: list[Owner] | None = None
) -> tuple[Activation, World]:
    world = World(paths, starts, active=active)
    seen = OURS if owners is None else owners
    gate = Gate(UNIT, world, lambda _check: world, world.clock, world.sleep, lambda _host, _port: seen)
    return Activation(UNIT, paths, world, gate, world.clock), world


def run(activation: Activation, wanted: Snapshot) -> Any:
    """As the module does: switch, and return when that fails."""
    back = activation.begin(wanted, activation.present())
    try:
        return activation.switch(wanted, CHECK)
    except (GateError, CommandError, OSError) as error:
        return error, activation.return_to(back, CHECK)


def events(paths: Paths) -> list[str]:
    return [json.loads(line)["event"] for line in Path(paths.journal).read_text().splitlines()]


WANTED_OLD = Snapshot("old unit\n", "OLD=1\n", OLD, True, True)
WANTED_NEW = Snapshot("new unit\n", "NEW=1\n", NEW, True, True)


def serve_old(paths: Paths, then: list[Start], **more: Any) -> tuple[Activation, World]:
    """A host on which the old release was activated and serves."""
    activation, world = make(paths, [Start(), *then], active=False, **more)
    run(activation, WANTED_OLD)
    assert events(paths) == ["activation-begun", "activated"]
    return activation, world


def test_the_first_start_that_serves_is_kept(paths: Paths) -> None:
    activation, world = make(paths, [Start()], active=False)
    healthy = run(activation, WANTED_NEW)
    assert (healthy.invocation, healthy.answer) == ("start1", " Paris.")
    assert world.enabled
    assert world.held == [True], "systemd must not restart the engine while the gate watches"
    assert not (Path(paths.runtime_units) / f"{UNIT}.d" / "50-rackwell-gate.conf").exists()
    assert activation.present()[:3] == WANTED_NEW[:3]
    assert not activation.interrupted()
    assert json.loads(Path(paths.verified).read_text())["release"] == NEW


def test_an_engine_that_dies_ends_the_wait_at_once_and_the_old_one_returns(paths: Paths) -> None:
    lines = ["Traceback (most recent call last):", "torch.OutOfMemoryError: no memory", "kill_process_tree called"]
    activation, world = serve_old(paths, [Start(health=[Reply(0, "refused")], lives=3, lines=lines), Start()])
    before = world.now
    error, (rolled_back, healthy, told) = run(activation, WANTED_NEW)
    assert error.code == "engine-died"
    assert "signal 9" in error.why
    assert error.lines[-1] == "torch.OutOfMemoryError: no memory"
    assert rolled_back
    assert healthy is not None
    assert OLD[:12] in told
    assert world.now - before < CHECK.ready_timeout
    assert activation.present()[:4] == (*WANTED_OLD[:3], True)
    assert events(paths)[2:] == ["activation-begun", "returned"]


def test_a_fatal_line_ends_the_wait_though_the_process_lives_on(paths: Paths) -> None:
    stuck = Start(
        health=[Reply(0, "refused")], lines=["Scheduler hit an exception: Traceback (most recent call last):", "E: x"]
    )
    activation, world = serve_old(paths, [stuck, Start()])
    before = world.now
    error, (rolled_back, _healthy, _told) = run(activation, WANTED_NEW)
    assert (error.code, rolled_back) == ("engine-died", True)
    assert world.now - before < CHECK.ready_timeout


def test_an_engine_that_never_gets_ready(paths: Paths) -> None:
    activation, _world = serve_old(paths, [Start(health=[Reply(503, "")]), Start()])
    error, (rolled_back, healthy, _told) = run(activation, WANTED_NEW)
    assert error.code == "never-ready"
    assert "503" in error.why
    assert rolled_back
    assert healthy is not None


@pytest.mark.parametrize(
    ("start", "code"),
    [
        (Start(answer="!!!!!!!!"), "insane-answer"),
        (Start(answer=" Rome."), "insane-answer"),
        (Start(names="x"), "wrong-model"),
    ],
)
def test_an_engine_that_serves_nonsense_is_not_kept(paths: Paths, start: Start, code: str) -> None:
    activation, _world = serve_old(paths, [start, Start()])
    error, (rolled_back, healthy, _told) = run(activation, WANTED_NEW)
    assert error.code == code
    assert rolled_back
    assert healthy is not None
    assert activation.present().release == OLD


def test_asking_what_runs_does_not_wait(paths: Paths) -> None:
    activation, world = serve_old(paths, [])
    before = world.now
    assert activation.gate.verify(CHECK, "start1", 0) == " Paris."
    world.start.health = [Reply(503, "")]
    with pytest.raises(GateError, match="503; it is still loading") as error:
        activation.gate.verify(CHECK, "start1", 0)
    assert (error.value.code, world.now) == ("unhealthy", before)


def test_another_server_on_the_port_is_not_taken_for_ours(paths: Paths) -> None:
    activation, _world = make(paths, [Start()], active=False, owners=[Owner(9, "nc -l", ("/user.slice",))])
    error, _back = run(activation, WANTED_NEW)
    assert error.code == "port-taken"
    assert "nc -l" in error.why


def test_a_failed_first_start_leaves_the_unit_stopped_and_disabled(paths: Paths) -> None:
    activation, world = make(paths, [Start(lives=2)], active=False)
    _error, (rolled_back, healthy, told) = run(activation, WANTED_NEW)
    assert (rolled_back, healthy) == (False, None)
    assert "stopped and disabled" in told
    assert not world.active
    assert not world.enabled
    assert not activation.interrupted()


def test_a_return_that_does_not_serve_is_told(paths: Paths) -> None:
    activation, _world = serve_old(paths, [Start(lives=2), Start(answer=" Rome.")])
    _error, (rolled_back, healthy, told) = run(activation, WANTED_NEW)
    assert (rolled_back, healthy) == (True, None)
    assert "does not serve" in told
    assert events(paths)[-1] == "return-failed"


def test_after_an_interrupted_activation_the_return_is_to_what_was_verified(paths: Paths) -> None:
    activation, _world = serve_old(paths, [Start(lives=2), Start()])
    # a run that was killed between the stop and the end: new files are in place, nothing was verified
    activation.begin(WANTED_NEW, activation.present())
    activation._put(WANTED_NEW)
    assert activation.interrupted()
    back = activation.begin(WANTED_NEW, activation.present())
    assert back.release == OLD
    assert back.unit == WANTED_OLD.unit


def test_preparing_touches_nothing_that_runs(paths: Paths) -> None:
    activation, world = serve_old(paths, [])
    calls = list(world.calls)
    activation.begin(WANTED_NEW, activation.present())
    assert world.calls == calls
    assert activation.present()[:4] == (*WANTED_OLD[:3], True)
    assert sorted(p.name for p in Path(paths.unit_file).parent.iterdir()) == ["inference.env", UNIT]


HELD_LINE = "held by the boot gate: p2p-corrupt: GPU 0 to 1 wrong data. Then: rackwell verify glm5-01 --release-gate"


def test_a_start_that_the_boot_gate_holds_is_told_with_the_gates_line_and_rolled_back(paths: Paths) -> None:
    activation, _world = serve_old(paths, [Start(held=True, lines=["unrelated", HELD_LINE, "later"]), Start()])
    error, (rolled_back, healthy, _told) = run(activation, WANTED_NEW)
    assert (error.code, error.why) == ("gate-held", HELD_LINE)
    assert (rolled_back, healthy is not None) == (True, True)


def test_starting_what_is_there_switches_nothing(paths: Paths) -> None:
    activation, world = serve_old(paths, [Start()])
    activation.stop()
    assert not world.active
    healthy = activation.start_present(CHECK)
    assert healthy.invocation == "start2"
    assert world.held[-1] is False, "systemd restarts it as at a boot"
    assert activation.present()[:4] == (*WANTED_OLD[:3], True)
    assert not activation.interrupted()


def test_starting_what_the_gate_holds(paths: Paths) -> None:
    activation, _world = serve_old(paths, [Start(held=True, lines=[HELD_LINE])])
    activation.stop()
    with pytest.raises(GateError) as error:
        activation.start_present(CHECK)
    assert (error.value.code, error.value.why) == ("gate-held", HELD_LINE)


def test_a_server_that_was_stopped_for_a_while_returns_by_itself(paths: Paths) -> None:
    activation, world = serve_old(paths, [])
    world.calls.clear()
    activation.return_by_itself(600)
    # one that was ordered before is taken back first: systemd refuses a second of the same name
    assert world.calls == ["stop", f"rackwell-inference-return in 600 s: systemctl start {UNIT}"]


HUNG = [
    "[2026-11-29 20:00:01 TP0] Init torch distributed begin.",
    "ncclSocketInit: connecting to address  with family 1",
]
RULES = [{"id": "nccl-x", "match": {"all": ["^Init torch", "^ncclSocketInit: connecting"]}}]


def waited(start: Start, paths: Paths) -> tuple[GateError | None, float]:
    world = World(paths, [start], active=False)
    world.count, world.active = 1, True
    gate = Gate(UNIT, world, lambda _check: world, world.clock, world.sleep, lambda _host, _port: OURS, fatal=RULES)
    try:
        gate.verify(CHECK, "start1", 3600)
    except GateError as error:
        return error, world.now
    return None, world.now


def test_a_start_that_a_rule_gives_up_is_not_waited_for(paths: Paths) -> None:
    error, seconds = waited(Start(health=[Reply(0, "refused")], lines=HUNG), paths)
    assert error is not None
    assert (error.code, error.journal) == ("engine-died", HUNG)
    assert seconds < 60


def test_what_serves_in_spite_of_a_rule_is_kept(paths: Paths) -> None:
    assert waited(Start(health=[READY], lines=HUNG), paths)[0] is None


def test_after_ready_no_rule_ends_a_start(paths: Paths) -> None:
    lines = ["The server is fired up and ready to roll!", *HUNG]
    assert waited(Start(health=[Reply(503, "")] * 5 + [READY], lines=lines), paths)[0] is None


class Proxy:
    """What has to know where the server is. `broken`: ports that it cannot be led to."""

    def __init__(self, *broken: int) -> None:
        self.broken, self.port = broken, 0

    def follow(self, _host: str, port: int, _key: str) -> bool:
        if port in self.broken:
            raise FollowError("nginx does not take it")
        self.port = port
        return True


ELSEWHERE = CHECK._replace(port=30001)


def test_a_proxy_goes_along_with_a_switch_that_serves_and_with_its_return(paths: Paths) -> None:
    activation, _ = serve_old(paths, [Start(), Start(lives=1, health=[Reply(0, "")]), Start()])
    activation.proxy = proxy = Proxy()
    back = activation.begin(WANTED_NEW, activation.present())
    activation.switch(WANTED_NEW, ELSEWHERE)
    assert proxy.port == ELSEWHERE.port
    with pytest.raises(GateError):
        activation.switch(WANTED_OLD, CHECK)
    assert proxy.port == ELSEWHERE.port, "what does not serve is nothing to be asked"
    activation.return_to(back, ELSEWHERE)
    assert proxy.port == CHECK.port
    # the next return asks where it serves now
    assert activation.present().check == CHECK


def test_a_server_that_its_proxy_cannot_follow_is_not_accepted(paths: Paths) -> None:
    activation, world = serve_old(paths, [Start(), Start()])
    activation.proxy = Proxy(ELSEWHERE.port)
    back = activation.begin(WANTED_NEW, activation.present())
    with pytest.raises(GateError) as error:
        activation.switch(WANTED_NEW, ELSEWHERE)
    assert error.value.code == "proxy-broken"
    rolled_back, healthy, _ = activation.return_to(back, ELSEWHERE)
    assert (rolled_back, healthy is not None, world.active) == (True, True, True)


def test_a_return_that_its_proxy_does_not_follow_is_told(paths: Paths) -> None:
    activation, _ = serve_old(paths, [Start()])
    activation.proxy = Proxy(CHECK.port)
    _, healthy, told = activation.return_to(activation.present(), CHECK)
    assert healthy is None
    assert "proxy" in told


def test_at_boot_the_proxy_is_put_back_with_the_files(paths: Paths) -> None:
    activation, _ = serve_old(paths, [])
    activation.proxy = proxy = Proxy()
    activation.put_back(activation.present())
    assert proxy.port == CHECK.port
    activation.proxy = Proxy(CHECK.port)
    # the server comes up all the same
    activation.put_back(activation.present())
