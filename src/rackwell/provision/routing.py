# SPDX-License-Identifier: Apache-2.0
"""The routers in front of a container: set up after it serves, and given it back."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rackwell.ansible import runner
from rackwell.ansible.results import PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import builds
from rackwell.provision.lock import container_lock
from rackwell.provision.progress import Progress
from rackwell.site.declaration import Site
from rackwell.site.node import Node

#: for another provision that is at the same router; it takes a minute
LOCKED_S = 180.0
ANYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - read, not bound


@dataclasses.dataclass(frozen=True)
class Routed:
    """A router that was set up.

    Attributes:
        url: where its API is; on the loopback it is only to be reached on its own machine.
    """

    name: str
    url: str
    changed: int
    problems: list[Problem]
    exit_code: ExitCode

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"name": self.name, "url": self.url, "changed": self.changed, "ok": self.exit_code == ExitCode.DONE}


def url_of(router: Node) -> str:
    """Where a router's API is."""
    address = router.text("router_address") or ""
    host = router.address.partition("/")[0] if address in ANYWHERE else address
    return f"http://{f'[{host}]' if ':' in host else host}:{router.value('router_port')}/v1"


def set_up(site: Site, container: str, progress: Progress, *, check: bool = False, diff: bool = False) -> list[Routed]:
    """Bring each router of a container to its declaration, and the container back into it if a roll left it out.

    Raises:
        RackwellError: a router's release could not be made (exit 1), or another run stays at it (exit 5).
    """
    found = []
    for router in site.routers_of(container):
        built = builds.make_router(site, router, progress)
        run = RunDirectory.create(site.state, f"router-{router.name}")
        progress.log = run.log
        extra: dict[str, Any] = {"__router_undrain": [container]}
        if "router_bundle" not in router.variables:
            extra["router_bundle"] = str(built.path)
        with _lock(site.state, router.name):
            played = runner.play(
                "router", site.path, run, [router.name], listener=progress.step, extra=extra, check=check, diff=diff
            )
        found.append(Routed(router.name, url_of(router), played.changed, _problems(played), played.exit_code))
    return found


def _problems(played: PlayResult) -> list[Problem]:
    if played.interrupted:
        raise KeyboardInterrupt
    return [problem for failure in played.failures for problem in failure.problems]


@contextlib.contextmanager
def _lock(state: Path, name: str) -> Iterator[None]:
    """Two provisions of containers behind one router take turns."""
    end = time.monotonic() + LOCKED_S
    while True:
        try:
            lock = container_lock(state, f"router-{name}", "provision")
            lock.__enter__()
            break
        except RackwellError as error:
            if error.exit_code != ExitCode.LOCKED or time.monotonic() > end:
                raise
            time.sleep(1)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)
