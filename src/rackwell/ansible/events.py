# SPDX-License-Identifier: Apache-2.0
"""From ansible-runner's events to steps (for progress) and results. No input or output here."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from rackwell.ansible import unreachable
from rackwell.ansible.results import Change, Failure, HostCounts, PlayResult, Reported
from rackwell.errors import Problem

Event = Mapping[str, Any]

# tasks that only steer a play: people wait for none of them
_QUIET_ACTIONS = frozenset(
    {
        "assert",
        "debug",
        "import_role",
        "import_tasks",
        "include_role",
        "include_tasks",
        "include_vars",
        "meta",
        "set_fact",
        "validate_argument_spec",
    }
)
# errors of modules that wait for a person's decision, and for another run
_HELD = frozenset({"gate-held", "restart-needed", "server-running"})
_LOCKED = frozenset({"activation-running", "busy", "locked"})
_OUTCOMES = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_skipped": "skipped",
    "runner_on_unreachable": "unreachable",
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A task of a host that starts or has ended.

    Attributes:
        outcome: empty at the start; else ok, changed, failed, ignored, skipped or unreachable.
        seconds: how long it took; 0 at the start, and for an item of a loop.
        quiet: it only steers the play.
    """

    host: str
    label: str
    outcome: str = ""
    seconds: float = 0.0
    quiet: bool = False


class Collector:
    """Takes events in their order and fills a `PlayResult`; tells `listener` about steps, `on_result` of what modules
    report, as soon as it is there.
    """

    def __init__(
        self,
        result: PlayResult,
        listener: Callable[[Step], None],
        on_result: Callable[[Reported], None] = lambda _: None,
    ) -> None:
        self.result = result
        self._listener = listener
        self._on_result = on_result
        self._open: dict[tuple[str, str], str] = {}
        self._failed: list[Failure] = []
        self._errors: list[str] = []

    def take(self, event: Event) -> None:
        """One event."""
        kind = str(event.get("event", ""))
        data = event.get("event_data") or {}
        if kind == "runner_on_start":
            self._start(data)
        elif kind in _OUTCOMES:
            self._end(_OUTCOMES[kind], data)
        elif kind == "runner_item_on_failed":
            self._item_failed(data)
        elif kind == "runner_item_on_ok":
            self._report(data, data.get("res") or {})
            self._item(data, "ok")
        elif kind == "playbook_on_stats":
            self._stats(data)
        elif kind in {"error", "verbose"}:
            text = str(event.get("stdout", "")).strip()
            if text.startswith(("ERROR!", "[ERROR]")) or kind == "error":
                self._errors.append(text)

    def finish(self, rc: int) -> None:
        """The play has ended with `rc`: settle what its failures mean."""
        self.result.rc = rc
        self.result.running = [(host, label) for (host, _), label in self._open.items()]
        for failure in self._failed:
            counts = self.result.hosts.get(failure.host)
            # a failure that the play rescued is no failure of the run
            ended = counts is None or counts.failed or counts.unreachable
            (self.result.failures if ended and not self._explained(failure) else self.result.tolerated).append(failure)
        if rc != 0 and not self.result.failures and not self.result.interrupted:
            why = " ".join(" ".join(self._errors).split())[-600:] or f"ansible-playbook ended with {rc}"
            problem = Problem("play-failed", f"the playbook {self.result.playbook} did not run to its end", "", why)
            self.result.failures.append(Failure("", "", "", (problem,)))

    def _explained(self, failure: Failure) -> bool:
        """It says no more than that a task failed, the play rescued it, and what came to its rescue names the cause."""
        counts = self.result.hosts.get(failure.host)
        later = self._failed[self._failed.index(failure) + 1 :]
        named = any(other.host == failure.host and other.problems and not _is_bare(other) for other in later)
        return bool(counts and counts.rescued and _is_bare(failure) and named)

    def _start(self, data: Mapping[str, Any]) -> None:
        host, label = str(data.get("host", "")), _label(data)
        self._open[host, str(data.get("task_uuid", ""))] = label
        self.result.last = (host, label)
        self._listener(Step(host, label, quiet=_quiet(data)))

    def _end(self, outcome: str, data: Mapping[str, Any]) -> None:
        host, label = str(data.get("host", "")), _label(data)
        res = data.get("res") or {}
        self._open.pop((host, str(data.get("task_uuid", ""))), None)
        self.result.last = (host, label)
        counts = self.result.hosts.setdefault(host, HostCounts())
        changed = outcome == "ok" and bool(res.get("changed"))
        if outcome == "failed" and (data.get("ignore_errors") or res.get("_ansible_ignore_errors")):
            outcome = "ignored"
        self._count(counts, outcome, changed)
        if changed:
            self.result.changes.append(Change(host, _role(data), _task(data), _diff(res.get("diff"))))
        self._report(data, res)
        if outcome in {"failed", "unreachable"}:
            self._failed.append(_failure(data, res, outcome == "unreachable"))
        self._listener(
            Step(host, label, "changed" if changed else outcome, float(data.get("duration") or 0), _quiet(data))
        )

    @staticmethod
    def _count(counts: HostCounts, outcome: str, changed: bool) -> None:
        if outcome in {"ok", "ignored"}:
            counts.ok += 1
            counts.changed += changed
        elif outcome == "failed":
            counts.failed += 1
        elif outcome == "unreachable":
            counts.unreachable += 1
        else:
            counts.skipped += 1

    def _item_failed(self, data: Mapping[str, Any]) -> None:
        res = data.get("res") or {}
        self._report(data, res)
        self._item(data, "failed")
        if "rackwell_error" in res and not data.get("ignore_errors"):
            self._failed.append(_failure(data, res, unreachable_=False))

    def _item(self, data: Mapping[str, Any], outcome: str) -> None:
        """Tell of an item of a loop that reports: those may take long, as the points of a benchmark do."""
        res = data.get("res") or {}
        name = res.get("_ansible_item_label", "")
        if name and "rackwell_result" in res:
            self._listener(Step(str(data.get("host", "")), f"{_label(data)}: {name}", outcome))

    def _report(self, data: Mapping[str, Any], res: Mapping[str, Any]) -> None:
        # plays made of built-in modules report through a fact of the same name
        payload = res.get("rackwell_result") or (res.get("ansible_facts") or {}).get("rackwell_result")
        if isinstance(payload, dict):
            reported = Reported(str(data.get("host", "")), _role(data), _task(data), bool(res.get("changed")), payload)
            self.result.results.append(reported)
            self._on_result(reported)

    def _stats(self, data: Mapping[str, Any]) -> None:
        """Ansible's own count, which knows what was rescued."""
        fields = {
            "ok": "ok",
            "changed": "changed",
            "failures": "failed",
            "dark": "unreachable",
            "skipped": "skipped",
            "rescued": "rescued",
        }
        hosts = {host for key in fields for host in data.get(key) or {}}
        for host in hosts:
            self.result.hosts[host] = HostCounts(
                **{field: int((data.get(key) or {}).get(host, 0)) for key, field in fields.items()}
            )


