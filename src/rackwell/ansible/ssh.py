# SPDX-License-Identifier: Apache-2.0
"""One command on a host by OpenSSH, as Ansible would reach it, without the seconds that a play costs."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
from collections.abc import Mapping
from typing import Any

#: what ssh itself ends with when it could not connect, or lost the connection
LOST = 255


@dataclasses.dataclass(frozen=True)
class Connection:
    """How a host is reached, as Ansible resolved it from the inventory."""

    host: str
    port: int = 22
    user: str = "root"
    key: str = ""
    common_args: str = ""
    extra_args: str = ""
    become: bool = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Connection:
        """From the result of ``rollout_ask``."""
        return cls(
            str(data["host"]),
            int(data.get("port") or 22),
            str(data.get("user") or "root"),
            str(data.get("key") or ""),
            str(data.get("common_args") or ""),
            str(data.get("extra_args") or ""),
            str(data.get("become")).lower() in {"true", "yes", "1"},
        )

    def command(self, remote: list[str], timeout: int = 10, control: str = "none") -> list[str]:
        """The command line.

        Args:
            remote: program and arguments on the host. timeout: seconds to connect.
            control: path of the shared connection; ``none`` always makes a new one.
        """
        options = [
            "BatchMode=yes",
            f"ConnectTimeout={timeout}",
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
            f"ControlPath={control}",
        ]
        if control != "none":
            options += ["ControlMaster=auto", "ControlPersist=60s"]
        argv = ["ssh", *shlex.split(self.common_args), *shlex.split(self.extra_args)]
        for option in options:
            argv += ["-o", option]
        if self.key:
            argv += ["-o", "IdentitiesOnly=yes", "-i", self.key]
        words = ["sudo", "-n", *remote] if self.become else remote
        return [*argv, "-p", str(self.port), "-l", self.user, "--", self.host, shlex.join(words)]


@dataclasses.dataclass(frozen=True)
class Said:
    """How a remote command ended; ``lost``: nobody knows whether and how it did."""

    code: int
    out: str
    err: str

    @property
    def lost(self) -> bool:
        """Whether the connection, or the end of ssh itself, ended it, and not the command."""
        return self.code == LOST or self.code < 0


def ask(
    connection: Connection,
    remote: list[str],
    text: str = "",
    *,
    timeout: float = 60.0,
    connect: int = 10,
    control: str = "none",
) -> Said:
    """Run a command with ``text`` on its stdin. Never raises for what a network or a host does.

    Args:
        timeout: seconds for all of it.
    """
    argv = connection.command(remote, connect, control)
    try:
        done = subprocess.run(
            argv,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            # a Ctrl-C on the terminal is this program's to hear, not ssh's
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return Said(LOST, "", f"no answer within {timeout:.0f} s")
    except OSError as error:
        return Said(LOST, "", f"{argv[0]}: {error.strerror or error}")
    return Said(done.returncode, done.stdout, done.stderr)
