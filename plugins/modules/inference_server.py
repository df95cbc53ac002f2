#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An inference server under systemd that is switched only to what was seen to serve."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_server
short_description: Run an inference server, and return to what ran before when the new one does not serve
version_added: 0.1.0
description:
  - Compares the unit, its environment file and the release it runs with what is declared, and asks the server whether
    it is healthy. When all of it is as declared, nothing is touched.
  - Otherwise it checks what can be checked beforehand, stops the server, puts files and slot in place, starts it and
    waits until this very start (systemd's invocation id) answers C(/health_generate), lists the served model and
    answers a prompt with a known answer.
  - When it does not, what ran before is put back, started and verified in the same way.
  - A lost connection does not stop it half-way; a run that finds another one at work ends with an error.
options:
  unit_name:
    description: Name of the unit.
    type: str
    default: rackwell-inference.service
  unit:
    description: Text of the unit file. Required for O(state=started).
    type: str
  environment:
    description: Text of the environment file that the unit reads beside the release's own.
    type: str
    default: ""
  secrets:
    description:
      - Options of the server that are secrets, a JSON object, for the file beside O(environment_file) whose name ends
        in C(.secrets) (root's alone). The unit hands it to the server as a credential. Empty for none.
    type: str
    default: ""
  environment_file:
    description: Where the environment file lies.
    type: path
    default: /etc/rackwell/inference.env
  release:
    description: Digest of the staged release to run. Required for O(state=started).
    type: str
  root:
    description: Directory of the releases.
    type: path
    default: /opt/rackwell
  user:
    description: User that the server runs as.
    type: str
    default: rackwell
  host:
    description: Address that the server binds to.
    type: str
    default: 127.0.0.1
  port:
    description: Port that the server binds to.
    type: int
    default: 30000
  model_path:
    description: Directory of the model.
    type: path
  served_name:
    description: Model name that the server must list.
    type: str
    required: true
  api_key:
    description: The server's API key, when it has one.
    type: str
    default: ""
  sane:
    description: A prompt with a known answer.
    type: dict
    required: true
    suboptions:
      prompt:
        description: The prompt, completed at temperature 0.
        type: str
        required: true
      expect:
        description: Text that must occur in the answer.
        type: str
        required: true
      max_tokens:
        description: Length of the answer.
        type: int
        default: 16
  condition:
    description:
      - Command with its arguments that the unit's C(ExecCondition) runs, which asks for the boot gate's verdict. It is
        asked before anything is stopped, so that nothing is switched to a unit that would be held.
    type: list
    elements: str
    default: []
  fatal:
    description:
      - Rules that say that a start is lost, as the filter P(rackwell.gpu.fatal_rules#filter) gives them. Once the lines
        of this very start fulfil one, its end is awaited for a few seconds, and the start has failed.
    type: list
    elements: dict
    default: []
  ready_timeout:
    description: Seconds from start to ready. An engine that dies is noticed at once, whatever this is.
    type: int
    default: 3600
  allow_stop:
    description: Consent to end what a running server serves. Without it O(state=stopped) fails when one runs.
    type: bool
    default: false
  return_after:
    description:
      - Seconds after which systemd starts the server that O(state=stopped) stopped, whatever became of the run that
        stopped it. O(state=running) takes this back. 0 for never.
    type: int
    default: 0
  state:
    description:
      - V(started) brings the server to what is declared.
      - V(checked) asks whether it serves, and whether it is as declared as far as O(unit) and O(release) are given. It
        changes nothing.
      - V(running) starts the unit that is there when it does not run, and waits until it serves. It switches nothing.
      - V(stopped) stops it, when O(allow_stop) says so. It comes back at the next boot, or with V(running).
    type: str
    choices: [started, checked, running, stopped]
    default: started
attributes:
  check_mode:
    support: full
    description: Tells what would be done, and whether the server restarts.
  diff_mode:
    support: full
    description: Shows unit, environment file and slot; keys and tokens are hidden.
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Serve
  rackwell.gpu.inference_server:
    unit: "{{ lookup('ansible.builtin.template', 'rackwell-inference.service.j2') }}"
    release: 3b0c449b5d1e0f0e0c8f6c8f1d7c3c8b3b0c449b5d1e0f0e0c8f6c8f1d7c3c8b
    model_path: /srv/models/glm-5
    served_name: glm-5
    sane:
      prompt: The capital of France is
      expect: Paris

- name: Ask whether it serves
  rackwell.gpu.inference_server:
    served_name: glm-5
    sane:
      prompt: The capital of France is
      expect: Paris
    state: checked
"""

RETURN = r"""
rackwell_result:
  description: What runs, and what its verification showed. Its ready_seconds is null for what ran already.
  returned: success
  type: dict
  sample:
    schema: rackwell.inference_server/1
    unit: rackwell-inference.service
    invocation_id: 7c0f5b0a2f1f4d0f9a9f6f8a7f6e5d4c
    release: 3b0c449b5d1e0f0e0c8f6c8f1d7c3c8b3b0c449b5d1e0f0e0c8f6c8f1d7c3c8b
    ready_seconds: 41.2
    health: 200
    answer: " Paris."
rackwell_error:
  description: What is wrong, where, why, and what mends it.
  returned: failure
  type: dict
held:
  description: Whether it is the boot gate that keeps the server down.
  returned: failure
  type: bool
rolled_back:
  description: Whether what ran before was put back and started.
  returned: when a switch failed
  type: bool
rollback_verified:
  description: Whether what was put back was seen to serve.
  returned: when a switch failed
  type: bool
log:
  description: The lines of the engine's log that tell why.
  returned: when a switch failed
  type: list
  elements: str
journal:
  description:
    - What this start wrote, for its diagnosis, without secrets. Bounded to some hundred lines from its beginning,
      around its first failure, and from its end.
  returned: when a start failed
  type: list
  elements: str
"""

import os
import signal
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_log as log
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_preflight as preflight
from ansible_collections.rackwell.gpu.plugins.module_utils import unit_exits as exits
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_activation import (
    HELD,
    SLOT,
    Activation,
    Check,
    Gate,
    GateError,
    Healthy,
    Paths,
    Snapshot,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_client import Client
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import (
    CommandError,
    System,
    UnitState,
    run_condition,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_guard import rolling

SCHEMA = "rackwell.inference_server/1"
STATE = "/var/lib/rackwell"
# a text of another shape than expected, too: nothing may end a switch before its return
_UNFORESEEN = (CommandError, OSError, ValueError, LookupError, TypeError)
_FIXES = {
    "engine-died": "change the profile or the build as the log says, then run again (whole log: journalctl -u {unit})",
    "unhealthy": "wait when it is loading; else run rackwell provision, which restarts it (log: journalctl -u {unit})",
    "never-ready": "read journalctl -u {unit}; raise limits.ready_timeout in the profile if it was still loading",
    "wrong-model": "set model.served_name in the profile to what clients ask for",
    "insane-answer": "the build or its flags compute wrongly: compare with a build without its patches",
    "port-taken": preflight.FREE_THE_PORT,
    "gate-held": preflight.MEND_THE_GATE,
    **exits.FIXES,
}


class Server:
    """One run of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        p = module.params
        self.unit: str = p["unit_name"]
        self.release: str = p["release"] or ""
        self.root: str = p["root"]
        self.user: str = p["user"]
        self.check = Check(
            host=p["host"],
            port=p["port"],
            served_name=p["served_name"],
            prompt=p["sane"]["prompt"],
            expect=p["sane"]["expect"],
            max_tokens=p["sane"]["max_tokens"],
            ready_timeout=p["ready_timeout"],
            api_key=p["api_key"] or "",
        )
        self.paths = Paths("/etc/systemd/system/" + self.unit, p["environment_file"], self.root, STATE)
        self.system = System()
        self.gate = Gate(
            self.unit, self.system, lambda check: Client(check.host, check.port, check.api_key), fatal=p["fatal"]
        )
        self.activation = Activation(self.unit, self.paths, self.system, self.gate)
        self.present = self.activation.present()

    # -- ends ----------------------------------------------------------------------------------------------------

    def _fail(self, code: str, what: str, where: str, why: str, **extra: Any) -> None:
        fix = _FIXES.get(code, "").format(unit=self.unit)
        fail(self.module, code, what, where, why, extra.pop("fix", fix), **extra)

    def _gate_failed(self, error: GateError, **extra: Any) -> None:
        if error.code == HELD:
            extra["held"] = True
        self._fail(error.code, error.what, self.unit, error.why, log=error.lines, journal=error.journal, **extra)

    def _result(self, healthy: Healthy, **more: Any) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "unit": self.unit,
            "invocation_id": healthy.invocation,
            "release": files.slot_release(self.root, SLOT),
            "ready_seconds": healthy.ready_seconds,
            "health": 200,
            "answer": healthy.answer,
            **more,
        }

    # -- state: checked ------------------------------------------------------------------------------------------

    def checked(self) -> None:
        """Ask, and change nothing."""
        state = self.system.show(self.unit)
        # also while systemd waits to try it again
        if state.active != "active" and (setup := exits.told(self.system, self.unit, state)):
            fail(self.module, setup.code, setup.what, self.unit, setup.why, setup.fix)
        if state.held:
            self._held()
        if state.ended:
            why = f"the unit is {state.active}" + (f" ({state.exit_text})" if state.exit_text else "")
            lines, _ = self.system.journal(state.invocation) if state.invocation else ([], "")
            if state.active == "failed" and (said := log.last_error(lines)):
                why += f"; {said}"
            self._fail(
                "not-running",
                "the inference server does not run",
                self.unit,
                why,
                log=log.telling(lines) if state.active == "failed" else [],
                journal=log.for_diagnosis(lines) if state.active == "failed" else [],
                fix=f"read journalctl -u {self.unit}; start it again with rackwell provision",
            )
        try:
            healthy = self._ask(state.invocation, 0)
        except GateError as error:
            self._gate_failed(error)
            raise
        if self.module.params["unit"] is not None:
            drift = self._differences() + [
                f"mode {there:04o} of {path}" for path, there, _ in self.activation.open_files()
            ]
            if drift:
                why = "it serves, and differs in: " + ", ".join(drift)
                fix = "bring it to what is declared with rackwell provision, or declare what runs"
                fail(
                    self.module,
                    "not-as-declared",
                    "the server is not what is declared",
                    self.unit,
                    why,
                    fix,
                    diff=self._diff(),
                )
        done(self.module, False, self._result(healthy))

    def _ask(self, invocation: str, timeout: float) -> Healthy:
        """Verify what runs, without starting anything."""
        answer = self.gate.verify(self.check, invocation, timeout)
        return Healthy(invocation, None, answer)

    # -- state: running ------------------------------------------------------------------------------------------

    def running(self) -> None:
        """Start what is there when it does not run, and wait until it serves."""
        state = self.system.show(self.unit)
        if not state.loaded:
            why = "it has not been provisioned"
            fail(self.module, "not-there", "there is no such unit here", self.unit, why, "rackwell provision makes it")
        if state.ended and self.module.check_mode:
            result = {"schema": SCHEMA, "unit": self.unit, "release": self.present.release, "restarts": False}
            done(self.module, True, result, msg=f"would start {self.unit}")
        with files.exclusive(self.paths.lock) as mine:
            if not mine:
                self._activation_runs()
            self.activation.forget_return()
            try:
                if state.ended:
                    healthy = self.activation.start_present(self.check)
                else:
                    healthy = self._ask(state.invocation, self._loading_time(state))
            except GateError as error:
                self._gate_failed(error)
                raise
        done(self.module, state.ended, self._result(healthy))

    # -- state: stopped ------------------------------------------------------------------------------------------

    def stopped(self) -> None:
        """Stop what runs, with consent."""
        state = self.system.show(self.unit)
        # one that an interrupted run stopped for a while has to come back after this run as well
        awaited = self.activation.returns()
        wanted = awaited or not state.ended
        result = {"schema": SCHEMA, "unit": self.unit, "release": self.present.release, "stopped": wanted}
        if not wanted:
            done(self.module, False, result)
        if not self.module.params["allow_stop"] and not state.ended:
            why = "it would be disturbed, and would falsify what is measured"
            fix = "stop it for that time with --allow-stop-server (it is started again), or run this while it is down"
            fail(self.module, "server-running", "the inference server runs", self.unit, why, fix, held=True)
        self._nobody_rolls()
        if not self.module.check_mode:
            with files.exclusive(self.paths.lock) as mine:
                if not mine:
                    self._activation_runs()
                self._stop(self.module.params["return_after"])
        done(self.module, True, result)

    def _stop(self, return_after: int) -> None:
        try:
            if return_after:
                # first: what ends this run in the next moment must not leave the server down for good
                self.activation.return_by_itself(return_after)
            self.activation.stop()
        except CommandError as error:
            fix = f"read systemctl status {self.unit}, then run again"
            fail(self.module, "not-stopped", "the server could not be stopped", self.unit, str(error), fix)

    def _activation_runs(self) -> None:
        why = f"another run holds {self.paths.lock}"
        fix = f"wait for it: it ends by itself, verified (cat {self.paths.marker})"
        fail(self.module, "activation-running", "an activation is under way here", self.unit, why, fix)

    def _loading_time(self, state: UnitState) -> float:
        """Seconds that a start has left to get ready: one that never said "ready" is still loading."""
        lines, _ = self.system.journal(state.invocation)
        since = max(0.0, time.monotonic() - state.started_monotonic)
        return 0.0 if log.said_ready(lines) else max(self.check.ready_timeout - since, 0.0)

    # -- the boot gate -------------------------------------------------------------------------------------------

    def _condition(self) -> str:
        """Why the boot gate would hold a start; empty when it would not, or there is none."""
        command = self.module.params["condition"]
        return run_condition(command) if command else ""

    def _held_or_not(self, why: str) -> None:
        """Fail when a start would be held."""
        if why:
            self._fail(HELD, "the boot gate holds the server", self.unit, why, held=True)

    def _held(self) -> None:
        """Fail with what held the start that is over. The gate is asked again: it knows more by now."""
        state = self.system.show(self.unit)
        lines, _ = self.system.journal(state.invocation) if state.invocation else ([], "")
        why = self._condition() or log.held_by(lines)
        self._fail(HELD, "the boot gate held the server", self.unit, why, held=True)

    # -- state: started ------------------------------------------------------------------------------------------

    def _differences(self) -> list[str]:
        """What is not as declared, in words."""
        p = self.module.params
        found = []
        if self.present.unit != p["unit"]:
            found.append("unit file")
        if self.present.environment != p["environment"]:
            found.append("environment file")
        if (self.present.secrets or "") != p["secrets"]:
            found.append("secrets file")
        if self.release and self.present.release != self.release:
            found.append("release")
        if not self.present.active:
            found.append("not running")
        if self.activation.interrupted():
            found.append("an earlier activation was interrupted")
        return found

    def _diff(self) -> list[dict[str, str]]:
        p = self.module.params
        pairs = (
            (self.paths.unit_file, self.present.unit or "", p["unit"]),
            (self.paths.environment_file, self.present.environment or "", p["environment"]),
            (
                os.path.join(self.root, SLOT),
                f"{self.present.release}\n" if self.present.release else "",
                f"{self.release or self.present.release}\n",
            ),
        )
        shown = [
            {
                "before_header": path,
                "after_header": path,
                "before": files.without_secrets(before),
                "after": files.without_secrets(after),
            }
            for path, before, after in pairs
            if before != after
        ]
        if (self.present.secrets or "") != p["secrets"]:
            texts = ["" if not text else "(there, and not shown)\n" for text in (self.present.secrets, p["secrets"])]
            path = self.paths.secrets_file
            shown.append({"before_header": path, "after_header": path, "before": texts[0], "after": texts[1]})
        shown += [
            {
                "before_header": path,
                "after_header": path,
                "before": f"mode {there:04o}\n",
                "after": f"mode {mode:04o}\n",
            }
            for path, there, mode in self.activation.open_files()
        ]
        return shown

    def _preflight(self) -> list[str]:
        """Fail on what can be known before anything is touched.

        Returns:
            In check mode, what is missing and would have been made by the steps before this one.
        """
        for lack in preflight.bad_secrets(self.module.params["secrets"]):
            fail(self.module, *lack)
        missing = preflight.lacking(self.root, self.release, self.user, self.module.params["model_path"] or "")
        for lack in preflight.in_the_way(self.unit, self.check.host, self.check.port):
            fail(self.module, *lack)
        held = self._condition()
        if not self.module.check_mode:
            for lack in missing:
                fail(self.module, *lack)
            self._held_or_not(held)
        return [*(lack.what for lack in missing), *([held] if held else [])]

    def started(self) -> None:
        """Bring the server to what is declared."""
        drift = self._differences()
        reasons = drift or self._keep_if_healthy()
        notes = self._preflight()
        diff = self._diff()
        restarts = self.present.active
        if self.module.check_mode:
            plan = {
                "schema": SCHEMA,
                "unit": self.unit,
                "release": self.release,
                "reasons": reasons,
                "restarts": restarts,
            }
            told = f"would {'restart' if restarts else 'start'} {self.unit}: {', '.join(reasons)}"
            note = "; not there yet: " + ", ".join(notes) if notes else ""
            done(self.module, True, {**plan, "missing": notes}, diff=diff, msg=told + note)
        self._nobody_rolls()
        with files.exclusive(self.paths.lock) as mine:
            if not mine:
                self._activation_runs()
            reasons = self._still(drift, reasons)
            self._activate(reasons, self._diff())

    def _nobody_rolls(self) -> None:
        """A host in the middle of a roll is that roll's alone."""
        why = rolling(STATE)
        if why:
            fix = "wait for it; rackwell status shows it, rackwell resume or abort ends one that died"
            fail(self.module, "locked", "a roll is under way on this host", self.unit, why, fix)

    def _still(self, drift: list[str], reasons: list[str]) -> list[str]:
        """The reasons as they hold under the lock: since the first look, which may have waited for a server that was
        loading, another run can have changed everything, and what is there now is what must be returned to."""
        before, self.present = self.present, self.activation.present()
        now = self._differences()
        if now or (not drift and self.present == before):
            return now or reasons
        return self._keep_if_healthy()

    def _keep_if_healthy(self) -> list[str]:
        """End well when what runs as declared also serves; else say why it must be restarted."""
        state = self.system.show(self.unit)
        left = 0.0 if self.module.check_mode else self._loading_time(state)
        try:
            healthy = self._ask(state.invocation, left)
        except GateError as error:
            self.module.warn(f"{self.unit}: {error}")
            return [f"{error.what}: {error.why}"]
        open_files = self.activation.open_files()
        if state.enabled and not open_files:
            done(self.module, False, self._result(healthy))
        diff = self._diff()
        if not self.module.check_mode:
            if not state.enabled:
                self.system.systemctl("enable", self.unit)
            self._close_files()
        more = {"enabled": not state.enabled, "closed": [path for path, _, _ in open_files]}
        done(self.module, True, self._result(healthy, **more), diff=diff)
        return []

    def _close_files(self) -> None:
        try:
            self.activation.close_files()
        except OSError as error:
            where, why = str(error.filename), error.strerror or str(error)
            fail(self.module, "cannot-write", "a file's mode cannot be set", where, why, "mend that, then run again")

    def _activate(self, reasons: list[str], diff: list[dict[str, str]]) -> None:
        p = self.module.params
        # a connection that is lost, or a terminal that is closed, must not leave the host between two states
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        wanted = Snapshot(p["unit"], p["environment"], self.release, True, True, secrets=p["secrets"] or None)
        try:
            back = self.activation.begin(wanted, self.present)
        except OSError as error:
            why = f"{error.strerror or error}; nothing was touched"
            fail(
                self.module,
                "cannot-write",
                "the activation cannot be prepared",
                str(error.filename),
                why,
                "free space, then run again",
            )
        try:
            healthy = self.activation.switch(wanted, self.check)
        except GateError as error:
            self._go_back(error, back)
            return
        except _UNFORESEEN as error:
            self._go_back(GateError("activation-error", "the switch failed half-way", str(error)), back)
            return
        more = {"reasons": reasons, "restarts": self.present.active}
        done(self.module, True, self._result(healthy, **more), diff=diff)

    def _go_back(self, error: GateError, back: Snapshot) -> None:
        """Return to what was, and fail with what that showed."""
        try:
            rolled_back, healthy, told = self.activation.return_to(back, self.check)
        except (GateError, *_UNFORESEEN) as worse:
            rolled_back, healthy, told = False, None, f"the return failed half-way: {worse}"
        told = error.why.rstrip(".") + ". " + told[:1].upper() + told[1:]
        gate = GateError(error.code, error.what, told, error.lines, error.journal)
        self._gate_failed(gate, rolled_back=rolled_back, rollback_verified=healthy is not None)


def argument_spec() -> dict[str, Any]:
    """The module's options."""
    return {
        "unit_name": {"type": "str", "default": "rackwell-inference.service"},
        # ansible writes options into the system's log: these two may hold tokens and keys
        "unit": {"type": "str", "no_log": True},
        "environment": {"type": "str", "default": "", "no_log": True},
        "secrets": {"type": "str", "default": "", "no_log": True},
        "environment_file": {"type": "path", "default": "/etc/rackwell/inference.env"},
        "release": {"type": "str"},
        "root": {"type": "path", "default": "/opt/rackwell"},
        "user": {"type": "str", "default": "rackwell"},
        "host": {"type": "str", "default": "127.0.0.1"},
        "port": {"type": "int", "default": 30000},
        "model_path": {"type": "path"},
        "served_name": {"type": "str", "required": True},
        "api_key": {"type": "str", "default": "", "no_log": True},
        "sane": {
            "type": "dict",
            "required": True,
            "options": {
                "prompt": {"type": "str", "required": True},
                "expect": {"type": "str", "required": True},
                "max_tokens": {"type": "int", "default": 16},
            },
        },
        "condition": {"type": "list", "elements": "str", "default": []},
        "fatal": {"type": "list", "elements": "dict", "default": []},
        "ready_timeout": {"type": "int", "default": 3600},
        "allow_stop": {"type": "bool", "default": False},
        "return_after": {"type": "int", "default": 0},
        "state": {"type": "str", "choices": ["started", "checked", "running", "stopped"], "default": "started"},
    }


def show_all_but_secrets(module: AnsibleModule) -> None:
    """In results, hide the secrets of the two texts only: a diff that is hidden whole helps nobody."""
    for name in ("unit", "environment"):
        text = module.params[name] or ""
        module.no_log_values.discard(text)
        module.no_log_values.update(files.secrets_in(text))
    module.no_log_values.update(files.secret_values(module.params["secrets"]))


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec=argument_spec(),
        supports_check_mode=True,
        required_if=[("state", "started", ("unit", "release"))],
    )
    show_all_but_secrets(module)
    server = Server(module)
    # each state is a method of its name
    getattr(server, module.params["state"])()


if __name__ == "__main__":
    main()
