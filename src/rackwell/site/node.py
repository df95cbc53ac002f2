# SPDX-License-Identifier: Apache-2.0
"""One host of a site: a Proxmox host, a container or a router, with its typed variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rackwell.site import inventory as inventories
from rackwell.site import variables as role_variables
from rackwell.site.inventory import Unresolved

PVE_GROUP = "pve"
CONTAINER_GROUP = "gpu_containers"
ROUTER_GROUP = "routers"
PLACEHOLDER = "FILL_IN"
"""What the values to fill in begin with, in the site that `rackwell init` writes."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A Proxmox host or a container of the site, or what a machine is as a router.

    Attributes:
        variables: merged variables of Ansible, templates resolved where possible, role defaults not filled in.
        roles: role -> typed variables with defaults; a role whose variables do not hold is absent.
    """

    name: str
    variables: Mapping[str, Any]
    roles: Mapping[str, role_variables.RoleVariables]

    def value(self, name: str) -> Any:
        """A variable with its default, or None when it is missing or left to Ansible."""
        model = self.roles.get(role_variables.KNOWN.get(name, ""))
        value = getattr(model, name) if model is not None else self.variables.get(name)
        return None if isinstance(value, Unresolved) or inventories.is_template(value) else value

    def text(self, name: str) -> str | None:
        """`value` when it is text."""
        value = self.value(name)
        return value if isinstance(value, str) else None

    @property
    def address(self) -> str:
        """Where ssh reaches it, for people."""
        value = self.variables.get("ansible_host")
        return value if isinstance(value, str) and not isinstance(value, Unresolved) else self.name
