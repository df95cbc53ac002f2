# SPDX-License-Identifier: Apache-2.0
"""ansible-runner's events, hand-made, and what is made of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from rackwell.ansible import unreachable
from rackwell.ansible.events import Collector, Step
from rackwell.ansible.results import PlayResult
from rackwell.errors import ExitCode


class Play:
    """Builds the events of a play."""

    def __init__(self) -> None:
        self.result = PlayResult("provision", Path("log.txt"))
        self.steps: list[Step] = []
        self.collector = Collector(self.result, self.steps.append)
        self._ids = itertools.count()

    def task(
        self, kind: str, res: dict[str, Any] | None = None, *, host: str = "c1", task: str = "Do", **data: Any
    ) -> Play:
        event_data = {
            "host": host,
            "task": task,
            "role": "rackwell.gpu.release",
            "task_action": "rackwell.gpu.x",
            "task_uuid": str(next(self._ids)),
            **data,
        }
        self.collector.take({"event": "runner_on_start", "event_data": event_data})
        if kind:
            self.collector.take(
                {"event": f"runner_on_{kind}", "event_data": {**event_data, "res": res or {}, "duration": 2.0}}
            )
        return self

    def end(self, rc: int = 0, **stats: dict[str, int]) -> PlayResult:
        self.collector.take({"event": "playbook_on_stats", "event_data": stats})
        self.collector.finish(rc)
        return self.result


ERROR = {"code": "port-taken", "what": "port 30000 is taken", "where": "unit", "why": "pid 7 has it", "fix": "stop it"}


def failed(**extra: Any) -> PlayResult:
    return Play().task("failed", {"msg": "x", "rackwell_error": ERROR, **extra}).end(2, failures={"c1": 1})


def test_ok_and_changed_are_counted_and_told() -> None:
    play = Play().task("ok", {"changed": False}).task("ok", {"changed": True}, task="Stage").task("skipped")
    result = play.end(0, ok={"c1": 2}, changed={"c1": 1}, skipped={"c1": 1})
    assert result.exit_code == ExitCode.DONE
    assert (result.changed, result.hosts["c1"].ok) == (1, 2)
    assert [(change.role, change.task) for change in result.changes] == [("release", "Stage")]
    assert [step.outcome for step in play.steps] == ["", "ok", "", "changed", "", "skipped"]
    assert play.steps[3].label == "release: Stage"


def test_results_are_collected_with_their_host() -> None:
    payload = {"schema": "rackwell.thing/1", "n": 1}
    result = Play().task("ok", {"rackwell_result": payload}).end(ok={"c1": 1})
    assert result.payloads("rackwell.thing", "c1") == [payload]
    assert result.payloads("rackwell.thing", "c2") == []
    assert result.payloads("rackwell.thin") == []


def test_a_fact_of_that_name_is_a_result_too() -> None:
    payload = {"schema": "rackwell.host_status/1"}
    result = Play().task("ok", {"ansible_facts": {"rackwell_result": payload}}).end(ok={"c1": 1})
    assert result.payloads("rackwell.host_status") == [payload]


def test_a_modules_error_is_a_problem_with_its_host() -> None:
    result = failed()
    assert result.exit_code == ExitCode.FAILED
    problem = result.problems[0]
    assert (problem.code, problem.where, problem.fix) == ("port-taken", "c1: unit", "stop it")


def test_all_problems_of_a_module_are_told() -> None:
    result = failed(problems=[ERROR, {**ERROR, "code": "other"}])
    assert [problem.code for problem in result.problems] == ["port-taken", "other"]


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ({}, ExitCode.FAILED),
        ({"rolled_back": True, "rollback_verified": True}, ExitCode.ROLLED_BACK),
        ({"rolled_back": True, "rollback_verified": False}, ExitCode.FAILED),
        ({"held": True}, ExitCode.HELD),
        ({"rackwell_error": {**ERROR, "code": "restart-needed"}}, ExitCode.HELD),
        ({"rackwell_error": {**ERROR, "code": "activation-running"}}, ExitCode.LOCKED),
        ({"rackwell_error": {**ERROR, "code": "locked"}}, ExitCode.LOCKED),
        ({"rackwell_error": {**ERROR, "code": "busy"}}, ExitCode.LOCKED),
    ],
)
def test_exit_code_of_a_failure(extra: dict[str, Any], code: ExitCode) -> None:
    assert failed(**extra).exit_code == code


@pytest.mark.parametrize(
    "milder",
    [
        {"rackwell_error": ERROR, "rolled_back": True, "rollback_verified": True},
        {"rackwell_error": ERROR, "held": True},
        {"rackwell_error": {**ERROR, "code": "locked"}},
        {"msg": "Validation failed", "argument_errors": ["missing required arguments: release_build"]},
    ],
    ids=["rolled back", "held", "locked", "invalid"],
)
def test_what_is_milder_beside_another_failure_is_a_failure(milder: dict[str, Any]) -> None:
    play = Play()
    play.task("failed", milder)
    play.task("failed", {"rackwell_error": ERROR}, host="c2")
    assert play.end(2, failures={"c1": 1, "c2": 1}).exit_code == ExitCode.FAILED


def test_role_arguments_are_the_declarations_fault() -> None:
    res = {"msg": "Validation failed", "argument_errors": ["missing required arguments: release_build", "another"]}
    result = Play().task("failed", res).end(2, failures={"c1": 1})
    assert result.exit_code == ExitCode.INVALID
    assert [problem.why for problem in result.problems] == res["argument_errors"]


def test_a_foreign_module_is_told_with_its_task_and_what_it_said() -> None:
    res = {"msg": "Task failed: non-zero return code", "stderr": "first\nno space left\n", "rc": 1}
    problem = Play().task("failed", res, task="Unpack").end(2, failures={"c1": 1}).problems[0]
    assert problem.code == "task-failed"
    assert "Unpack" in problem.what
    assert "no space left" in problem.why


@pytest.mark.parametrize(("stderr", "code"), [("", "cut-off"), ("Traceback", "task-failed")])
def test_a_module_of_which_nothing_came_back(stderr: str, code: str) -> None:
    res = {
        "msg": "Task failed: Module result deserialization failed: No start of json char found",
        "rc": -9,
        "module_stdout": "",
        "module_stderr": stderr,
    }
    (problem,) = Play().task("failed", res).end(2, failures={"c1": 1}).problems
    assert (problem.code, problem.where) == (code, "c1")


def test_a_rescued_failure_is_tolerated() -> None:
    result = Play().task("failed", {"rackwell_error": ERROR}).end(0, ok={"c1": 1}, rescued={"c1": 1})
    assert result.exit_code == ExitCode.DONE
    assert result.problems == []
    assert result.tolerated[0].problems[0].code == "port-taken"


def test_what_came_to_the_rescue_names_the_cause_of_a_bare_failure() -> None:
    play = (
        Play().task("failed", {"msg": "the unit failed"}, task="Run the unit").task("failed", {"rackwell_error": ERROR})
    )
    result = play.end(2, rescued={"c1": 1}, failures={"c1": 1})
    assert (result.exit_code, [problem.code for problem in result.problems]) == (ExitCode.FAILED, ["port-taken"])


def test_a_cause_is_told_before_a_rescue_that_failed_too() -> None:
    play = Play().task("failed", {"rackwell_error": ERROR}).task("failed", {"msg": "no space"}, task="Put back")
    result = play.end(2, rescued={"c1": 1}, failures={"c1": 1})
    assert [problem.code for problem in result.problems] == ["port-taken", "task-failed"]


def test_ignored_failures_are_no_failures() -> None:
    result = Play().task("failed", {"rackwell_error": ERROR}, ignore_errors=True).end(0, ok={"c1": 1})
    assert (result.exit_code, result.problems) == (ExitCode.DONE, [])


def test_each_failed_item_of_a_loop_is_told_once() -> None:
    play = Play()
    data = {"host": "c1", "task": "Measure", "role": "bench_client", "task_uuid": "1", "task_action": "x"}
    for code in ("a", "b"):
        res = {
            "rackwell_error": {**ERROR, "code": code},
            "rackwell_result": {"schema": "rackwell.bench_point/1", "c": code},
        }
        play.collector.take({"event": "runner_item_on_failed", "event_data": {**data, "res": res}})
    play.task("failed", {"msg": "One or more items failed", "results": [{"rackwell_error": ERROR}]})
    result = play.end(2, failures={"c1": 1})
    assert [problem.code for problem in result.problems] == ["a", "b"]
    assert len(result.payloads("rackwell.bench_point")) == 2


def test_items_that_report_are_steps_of_the_progress() -> None:
    steps: list[Step] = []
    collector = Collector(PlayResult("bench", Path("log.txt")), steps.append)
    data = {"host": "c1", "task": "Measure", "role": "bench_client", "task_uuid": "1", "task_action": "x"}
    point = {"_ansible_item_label": "4 streams", "rackwell_result": {"schema": "rackwell.bench_point/1"}}
    collector.take({"event": "runner_item_on_ok", "event_data": {**data, "res": point}})
    collector.take({"event": "runner_item_on_ok", "event_data": {**data, "res": {"_ansible_item_label": "a key"}}})
    assert [(step.label, step.outcome) for step in steps] == [("bench_client: Measure: 4 streams", "ok")]


def test_unreachable() -> None:
    res = {"unreachable": True, "msg": "Task failed: Failed to connect to the host via ssh: Connection refused"}
    result = Play().task("unreachable", res).end(4, dark={"c1": 1})
    assert result.exit_code == ExitCode.UNREACHABLE
    assert result.problems[0].code == "ssh-refused"


@pytest.mark.parametrize("kind", ["failed", "unreachable"])
@pytest.mark.parametrize(
    "res",
    [
        {"msg": "Task failed: Premature end of stream waiting for become success.\n>>> Standard Error\n"
         "sudo: a password is required"},
        {"msg": "MODULE FAILURE", "module_stderr": "op is not in the sudoers file."},
        {"msg": "Missing sudo password"},
    ],
)  # fmt: skip
def test_a_user_who_may_not_become_root_is_told_so(kind: str, res: dict[str, Any]) -> None:
    result = Play().task(kind, res).end(2, failures={"c1": 1})
    (problem,) = result.problems
    assert (problem.code, result.exit_code) == ("become-failed", ExitCode.FAILED)
    assert "sudo" in problem.why
    assert "NOPASSWD" in problem.fix


def test_a_play_that_never_began_says_why() -> None:
    play = Play()
    play.collector.take({"event": "verbose", "stdout": "[ERROR]: the playbook: x could not be found", "event_data": {}})
    play.collector.finish(1)
    assert play.result.exit_code == ExitCode.FAILED
    assert "could not be found" in play.result.problems[0].why


def test_what_was_running_when_it_was_interrupted() -> None:
    play = Play().task("ok").task("", task="Wait")
    play.result.interrupted = True
    play.collector.finish(99)
    assert play.result.exit_code == ExitCode.INTERRUPTED
    assert play.result.running == [("c1", "release: Wait")]


def test_diffs_become_unified_text() -> None:
    diff = [
        {"before": "a\nb\n", "after": "a\nc\n", "before_header": "old", "after_header": "new"},
        {"prepared": "+ x\n"},
    ]
    change = Play().task("ok", {"changed": True, "diff": diff}).end(ok={"c1": 1}, changed={"c1": 1}).changes[0]
    assert "--- old" in change.diff
    assert "-b\n+c" in change.diff
    assert change.diff.endswith("+ x")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@\nHost key verification failed.", "host-key-changed"),
        ("Host key verification failed.", "host-key-unknown"),
        ("No ED25519 host key is known for 192.0.2.1 and you have requested strict checking.", "host-key-unknown"),
        ("root@192.0.2.1: Permission denied (publickey,password).", "ssh-denied"),
        ("ssh: connect to host 192.0.2.1 port 22: Connection timed out", "ssh-timeout"),
        ("ssh: connect to host 192.0.2.1 port 22: Connection refused", "ssh-refused"),
        ("ssh: connect to host 192.0.2.1 port 22: No route to host", "no-route"),
        ("ssh: Could not resolve hostname pve9: Name or service not known", "host-unknown"),
        ("Connection closed by 192.0.2.1 port 22", "ssh-lost"),
        ("something else entirely", "unreachable"),
    ],
)
def test_ssh_texts_are_told_apart(text: str, code: str) -> None:
    problem = unreachable.problem("pve1", f"Task failed: Failed to connect to the host via ssh: {text}")
    assert problem.code == code
    assert problem.fix
    assert "pve1" in problem.what


@pytest.mark.parametrize(
    "text",
    [
        "No ED25519 host key is known for 192.0.2.1 and you have requested strict checking.",
        "REMOTE HOST IDENTIFICATION HAS CHANGED!\r\nHost key for 192.0.2.1 has changed and you have requested more.",
    ],
    ids=["unknown", "changed"],
)
def test_a_host_key_is_mended_under_the_address_that_ssh_used(text: str) -> None:
    fix = unreachable.problem("pve1", text).fix
    assert "192.0.2.1" in fix
    assert "pve1" not in fix


def test_a_changed_host_key_is_removed_as_ssh_says() -> None:
    text = (
        "REMOTE HOST IDENTIFICATION HAS CHANGED!\n  remove with:\n  ssh-keygen -f '/site/known_hosts' -R '192.0.2.1'\n"
    )
    assert "ssh-keygen -f '/site/known_hosts' -R '192.0.2.1'" in unreachable.problem("pve1", text).fix
