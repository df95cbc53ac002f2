# SPDX-License-Identifier: Apache-2.0
"""git, run so that nothing but its arguments decides what it does to a mirror.

The operator's own configuration counts for the transport (proxies, certificates, credential helpers, ``insteadOf``):
what comes is checked by its hashes, whichever way it came. Hooks, prompts, other transports and ``GIT_*`` variables do
not.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rackwell import bounded
from rackwell.build.giturl import SCHEMES
from rackwell.errors import ExitCode, Problem, RackwellError

#: Seconds for a fetch, which may bring a large repository, and for what should be quick.
FETCH_S = 1800
QUICK_S = 120
_STALLED_S = 60
_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "credential.interactive": "false",
    "fetch.recurseSubmodules": "false",
    "fetch.unpackLimit": "1",
    "fetch.writeCommitGraph": "false",
    "gc.auto": "0",
    "http.lowSpeedLimit": "100",
    "http.lowSpeedTime": str(_STALLED_S),
    "maintenance.auto": "false",
    # with version 2 a commit can be asked for that no branch leads to any more
    "protocol.version": "2",
}


def environment() -> dict[str, str]:
    """This process's environment without ``GIT_*``, in which git asks nobody anything and speaks English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SSH_ASKPASS"))}
    return {
        **kept,
        "LC_ALL": "C",
        "GIT_ALLOW_PROTOCOL": ":".join(SCHEMES),
        "GIT_ASKPASS": "",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "SSH_ASKPASS_REQUIRE": "never",
    }


def run(
    arguments: Sequence[str],
    where: str,
    *,
    folder: Path | None = None,
    seconds: float = QUICK_S,
    stdin: Path | None = None,
    stdout: Path | None = None,
    keep: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run git, in the repository `folder` where one is given.

    Raises:
        RackwellError: there is no git, or it did not end in `seconds`.
    """
    settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
    place = [] if folder is None else [f"--git-dir={folder}"]
    try:
        return bounded.run(
            ["git", "--no-pager", *settings, *place, *arguments],
            seconds,
            late=bounded.timed_out(
                f"git {arguments[0]} did not end in time",
                where,
                seconds,
                "the server is too slow or does not answer",
                "see to the network and the server, then run again: what has come whole is kept",
            ),
            cwd="/",  # not where another repository would be found
            env=environment(),
            stdin=stdin,
            stdout=stdout,
            keep=keep,
        )
    except FileNotFoundError as error:
        raise RackwellError(
            Problem(
                "git-missing", "git is not installed", where, "a git source needs it", "install git, then run again"
            ),
            ExitCode.FAILED,
        ) from error


def version() -> str:
    """The version of git; empty when there is none."""
    try:
        return run(["version"], "").stdout.strip().removeprefix("git version ")
    except RackwellError:
        return ""
