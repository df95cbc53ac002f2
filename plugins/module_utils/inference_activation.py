# SPDX-License-Identifier: Apache-2.0
"""Switches an inference server to what is declared, waits until this very start serves, and else returns.

The order is: prepare everything that can fail without touching what runs; stop; put files and slot in place; start;
wait; verify. Whatever goes wrong after the stop leads to the return, which is verified in the same way.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_log as log
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_ports as ports
from ansible_collections.rackwell.gpu.plugins.module_utils import unit_exits as exits
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_client import Client, judge, served_names
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_fatal import FatalRules
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import CommandError, System, UnitState
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_follow import Follower, FollowError

SLOT = "current"
HELD = "gate-held"
# transient timer that starts a server that was stopped for a while
_RETURN = "rackwell-inference-return"


class Check(NamedTuple):
    """How to tell that a server serves; kept on the host beside what it verified, for the day of the return."""

    host: str
    port: int
    served_name: str
    prompt: str
    expect: str
    max_tokens: int
    ready_timeout: int
    api_key: str = ""


class Paths(NamedTuple):
    """Where things are on the host."""

    unit_file: str
    environment_file: str
    root: str
    state: str
    runtime_units: str = "/run/systemd/system"

    @property
    def secrets_file(self) -> str:
        """The server's secret options, beside its environment."""
        return os.path.splitext(self.environment_file)[0] + ".secrets"

    @property
    def journal(self) -> str:
        """What happened on this host, a JSON record a line."""
        return os.path.join(self.state, "journal.jsonl")

    @property
    def marker(self) -> str:
        """Exists while an activation is under way."""
        return os.path.join(self.state, "activation.json")

    @property
    def lock(self) -> str:
        """Held while a process works on an activation."""
        return os.path.join(self.state, "activation.lock")

    @property
    def previous(self) -> str:
        """What to return to."""
        return os.path.join(self.state, "previous", "state.json")

    @property
    def verified(self) -> str:
        """What was last seen serving, and how it was checked."""
        return os.path.join(self.state, "verified.json")


