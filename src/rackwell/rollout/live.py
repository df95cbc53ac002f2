# SPDX-License-Identifier: Apache-2.0
"""The real hosts of a roll: plays where Ansible knows how, else one ssh command to the host's own program."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rackwell.ansible import ssh
from rackwell.ansible.results import PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import RackwellError
from rackwell.provision import builds, explaining
from rackwell.provision.builds import Built
from rackwell.provision.declared import Target
from rackwell.provision.progress import Progress
from rackwell.rollout import answers
from rackwell.rollout.benches import Benches
from rackwell.rollout.plan import Plan
from rackwell.rollout.routers import Routers
from rackwell.rollout.state import Host
from rackwell.rollout.steps import Change, Ended, Outcome, Step

LAUNCHER = "/usr/local/lib/rackwell/rollout-agent"
SCHEMA = "rackwell.rollout_host/1"
#: seconds between two signs of life to the hosts that are held, and what a lease lasts without one
RENEW_S, LEASE_S = 20.0, 120
#: pause between two looks for a host that does not answer, longer each time: a container boots in half a minute
LOOK_PAUSE_S = 5.0
#: for a drain hook
HOOK_S = 300.0


@dataclasses.dataclass
class Known:
    """What is known of a host beside the roll's state."""

    connection: ssh.Connection | None = None


