# SPDX-License-Identifier: Apache-2.0
"""The controller dies at every record that it writes, over hosts whose own sides are real: none is left half done.

tests/roll does the same to real machines, with SIGKILL. RACKWELL_MODEL_RUNS of 3000 or more tries every record, else
some are tried, other ones in each test.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rackwell.rollout import rolls
from rackwell.rollout.benches import Benches
from rackwell.rollout.chain import Chain, read
from rackwell.rollout.steps import Ended, Outcome

from .conftest import NAMES, Hosts
from .node import NEW, OLD

EVERY = int(os.environ.get("RACKWELL_MODEL_RUNS", "300")) >= 3000
STRIDE = 1 if EVERY else 29
NO_BENCH = ("--skip-gate", "bench", "--reason", "a test")


class KilledError(BaseException):
    """Nothing may catch this."""


class Deaths:
    """Counts records, and dies after one of them."""

    def __init__(self, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts, self.left, self.alone = hosts, 0, True
        self._dead = False
        append = Chain.append

        def counted(chain: Chain, record: dict[str, Any]) -> dict[str, Any]:
            written = append(chain, record)
            self.left -= 1
            if self.left == 0:
                self._dead = True
                raise KilledError
            return written

        monkeypatch.setattr(Chain, "append", counted)
        hosts.before = self._deliver

    def _deliver(self, _name: str, _request: dict[str, Any]) -> None:
        # what was under way comes to the hosts all the same when the process dies alone, as its ssh goes on
        if self._dead and not self.alone:
            raise ConnectionError

    def after(self, records: int, alone: bool, *command: str) -> bool:
        """Run a command that dies after so many records; whether it came so far."""
        self.left, self.alone, self._dead = records, alone, False
        try:
            self.hosts.rig.json(*command)
        except KilledError:
            for thread in threading.enumerate():
                if thread.name.partition(" ")[2] in NAMES or thread.name == "stage":
                    thread.join()
        died, self._dead, self.left = self._dead, False, 0
        return died

    def fire(self) -> None:
        """Nobody came in time: the hosts' timers do what they are for."""
        for name, node in self.hosts.nodes.items():
            if node.timer is not None:
                command, node.timer = node.timer, None
                self.hosts.agents[name].work(*command[2:])


@pytest.fixture
def deaths(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deaths]:
    yield Deaths(hosts, monkeypatch)
    hosts.before = lambda _name, _request: None


def journal(hosts: Hosts) -> Path:
    return rolls.places(hosts.rig.site.root / ".rackwell")[0] / rolls.JOURNAL


def at_rest(hosts: Hosts) -> list[str]:
    """The releases; each host serves, and is in the middle of nothing."""
    for name in NAMES:
        change = hosts.agents[name].look(0)["change"]
        assert hosts[name].serves
        assert change is None or change["state"] in ("promoted", "returned"), (name, change)
        if change is not None and change["run"] == journal(hosts).parent.name:
            assert hosts[name].release == (NEW if change["state"] == "promoted" else OLD)
    return [hosts[name].release for name in NAMES]


def every(
    deaths: Deaths, alone: bool, command: tuple[str, ...], before: Callable[[], object], first: int = 1
) -> Iterator[int]:
    """Each number of records after which it can die."""
    records = 1 if EVERY else first
    while True:
        before()
        if not deaths.after(records, alone, *command):
            return
        yield records
        records += STRIDE


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_a_roll_that_dies_is_gone_on_with_or_taken_back(
    hosts: Hosts, deaths: Deaths, alone: bool, comes_back: bool
) -> None:
    def fresh() -> None:
        for name in NAMES:
            hosts[name].release = OLD

    count, first = 0, 9 + 6 * alone + 3 * comes_back
    for count in every(deaths, alone, ("roll", "next", *NO_BENCH, "--batch", "1,2"), fresh, first):
        if not comes_back:
            deaths.fire()
            at_rest(hosts)
        over = read(journal(hosts))[-1]["kind"] == "finish"
        envelope = hosts.rig.json("resume")
        right = {2} if over else {0} if comes_back else {0, 3}
        assert envelope["exit_code"] in right, (count, envelope["problems"])
        results = {host["name"]: host["result"] for host in (envelope["result"] or {}).get("hosts", [])}
        releases = at_rest(hosts)
        if not over:
            assert all(hosts.agents[name].look(0)["lock"] is None for name in NAMES), count
        for name, result in results.items():
            assert hosts[name].release == (NEW if result in ("promoted", "present") else OLD), (count, result)
        if envelope["exit_code"] == 0:
            assert releases == [NEW] * 3, count
        elif envelope["exit_code"] == 3:
            assert releases == [OLD] * 3, count
        read(journal(hosts))
    # the plan, nine steps of each host, begun and ended, and the end
    assert count == 2 + 2 * 9 * len(NAMES) if EVERY else count


def test_a_way_back_that_dies_is_gone_on_with(hosts: Hosts, deaths: Deaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Benches, "baseline", lambda *_: Ended(Outcome.OK))
    verdicts = {"glm5-03": Ended(Outcome.FAIL, "-73%")}
    monkeypatch.setattr(Benches, "judge", lambda _self, host, _plan: verdicts.get(host.name, Ended(Outcome.OK)))

    def fresh() -> None:
        for name in NAMES:
            hosts[name].release = OLD

    for count in every(deaths, True, ("roll", "next", "--batch", "1"), fresh, 40):
        envelope = hosts.rig.json("resume")
        assert envelope["exit_code"] in (3, 2), (count, envelope["problems"])
        assert at_rest(hosts) == [OLD] * 3, count
        read(journal(hosts))