class Snapshot(NamedTuple):
    """What the unit is made of, and whether it ran. ``None`` for what was not there."""

    unit: str | None
    environment: str | None
    release: str | None
    active: bool
    enabled: bool
    check: Check | None = None
    secrets: str | None = None

    def as_json(self) -> str:
        """For the disk."""
        check = None if self.check is None else self.check._asdict()
        return json.dumps({**self._asdict(), "check": check}, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """From the disk."""
        data = json.loads(text)
        check = data.pop("check", None)
        return cls(**data, check=Check(**check) if check else None)


class Healthy(NamedTuple):
    """What a verified start showed; ``ready_seconds`` is ``None`` for one that ran before it was asked."""

    invocation: str
    ready_seconds: float | None
    answer: str


def _is_there(path: str, text: str, mode: int) -> bool:
    return files.read_text(path) == text and os.stat(path).st_mode & 0o777 == mode


class GateError(Exception):
    """A start was not accepted.

    Attributes:
        code: ``engine-died``, ``never-ready``, ``wrong-model``, ``insane-answer``, ``unhealthy``, ``port-taken``,
            ``gate-held``, or one of module_utils unit_exits.
        lines: the log lines that tell why.
        journal: this start's lines for its diagnosis, bounded.
    """

    def __init__(
        self, code: str, what: str, why: str, lines: list[str] | None = None, journal: list[str] | None = None
    ) -> None:
        super().__init__(f"{what}: {why}")
        self.code = code
        self.what = what
        self.why = why
        self.lines = lines or []
        self.journal = journal or []


class Gate:
    """Watches one start of the unit until it serves.

    Args:
        sleep, clock: for tests. client: made from a check.
    """

    def __init__(
        self,
        unit: str,
        system: System,
        client: Callable[[Check], Client],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        port_owners: Callable[[str, int], list[ports.Owner]] = ports.port_owners,
        fatal: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.unit = unit
        self.system = system
        self._client = client
        self._clock = clock
        self._sleep = sleep
        self._port_owners = port_owners
        self._fatal = fatal
        self._begin()

    def _begin(self) -> None:
        self._lines: list[str] = []
        self._cursor = ""
        self._rules = FatalRules(self._fatal)
        self._lost: str | None = None

    def _read_log(self, invocation: str) -> None:
        lines, self._cursor = self.system.journal(invocation, self._cursor)
        self._lines += lines
        # what a server that is ready writes is about requests, and may quote them
        if self._lost is None and not log.said_ready(self._lines):
            self._lost = self._rules.take(lines)

    def _died(self, state: UnitState, invocation: str) -> GateError:
        """The engine is lost: give it a moment to end, so that its last words are in the journal."""
        for _ in range(10):
            if state.ended or state.invocation != invocation:
                break
            self._sleep(0.5)
            state = self.system.show(self.unit)
        self._read_log(invocation)
        if state.ended and (setup := exits.told(self.system, self.unit, state)):
            return GateError(setup.code, setup.what, setup.why, log.telling(self._lines))
        if state.held:
            return GateError(HELD, "the boot gate holds the server", log.held_by(self._lines))
        why = log.last_error(self._lines)
        ended = f"it ended with {state.exit_text}" if state.ended and state.exit_text else "it gave up"
        return GateError(
            "engine-died",
            "the engine died while starting",
            f"{ended}; {why}" if why else ended,
            log.telling(self._lines),
            log.for_diagnosis(self._lines),
        )

    def _watch(self, client: Client, invocation: str, timeout: float) -> None:
        """Return when /health_generate of this start answers 200.

        Raises:
            GateError: the unit ended, or its log said that it will; or the time is over.
        """
        end = self._clock() + timeout
        while True:
            state = self.system.show(self.unit)
            self._read_log(invocation)
            if state.ended or state.invocation != invocation or log.first_fatal(self._lines):
                raise self._died(state, invocation)
            reply = client.healthy()
            if reply.status == 200:
                return
            if self._lost:
                # it may hang for an hour after such a line; what answers all the same was accepted just before
                raise self._died(state, invocation)
            if self._clock() >= end:
                heard = f"/health_generate says {reply.status}" if reply.status else f"no answer ({reply.text})"
                if timeout <= 0:
                    loading = "" if log.said_ready(self._lines) else "; it is still loading, or stuck in it"
                    raise GateError(
                        "unhealthy",
                        "the engine runs and does not serve",
                        heard + loading,
                        journal=log.for_diagnosis(self._lines),
                    )
                raise GateError(
                    "never-ready",
                    "the engine did not get ready",
                    f"after {timeout:.0f} s: {heard}",
                    log.telling(self._lines),
                    log.for_diagnosis(self._lines),
                )
            self._sleep(0.5)

    def verify(self, check: Check, invocation: str, timeout: float) -> str:
        """Wait until this start serves, and prove it.

        Returns:
            The answer to the known-answer prompt.

        Raises:
            GateError: it does not, or not as it must.
        """
        self._begin()
        client = self._client(check)
        end = self._clock() + timeout
        self._watch(client, invocation, timeout)
        for owner in self._port_owners(check.host, check.port):
            # the engine says "fired up" beside a port that another server holds, and that one would answer here
            if not owner.belongs_to(self.unit):
                raise GateError(
                    "port-taken",
                    f"port {check.port} answers, but not from {self.unit}",
                    f"process {owner.pid} ({owner.command}) listens there",
                )
        names = served_names(client.ask("/v1/models"))
        if check.served_name not in names:
            why = f"/v1/models lists {', '.join(names) or 'nothing'}, not {check.served_name}"
            raise GateError("wrong-model", "the engine serves another model name", why)
        # the first sampled request compiles the sampling kernels and may stall all others for minutes: let it be ours
        client.complete(check.prompt, 4, max(end - self._clock(), 60.0), temperature=0.8)
        verdict = judge(client.complete(check.prompt, check.max_tokens, max(end - self._clock(), 60.0)), check.expect)
        if verdict.problem:
            state = self.system.show(self.unit)
            if state.ended or state.invocation != invocation:
                raise self._died(state, invocation)
            self._read_log(invocation)
            raise GateError(
                "insane-answer",
                "the engine answers wrongly",
                verdict.problem,
                journal=log.for_diagnosis(self._lines),
            )
        answer: str = verdict.answer
        return answer


class Activation:
    """Brings one unit to what is declared.

    Args:
        proxy: what has to know where the server is; a provision has a role of its own for that, and gives none.
    """

    def __init__(
        self,
        unit: str,
        paths: Paths,
        system: System,
        gate: Gate,
        clock: Callable[[], float] = time.monotonic,
        proxy: Follower | None = None,
    ) -> None:
        self.unit = unit
        self.paths = paths
        self.system = system
        self.gate = gate
        self._clock = clock
        self.proxy = proxy

    # -- what is there -------------------------------------------------------------------------------------------

    def present(self) -> Snapshot:
        """What the unit is made of now."""
        state = self.system.show(self.unit)
        return Snapshot(
            unit=files.read_text(self.paths.unit_file),
            environment=files.read_text(self.paths.environment_file),
            release=files.slot_release(self.paths.root, SLOT),
            active=not state.ended,
            enabled=state.enabled,
            check=self._verified_check(),
            secrets=files.read_text(self.paths.secrets_file),
        )

    def open_files(self) -> list[tuple[str, int, int]]:
        """Files of the unit whose mode or owner was changed: path, mode there, mode that it must have."""
        wanted = ((self.paths.unit_file, 0o644), (self.paths.environment_file, 0o600), (self.paths.secrets_file, 0o600))
        found = []
        for path, mode in wanted:
            with contextlib.suppress(FileNotFoundError):
                there = os.stat(path)
                if there.st_mode & 0o7777 != mode or (there.st_uid, there.st_gid) != (os.geteuid(), os.getegid()):
                    found.append((path, there.st_mode & 0o7777, mode))
        return found

    def close_files(self) -> None:
        """Give those files back their mode and owner, which needs no restart. Raises OSError."""
        for path, _, mode in self.open_files():
            os.chown(path, os.geteuid(), os.getegid())
            os.chmod(path, mode)

    def _verified_check(self) -> Check | None:
        text = files.read_text(self.paths.verified)
        return Check(**json.loads(text)["check"]) if text else None

    def interrupted(self) -> bool:
        """Whether an earlier activation of this host never came to its end."""
        return files.read_text(self.paths.marker) is not None

    # -- steps ---------------------------------------------------------------------------------------------------

    def _hold_restarts(self, hold: bool) -> None:
        """Keep systemd from starting a failing engine again and again while the gate watches one start."""
        drop_in = os.path.join(self.paths.runtime_units, self.unit + ".d", "50-rackwell-gate.conf")
        if hold:
            files.write(drop_in, "# removed when the gate has decided\n[Service]\nRestart=no\n")
        else:
            files.remove(drop_in)
        self.system.systemctl("daemon-reload")

    def _stop(self) -> None:
        if self.system.show(self.unit).loaded:
            self.system.systemctl("stop", self.unit)
            self._forget_failure()

    def _forget_failure(self) -> None:
        """The engine ends every drain by SIGKILL, which systemd counts as a failure; starts are counted too."""
        try:
            self.system.systemctl("reset-failed", self.unit)
        except CommandError:
            # a unit that is not loaded has nothing to reset
            return

    def _start(self, check: Check) -> Healthy:
        """Start, and pass the gate.

        Raises:
            GateError: this start is not accepted. It may still run.
        """
        begin = self._clock()
        self._hold_restarts(True)
        self._forget_failure()
        try:
            self.system.systemctl("start", self.unit)
        except CommandError as error:
            state = self.system.show(self.unit)
            if setup := exits.told(self.system, self.unit, state):
                raise GateError(setup.code, setup.what, setup.why) from error
            lines, _ = self.system.journal(state.invocation) if state.invocation else ([], "")
            raise GateError(
                "engine-died",
                "the engine could not be started",
                str(error),
                log.telling(lines),
                log.for_diagnosis(lines),
            ) from error
        invocation = self.system.show(self.unit).invocation
        answer = self.gate.verify(check, invocation, check.ready_timeout)
        ready = self._clock() - begin
        self._hold_restarts(False)
        return Healthy(invocation, round(ready, 1), answer)

    def _follow(self, check: Check) -> None:
        """Have the proxy ask what serves now. Raises GateError: clients would not reach it."""
        if self.proxy is None:
            return
        try:
            self.proxy.follow(check.host, check.port, check.api_key)
        except FollowError as error:
            what = "the proxy before the server does not go along"
            raise GateError("proxy-broken", what, str(error)) from error

    def stop(self) -> None:
        """Stop the unit as systemd stops it; its files stay. Raises CommandError."""
        self._stop()

    def return_by_itself(self, seconds: int) -> None:
        """Have systemd start the unit after so long, unless :meth:`forget_return`. Raises CommandError."""
        self.forget_return()
        self.system.run_later(_RETURN, seconds, ["systemctl", "start", self.unit])

    def returns(self) -> bool:
        """Whether :meth:`return_by_itself` is due."""
        return bool(self.system.show(_RETURN + ".timer").active == "active")

    def forget_return(self) -> None:
        """Take :meth:`return_by_itself` back, also one that was never ordered."""
        try:
            self.system.systemctl("stop", _RETURN + ".timer")
        except CommandError:
            # there is none
            return

    def start_present(self, check: Check) -> Healthy:
        """Start the unit as it is, and see it serve; systemd may go on trying when this start fails.

        Raises:
            GateError: this start does not serve.
        """
        begin = self._clock()
        self._forget_failure()
        try:
            self.system.systemctl("start", self.unit)
        except CommandError as error:
            if setup := exits.told(self.system, self.unit, self.system.show(self.unit)):
                raise GateError(setup.code, setup.what, setup.why) from error
            raise GateError("engine-died", "the engine could not be started", str(error)) from error
        invocation = self.system.show(self.unit).invocation
        answer = self.gate.verify(check, invocation, check.ready_timeout)
        self._follow(check)
        healthy = Healthy(invocation, round(self._clock() - begin, 1), answer)
        with contextlib.suppress(OSError):
            self._keep(self.present(), check, healthy)
        return healthy

    def _put(self, wanted: Snapshot) -> None:
        """Put files and slot in place; ``None`` removes. systemd reads them when restarts are held, or not any more."""
        for path, text, mode in (
            (self.paths.unit_file, wanted.unit, 0o644),
            # may hold tokens; systemd reads it as root
            (self.paths.environment_file, wanted.environment, 0o600),
            (self.paths.secrets_file, wanted.secrets, 0o600),
        ):
            if text is None:
                files.remove(path)
            elif not _is_there(path, text, mode):
                # a return must need no space for what is there already
                files.commit(files.stage(path, text, mode), path)
        files.switch_slot(self.paths.root, SLOT, wanted.release)

    # -- the whole -----------------------------------------------------------------------------------------------

    def begin(self, wanted: Snapshot, present: Snapshot) -> Snapshot:
        """Write down what is about to happen and what to return to; touches nothing that runs.

        Returns:
            What to return to. After an interrupted activation that is what ran before *it*: what is there now was
            never verified.

        Raises:
            OSError: no space, or not allowed.
        """
        earlier = files.read_text(self.paths.previous) if self.interrupted() else None
        back = Snapshot.from_json(earlier) if earlier else present
        files.write(self.paths.previous, back.as_json(), 0o600)
        # no space is found out here, and not after the stop
        for path, text, mode in (
            (self.paths.unit_file, wanted.unit or "", 0o644),
            (self.paths.environment_file, wanted.environment or "", 0o600),
            (self.paths.secrets_file, wanted.secrets or "", 0o600),
        ):
            files.remove(files.stage(path, text, mode))
        marker = {"unit": self.unit, "from": back.release, "to": wanted.release, "pid": os.getpid()}
        files.write(self.paths.marker, json.dumps(marker, sort_keys=True) + "\n", 0o600)
        files.append_record(self.paths.journal, event="activation-begun", **marker)
        return back

    def switch(self, wanted: Snapshot, check: Check) -> Healthy:
        """Stop, put in place, start, verify, and keep it.

        Raises:
            GateError, OSError, CommandError: it failed; :meth:`return_to` must follow.
        """
        self._stop()
        self._put(wanted)
        healthy = self._start(check)
        self._follow(check)
        if not self.system.show(self.unit).enabled:
            self.system.systemctl("enable", self.unit)
        self._keep(wanted, check, healthy)
        self._end("activated", release=wanted.release, ready_seconds=healthy.ready_seconds)
        return healthy

    def _keep(self, wanted: Snapshot, check: Check, healthy: Healthy) -> None:
        """Record a healthy verdict: what may be returned to later."""
        record = {"release": wanted.release, "invocation": healthy.invocation, "check": check._asdict()}
        files.write(self.paths.verified, json.dumps(record, sort_keys=True) + "\n", 0o600)

    def _end(self, event: str, **record: Any) -> None:
        files.append_record(self.paths.journal, event=event, unit=self.unit, **record)
        files.remove(self.paths.marker)

    def _end_of_return(self, event: str, **record: Any) -> None:
        """As :meth:`_end`; a full disk does not make a return fail that did not."""
        with contextlib.suppress(OSError):
            self._end(event, **record)
        with contextlib.suppress(OSError):
            files.remove(self.paths.marker)

    def return_to(self, back: Snapshot, fallback: Check) -> tuple[bool, Healthy | None, str]:
        """Return to what was before.

        Args:
            fallback: how to check it, when it was never verified by rackwell.

        Returns:
            Whether something runs again, what its verification showed (``None``: it failed), and what to tell.
        """
        self._stop()
        if not back.active:
            if back.unit is not None:
                self._put(back)
            else:
                self._disable()
            self._hold_restarts(False)
            self._end_of_return("left-stopped", release=back.release)
            return (
                False,
                None,
                "nothing ran before, and the unit is left stopped" + ("" if back.enabled else " and disabled"),
            )
        self._put(back)
        try:
            healthy = self._start(back.check or fallback)
            self._follow(back.check or fallback)
        except (GateError, CommandError, OSError) as error:
            self._hold_restarts(False)
            self._end_of_return("return-failed", release=back.release, why=str(error))
            return True, None, f"what ran before was put back, and does not serve: {error}"
        # the next change returns to what is asked like this, and no longer like what was taken back
        with contextlib.suppress(OSError):
            self._keep(back, back.check or fallback, healthy)
        self._end_of_return("returned", release=back.release, ready_seconds=healthy.ready_seconds)
        return True, healthy, f"release {(back.release or 'before')[:12]} is back and serves again"

    def put_back(self, back: Snapshot) -> None:
        """Put files and slot of what ran before in place and start nothing: the boot does. Raises OSError."""
        self._put(back)
        self._hold_restarts(False)
        if back.check is not None:
            # once more when it has started: nobody must be kept from that by a proxy
            with contextlib.suppress(GateError):
                self._follow(back.check)
        self._end("put-back", release=back.release)

    def _disable(self) -> None:
        try:
            self.system.systemctl("disable", self.unit)
        except CommandError:
            # not enabled, or no such unit: then it does not start at boot, which is all that is wanted
            return
