# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters that write a serving profile into systemd's files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Callable

from ansible.errors import AnsibleFilterError

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,+@-]+")
# who lists processes or reads a unit file sees what stands on a command line
_SECRET_FLAG = re.compile(r"(^|-)(api-key|password|secret|auth-token|hf-token)$")


def _one_line(text: str, where: str) -> str:
    if re.search(r"[\n\r\0]", text):
        raise AnsibleFilterError(f"{where}: a line break cannot be written into a systemd file: {text!r}")
    return text


def exec_quote(value: Any, where: str = "value", variables: bool = True) -> str:
    """One word of a unit file, so that systemd takes it as it is: no specifier, no variable, no splitting.

    Args:
        where: for the error. variables: whether systemd replaces variables there, as in ExecStart.
    """
    text = _one_line(str(value), where).replace("%", "%%")
    if variables:
        text = text.replace("$", "$$")
    if _PLAIN.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def server_flags(profile: Mapping[str, Any]) -> list[str]:
    """Command-line options of a serving profile, one option with its values an item, sorted, quoted for ExecStart.

    ``true`` is a bare option, ``false`` none, a list several values. Those of :func:`server_secrets` are left out.
    """
    model, server = profile["model"], profile.get("server") or {}
    flags: dict[str, Any] = {
        **(profile.get("flags") or {}),
        "model-path": model["path"],
        "served-model-name": model["served_name"],
        "host": server.get("host", "127.0.0.1"),
        "port": server.get("port", 30000),
    }
    words = []
    for name, value in sorted(flags.items()):
        if value is False or value is None or _SECRET_FLAG.search(name):
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        words.append(" ".join([f"--{name}", *(exec_quote(one, f"flags.{name}") for one in values)]))
    return words


def server_secrets(profile: Mapping[str, Any]) -> str:
    """The options of a serving profile that are secrets, as the file that the server is given beside its command line.

    Empty when there are none. An empty value stays in it: the module refuses to serve with it.
    """
    flags = profile.get("flags") or {}
    found = {
        name: str(value) for name, value in flags.items() if _SECRET_FLAG.search(name) and value not in (None, False)
    }
    return json.dumps(found, sort_keys=True) + "\n" if found else ""


def environment_lines(environment: Mapping[str, Any]) -> list[str]:
    """Assignments for a systemd EnvironmentFile, sorted; every value is quoted."""
    lines = []
    for name, value in sorted(environment.items()):
        text = _one_line(str(value), f"environment.{name}")
        # inside double quotes these four keep their meaning unless escaped
        escaped = re.sub(r'([\\"$`])', r"\\\1", text)
        lines.append(f'{name}="{escaped}"')
    return lines


class FilterModule:
    """Registers the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {
            "server_flags": server_flags,
            "server_secrets": server_secrets,
            "environment_lines": environment_lines,
            "exec_quote": exec_quote,
        }
