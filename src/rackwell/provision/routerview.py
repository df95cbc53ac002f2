# SPDX-License-Identifier: Apache-2.0
"""What a router says of itself and its workers."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any

from rackwell.ansible.results import PlayResult
from rackwell.provision import routing
from rackwell.site.node import Node


@dataclasses.dataclass(frozen=True)
class RouterRow:
    """What is known of one router.

    Attributes:
        state: ``serves``, ``no worker``, ``silent``, ``absent`` or ``unreachable``. why: what a silent one said.
        workers: container -> ``in rotation``, ``drained ...``, ``unhealthy`` or ``not in it``.
        others: addresses that it has, and nobody declared.
    """

    router: str
    url: str
    state: str
    workers: dict[str, str]
    others: list[str]
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return dataclasses.asdict(self)

    @property
    def line(self) -> str:
        """For people."""
        workers = ", ".join(f"{name} {state}" for name, state in self.workers.items())
        return ": ".join(part for part in (f"router {self.router} {self.state}", self.why, workers) if part)


def row(router: Node, played: PlayResult) -> RouterRow:
    """The row of a router, from what the status playbook heard of it."""
    heard = played.payloads("rackwell.router", router.name)
    known: Mapping[str, Any] = heard[-1] if heard else {}
    workers = {str(one["name"]): _worker(one) for one in known.get("workers") or [] if isinstance(one, Mapping)}
    others = [str(one) for one in known.get("others") or []]
    url = routing.url_of(router)
    if not heard:
        return RouterRow(router.name, url, "unreachable", workers, others)
    if not known.get("installed"):
        return RouterRow(router.name, url, "absent", workers, others)
    if not known.get("answers"):
        return RouterRow(router.name, url, "silent", workers, others, str(known.get("why") or ""))
    serves = any(state == "in rotation" for state in workers.values())
    return RouterRow(router.name, url, "serves" if serves else "no worker", workers, others)


def _worker(told: Mapping[str, Any]) -> str:
    mark = told.get("drained")
    if isinstance(mark, Mapping):
        since = dt.datetime.fromtimestamp(int(mark.get("since") or 0), dt.UTC)
        by = f" by run {mark['run']}" if mark.get("run") else ""
        return f"drained{by} since {since:%Y-%m-%d %H:%M} UTC"
    if not told.get("listed"):
        return "not in it"
    return "in rotation" if told.get("healthy") else "unhealthy"