class LiveFleet:
    """The hosts of one roll.

    Args:
        built: the releases, that of the roll under ``release``. owner: who holds the hosts' locks.
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        built: dict[str, Built],
        run: RunDirectory,
        progress: Progress,
        owner: str,
        hooks: Path | None = None,
    ) -> None:
        self._targets, self._built, self._directory, self._progress = targets, built, run, progress
        self._owner, self._hooks = owner, hooks
        site = next(iter(targets.values())).site
        self._routers = Routers(site, lambda names: self._play("router_look", names, {}))
        self.known = {name: Known() for name in targets}
        self._benches = Benches(targets, built, progress, self._ask, self._look)
        self._looking = threading.Lock()
        self._plays = itertools.count(1)
        self._held: dict[str, tuple[str, int]] = {}
        self._over = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True, name="renew")
        self._beating.start()

    # -- Fleet ---------------------------------------------------------------------------------------------------

    def perform(self, step: Step, host: Host, plan: Plan) -> Ended:
        """Do one step. See :class:`rackwell.rollout.run.Fleet`."""
        if step is not Step.STAGE and self.known[host.name].connection is None:
            self._connect(plan)
            if self.known[host.name].connection is None:
                return Ended(Outcome.UNREACHABLE, "Ansible cannot reach it either")
        try:
            ended: Ended = getattr(self, f"_{step}")(host, plan)
        except RackwellError as error:
            # of this machine, such as a disk that is full: the host did nothing
            told = "; ".join(f"{problem.what}: {problem.why}".rstrip(": ") for problem in error.problems)
            return Ended({Step.PREFLIGHT: Outcome.FAIL, Step.STAGE: Outcome.FAIL}.get(step, Outcome.UNREACHABLE), told)
        return ended

    def close(self) -> None:
        """No more signs of life to any host: the roll is over, or this process is no part of it any more."""
        self._over.set()

    def forget(self, name: str) -> None:
        """No more signs of life to a host that was given up: what is open there is to return by itself."""
        self._held.pop(name, None)

    def stage(self, hosts: list[Host], plan: Plan) -> dict[str, Ended]:
        """All hosts in one play."""
        names = [host.name for host in hosts]
        played = self._play("roll_stage", names, {"__inference_server_roll_run": plan.run})
        self._learn(played)
        return {name: self._staged(name, plan, played) for name in names}

    def _staged(self, name: str, plan: Plan, played: PlayResult) -> Ended:
        ended = answers.of_play(name, played)
        if ended.outcome is not Outcome.OK:
            return ended
        if self.known[name].connection is None:
            return Ended(Outcome.FAIL, "the play told nothing of this host")
        staged = [str(told.get("digest")) for told in played.payloads("rackwell.release_store", name)]
        if plan.release not in staged:
            found = ", ".join(digest[:12] for digest in staged) or "nothing"
            return Ended(
                Outcome.FAIL, f"{found} was staged, and not {plan.release[:12]}: what declares release_bundle?"
            )
        return ended

    def _stage(self, host: Host, plan: Plan) -> Ended:
        return self.stage([host], plan)[host.name]

    def _lock(self, host: Host, plan: Plan) -> Ended:
        ended = self._ask(host, {"op": "lock", "run": plan.run, "owner": self._owner, "lease_s": LEASE_S})
        if ended.outcome is Outcome.OK:
            self._held[host.name] = (plan.run, int(ended.data["epoch"]))
        return ended

    def _unlock(self, host: Host, plan: Plan) -> Ended:
        self._held.pop(host.name, None)
        if host.held:
            # a person may not come before the deadline that is meant for a dead controller
            hold = {
                "op": "hold",
                "run": plan.run,
                "epoch": host.epoch,
                "hold_s": int(plan.settings.get("hold_s", 86400)),
            }
            held = self._ask(host, hold)
            if held.outcome is not Outcome.OK:
                return held
        return self._ask(host, {"op": "unlock", "run": plan.run, "epoch": host.epoch})

    def _preflight(self, host: Host, plan: Plan) -> Ended:
        """What there is to return to must serve, and must have been measured."""
        told = self._ask(host, {"op": "preflight", "run": plan.run}, timeout=180)
        if told.outcome is not Outcome.OK:
            return told
        self._benches.serving[host.name] = str(told.data.get("release") or "")
        # unit and environment come from the profile, not from the release
        if told.data.get("differs") == [] and told.data["healthy"]:
            return Ended(Outcome.OK, "", {"already": True})
        if told.data.get("differs") is None and not plan.settings.get("driver"):
            return Ended(Outcome.FAIL, "nothing is prepared there for this roll any more: begin it anew")
        # before minutes are spent on a baseline
        routed = self._routers.look(host.name)
        if routed.outcome is not Outcome.OK:
            return routed
        if not told.data["healthy"] and "healthy" not in plan.skip:
            return Ended(Outcome.FAIL, f"what it serves now could not be returned to: {told.data['why']}")
        if "bench" in plan.skip:
            return Ended(Outcome.OK)
        return self._benches.baseline(host, plan)

    def _drain(self, host: Host, plan: Plan) -> Ended:
        ended = self._routers.drain(host.name, plan.run)
        return ended if ended.outcome is not Outcome.OK else self._hook("drain", host, plan)

    def _undrain(self, host: Host, plan: Plan) -> Ended:
        ended = self._routers.undrain(host.name)
        hooked = self._hook("undrain", host, plan)
        return ended if ended.outcome is not Outcome.OK else hooked

    def _hook(self, name: str, host: Host, plan: Plan) -> Ended:
        """SITE/hooks/NAME CONTAINER, on this machine: takes a host out of rotation, or back."""
        program = self._hooks / name if self._hooks is not None else None
        if program is None or not program.exists():
            return Ended(Outcome.OK)
        environment = {**os.environ, "RACKWELL_RUN": plan.run, "RACKWELL_RELEASE": plan.release}
        try:
            done = subprocess.run(
                [str(program), host.name],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=HOOK_S,
                check=False,
                env=environment,
                stdin=subprocess.DEVNULL,
                # a Ctrl-C on the terminal is not meant for it
                start_new_session=True,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Ended(Outcome.FAIL, f"{program}: {error}")
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-300:]
            return Ended(Outcome.FAIL, f"{program} ended with {done.returncode}: {said}")
        return Ended(Outcome.OK)

    def _switch(self, host: Host, plan: Plan) -> Ended:
        confirm = int(plan.settings.get("confirm_s", 120))
        asked = self._ask(
            host, {"op": "switch", "run": plan.run, "epoch": host.epoch, "confirm_s": confirm}, timeout=180
        )
        for lack in asked.data.get("lacking") or []:
            told = {"code": lack["code"], "fix": lack["fix"], "change": str(Change.NONE)}
            return Ended(Outcome.FAIL, f"{lack['what']}: {lack['why']}; nothing was touched", told)
        if asked.outcome in (Outcome.UNREACHABLE, Outcome.REFUSED):
            return asked
        # what became of it only the host knows, also when it could not even begin
        knows = self._known_of(host, plan)
        if knows.outcome is not Outcome.OK:
            # it may have switched, and be about to return by itself: what it does not say is not known
            return Ended(Outcome.UNREACHABLE, asked.why or knows.why)
        change = knows.data.get("change") or {}
        looked = answers.looked(host, knows.data)
        if change.get("state") in ("open", "promoted"):
            return Ended(Outcome.OK, data={"seconds": change.get("seconds")})
        if looked.change is Change.OPEN or (looked.change is Change.NONE and asked.outcome is Outcome.OK):
            # neither switched nor returned, and nothing works on it: the next look will show
            return Ended(Outcome.UNREACHABLE, asked.why or "the work on the host ended without a word")
        return self._lost_start(host, change, asked.why or looked.why, looked)

    def _lost_start(self, host: Host, change: Mapping[str, Any], why: str, looked: Ended) -> Ended:
        """A start that the host did not accept, with what the diagnosis rules make of its log."""
        target = self._targets[host.name]
        finding = explaining.finding_in(
            change.get("journal") or [], explaining.known(target.site, target.container, self._built)
        )
        told = {**looked.data, "code": str(change.get("code") or "")}
        if finding is not None:
            why, told = f"{explaining.sentence(finding)}. {why}", {**told, "fix": finding.remedy}
        return Ended(Outcome.FAIL, why, told)

    def _bench(self, host: Host, plan: Plan) -> Ended:
        if "bench" in plan.skip:
            return Ended(Outcome.OK, f"not asked: {plan.skip['bench']}")
        return self._benches.judge(host, plan)

    def _promote(self, host: Host, plan: Plan) -> Ended:
        return self._ask(host, {"op": "promote", "run": plan.run, "epoch": host.epoch})

    def _return(self, host: Host, plan: Plan) -> Ended:
        asked = self._ask(host, {"op": "return", "run": plan.run, "epoch": host.epoch, "why": host.why or "asked for"})
        if asked.outcome in (Outcome.UNREACHABLE, Outcome.REFUSED):
            return asked
        looked = self._look(host, plan)
        if looked.outcome is not Outcome.OK:
            return looked
        if looked.change is Change.RETURNED:
            return Ended(Outcome.OK, "", looked.data)
        why = str((looked.data.get("told") or {}).get("why") or asked.why or "it did not return")
        # only the host says that what ran before does not serve; anything else is asked for again
        return Ended(Outcome.FAIL if looked.change is Change.BROKEN else Outcome.UNREACHABLE, why, looked.data)

    def _look(self, host: Host, plan: Plan) -> Ended:
        """Wait for what the host is in the middle of, and ask."""
        if host.looks:
            time.sleep(LOOK_PAUSE_S * host.looks)
        told = self._known_of(host, plan)
        return told if told.outcome is not Outcome.OK else answers.looked(host, told.data)

    def _known_of(self, host: Host, plan: Plan) -> Ended:
        """What the host knows, in its own words, once it is in the middle of nothing."""
        while True:
            told = self._ask(host, {"op": "look", "run": plan.run, "wait_s": 20}, timeout=60)
            if told.outcome is not Outcome.OK or not told.data.get("working"):
                return told

    # -- how -----------------------------------------------------------------------------------------------------

    def _ask(self, host: Host, request: dict[str, Any], timeout: float = 60.0) -> Ended:
        """Over a connection of its own: a shared one outlives a host key that has changed."""
        connection = self.known[host.name].connection
        if connection is None:
            return Ended(Outcome.UNREACHABLE, "it is not known how it is reached")
        said = ssh.ask(connection, [LAUNCHER, "ask"], json.dumps(request), timeout=timeout)
        ended = answers.answered(said)
        if ended.outcome is Outcome.REFUSED:
            self.forget(host.name)
        return ended

    def _beat(self) -> None:
        """Renew what is held, for as long as this process lives."""
        while not self._over.wait(RENEW_S):
            for name, (run, epoch) in list(self._held.items()):
                host = Host(name, epoch=epoch)
                threading.Thread(
                    target=self._ask, args=(host, {"op": "renew", "run": run, "epoch": epoch}), daemon=True
                ).start()

    def _connect(self, plan: Plan) -> None:
        with self._looking:
            missing = [name for name in plan.hosts if self.known[name].connection is None]
            if missing:
                self._learn(self._play("roll_look", missing, {"__inference_server_roll_run": plan.run}))

    def _learn(self, played: PlayResult) -> None:
        for report in played.results:
            if report.schema != SCHEMA or report.host not in self.known:
                continue
            known = self.known[report.host]
            known.connection = ssh.Connection.from_dict(report.payload["connection"])
            if not self._benches.serving.get(report.host):
                self._benches.serving[report.host] = str(report.payload.get("release") or "")

    def _play(self, name: str, hosts: list[str], extra: dict[str, Any], *, check: bool = False) -> PlayResult:
        # a router may be none of them
        first = self._targets.get(hosts[0]) or next(iter(self._targets.values()))
        directory = RunDirectory(self._directory.path / f"{next(self._plays):03}-{name}")
        directory.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        from rackwell.ansible import runner

        return runner.play(
            name,
            first.site.path,
            directory,
            hosts,
            listener=self._progress.step,
            check=check,
            # what is rolled, whatever a container declares
            extra={
                **builds.bundles(first.container, self._built),
                "release_bundle": str(self._built["release"].path),
                **extra,
            },
        )


class LiveWorkers:
    """A thread a step; staging is one play for all hosts that are to be staged."""

    def __init__(self, fleet: LiveFleet, plan: Plan, threads: Callable[[], Any]) -> None:
        self._fleet, self._plan = fleet, plan
        self._threads = threads()
        self._stage: list[Host] = []

    def begin(self, host: Host, step: Step) -> None:
        """Start a step."""
        if step is Step.STAGE:
            self._stage.append(host)
        else:
            self._threads.begin(host, step)

    def wait(self) -> tuple[str, Step, Ended] | None:
        """The next that ended."""
        if self._stage:
            hosts, self._stage = self._stage, []
            self._threads.together(hosts, Step.STAGE, lambda: self._fleet.stage(hosts, self._plan))
        found: tuple[str, Step, Ended] | None = self._threads.wait()
        return found

    def wake(self) -> None:
        """Have :meth:`wait` return None."""
        self._threads.wake()
