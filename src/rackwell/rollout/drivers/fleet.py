# SPDX-License-Identifier: Apache-2.0
"""The Proxmox hosts of a roll of drivers: each is moved with all of its containers, over Ansible.

The containers' own side (locks with their epochs, drains, health, benchmarks) is that of a roll of builds. A host does
not return by itself: a reboot that nobody looks at would be worse than a host that waits.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rackwell.ansible.results import PlayResult
from rackwell.errors import RackwellError
from rackwell.rollout.answers import of_play
from rackwell.rollout.drivers.benches import DriverBenches
from rackwell.rollout.drivers.move import Do, Seen, following, lacking, on_disk
from rackwell.rollout.drivers.pair import Pair
from rackwell.rollout.live import LiveFleet
from rackwell.rollout.plan import Plan
from rackwell.rollout.state import Host
from rackwell.rollout.steps import Change, Ended, Outcome, Step

DRIVER, USERSPACE = "rackwell.pve_driver", "rackwell.nvidia_userspace"
#: how long one look waits for a host that boots, and its pause between two tries
BOOT_WAIT_S, BOOT_PAUSE_S = 300.0, 10.0
_WORST = (Outcome.REFUSED, Outcome.UNREACHABLE, Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.OK)


def _with_fix(ended: Ended) -> Ended:
    """What mends a failure stands beside it: the roll's own words know no more than that it failed."""
    fix = str(ended.data.get("fix") or "")
    if ended.outcome is not Outcome.FAIL or not fix:
        return ended
    return dataclasses.replace(ended, why=f"{ended.why}; to mend it: {fix}", data={**ended.data, "fix": ""})


