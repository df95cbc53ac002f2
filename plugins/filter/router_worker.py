# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The filter that tells how a router reaches the server of a container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.rackwell.gpu.plugins.filter.shipped import profile_file

#: where a server listens on all addresses; it is reached by the container's own
ANY = {"0.0.0.0", "::", "[::]"}  # noqa: S104 - read, not bound

#: a key from the vault: the profile names the variable
_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


def _key(text: str, mine: Mapping[str, Any], name: str) -> str:
    """The server's key: as it is written, or the variable that is named. Raises AnsibleFilterError, KeyError."""
    found = _VARIABLE.fullmatch(text.strip())
    if found:
        return str(mine[found.group(1)])
    if "{{" in text or "{%" in text:
        raise AnsibleFilterError(f"router_workers: the api-key of '{name}' may be one variable, and no other template")
    return text


def router_worker(name: str, hostvars: Mapping[str, Mapping[str, Any]], site: str) -> dict[str, str]:
    """``url`` and ``api_key`` of the server in container `name`, from its variables and its serving profile."""
    if name not in hostvars:
        raise AnsibleFilterError(f"router_workers: '{name}' is not a host of this site")
    mine = hostvars[name]
    try:
        path = mine.get("inference_server_profile_file") or profile_file(str(mine["inference_server_profile"]), site)
        profile = yaml.safe_load(Path(str(path)).read_text(encoding="utf-8"))
        server = profile.get("server") or {}
        address = str(server.get("host") or "127.0.0.1")
        if address in ANY:
            address = str(mine["pve_container_ip"]).split("/", maxsplit=1)[0]
        key = _key(str((profile.get("flags") or {}).get("api-key") or ""), mine, name)
    except (OSError, yaml.YAMLError, KeyError, AttributeError) as error:
        raise AnsibleFilterError(f"router_workers: the server of '{name}' is not known: {error}") from error
    where = f"[{address}]" if ":" in address and not address.startswith("[") else address
    return {"url": f"http://{where}:{server.get('port') or 30000}", "api_key": key}


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"router_worker": router_worker}
