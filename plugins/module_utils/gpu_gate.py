# SPDX-License-Identifier: Apache-2.0
"""The boot gate on its container: the two files that it is made of, its unit, and the verdict it left."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import subprocess
from typing import Any, NamedTuple, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import CommandError, System

UNIT = "rackwell-gpu-gate.service"
#: beyond the check's own deadline: for its interpreters to come up and its children to be killed, seconds
ALLOWANCE = 180
#: keys of the configuration that a verdict depends on
DECIDING = ("gpus", "expect", "hold_on")

_UNIT_TEXT = """\
# Written by rackwell. Changes made here are undone by its next run.
[Unit]
Description=Boot gate: the GPUs are checked before the inference server may start (rackwell)
After=local-fs.target
Before=rackwell-inference.service

[Service]
Type=oneshot
RemainAfterExit=yes
User={user}
# its verdict has to outlive it, and goes with this start of the container: /run is empty after the next one
RuntimeDirectory=rackwell
RuntimeDirectoryPreserve=yes
WorkingDirectory=/
ExecStart={python} -I -m rackwell.probe gate --config {config} --out {out}
# the check ends itself after {timeout} s; this is for one that cannot
TimeoutStartSec={limit}
TimeoutStopSec=30
LimitMEMLOCK=infinity
# What held when it was tried on this machine. Not PrivateDevices, DevicePolicy, ProtectClock, MemoryDenyWriteExecute,
# ProtectKernelTunables, ProtectControlGroups, ProtectProc or ProcSubset: they hide the GPUs, break the driver's
# compiler, or cannot be set up in an unprivileged container.
{sandbox}

[Install]
WantedBy=multi-user.target
"""
_PLAIN = re.compile(r"/[A-Za-z0-9_./+-]*")


class Wanted(NamedTuple):
    """The gate as declared."""

    root: str
    user: str
    gpus: int
    expect: dict[str, Any]
    hold_on: str
    timeout: int
    size: int
    container: str
    baseline: str
    sandbox: tuple[str, ...] = ()


class Places(NamedTuple):
    """Where things lie; tests give others."""

    unit: str = "/etc/systemd/system/" + UNIT
    config: str = "/etc/rackwell/gate.json"
    out: str = "/run/rackwell/gate.json"

    @property
    def request(self) -> str:
        """Asks the next run for the full check."""
        return os.path.splitext(self.out)[0] + ".full"

    @property
    def partial(self) -> str:
        """A run that has not come to its verdict."""
        return os.path.splitext(self.out)[0] + ".partial"


def python(root: str) -> str:
    """The probe's interpreter."""
    return os.path.join(root, "probe", "env", "bin", "python")


def unit_text(wanted: Wanted, places: Places) -> str:
    """The unit file. Raises ValueError for a path that systemd would read otherwise."""
    for path in (wanted.root, places.config, places.out):
        if not _PLAIN.fullmatch(path):
            raise ValueError(f"{path!r} cannot stand in a unit file")
    return _UNIT_TEXT.format(
        user=wanted.user,
        python=python(wanted.root),
        config=places.config,
        out=places.out,
        timeout=wanted.timeout,
        limit=wanted.timeout + ALLOWANCE,
        sandbox="\n".join(wanted.sandbox),
    )


def config_text(wanted: Wanted) -> str:
    """The gate's configuration, rackwell.gate_config/1."""
    config = {
        "schema": "rackwell.gate_config/1",
        "container": wanted.container,
        "gpus": wanted.gpus,
        "expect": wanted.expect,
        "baseline": wanted.baseline,
        "hold_on": wanted.hold_on,
        "timeout": wanted.timeout,
        "size": wanted.size,
        "full": False,
    }
    return json.dumps(config, indent=2, sort_keys=True) + "\n"


class Look(NamedTuple):
    """What the probe says of the verdict: its state, a code, one line, and what to do."""

    state: str
    code: str
    line: str
    fix: str


class Gate:
    """The boot gate of this container."""

    def __init__(self, wanted: Wanted, declared: bool, places: Places, system: System) -> None:
        self.wanted = wanted
        self.places = places
        self.system = system
        self.texts: dict[str, Optional[str]] = {
            places.config: config_text(wanted) if declared else None,
            places.unit: unit_text(wanted, places) if declared else None,
        }
        self.declared = declared

    # -- the files -----------------------------------------------------------------------------------------------

    def differences(self) -> dict[str, tuple[Optional[str], Optional[str]]]:
        """Path -> (text that is there, text that is declared), where they differ; None for no file."""
        return {path: (now, text) for path, text in self.texts.items() if (now := files.read_text(path)) != text}

    def enabled(self) -> bool:
        """Whether it runs at boot."""
        return bool(self.system.show(UNIT).enabled)

    def deciding_changed(self) -> bool:
        """Whether the declared configuration could come to another verdict than the one that is there."""
        try:
            before = json.loads(files.read_text(self.places.config) or "{}")
            return any(before.get(key) != json.loads(config_text(self.wanted))[key] for key in DECIDING)
        except (ValueError, AttributeError):
            return True

    def put(self) -> None:
        """Bring files and unit to what is declared; a verdict that no longer counts goes first.

        Raises:
            OSError, CommandError: it cannot be done.
        """
        if not self.declared:
            with contextlib.suppress(CommandError):
                self.system.systemctl("disable", "--now", UNIT)
            for path in (self.places.out, self.places.partial, self.places.request):
                files.remove(path)
        elif self.deciding_changed():
            files.remove(self.places.out)
        for path, (_before, text) in self.differences().items():
            if text is None:
                files.remove(path)
            else:
                files.write(path, text)
        self.system.systemctl("daemon-reload")
        if self.declared and not self.enabled():
            self.system.systemctl("enable", UNIT)

    # -- the verdict ---------------------------------------------------------------------------------------------

    def look(self) -> Look:
        """What the verdict is worth now, asked of the probe.

        Raises:
            OSError, ValueError: the probe does not run, or does not answer.
        """
        command = [python(self.wanted.root), "-I", "-m", "rackwell.probe", "require", "--json"]
        command += ["--gate", self.places.out, "--container", self.wanted.container]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd="/", check=False)
        try:
            said = json.loads(done.stdout)
            return Look(str(said["state"]), str(said["code"]), str(said["line"]), str(said["fix"]))
        except (ValueError, LookupError, TypeError) as error:
            why = done.stderr.strip().splitlines()[-1:] or ["it says nothing"]
            raise ValueError(f"status {done.returncode}: {why[0]}") from error

    def verdict(self, report: bool) -> dict[str, Any]:
        """The verdict as it lies there, whatever it is worth; empty when none can be read."""
        try:
            found = json.loads(files.read_text(self.places.out) or "{}")
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict):
            return {}
        return found if report else {key: value for key, value in found.items() if key != "report"}

    def run(self, full: bool) -> str:
        """Run it and wait for its end; empty, or what systemd says of a run that failed.

        Raises:
            OSError: the full check cannot be asked for.
        """
        if full:
            self._ask_for_full()
        with contextlib.suppress(CommandError):
            # nothing failed yet; starts in a short time are counted
            self.system.systemctl("reset-failed", UNIT)
        try:
            self.system.systemctl("restart", UNIT)
        except CommandError as error:
            return str(error)
        return ""

    def _ask_for_full(self) -> None:
        folder = os.path.dirname(self.places.out)
        account = pwd.getpwnam(self.wanted.user)
        if not os.path.isdir(folder):
            os.makedirs(folder, 0o755)
            os.chown(folder, account.pw_uid, account.pw_gid)
        handle = os.open(self.places.request, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        os.close(handle)