class DriverFleet(LiveFleet):
    """The hosts of one roll. Its targets are the containers; the roll's hosts are the Proxmox hosts."""

    def __init__(self, settings: Mapping[str, Any], *given: Any) -> None:
        super().__init__(*given)
        self._of = {name: list(told["containers"]) for name, told in settings["hosts"].items()}
        self._before = {name: Pair(**told["before"]) for name, told in settings["hosts"].items()}
        self._after = {name: Pair(**told["after"]) for name, told in settings["hosts"].items()}
        self._consent = bool(settings.get("allow_reboot"))
        self._epochs: dict[str, int] = {}
        self._benches = DriverBenches(self._targets, self._built, self._progress, self._ask, super()._look)
        self._benches.drivers = {
            container: self._before[name].version for name, containers in self._of.items() for container in containers
        }
        self._connecting = threading.Lock()

    # -- Fleet ---------------------------------------------------------------------------------------------------

    def perform(self, step: Step, host: Host, plan: Plan) -> Ended:
        """Do one step of a Proxmox host. See :class:`rackwell.rollout.run.Fleet`."""
        try:
            if step not in (Step.STAGE, Step.LOOK):
                self._reach(host.name)
            ended: Ended = getattr(self, f"host_{step}")(host, plan)
        except RackwellError as error:
            told = "; ".join(f"{problem.what}: {problem.why}".rstrip(": ") for problem in error.problems)
            return Ended({Step.PREFLIGHT: Outcome.FAIL, Step.STAGE: Outcome.FAIL}.get(step, Outcome.UNREACHABLE), told)
        return ended

    def forget(self, name: str) -> None:
        """No more signs of life to the containers of a host that was given up."""
        for container in self._of.get(name, [name]):
            super().forget(container)

    def stage(self, hosts: list[Host], plan: Plan) -> dict[str, Ended]:
        """Containers get their own side of a roll; what was kept on a host for the way back comes to this machine."""
        names = [name for host in hosts for name in (host.name, *self._of[host.name])]
        keep = {name: self._before[name].as_dict() for name in self._before}
        extra = {"__inference_server_roll_run": plan.run, "rackwell_driver_before": keep}
        played = self._play("driver_stage", names, extra)
        self._learn(played)
        return {host.name: self._all_of(host.name, played) for host in hosts}

    def host_stage(self, host: Host, plan: Plan) -> Ended:
        """One host."""
        return self.stage([host], plan)[host.name]

    def host_lock(self, host: Host, plan: Plan) -> Ended:
        """Every container of the host, or none."""
        taken: list[str] = []
        for name in self._of[host.name]:
            ended = self._lock(Host(name), plan)
            if ended.outcome is not Outcome.OK:
                for other in taken:
                    self._unlock(Host(other, epoch=self._epochs.pop(other)), plan)
                return Ended(ended.outcome, f"{name}: {ended.why}", ended.data)
            taken.append(name)
            self._epochs[name] = int(ended.data["epoch"])
        return Ended(
            Outcome.OK, data={"epoch": max(self._epochs[name] for name in taken), "epochs": dict(self._epochs)}
        )

    def host_unlock(self, host: Host, plan: Plan) -> Ended:
        """Every container that this process has locked; what it does not know of ends with its lease."""
        return self._each(host, lambda one: self._unlock(one, plan), known=True)

    def host_preflight(self, host: Host, plan: Plan) -> Ended:
        """The way back is known, what serves is healthy and measured, and the pair's files hold."""
        seen = self.seen(host.name, self._after[host.name])
        if isinstance(seen, Ended):
            return seen
        if seen.there:
            return Ended(Outcome.OK, "", {"already": True})
        return self._each(host, lambda one: self._preflight(one, plan))

    def host_drain(self, host: Host, plan: Plan) -> Ended:
        """All containers."""
        return self._each(host, lambda one: self._drain(one, plan))

    def host_undrain(self, host: Host, plan: Plan) -> Ended:
        """All containers."""
        return self._each(host, lambda one: self._undrain(one, plan), all_of_them=True)

    def host_switch(self, host: Host, plan: Plan) -> Ended:
        """Move; and when that fails, move back, verified."""
        fenced = self._fenced(host, plan)
        if fenced is not None:
            return fenced
        moved = _with_fix(self._move(host, self._after[host.name]))
        if moved.outcome is not Outcome.FAIL:
            return moved
        self._say(host.name, f"did not come to the new pair: {moved.why}")
        back = self._move(host, self._before[host.name])
        if back.outcome is Outcome.UNREACHABLE:
            return Ended(Outcome.UNREACHABLE, f"{moved.why}; on the way back: {back.why}")
        returned = back.outcome is Outcome.OK
        why = moved.why if returned else f"{moved.why}; and the way back failed: {_with_fix(back).why}"
        change = Change.RETURNED if returned else Change.BROKEN
        return Ended(Outcome.FAIL, why, {**moved.data, "change": str(change)})

    def host_bench(self, host: Host, plan: Plan) -> Ended:
        """The worst verdict of its containers, one after the other: they share the host."""
        if "bench" in plan.skip:
            return Ended(Outcome.OK, f"not asked: {plan.skip['bench']}")
        return self._each(host, lambda one: self._benches.judge(one, plan), all_of_them=True)

    def host_promote(self, host: Host, plan: Plan) -> Ended:
        """What is kept has to be there, and to serve, at this moment."""
        fenced = self._fenced(host, plan)
        if fenced is not None:
            return fenced
        seen = self.seen(host.name, self._after[host.name], serving=True)
        if isinstance(seen, Ended):
            return seen
        return Ended(Outcome.OK) if seen.done else Ended(Outcome.FAIL, lacking(seen))

    def host_return(self, host: Host, plan: Plan) -> Ended:
        """Move back to the pair of before, verified."""
        fenced = self._fenced(host, plan)
        if fenced is not None:
            return fenced
        # whatever led here: no container is moved while it gets requests
        parted = self.host_drain(host, plan)
        if parted.outcome is not Outcome.OK:
            return parted
        moved = _with_fix(self._move(host, self._before[host.name]))
        # one that the roll has drained is brought back by its own step
        return moved if moved.outcome is not Outcome.OK or host.drained else self.host_undrain(host, plan)

    def host_look(self, host: Host, plan: Plan) -> Ended:
        """Wait for a host that boots, and see which pair it has."""
        after = self._waited(host.name, self._after[host.name], serving=True, whole=True)
        if isinstance(after, Ended):
            return after
        before = self.seen(host.name, self._before[host.name], whole=True)
        if isinstance(before, Ended):
            return before
        self._reach(host.name)
        ours = False
        for name in self._of[host.name]:
            told = self._ask(Host(name), {"op": "look", "run": plan.run})
            if told.outcome is not Outcome.OK:
                # a lock that this run has there must not be taken for none
                return Ended(told.outcome, f"{name}: {told.why}")
            ours = ours or bool(told.data.get("ours"))
        change, unhealthy = Change.OPEN, not after.done
        if before.there and not after.there:
            change = Change.RETURNED if host.switched or host.reverting else Change.NONE
            unhealthy = False
        data = {"change": str(change), "ours": ours, "drained": host.drained, "unhealthy": unhealthy}
        return Ended(Outcome.OK, f"it was found half-way: {lacking(after)}" if unhealthy else "", data)

    # -- moves ---------------------------------------------------------------------------------------------------

    def _move(self, host: Host, pair: Pair) -> Ended:
        tried: Counter[Do] = Counter()
        said = ""
        kernel = f" and kernel {pair.kernel}" if pair.kernel else ""
        self._say(host.name, f"to driver {pair.version}{kernel}")
        while True:
            seen = self._waited(host.name, pair, serving=True)
            if isinstance(seen, Ended):
                return Ended(seen.outcome, "; ".join(filter(None, [said, seen.why])))
            part = following(seen, tried)
            if part is None:
                why = "; ".join(filter(None, [said, lacking(seen)]))
                return Ended(Outcome.OK) if seen.done else Ended(Outcome.FAIL, why)
            tried[part] += 1
            ended = self._part(host.name, part, pair)
            if ended.outcome is Outcome.FAIL:
                return ended
            said = ended.why

    def _say(self, name: str, text: str) -> None:
        """For who looks on: a step of a host takes minutes, and its way back looks like its way there."""
        self._progress.line(name, text)

    def _part(self, name: str, part: Do, pair: Pair) -> Ended:
        extra = pair.extra(allow_reboot=self._consent)
        if part is Do.HOST:
            return of_play(name, self._play("driver_host", [name], extra))
        return self._all_of(name, self._play("driver_containers", self._of[name], extra), only=self._of[name])

    def _waited(self, name: str, pair: Pair, *, serving: bool = False, whole: bool = False) -> Seen | Ended:
        """See, and wait for a host that boots."""
        end = time.monotonic() + BOOT_WAIT_S
        while True:
            seen = self.seen(name, pair, serving=serving, whole=whole)
            if isinstance(seen, Seen) or seen.outcome is not Outcome.UNREACHABLE or time.monotonic() > end:
                return seen
            time.sleep(BOOT_PAUSE_S)

    def seen(self, name: str, pair: Pair, *, serving: bool = False, whole: bool = False) -> Seen | Ended:
        """Host and containers, held against a pair; an ``Ended`` when the host itself cannot be seen.

        Args:
            serving: the servers are asked, too; otherwise they are taken as serving. whole: a container that cannot be
                seen is no container with other libraries; nothing is said then.
        """
        containers = self._of[name]
        played = self._play("driver_look", [name, *containers], pair.extra(allow_reboot=self._consent))
        told = played.payloads(DRIVER, name)
        if not told:
            ended = of_play(name, played)
            return ended if ended.outcome is not Outcome.OK else Ended(Outcome.UNREACHABLE, "the host told nothing")
        silent = {failure.host for failure in played.failures if failure.unreachable} | {
            each for each in containers if each not in played.hosts
        }
        if whole and silent:
            return Ended(Outcome.UNREACHABLE, f"{', '.join(sorted(silent))}: no answer")
        todo = told[-1]["todo"]
        right = {each: any(not one["needed"] for one in played.payloads(USERSPACE, each)) for each in containers}
        serves = dict.fromkeys(containers, True)
        if serving:
            self._learn(played)
            for each in containers:
                asked = self._ask(Host(each), {"op": "check"}, timeout=180)
                serves[each] = asked.outcome is Outcome.OK and bool(asked.data.get("healthy"))
        return Seen(on_disk(todo), not todo["reboot"], right, serves)

    # -- containers ----------------------------------------------------------------------------------------------

    def _fenced(self, host: Host, plan: Plan) -> Ended | None:
        """None when every container still is this process's: it refuses an epoch that is over."""
        for name in self._of[host.name]:
            request = {"op": "renew", "run": plan.run, "epoch": self._epochs.get(name, 0)}
            asked = self._ask(Host(name), request)
            if asked.outcome is Outcome.REFUSED:
                return Ended(Outcome.REFUSED, f"{name}: {asked.why}", asked.data)
        return None

    def _each(
        self, host: Host, do: Callable[[Host], Ended], *, known: bool = False, all_of_them: bool = False
    ) -> Ended:
        """The worst of what comes of a step with each container; ends at the first that is not well, unless told."""
        found: list[tuple[str, Ended]] = []
        for name in self._of[host.name]:
            if known and name not in self._epochs:
                continue
            ended = do(Host(name, epoch=self._epochs.get(name, 0), why=host.why))
            found.append((name, ended))
            if ended.outcome is not Outcome.OK and not all_of_them:
                break
        if not found:
            return Ended(Outcome.OK)
        name, worst = min(found, key=lambda one: _WORST.index(one[1].outcome))
        data = {each: dict(ended.data) for each, ended in found if ended.data}
        why = f"{name}: {worst.why}" if worst.why else ""
        return Ended(worst.outcome, why, {"containers": data} if data else {})

    def _all_of(self, name: str, played: PlayResult, only: list[str] | None = None) -> Ended:
        """What a play means for a host and its containers."""
        for each in only or [name, *self._of[name]]:
            ended = of_play(each, played)
            if ended.outcome is not Outcome.OK:
                return Ended(ended.outcome, ended.why if each == name else f"{each}: {ended.why}", ended.data)
        return Ended(Outcome.OK)

    def _reach(self, name: str) -> None:
        """Have it known how the containers are reached."""
        with self._connecting:
            missing = [each for each in self._of[name] if self.known[each].connection is None]
            if missing:
                self._learn(self._play("roll_look", missing, {}))
