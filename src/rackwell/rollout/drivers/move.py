# SPDX-License-Identifier: Apache-2.0
"""What is done next to bring one Proxmox host and its containers to a pair, from what they show alone.

Nothing is remembered but how often something was tried: whoever goes on after a killed process sees the same.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

#: how often each part is tried
TRIES = 2


class Do(enum.StrEnum):
    """The parts of a move; each does nothing that is done already."""

    #: install, build for each kernel, pin, and reboot, verified
    HOST = "host"
    #: user space, the boot gate anew, the server
    CONTAINERS = "containers"


def on_disk(todo: Mapping[str, Any]) -> bool:
    """Whether nothing is left to do on a host but, perhaps, a reboot; of what module ``pve_driver`` told."""
    return not any(todo[part] for part in ("run", "build", "options", "pin", "packages"))


@dataclasses.dataclass(frozen=True)
class Seen:
    """Host and containers, held against the pair.

    Attributes:
        on_disk: the host would boot with the pair. booted: it runs with it.
        userspace: container -> whether its libraries are the pair's. serving: container -> whether its server is seen
            to serve.
    """

    on_disk: bool
    booted: bool
    userspace: Mapping[str, bool]
    serving: Mapping[str, bool]

    @property
    def there(self) -> bool:
        """Whether driver, kernel and libraries are the pair's everywhere."""
        return self.on_disk and self.booted and all(self.userspace.values())

    @property
    def done(self) -> bool:
        """Whether all of it is there, and serves."""
        return self.there and all(self.serving.values())


def following(seen: Seen, tried: Mapping[Do, int]) -> Do | None:
    """The next part; None when all is done, or what is left was tried often enough (then ``seen.done`` tells).

    Containers come after the host has booted: their libraries have to be those of the loaded module.
    """
    if not (seen.on_disk and seen.booted):
        part = Do.HOST
    elif not seen.done:
        part = Do.CONTAINERS
    else:
        return None
    return part if tried.get(part, 0) < TRIES else None


def lacking(seen: Seen) -> str:
    """What is not done, in words."""
    if not seen.on_disk:
        return "the host would not boot with the pair"
    if not seen.booted:
        return "the host does not run with the pair"
    libraries = [name for name, right in seen.userspace.items() if not right]
    if libraries:
        return f"{', '.join(libraries)}: other libraries than the host's module"
    silent = [name for name, serves in seen.serving.items() if not serves]
    return f"{', '.join(silent)}: the server is not seen to serve" if silent else ""
