# SPDX-License-Identifier: Apache-2.0
"""The fetch as a transient unit of systemd: it outlives the connection that began it, and may write its directory only.

The token reaches it by standard input, from a file in ``/run`` that only root can open, gone as soon as the unit runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import subprocess
import time
from typing import Any, Iterator, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils import (
    snapshot_fetch,
    snapshot_hub,
    snapshot_source,
    snapshot_store,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.snapshot_store import Place, SnapshotError

_PACKAGE = "ansible_collections.rackwell.gpu.plugins.module_utils"
_PARTS = (snapshot_fetch, snapshot_hub, snapshot_source, snapshot_store)
_SANDBOX = (
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
)


class Unit:
    """The unit of one snapshot on this host."""

    def __init__(
        self, place: Place, home: str = "/var/lib/rackwell-weights", run: str = "/run/rackwell-weights"
    ) -> None:
        key = "\0".join((os.path.abspath(place.directory), place.repository, place.revision))
        self.place, self.home, self.secrets = place, home, run
        self.key = hashlib.sha256(key.encode()).hexdigest()[:12]
        self.name = "rackwell-weights-%s.service" % self.key
        self.folder = os.path.join(home, self.key)
        self.job, self.state = os.path.join(self.folder, "job.json"), os.path.join(self.folder, "state.json")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else begins this unit meanwhile."""
        os.makedirs(self.secrets, mode=0o700, exist_ok=True)
        with open(os.path.join(self.secrets, self.key + ".lock"), "w", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def active(self) -> bool:
        """Whether it runs."""
        shown = subprocess.run(
            ["systemctl", "show", "--property=ActiveState", "--value", self.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            universal_newlines=True,
            check=False,
        )
        return shown.stdout.strip() in ("active", "activating", "deactivating", "reloading")

    def read(self) -> dict[str, Any]:
        """What the last run told; empty when there was none."""
        return _json(self.state)

    def run_id(self) -> str:
        """The run that was begun last."""
        return str(_json(self.job).get("run", ""))

    def start(self, job: dict[str, Any], user: str, python: str, token: str) -> None:
        """Begin a run. Raises SnapshotError when systemd refuses."""
        account = _account(user)
        program = self._program()
        os.makedirs(self.home, mode=0o755, exist_ok=True)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        os.chown(self.folder, account.pw_uid, account.pw_gid)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.state)
        job = {**job, "state": self.state}
        job["environment"] = {"HOME": self.folder, "HF_HOME": os.path.join(self.folder, "hub"), **job["environment"]}
        _write(self.job, json.dumps(job), account)
        secret = os.path.join(self.secrets, self.key + ".token")
        command = ["systemd-run", "--unit", self.name, "--collect", "--quiet", "--no-ask-password"]
        command += ["--description", "rackwell: %s at %s" % (self.place.repository, self.place.revision[:12])]
        properties = ["Type=exec", "User=" + user, "UMask=0022", "Nice=10", *_SANDBOX]
        writable = [self.folder] + ([self.place.parent] if job["repair"] else [])
        properties += ["ReadWritePaths=" + " ".join('"%s"' % path for path in writable)]
        if token:
            _write(secret, token, None)
            properties.append("StandardInput=file:" + secret)
        for one in properties:
            command += ["--property", one]
        command += ["--setenv=PYTHONPATH=" + program, "--setenv=PYTHONDONTWRITEBYTECODE=1"]
        command += [python, "-m", _PACKAGE + ".snapshot_fetch", self.job]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False
            )
        finally:
            # Type=exec: the unit has opened it when systemd-run returns
            with contextlib.suppress(FileNotFoundError):
                os.unlink(secret)
        if done.returncode != 0:
            why = " ".join(done.stdout.split())[-400:] or "systemd-run ended with %d" % done.returncode
            raise SnapshotError(
                "fetch-not-started",
                "systemd does not start the fetch",
                self.name,
                why,
                "see journalctl -u " + self.name,
            )

    def wait(self, seconds: float, enough: Optional[str] = None) -> bool:
        """Wait until it has ended, so long at most, or is past the phase ``enough``. Returns whether it runs."""
        deadline = time.monotonic() + seconds
        while self.active():
            if time.monotonic() > deadline or (enough and self.read().get("phase") not in (None, "listing", enough)):
                return True
            time.sleep(0.3)
        return False

    def last_words(self) -> str:
        """What the unit said last."""
        shown = subprocess.run(
            ["journalctl", "-u", self.name, "-n", "5", "--no-pager", "-o", "cat"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            universal_newlines=True,
            check=False,
        )
        return " ".join(shown.stdout.split())[-400:]

    def _program(self) -> str:
        """Put the program where the unit's user can read it; returns its place on Python's path."""
        sources = {}
        for part in _PARTS:
            loader: Any = part.__loader__
            sources[part.__name__.rpartition(".")[2]] = loader.get_source(part.__name__)
        version = hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:12]
        base = os.path.join(self.home, "program", version)
        folder = os.path.join(base, *_PACKAGE.split("."))
        os.makedirs(folder, mode=0o755, exist_ok=True)
        for name, text in sources.items():
            path = os.path.join(folder, name + ".py")
            if not os.path.exists(path) or _text(path) != text:
                _write(path, text, None, 0o644)
        return base


def ensure_parent(place: Place, user: str) -> None:
    """The repository's directory, which the unit's user may write. What is in it keeps its owner."""
    account = _account(user)
    os.makedirs(place.directory, mode=0o755, exist_ok=True)
    os.makedirs(place.parent, mode=0o755, exist_ok=True)
    found = os.stat(place.parent)
    if found.st_uid != account.pw_uid:
        os.chown(place.parent, account.pw_uid, account.pw_gid)


def _account(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        fix = "useradd --system --no-create-home --shell /usr/sbin/nologin " + user
        raise SnapshotError("user-missing", "user %s does not exist" % user, "/etc/passwd", "it fetches", fix) from None


def _json(path: str) -> dict[str, Any]:
    try:
        raw = json.loads(_text(path))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as stream:
        return stream.read()


def _write(path: str, text: str, account: Optional[pwd.struct_passwd], mode: int = 0o600) -> None:
    """Write by rename; nobody else can read it for a moment either."""
    fresh = path + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
        os.fchmod(stream.fileno(), mode)
        if account is not None:
            os.fchown(stream.fileno(), account.pw_uid, account.pw_gid)
    os.replace(fresh, path)
