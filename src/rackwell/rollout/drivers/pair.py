# SPDX-License-Identifier: Apache-2.0
"""A pair of driver and kernel, as it is declared for a host or kept on it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site.declaration import Site
from rackwell.site.node import Node


@dataclasses.dataclass(frozen=True)
class Pair:
    """A driver and the kernel that is pinned with it.

    Attributes:
        run_file: on this machine, or a URL. kernel: empty leaves the pin as it is.
    """

    version: str
    run_file: str
    sha256: str
    kernel: str = ""

    @property
    def digest(self) -> str:
        """What a roll calls it: the same pair has the same name."""
        body = json.dumps([self.version, self.sha256, self.kernel])
        return hashlib.sha256(body.encode()).hexdigest()

    def as_dict(self) -> dict[str, str]:
        """For the journal, and as an item of ``pve_host_drivers``."""
        return dataclasses.asdict(self)

    def extra(self, *, allow_reboot: bool) -> dict[str, Any]:
        """The variables with which the collection brings hosts and containers to it."""
        return {
            "driver_version": self.version,
            "pve_host_driver_version": self.version,
            "pve_host_manage_driver": True,
            "pve_host_drivers": [self.as_dict()],
            "pve_host_allow_reboot": allow_reboot,
            "nvidia_userspace_version": self.version,
            "nvidia_userspace_run_file": self.run_file,
            "nvidia_userspace_sha256": self.sha256,
        }


def declared(host: Node, version: str) -> Pair | None:
    """The pair of that version in ``pve_host_drivers`` of a host."""
    for item in host.value("pve_host_drivers") or []:
        told = item if isinstance(item, Mapping) else item.model_dump()
        # of packages: a repository does not keep what a roll would have to return to
        if told.get("version") == version and told.get("run_file"):
            return Pair(version, str(told["run_file"]), str(told["sha256"]), str(told.get("kernel") or ""))
    return None


def blob(site: Site, sha256: str) -> Path:
    """Where this machine keeps a file by its hash, as the roles do."""
    return site.state / "blobs" / "sha256" / sha256


def wanted(site: Site, host: Node, version: str, kernel: str) -> Pair:
    """The declared pair, with another kernel where one is asked for.

    Raises:
        RackwellError: it is not declared for this host (exit 2).
    """
    found = declared(host, version)
    if found is None:
        there = ", ".join(str(_version(item)) for item in host.value("pve_host_drivers") or []) or "none"
        raise RackwellError(
            Problem(
                "driver-undeclared",
                f"the driver {version} is not declared for {host.name}",
                site.sources.find(host.name, "pve_host_drivers", site.inventory),
                f"pve_host_drivers has: {there} (a roll needs a run_file: packages cannot be returned to)",
                f'add to it: {{version: "{version}", run_file: ..., sha256: ..., kernel: ...}}',
            ),
            ExitCode.INVALID,
        )
    return dataclasses.replace(found, kernel=kernel) if kernel else found


def before(site: Site, host: Node, facts: Mapping[str, Any]) -> Pair:
    """The pair that a host has now, to return to.

    Args:
        facts: what module ``pve_driver`` told of the host.

    Raises:
        RackwellError: nothing can be returned to, since the file of the driver is neither declared nor kept (exit 2).
    """
    version = str(facts.get("loaded") or facts.get("userspace") or "")
    kernel = str(facts.get("pinned") or facts.get("running") or "")
    found = declared(host, version)
    if found is not None:
        return dataclasses.replace(found, kernel=kernel)
    sha256 = str((facts.get("kept") or {}).get(version) or "")
    if sha256:
        return Pair(version, str(blob(site, sha256)), sha256, kernel)
    raise RackwellError(
        Problem(
            "driver-previous-unknown",
            f"{host.name} could not return to what it has now: {version or 'no driver'}",
            host.name,
            "its .run file is neither in pve_host_drivers nor kept on the host; nothing was touched",
            f'declare it, too: pve_host_drivers: {{version: "{version}", run_file: ..., sha256: ...}}',
        ),
        ExitCode.INVALID,
    )


def _version(item: Any) -> Any:
    return item.get("version") if isinstance(item, Mapping) else item.version
