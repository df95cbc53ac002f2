# SPDX-License-Identifier: Apache-2.0
"""How a machine is reached by ssh: by the site's own variables, and never with an unchecked host key."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site import inventory
from rackwell.site.declaration import Site
from rackwell.site.inventory import Unresolved
from rackwell.site.node import Node

STRICT = ("-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes")
"""ssh takes the first value that it is given: these come before what the site says."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine, by ssh.

    Attributes:
        arguments: options of ssh, those that keep it strict first.
        down: why it is not reached; empty when it is.
    """

    name: str
    address: str
    port: int
    user: str
    key: str
    arguments: tuple[str, ...]
    sudo: bool
    down: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For the suite."""
        return dataclasses.asdict(self) | {"arguments": list(self.arguments)}


def machine(site: Site, node: Node) -> Machine:
    """How `node` is reached.

    Raises:
        RackwellError: what the connection needs is left to Ansible, as a lookup or a vaulted value (exit 2).
    """

    # as Ansible sees them: a node's own variables are without those that need Ansible
    variables = site.inventory.variables[node.name]

    def told(*names: str, default: str = "") -> str:
        for name in names:
            value = variables.get(name)
            if isinstance(value, Unresolved) or inventory.is_template(value):
                where = site.sources.find(node.name, name, site.inventory)
                raise RackwellError(
                    Problem(
                        "connection-unresolved",
                        f"how {node.name} is reached is not known: '{name}' needs Ansible to be worked out",
                        where,
                        "the acceptance suite reaches the machines by ssh itself, without Ansible",
                        "write the value without a lookup, a fact or the vault",
                    ),
                    ExitCode.INVALID,
                )
            if value not in (None, ""):
                return str(value)
        return default

    kind = told("ansible_connection", default="ssh").rpartition(".")[2]
    if kind not in {"ssh", "smart", "paramiko", "paramiko_ssh"}:
        where = site.sources.find(node.name, "ansible_connection", site.inventory)
        problem = Problem("connection-unknown", f"{node.name} is not reached by ssh", where, f"it is {kind}", "")
        raise RackwellError(problem, ExitCode.INVALID)
    words = shlex.split(f"{told('ansible_ssh_common_args')} {told('ansible_ssh_extra_args')}")
    key = told("ansible_ssh_private_key_file", "ansible_private_key_file")
    return Machine(
        node.name,
        told("ansible_host", "ansible_ssh_host", default=node.name),
        int(told("ansible_port", "ansible_ssh_port", default="22")),
        told("ansible_user", "ansible_ssh_user", default="root"),
        str(Path(key).expanduser()) if key else "",
        (*STRICT, *(("-o", "IdentitiesOnly=yes") if key else ()), *words),
        told("ansible_become", default="false").lower() in {"true", "yes", "1"},
    )
