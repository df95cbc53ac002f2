# SPDX-License-Identifier: Apache-2.0
"""Debian packages with all that they need, by apt itself: it checks the archive's signatures and every hash."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rackwell.errors import Problem, RackwellError

SECONDS = 1200
_FORMAT = "$(SITE)|$(ORIGIN)|$(LABEL)|$(COMPONENT)"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclasses.dataclass(frozen=True)
class Deb:
    """A package file that apt brought."""

    path: Path
    package: str
    version: str


class Archive:
    """An apt of its own in `folder`, for one suite, beside that of the machine, whose source and proxies it uses.

    Raises:
        RackwellError: there is no apt, or its sources do not answer (exit 1).
    """

    def __init__(self, folder: Path, suite: str) -> None:
        self.suite = suite
        self._folder = folder
        for name in ("lists/partial", "archives/partial", "etc/preferences.d", "etc/apt.conf.d"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        # nothing is installed: what is asked for comes with all that it needs
        (folder / "status").write_text("", encoding="ascii")
        lines = [f"deb [signed-by={_KEYRING}] {site} {suite} main" for site in [_site()]]
        (folder / "sources.list").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._options = [
            *("-o", f"Dir::State={folder}", "-o", f"Dir::State::lists={folder}/lists"),
            *("-o", f"Dir::State::status={folder}/status", "-o", f"Dir::Cache={folder}"),
            *("-o", f"Dir::Cache::archives={folder}/archives", "-o", f"Dir::Etc::sourcelist={folder}/sources.list"),
            *("-o", "Dir::Etc::sourceparts=-", "-o", f"Dir::Etc::preferencesparts={folder}/etc/preferences.d"),
            *("-o", "APT::Install-Recommends=false", "-o", "Acquire::Retries=3", "-o", "APT::Sandbox::User=root"),
            *("-o", "APT::Architecture=amd64", "-o", "APT::Architectures=amd64", "-o", "Acquire::Languages=none"),
        ]
        self._apt("update")

    def bring(self, packages: Sequence[str]) -> list[Deb]:
        """Download `packages` and all that they need. Raises RackwellError."""
        # what was downloaded for another set would not be told of: it is asked for from an empty place
        elsewhere = f"Dir::Cache::archives={self._folder}/none"
        (self._folder / "none" / "partial").mkdir(parents=True, exist_ok=True)
        told = self._apt("-o", elsewhere, "install", "--print-uris", "--yes", *packages)
        wanted = [line.split()[1] for line in told.splitlines() if line.startswith("'")]
        self._apt("install", "--download-only", "--yes", *packages)
        found = []
        for name in wanted:
            path = self._folder / "archives" / name
            package, version = name.split("_")[:2]
            found.append(Deb(path, package, version.replace("%3a", ":")))
        return found

    def _apt(self, *words: str) -> str:
        return _run(["apt-get", *self._options, "--quiet", *words])


def _site() -> str:
    """The Debian mirror of this machine's own apt."""
    told = _run(["apt-get", "indextargets", "--format", _FORMAT, "Created-By: Packages"])
    rows = [line.split("|") for line in told.splitlines() if line.count("|") == 3]
    for site, origin, label, component in rows:
        if (origin, label, component) == ("Debian", "Debian", "main"):
            return site
    for site, origin, _, component in rows:
        if not origin and component == "main" and site.rstrip("/").endswith("/debian"):
            return site
    raise RackwellError(
        Problem(
            "no-debian",
            "the packages of Debian cannot be mirrored: this machine's apt has no Debian archive",
            "/etc/apt",
            "",
            "run `rackwell mirror` on a Debian machine, or with --without-debs",
        )
    )


def _run(command: list[str]) -> str:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RackwellError(Problem("apt-failed", "apt cannot be asked", command[0], why, "")) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))] or [done.stderr[-300:]]
        raise RackwellError(
            Problem(
                "apt-failed",
                "apt could not bring the packages",
                " ".join(command[-4:]),
                " ".join(lines)[:600],
                "see to this machine's apt (sources, network), then run again",
            )
        )
    return done.stdout