def _role(data: Mapping[str, Any]) -> str:
    return str(data.get("resolved_role") or data.get("role") or "").rpartition(".")[2]


def _task(data: Mapping[str, Any]) -> str:
    name = str(data.get("task") or data.get("task_action") or "")
    role, separator, rest = name.partition(" : ")
    return rest if separator and " " not in role else name


def _label(data: Mapping[str, Any]) -> str:
    role, task = _role(data), _task(data)
    return f"{role}: {task}" if role else task


def _quiet(data: Mapping[str, Any]) -> bool:
    return str(data.get("task_action", "")).rpartition(".")[2] in _QUIET_ACTIONS


_NO_BECOME = re.compile(
    r"(missing|incorrect) (sudo|su|doas) password|sudo: .*password is required|not in the sudoers file|"
    r"may not run sudo|sudo: (command )?not found|not allowed to execute .* as root",
    re.IGNORECASE,
)


def _no_become(host: str, res: Mapping[str, Any]) -> Problem | None:
    """The user that ansible is on the host may not become root."""
    texts = [str(res.get(key) or "") for key in ("msg", "module_stderr", "module_stdout", "stderr")]
    found = next((line.strip() for text in texts for line in text.splitlines() if _NO_BECOME.search(line)), "")
    if not found or "rackwell_error" in res:
        return None
    return Problem(
        "become-failed",
        f"ansible may not become root on {host}",
        host,
        found,
        "let its user use sudo without a password (USER ALL=(ALL) NOPASSWD: ALL, in /etc/sudoers.d), or give "
        "ansible_become_password from the vault; or reach the host as root: ansible_user: root",
    )


