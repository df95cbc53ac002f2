# SPDX-License-Identifier: Apache-2.0
"""Debian's nginx under systemd, as far as the proxy needs it."""

from __future__ import annotations

import glob
import os
import re
import subprocess
from collections.abc import Iterable

UNIT = "nginx.service"
PROGRAM = "/usr/sbin/nginx"
#: in the unit's own directory, which goes with its process: the drop-in that it was started with
MARK = "unit"


class NginxError(Exception):
    """A command failed; the text is what it said."""


class Nginx:
    """The one of this machine. `run`, `cache`: the directories that its unit makes at each start."""

    def __init__(self, run: str, cache: str) -> None:
        self.run, self.cache = run, cache

    def installed(self) -> bool:
        """Whether there is one."""
        return os.access(PROGRAM, os.X_OK)

    def test(self, configuration: str) -> None:
        """Hold a configuration against nginx itself.

        Raises:
            NginxError: it does not take it.
        """
        # the unit makes them when it starts; the check would fail for the want of them
        for folder in (self.run, self.cache):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        self._run(PROGRAM, "-e", "stderr", "-t", "-q", "-c", configuration)

    def started_with(self) -> str | None:
        """The drop-in that it was started with; empty for one that is not rackwell's, None when it does not run."""
        pid = self._told("MainPID")
        if pid in ("", "0"):
            return None
        # not in its environment: nginx writes over that
        try:
            with open(os.path.join(self.run, MARK), encoding="ascii", errors="replace") as stream:
                return stream.read().strip()
        except OSError:
            return ""

    def enabled(self) -> bool:
        """Whether it starts with the machine."""
        return self._told("UnitFileState").startswith("enabled")

    def do(self, *verbs: str) -> None:
        """``systemctl VERB`` of each of `verbs`.

        Raises:
            NginxError: one failed; with the last lines of its journal.
        """
        for verb in verbs:
            unit = [] if verb == "daemon-reload" else [UNIT]
            try:
                self._run("systemctl", verb, *unit)
            except NginxError as error:
                raise NginxError(" ".join([str(error), *self._journal()])) from None

    def other_sites(self) -> list[str]:
        """What it serves besides the page that the package brings."""
        found = glob.glob("/etc/nginx/sites-enabled/*") + glob.glob("/etc/nginx/conf.d/*.conf")
        return sorted(path for path in found if path != "/etc/nginx/sites-enabled/default")

    def _told(self, what: str) -> str:
        done = subprocess.run(
            ["systemctl", "show", UNIT, "--value", "--property=" + what], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    def _journal(self) -> list[str]:
        done = subprocess.run(
            ["journalctl", "--quiet", "--no-pager", "--output=cat", "--lines=5", "--unit=" + UNIT],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        return [line.strip() for line in done.stdout.splitlines()]

    def _run(self, *command: str) -> None:
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise NginxError("%s: %s" % (command[0], error.strerror or error)) from None
        if done.returncode != 0:
            raise NginxError(
                " ".join((done.stderr or done.stdout).split()) or "%s ended with %d" % (command[0], done.returncode)
            )


def without(secrets: Iterable[str], text: str) -> str:
    """`text` with every secret in it covered, in whatever case: nginx tells of a map's lines in small letters."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = re.sub(re.escape(secret), "***", text, flags=re.IGNORECASE)
    return text
