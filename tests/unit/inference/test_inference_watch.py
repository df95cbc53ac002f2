# SPDX-License-Identifier: Apache-2.0
"""The watch over an engine: what is gone, stopped or silent is ended, and what is merely busy is left alone."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_watch as watch
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_client import Reply
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_parts import (
    Part,
    parse_stat,
    parts_of,
    processes,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import UnitState

UNIT = "rackwell-inference.service"
MAIN, SCHEDULER, DETOKENIZER = 10, 11, 12
PARTS = {
    MAIN: Part(MAIN, 1, 1, "server", "S"),
    SCHEDULER: Part(SCHEDULER, 2, MAIN, "scheduler", "R"),
    DETOKENIZER: Part(DETOKENIZER, 3, MAIN, "detokenizer", "S"),
}


class Engine:
    """Processes, health and a clock; `at[t]` happens before the look at that second."""

    def __init__(self, tmp_path: Path, at: dict[int, Callable[[Engine], None]], until: int = 3000) -> None:
        self.parts_now = dict(PARTS)
        self.health = Reply(200, "")
        self.active, self.now, self.ended_at = "active", 0.0, 0.0
        self.at, self.until = dict(at), until
        self.said: list[str] = []
        self.journal = tmp_path / "journal.jsonl"

    def show(self, _unit: str) -> UnitState:
        return UnitState(True, self.active, "i1", "", "", True, 0.0, MAIN)

    def systemctl(self, *words: str) -> None:
        assert words == ("kill", "--signal=SIGKILL", UNIT)
        self.ended_at = self.now

    def healthy(self) -> Reply:
        return self.health

    def parts(self, _main: int) -> dict[int, Part]:
        for second in sorted(second for second in self.at if second <= self.now):
            self.at.pop(second)(self)
        return {} if self.now >= self.until else self.parts_now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self) -> str:
        watched = watch.Watch(
            UNIT, self, watch.Settings(), str(self.journal), self.parts, lambda _settings: self,
            lambda: self.now, self.sleep, lambda *words: self.said.append(words[2]),
        )  # fmt: skip
        return watched.run()


def state(pid: int, letter: str) -> Callable[[Engine], None]:
    return lambda engine: engine.parts_now.update({pid: engine.parts_now[pid]._replace(state=letter)})


def drop(pid: int) -> Callable[[Engine], None]:
    return lambda engine: engine.parts_now.pop(pid) and None


@pytest.mark.parametrize("death", [state(DETOKENIZER, "Z"), drop(DETOKENIZER)])
def test_a_dead_part_is_found_in_seconds(tmp_path: Path, death: Callable[[Engine], None]) -> None:
    engine = Engine(tmp_path, {100: death})
    assert engine.run().startswith("detokenizer (process 12) is gone")
    assert 100 + watch.GRACE_S <= engine.ended_at <= 100 + watch.GRACE_S + 2 * watch.LOOK_S
    assert engine.said
    assert json.loads(engine.journal.read_text())["event"] == "watch-ended"


def test_a_stopped_part_is_found_in_seconds(tmp_path: Path) -> None:
    engine = Engine(tmp_path, {100: state(SCHEDULER, "T")})
    assert "scheduler (process 11) was stopped by a signal" in engine.run()
    assert engine.ended_at <= 100 + watch.GRACE_S + 2 * watch.LOOK_S


def test_a_short_stop_and_a_debugger_are_left_alone(tmp_path: Path) -> None:
    briefly = {100: state(SCHEDULER, "T"), 106: state(SCHEDULER, "R"), 200: state(SCHEDULER, "t")}
    assert Engine(tmp_path, briefly).run() == ""


def test_silence_counts_after_many_minutes_only(tmp_path: Path) -> None:
    def silent(engine: Engine) -> None:
        engine.health = Reply(503, "")

    def speaks(engine: Engine) -> None:
        engine.health = Reply(200, "")

    # a first request that compiles kernels for ten minutes
    assert Engine(tmp_path, {100: silent, 700: speaks}).run() == ""
    engine = Engine(tmp_path, {100: silent})
    assert "did not say that it is healthy" in engine.run()
    assert engine.ended_at > watch.HANG_S


def test_nothing_is_ended_before_it_was_ready(tmp_path: Path) -> None:
    engine = Engine(tmp_path, {100: drop(DETOKENIZER)})
    engine.health = Reply(503, "")
    assert engine.run() == ""


def test_a_start_that_systemd_puts_off_is_waited_for(tmp_path: Path) -> None:
    engine = Engine(tmp_path, {100: drop(DETOKENIZER)})
    engine.active = "activating"

    def sleep(seconds: float) -> None:
        engine.now += seconds
        engine.active = "active" if engine.now >= 10 else "activating"

    engine.sleep = sleep  # type: ignore[method-assign]
    assert "detokenizer" in engine.run()


def test_a_server_that_is_being_stopped_may_drain(tmp_path: Path) -> None:
    def stops(engine: Engine) -> None:
        engine.active = "deactivating"

    assert Engine(tmp_path, {100: stops, 101: drop(DETOKENIZER)}, until=200).run() == ""


def test_the_settings_stand_in_the_unit() -> None:
    text = "[Service]\nHost=no\n\n[X-Rackwell]\nHost=0.0.0.0\nPort=31000\nHangTimeout=60\n\n[Install]\nWantedBy=x\n"
    assert watch.settings_in(text) == watch.Settings("0.0.0.0", 31000, 60.0)
    assert watch.settings_in("") == watch.Settings()


def test_a_process_is_read_as_the_kernel_writes_it() -> None:
    text = "42 (sglang::schedul) T 7 1 1 0 -1 4194560 1 0 0 0 5 1 0 0 20 0 9 0 123456 99 1\n"
    assert parse_stat(text) == Part(42, 123456, 7, "sglang::schedul", "T")
    assert parse_stat("42 (a) b) S 7" + " 0" * 17 + " 5") == Part(42, 5, 7, "a) b", "S")
    assert parse_stat("") is None
    me = parts_of(os.getpid(), processes())[os.getpid()]
    assert (me.name, me.parent, me.gone) == ("server", os.getppid(), False)


def test_descendants_with_the_engines_name_are_its_parts(tmp_path: Path) -> None:
    everything = [
        Part(1, 1, 0, "init", "S"),
        Part(5, 1, 1, "python", "S"),
        Part(6, 1, 5, "sglang::data_pa", "S"),
        Part(7, 1, 6, "sglang::schedul", "S"),
        Part(8, 1, 5, "python", "S"),
        Part(9, 1, 1, "sglang::schedul", "S"),
    ]
    assert set(parts_of(5, everything, str(tmp_path))) == {5, 6, 7}


def test_a_line_of_the_watch_belongs_to_the_start_it_is_about(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "socket"))
        watch.say(UNIT, "i1", "why", str(tmp_path / "socket"))
        told = journal.recv(4096).decode().splitlines()
    assert "MESSAGE=rackwell's watch: why" in told
    assert {f"UNIT={UNIT}", "INVOCATION_ID=i1"} <= set(told)
    watch.say(UNIT, "i1", "why", str(tmp_path / "nobody"))
