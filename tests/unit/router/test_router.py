# SPDX-License-Identifier: Apache-2.0
"""The real router: what a drain, an undrain and a restart do to requests, and to who is behind it."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from steady import Steady

from .conftest import NAMES, Lab, agent, until

ALL = dict.fromkeys(NAMES, True)


def test_a_restart_of_one_after_the_other_loses_no_request(lab: Lab) -> None:
    """What a roll does, host by host, under a steady stream."""
    with Steady(lab.url, "toy", clients=6) as steady:
        for name in NAMES:
            time.sleep(0.5)
            answered = steady.tally.answered
            told = lab.side.drain(name, "run-1", 120)
            assert told["counted"]
            assert not lab.rotation()[name]
            lab.stop(name)
            until(lambda before=answered: steady.tally.answered > before + 10)
            lab.start(name)
            lab.side.undrain(name, 120)
            assert lab.rotation() == ALL
    tally = steady.end()
    assert tally.lost == []
    assert tally.streamed > 20
    assert tally.whole > 20


def test_without_a_drain_the_same_stream_loses_some(lab: Lab) -> None:
    """The client does tell: what is proven above is the drain's doing."""
    with Steady(lab.url, "toy", clients=12, tokens=80) as steady:
        for _ in range(10):
            until(lambda: (agent.load(f"http://127.0.0.1:{lab.ports[NAMES[0]]}", "") or 0) > 1)
            # whole ones, and streams that have not begun, it asks of another server; a stream that has begun is lost
            lab.stop(NAMES[0], signal.SIGKILL)
            lab.start(NAMES[0])
            if steady.tally.lost:
                break
    assert all("streamed" in one for one in steady.end().lost)
    assert steady.tally.lost


def test_a_drain_waits_for_the_requests_that_run(lab: Lab) -> None:
    with Steady(lab.url, "toy", clients=3, tokens=120) as steady:
        time.sleep(1)
        threading.Timer(0.2, steady._over.set).start()
        told = lab.side.drain(NAMES[1], "run-1", 120)
        assert agent.load(f"http://127.0.0.1:{lab.ports[NAMES[1]]}", "") == 0
    # 120 tokens take three seconds, of which one was over
    assert told["seconds"] > 1.9
    assert steady.end().lost == []


def test_requests_that_do_not_end_in_time_keep_the_host_in_rotation(lab: Lab) -> None:
    with Steady(lab.url, "toy", clients=3, tokens=200) as steady:
        time.sleep(0.5)
        code, told = lab.ask(op="drain", worker=NAMES[0], run="run-1", wait_s=1)
        assert code == 1
        assert "did not end within 1 s; it is in rotation again" in told["error"]
        until(lambda: lab.rotation() == ALL)
    assert lab.side.marks() == {}
    assert steady.end().lost == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_of_the_router_brings_nobody_back_that_is_drained(lab: Lab, number: signal.Signals) -> None:
    lab.side.drain(NAMES[2], "run-1", 120)
    lab.unroute(number)
    lab.route()
    assert lab.rotation() == {**ALL, NAMES[2]: False}
    # nor does what looks after the workers
    assert lab.side.keep(0) == []
    assert lab.side.look()["workers"][2]["drained"]["run"] == "run-1"
    lab.side.undrain(NAMES[2], 120)
    assert lab.rotation() == ALL


def test_drain_and_undrain_may_be_asked_for_twice(lab: Lab) -> None:
    for _ in range(2):
        lab.side.drain(NAMES[0], "run-1", 120)
        assert not lab.rotation()[NAMES[0]]
    assert lab.side.undrain(NAMES[0], 120)["drained"]
    assert not lab.side.undrain(NAMES[0], 120)["drained"]
    assert lab.rotation() == ALL


def test_a_router_that_does_not_answer_drains_nobody(lab: Lab) -> None:
    lab.unroute()
    code, told = lab.ask(op="drain", worker=NAMES[0], run="run-1")
    assert code == 1
    assert "does not answer" in told["error"]
    assert lab.side.marks() == {}
    # nothing was taken from it, so there is nothing to be brought back
    assert lab.ask(op="undrain", worker=NAMES[0], wait_s=1) == (0, {"worker": NAMES[0], "drained": False})
    assert not lab.side.look()["answers"]


def test_an_undrain_that_fails_is_made_good_by_what_looks_after_the_workers(lab: Lab) -> None:
    lab.side.drain(NAMES[0], "run-1", 120)
    lab.unroute()
    code, told = lab.ask(op="undrain", worker=NAMES[0], wait_s=1)
    assert code == 1
    assert "does not answer" in told["error"]
    lab.route()
    assert lab.rotation() == ALL


