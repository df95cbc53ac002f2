# SPDX-License-Identifier: Apache-2.0
"""The routers in front of a roll's hosts: one ssh command each to the router's own side, which waits by itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from rackwell.ansible import ssh
from rackwell.ansible.results import PlayResult
from rackwell.rollout.steps import Ended, Outcome
from rackwell.site.declaration import Site
from rackwell.site.node import Node

AGENT = "/usr/local/lib/rackwell/router-agent"
SCHEMA = "rackwell.router/1"
#: for the router to call a host healthy again; and for the way there and back
BACK_S, WAY_S = 120, 60
#: of a name that the shell does not find
NO_SUCH_COMMAND = 127


class Routers:
    """Takes hosts out of their routers, and brings them back.

    Args:
        play: runs the playbook that asks these routers how they are reached.
    """

    def __init__(self, site: Site, play: Callable[[list[str]], PlayResult]) -> None:
        self._site, self._play = site, play
        self._connections: dict[str, ssh.Connection] = {}
        self._looking = threading.Lock()
        #: (router, host): of which this process knows that nothing was taken
        self._untouched: set[tuple[str, str]] = set()

    def look(self, host: str) -> Ended:
        """Whether all of them answer."""
        for router in self._site.routers_of(host):
            ended = self._look(router)
            if ended.outcome is not Outcome.OK:
                return ended
        return Ended(Outcome.OK)

    def _look(self, router: Node) -> Ended:
        looked = self._ask(router, {"op": "look"}, WAY_S)
        if isinstance(looked, str):
            return _failed(router, looked)
        if not looked.get("answers"):
            return _failed(router, str(looked.get("why") or "it does not answer"))
        return Ended(Outcome.OK)

    def drain(self, host: str, run: str) -> Ended:
        """Out of all of them, and idle; each is asked twice: one that does not answer has nothing taken from it."""
        for router in self._site.routers_of(host):
            self._untouched.add((router.name, host))
            looked = self._look(router)
            if looked.outcome is not Outcome.OK:
                return looked
            self._untouched.discard((router.name, host))
            wait = router.value("router_drain_timeout")
            wait_s = wait if isinstance(wait, int) else 300
            told = self._ask(router, {"op": "drain", "worker": host, "run": run, "wait_s": wait_s}, wait_s + WAY_S)
            if isinstance(told, str):
                return _failed(router, told)
        return Ended(Outcome.OK)

    def undrain(self, host: str) -> Ended:
        """Back into all of them; the first that does not take it is told, after all were asked."""
        ended = Ended(Outcome.OK)
        for router in self._site.routers_of(host):
            if (router.name, host) in self._untouched:
                continue
            told = self._ask(router, {"op": "undrain", "worker": host, "wait_s": BACK_S}, BACK_S + WAY_S)
            if isinstance(told, str) and ended.outcome is Outcome.OK:
                ended = _failed(router, told)
        return ended

    def _ask(self, router: Node, request: dict[str, Any], timeout: float) -> dict[str, Any] | str:
        """The answer, or why there is none."""
        connection = self._connection(router.name)
        if connection is None:
            return "its machine does not answer"
        said = ssh.ask(connection, [AGENT, "ask"], json.dumps(request), timeout=timeout)
        if said.lost:
            return "its machine does not answer: " + (" ".join(said.err.split())[-200:] or "the connection was lost")
        if said.code == NO_SUCH_COMMAND:
            return "it was not set up; rackwell provision does it"
        try:
            told = json.loads(said.out)
            if not isinstance(told, dict):
                raise ValueError("no object")
        except ValueError:
            return (said.err or said.out).strip()[-200:] or f"its own side ended with {said.code}"
        return str(told["error"]) if told.get("error") else told

    def _connection(self, name: str) -> ssh.Connection | None:
        with self._looking:
            if name not in self._connections:
                played = self._play([name])
                for report in played.results:
                    if report.schema == SCHEMA and report.host == name:
                        self._connections[name] = ssh.Connection.from_dict(report.payload["connection"])
            return self._connections.get(name)


def _failed(router: Node, why: str) -> Ended:
    return Ended(Outcome.FAIL, f"router {router.name}: {why}")