def _failure(data: Mapping[str, Any], res: Mapping[str, Any], unreachable_: bool) -> Failure:
    host = str(data.get("host", ""))
    if refused := _no_become(host, res):
        return Failure(host, _role(data), _task(data), (refused,))
    if unreachable_:
        return Failure(host, _role(data), _task(data), (unreachable.problem(host, str(res.get("msg", ""))),), True)
    problems, invalid = _problems(host, data, res)
    codes = {problem.code for problem in problems} or {""}
    return Failure(
        host,
        _role(data),
        _task(data),
        problems,
        rolled_back=bool(res.get("rolled_back")),
        rollback_verified=bool(res.get("rollback_verified")),
        held=bool(res.get("held")) or codes <= _HELD,
        locked=codes <= _LOCKED,
        invalid=invalid,
        journal=_journal(res),
    )


def _is_bare(failure: Failure) -> bool:
    return {problem.code for problem in failure.problems} == {"task-failed"}


def _journal(res: Mapping[str, Any]) -> tuple[str, ...]:
    lines = res.get("journal")
    return tuple(map(str, lines)) if isinstance(lines, list) else ()


def _problems(host: str, data: Mapping[str, Any], res: Mapping[str, Any]) -> tuple[tuple[Problem, ...], bool]:
    """The problems in a failed task's result, and whether it is the declaration that is wrong."""
    error = res.get("rackwell_error")
    if isinstance(error, dict):
        every = [item for item in res.get("problems") or [] if isinstance(item, dict)] or [error]
        return tuple(_placed(Problem.from_dict(item), host) for item in every), False
    arguments = res.get("argument_errors")
    if isinstance(arguments, list) and arguments:
        fix = "correct the declaration; `rackwell check` names the line"
        return (
            tuple(
                Problem("role-argument", f"a variable of role {_role(data)} does not hold", host, str(text), fix)
                for text in arguments
            ),
            True,
        )
    if any(isinstance(item, dict) and "rackwell_error" in item for item in res.get("results") or []):
        return (), False  # each item has told its own
    said = any(str(res.get(key) or "").strip() for key in ("module_stdout", "module_stderr"))
    if "result deserialization failed" in str(res.get("msg")) and not said:
        return (_cut_off(host, data, res),), False
    return (Problem("task-failed", f"'{_label(data)}' failed", host, _reason(res)),), False


def _cut_off(host: str, data: Mapping[str, Any], res: Mapping[str, Any]) -> Problem:
    """A module of which nothing was heard: not so much as an error."""
    return Problem(
        "cut-off",
        f"'{_label(data)}' ended without a result",
        host,
        f"the connection was lost, or the process was killed there (status {res.get('rc')}); it may go on and end well",
        "see that the machine is up and has memory left, then run again: it goes on from what is there",
    )


def _placed(problem: Problem, host: str) -> Problem:
    """A module names a path or a unit; which host's is added here."""
    if not problem.where or host in problem.where:
        return dataclasses.replace(problem, where=problem.where or host)
    return dataclasses.replace(problem, where=f"{host}: {problem.where}")


def _reason(res: Mapping[str, Any]) -> str:
    """Why a module that is not ours failed: its message and the end of what its program said."""
    parts = [str(res.get("msg") or "").removeprefix("Task failed: ").strip()]
    for key in ("module_stderr", "stderr", "exception"):
        text = res.get(key)
        if isinstance(text, str) and text.strip() and text.strip() not in parts[0]:
            parts.append(text.strip().splitlines()[-1])
            break
    return " | ".join(part for part in parts if part)[:800]


def _diff(diff: Any) -> str:
    """A unified diff of what a module gave as ``diff``; empty when it gave none."""
    text = ""
    for part in diff if isinstance(diff, list) else [diff]:
        if not isinstance(part, dict):
            continue
        if "prepared" in part:
            text += str(part["prepared"]).rstrip("\n") + "\n"
            continue
        before, after = _lines(part.get("before")), _lines(part.get("after"))
        text += "".join(
            difflib.unified_diff(
                before, after, str(part.get("before_header", "before")), str(part.get("after_header", "after"))
            )
        )
    return text.rstrip("\n")


def _lines(value: Any) -> list[str]:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, indent=1, sort_keys=True)
    return [line + "\n" for line in text.splitlines()]
