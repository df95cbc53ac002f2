# SPDX-License-Identifier: Apache-2.0
"""The engine of exactly known behaviour: when each token comes, how busy the GPUs are, what the cache holds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rackwell_lab_engine import behaviour, load, scheduler


class Time:
    """A clock that only sleeping moves on, and whoever reads it says how much."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0

        async def sleep(seconds: float) -> None:
            self.now += seconds

        monkeypatch.setattr(scheduler.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(scheduler.asyncio, "sleep", sleep)


def engine(tmp_path: Path, **settings: Any) -> scheduler.Scheduler:
    found = scheduler.Scheduler(
        behaviour.from_dict(settings), speed=1.0, max_running=64, capacity=1000, tagged=False, crash=lambda: None
    )
    found.load = load.LoadFile(tmp_path / "load")
    return found


EXACT = {"ttft_ms": [300, 400], "itl_ms": [40, 50, 60]}


def test_each_token_comes_at_its_moment_and_delays_do_not_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(monkeypatch)
    made = engine(tmp_path, exact=EXACT, utilisation={"1": 80})

    async def read(count: int) -> list[float]:
        sequence = scheduler.Sequence(10, ["x"] * count, "length", arrived=time.now)
        began, times = time.now, []
        async for _token in made.stream(sequence):
            times.append(round((time.now - began) * 1e3, 6))
            time.now += 0.011  # who reads is slow
        return times

    first, second = asyncio.run(read(5)), asyncio.run(read(4))
    assert first == [400, 450, 510, 550, 600]  # request 1: 400, then 50, 60, 40, 50
    assert second == [300, 360, 400, 450]  # request 2: 300, then 60, 40, 50
    assert made.metrics.generation_tokens == 9
    assert made.active == 0


def test_the_gpus_are_busy_while_a_request_runs_and_idle_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(monkeypatch)
    made = engine(tmp_path, exact=EXACT, utilisation={"1": 80})
    begin = made.load.joules

    async def read() -> str:
        text = ""
        async for _token in made.stream(scheduler.Sequence(10, ["x"] * 4, "length", arrived=time.now)):
            text = (tmp_path / "load").read_text()
        return text

    busy = asyncio.run(read())
    assert busy.split()[1] == "80.0"
    assert (tmp_path / "load").read_text().split()[1] == "0.0"
    # 162 W above idle, 80 %, from the request's start to its last token: 400 + 50 + 60 + 40 ms
    assert made.load.joules - begin == pytest.approx(162 * 0.8 * 0.55)


def test_a_client_that_goes_away_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Time(monkeypatch)
    made = engine(tmp_path, exact=EXACT)

    async def read() -> None:
        stream = made.stream(scheduler.Sequence(10, ["x"] * 4, "length"))
        async for _token in stream:
            break
        await stream.aclose()

    asyncio.run(read())
    assert (made.active, made.metrics.aborted) == (0, 1)


@pytest.mark.parametrize("given", [{"ttft_ms": [1]}, {"ttft_ms": [], "itl_ms": [1]}, [1]])
def test_half_a_schedule_is_refused(given: Any) -> None:
    with pytest.raises(behaviour.BehaviourError, match="exact"):
        behaviour.from_dict({"exact": given})


def test_a_prompt_is_cached_once_it_came_until_the_flush(tmp_path: Path) -> None:
    made = engine(tmp_path)
    assert [made.cached("a prompt", 5), made.cached("a prompt", 5), made.cached([1, 2], 2)] == [0, 5, 0]
    assert made.flush()
    assert made.cached("a prompt", 5) == 0


def test_a_flush_is_refused_while_requests_run_or_by_a_fault(tmp_path: Path) -> None:
    made = engine(tmp_path)
    made.waiting.append(scheduler.Sequence(1, ["x"], "length"))
    assert not made.flush()
    broken = engine(tmp_path, faults={"flush": False})
    broken.cached("a prompt", 5)
    assert not broken.flush()
    assert broken.cached("a prompt", 5) == 5
