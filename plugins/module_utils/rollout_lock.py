# SPDX-License-Identifier: Apache-2.0
"""Who may change this host during a roll: a run, with an epoch that never goes back, and a lease.

A lease alone excludes nobody: its holder can be stopped, and go on after it is over. So every step carries the epoch
that it got with the lock, and the host refuses one that is not the newest it has given. Times are CLOCK_BOOTTIME, which
nobody can set; a reboot ends a lease.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, NamedTuple

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files


class Moment(NamedTuple):
    """Now: the kernel's boot and the seconds since."""

    boot_id: str
    uptime: float


def now() -> Moment:
    """This moment."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return Moment(stream.read().strip(), time.clock_gettime(time.CLOCK_BOOTTIME))


class Lock(NamedTuple):
    """A lock as it lies on the disk.

    Attributes:
        owner: who, for people. lease_s: seconds from ``taken``, on the boot's clock; then another run may have it.
    """

    run: str
    owner: str
    epoch: int
    lease_s: float
    taken: float
    boot_id: str

    def over(self, moment: Moment) -> bool:
        """Whether the lease has run out."""
        return self.boot_id != moment.boot_id or moment.uptime - self.taken > self.lease_s

    def told(self, moment: Moment) -> dict[str, Any]:
        """For people and for the controller."""
        left = 0.0 if self.over(moment) else self.lease_s - (moment.uptime - self.taken)
        age = moment.uptime - self.taken if self.boot_id == moment.boot_id else None
        return {
            "run": self.run,
            "owner": self.owner,
            "epoch": self.epoch,
            "age_s": None if age is None else round(age, 1),
            "left_s": round(left, 1),
        }


class RefusedError(Exception):
    """The host does not let this run do it. ``lock`` is whose it is, when it is somebody's."""

    def __init__(self, why: str, lock: dict[str, Any] | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.lock = lock


class Locks:
    """The lock and the newest epoch of this host. One process at a time uses it (see :func:`files.exclusive`)."""

    def __init__(self, directory: str, moment: Callable[[], Moment] = now) -> None:
        self._lock = os.path.join(directory, "lock.json")
        self._epoch = os.path.join(directory, "epoch")
        self._moment = moment

    def present(self) -> Lock | None:
        """The lock that lies there, also one whose lease is over."""
        text = files.read_text(self._lock)
        return Lock(**json.loads(text)) if text else None

    def epoch(self) -> int:
        """The newest epoch that was given; 0 before the first."""
        return int(files.read_text(self._epoch) or 0)

    def take(self, run: str, owner: str, lease_s: float) -> Lock:
        """Take the host, with a new epoch. A run takes its own lock anew: its process before is refused from now on.

        Raises:
            RefusedError: another run holds it. OSError: it cannot be written.
        """
        moment = self._moment()
        held = self.present()
        if held is not None and held.run != run and not held.over(moment):
            told = held.told(moment)
            raise RefusedError(f"run {held.run} of {held.owner} holds it for {told['left_s']:.0f} s more", told)
        lock = Lock(run, owner, self.epoch() + 1, lease_s, moment.uptime, moment.boot_id)
        # the epoch first: one that was promised and is not there would let an old process through
        files.write(self._epoch, f"{lock.epoch}\n", 0o600)
        files.write(self._lock, json.dumps(lock._asdict(), sort_keys=True) + "\n", 0o600)
        return lock

    def check(self, run: str, epoch: int) -> Lock:
        """Let the holder through, and begin its lease anew.

        Raises:
            RefusedError: the epoch is not the newest, or the lock is not this run's.
        """
        moment = self._moment()
        held = self.present()
        if epoch != self.epoch():
            told = held.told(moment) if held else None
            raise RefusedError(f"epoch {epoch} is over: the newest is {self.epoch()}", told)
        if held is None or held.run != run:
            raise RefusedError("the lock is not this run's", held.told(moment) if held else None)
        renewed = held._replace(taken=moment.uptime, boot_id=moment.boot_id)
        files.write(self._lock, json.dumps(renewed._asdict(), sort_keys=True) + "\n", 0o600)
        return renewed

    def release(self) -> None:
        """Let it go; the epoch stays."""
        files.remove(self._lock)
