# SPDX-License-Identifier: Apache-2.0
"""Bringing a host's platform to its declaration: boot options, and the unit that clears ACS. Never reboots."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import IO

from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_boot
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_boot import Boot
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_facts import HELPER, UNIT, UNIT_FILE
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_plan import Todo, Wanted
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError, problem

LOCK = "/run/rackwell-platform.lock"
#: seconds for systemctl; the unit's own limit is shorter
SYSTEMCTL_S = 120.0


def alone(host: Host) -> IO[str]:
    """Nobody else changes the platform while what is returned is open. Raises PveError ``busy``."""
    path = host.at(LOCK)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    stream = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (the lock is the open file)
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        why, fix = "another run changes its boot options or ports", "wait until it ends, then run again"
        raise problem("busy", "another run works on this host's platform", LOCK, why, fix) from None
    return stream


def boot(host: Host, todo: Todo, now: Boot) -> None:
    """Write the boot loader's files, and tell it; its own words when it refuses."""
    pve_platform_boot.write(host, todo.edit)
    if todo.tell:
        pve_platform_boot.tell_loader(host, now)


def unit(host: Host, todo: Todo, want: Wanted) -> None:
    """Have the unit and run it, or have it no longer.

    Raises:
        PveError: ``acs-not-cleared``, the ports refuse; ``unit-failed``, systemd does.
    """
    if todo.remove:
        # of a unit whose file is gone systemd knows nothing: that is the aim
        with contextlib.suppress(PveError):
            _systemctl(host, "disable", "--now", UNIT)
        for path in (UNIT_FILE, HELPER):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(host.at(path))
        _systemctl(host, "daemon-reload")
        return
    if todo.files:
        for path, text, mode in ((HELPER, want.helper, 0o755), (UNIT_FILE, want.unit, 0o644)):
            _write(host.at(path), text, mode)
        _systemctl(host, "daemon-reload")
    if todo.enable:
        _systemctl(host, "enable", UNIT)
    if todo.run:
        try:
            _systemctl(host, "restart", UNIT)
        except PveError as error:
            said = host.run([host.at(HELPER), "--look"] if host.root != "/" else [HELPER], SYSTEMCTL_S).stdout
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            raise problem(
                "acs-not-cleared",
                "ACS could not be cleared on every port above the GPUs",
                UNIT,
                "; ".join(lines[:4]) or error.finding.why,
                "journalctl -b -u %s; turn ACS off in the BIOS (AMD CBS, PCIe), and in the switch's settings" % UNIT,
            ) from error


def _write(path: str, text: str, mode: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(path + ".new", mode)
    os.replace(path + ".new", path)


def _systemctl(host: Host, *words: str) -> None:
    done = host.run(["systemctl", *words], SYSTEMCTL_S)
    if done.returncode:
        said = " ".join(line.strip() for line in done.stdout.splitlines()[-3:]) or "it said nothing"
        command = "systemctl " + " ".join(words)
        raise problem("unit-failed", "`%s` failed" % command, UNIT, said, "systemctl status %s" % UNIT)
