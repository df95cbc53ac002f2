# SPDX-License-Identifier: Apache-2.0
"""What can be known to go wrong with a switch before anything is touched."""

from __future__ import annotations

import json
import os
import re
from typing import NamedTuple

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_access as access
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_ports as ports

#: what mends these, also where they are found out later
FREE_THE_PORT = "stop that process, or set another server.port in the profile"
MEND_THE_GATE = "mend what the gate names, then have it checked again with the command that it names"


class Lack(NamedTuple):
    """Something that is missing or in the way; the fields are those of an error."""

    code: str
    what: str
    where: str
    why: str
    fix: str


def lacking(root: str, release: str, user: str, model_path: str) -> list[Lack]:
    """What the steps before a switch should have made: release, user, model."""
    found: list[Lack] = []
    place = os.path.join(root, "releases", release)
    if not os.path.isfile(os.path.join(place, "complete")):
        why = "its marker 'complete' is not there: it was never staged, or its staging was interrupted"
        what = f"release {release[:12]} is not staged here"
        found.append(Lack("release-incomplete", what, place, why, "stage it (rackwell provision does)"))
    known = access.has_user(user)
    if not known:
        why = "the server runs as this user"
        found.append(Lack("user-missing", f"user {user} does not exist", "/etc/passwd", why, f"useradd -r {user}"))
    if not model_path:
        return found
    if not os.path.isdir(model_path):
        why = "no such directory in this container"
        fix = "declare its mount in pve_container_mounts, or correct model.path in the profile"
        found.append(Lack("model-missing", "the model is not there", model_path, why, fix))
    elif known:
        bad = access.unreadable_as(user, [model_path])
        fix = "give others read access where the files really lie: chmod -R o+rX DIRECTORY on the Proxmox host"
        found += [Lack("model-missing", f"user {user} cannot read the model", model_path, why, fix) for _, why in bad]
    return found


def bad_secrets(text: str) -> list[Lack]:
    """Secret options with which the server must not start: an empty key would let everybody in."""
    found = []
    for name, value in (json.loads(text) if text else {}).items():
        fix = f"give flags.{name} of the profile a value from the vault, or take it out"
        if not value:
            why = "the variable that it comes from is empty"
            found.append(Lack("credential-empty", f"the server's {name} is empty", "flags." + name, why, fix))
        elif re.search(r"[\x00-\x20\x7f]", value):
            why = "a client cannot send a blank, a line break or a control character in it"
            found.append(Lack("credential-invalid", f"the server's {name} cannot be one", "flags." + name, why, fix))
    return found


def in_the_way(unit: str, host: str, port: int) -> list[Lack]:
    """What keeps the unit from binding to its address."""
    if not ports.is_local(host):
        why = "no interface of this container has that address"
        fix = "set server.host in the profile to an address of the container, 127.0.0.1 or 0.0.0.0"
        return [Lack("address-not-here", f"the server cannot bind to {host}", unit, why, fix)]
    return [
        Lack(
            "port-taken",
            f"port {port} is taken",
            f"{host}:{port}",
            f"process {owner.pid} listens there: {owner.command}; nothing was touched",
            FREE_THE_PORT,
        )
        for owner in ports.port_owners(host, port)
        if not owner.belongs_to(unit)
    ]
