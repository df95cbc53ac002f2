# SPDX-License-Identifier: Apache-2.0
"""What must hold between a router and the servers behind it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from rackwell.errors import Problem
from rackwell.site import validation
from rackwell.site.node import CONTAINER_GROUP, Node
from rackwell.site.profile import Profile
from rackwell.site.yamlsource import Document, Pointer

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})


@dataclasses.dataclass(frozen=True)
class Served:
    """The profile that a container serves, and the file that says so."""

    profile: Profile
    document: Document

    @property
    def key(self) -> str:
        """The key that its server asks for; empty for none."""
        return str(self.profile.flags.get("api-key") or "")


Served_of = Callable[[str], Served | None]
Where = Callable[[str, str, Pointer], str]


class RouterChecks:
    """The problems of a site's routers.

    Args:
        served: container -> what it serves, None where that does not hold by itself. where: host, variable and a place
            within it -> ``file:line``.
        add: given the hosts concerned and a problem.
    """

    def __init__(
        self,
        containers: Mapping[str, Node],
        served: Served_of,
        where: Where,
        add: Callable[[set[str], Problem], None],
    ) -> None:
        self._containers, self._served, self._where, self._add = containers, served, where, add

    def check(self, routers: Iterable[Node]) -> None:
        """All of them."""
        for router in routers:
            behind = self._behind(router)
            found = {name: one for name in behind if (one := self._served(name)) is not None}
            self._reachable(router, found)
            self._alike(router, found)
            self._ports(router, found)

    def _behind(self, router: Node) -> list[str]:
        """The containers behind it that there are; the others are told."""
        named = router.value("router_workers")
        if not isinstance(named, list) or not named:
            return list(self._containers)
        known = [name for name in named if name in self._containers]
        for index, name in enumerate(named):
            if name in self._containers and name not in named[:index]:
                continue
            place = self._where(router.name, "router_workers", (index,))
            if name in self._containers:
                problem = Problem("duplicate-worker", f"{router.name} names {name} twice", place, "", "name it once")
            else:
                there = f"the group {CONTAINER_GROUP} has: {', '.join(sorted(self._containers)) or 'none'}"
                hint = validation.suggest(name, self._containers, 0.6) or "name containers of this site"
                what = f"'{name}' is not a container of this site"
                problem = Problem("unknown-container", what, place, f"router {router.name}: {there}", hint)
            self._add({router.name, *known}, problem)
        return list(dict.fromkeys(known))

    def _reachable(self, router: Node, found: Mapping[str, Served]) -> None:
        for name, served in found.items():
            host = served.profile.server.host
            if host in LOOPBACK and name != router.name:
                self._add(
                    {router.name, name},
                    Problem(
                        "router-cannot-reach",
                        f"the server of {name} listens on {host}, where the router {router.name} does not reach it",
                        served.document.where(("server", "host")),
                        "",
                        "in a profile of your own set `server: {host: 0.0.0.0}`, and `api-key` or a firewall with it: "
                        "whoever reaches the port may ask",
                    ),
                )

    def _alike(self, router: Node, found: Mapping[str, Served]) -> None:
        """A request may go to any of them."""
        names = {name: served.profile.model.served_name for name, served in found.items()}
        self._same(router, names, "router-models-differ", "model", "served_name")
        # what the keys are is nobody's business
        keys = list(dict.fromkeys(served.key for served in found.values()))
        words = {name: f"key {keys.index(one.key) + 1}" if one.key else "none" for name, one in found.items()}
        self._same(router, words, "router-keys-differ", "api-key", "api-key")

    def _same(self, router: Node, values: Mapping[str, str], code: str, thing: str, key: str) -> None:
        if len(set(values.values())) < 2:
            return
        told = ", ".join(f"{name}: {value}" for name, value in values.items())
        self._add(
            {router.name, *values},
            Problem(
                code,
                f"the servers behind {router.name} differ in their {thing}",
                self._where(router.name, "router_workers", ()),
                f"{told}; it sends a request to any of them",
                f"give them the same {key}, or name in router_workers those that belong together",
            ),
        )

    def _ports(self, router: Node, found: Mapping[str, Served]) -> None:
        port, metrics = router.value("router_port"), router.value("router_metrics_port")
        taken = {metrics: "router_metrics_port"}
        if router.name in found:
            taken[found[router.name].profile.server.port] = f"the server of {router.name}"
        for variable, mine in (("router_port", port), ("router_metrics_port", metrics)):
            other = taken.get(mine)
            if isinstance(mine, int) and other and other != variable:
                place = self._where(router.name, variable, ())
                what = f"port {mine} of {router.name} is wanted by its router and by {other}"
                self._add({router.name}, Problem("port-taken", what, place, "", f"set another {variable}"))