def test_a_server_that_is_not_there_is_no_worker_until_it_is(lab: Lab) -> None:
    lab.side.drain(NAMES[0], "run-1", 120)
    lab.stop(NAMES[0])
    code, told = lab.ask(op="undrain", worker=NAMES[0], wait_s=1)
    assert code == 1
    assert "does not take it" in told["error"]
    lab.start(NAMES[0])
    assert lab.side.keep(0) == [f"added http://127.0.0.1:{lab.ports[NAMES[0]]}"]
    assert lab.rotation() == ALL


def test_who_is_not_declared_any_more_goes(lab: Lab) -> None:
    path = Path(lab.place.workers)
    declared = json.loads(path.read_text())
    gone = declared["workers"].pop(NAMES[1])
    path.write_text(json.dumps(declared))
    assert lab.side.keep(0) == [f"removed {gone}"]
    assert set(lab.rotation()) == {NAMES[0], NAMES[2]}
    code, told = lab.ask(op="drain", worker=NAMES[1])
    assert code == 1
    assert f"{NAMES[1]} is no worker of this router, which has: {NAMES[0]}, {NAMES[2]}" in told["error"]


def test_its_administration_needs_the_key_that_it_made(lab: Lab) -> None:
    for method, path in (("GET", "/workers"), ("POST", "/workers"), ("POST", "/flush_cache")):
        assert agent._http(method, lab.url + path, "guessed", {} if method == "POST" else None)[0] == 401
    assert (Path(lab.place.runtime) / "control.key").stat().st_mode & 0o777 == 0o600
    assert lab.router is not None
    words = Path(f"/proc/{lab.router.pid}/cmdline").read_bytes()
    assert b"control-plane" not in words


def test_the_key_of_the_servers_is_asked_for_by_the_router(lab: Lab) -> None:
    path = Path(lab.place.settings)
    path.write_text(json.dumps({**json.loads(path.read_text()), "api_key": "k"}))
    command = lab.command
    lab.command = lambda name: [*command(name), "--api-key", "k"]
    for name in NAMES:
        lab.stop(name, signal.SIGKILL)
        lab.start(name)
    lab.unroute()
    lab.route()
    body = {"model": "toy", "prompt": "x", "max_tokens": 1}
    assert agent._http("POST", lab.url + "/v1/completions", "", body)[0] == 401
    assert agent._http("POST", lab.url + "/v1/completions", "k", body)[0] == 200
    lab.side.drain(NAMES[0], "run-1", 120)
    lab.side.undrain(NAMES[0], 120)
    assert lab.rotation() == ALL


def test_what_a_server_has_to_do_is_asked_of_its_scheduler_first(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {}

    def http(_method: str, url: str, _key: str) -> tuple[int, str]:
        return answers.get(url.rpartition("8000")[2], (404, ""))

    monkeypatch.setattr(agent, "_http", http)
    assert agent.load("http://c:8000", "") is None
    answers["/metrics"] = (200, 'sglang:num_running_reqs{tp_rank="0"} 2.0\nsglang:num_queue_reqs{tp_rank="0"} 1.0\n')
    assert agent.load("http://c:8000", "") == 3
    ranks = [{"dp_rank": n, "num_running_reqs": n, "num_waiting_reqs": 1} for n in range(2)]
    answers["/v1/loads"] = (200, json.dumps({"loads": ranks}))
    assert agent.load("http://c:8000", "") == 3
    answers["/v1/loads"] = (200, json.dumps({"loads": []}))
    assert agent.load("http://c:8000", "") is None
    answers["/v1/loads"] = (200, "{}")
    assert agent.load("http://c:8000", "") is None


def test_flags_of_the_declaration_win_and_no_key_is_in_the_flags() -> None:
    settings = {"address": "::", "port": 1, "metrics_port": 2, "policy": "random", "api_key": ""}
    flags = {
        "log-level": "info",
        "disable-retries": True,
        "dp-aware": False,
        "cors-allowed-origins": ["a", "b"],
        "port": 9,
    }
    words = agent.arguments({**settings, "flags": flags}, "secret")
    assert words[words.index("--log-level") + 1] == "info"
    assert words[words.index("--port") + 1] == "1"
    assert words[words.index("--disable-retries") + 1].startswith("--")
    assert words[words.index("--cors-allowed-origins") :][:3] == ["--cors-allowed-origins", "a", "b"]
    assert "--dp-aware" not in words
    assert "--api-key" not in words
    assert "--health-check-interval-secs" in words


def test_options_that_the_router_does_not_take_are_refused_before_it_is_touched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"address": "::", "port": 1, "metrics_port": 2, "policy": "random", "flags": {"retry-max-retries": 2}}
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings))
    assert agent.main(["check", str(path)]) == 0
    path.write_text(json.dumps({**settings, "flags": {"retries": 2}}))
    with pytest.raises(SystemExit) as ended:
        agent.main(["check", str(path)])
    assert ended.value.code == 2
    assert "--retries" in capfd.readouterr().err
    assert agent.main(["check", str(tmp_path / "absent")]) == 1
    assert agent.main(["check"]) == 2
