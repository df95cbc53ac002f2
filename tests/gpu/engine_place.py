# SPDX-License-Identifier: Apache-2.0
"""One container of the laboratory of tests/gpu/engine.py, as tests/engine sees its own; and what the run knows."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
# behind tests/gpu, which has a run.py, too
sys.path += [str(REPO / "tests/engine"), str(REPO / "tests/lab")]

import yaml  # noqa: E402 (of the environment that this runs in)
from place import FailedError, Place, require, until  # noqa: E402 (tests/engine)

SITE = REPO / "tests/gpu/site"
BUILD, PATCHED, SLOW = "engine-gpu", "engine-gpu-patched", "engine-gpu-slow"
# the one of the catalogue that stands alone on these versions; what it does harm with is switched off in the profile
PATCHES: list[Any] = [
    {
        "name": "flashinfer-python/trtllm-comm-jit-sm120",
        "accept_risk": "a toy model on SM90, whose profile keeps the all-reduce away that it changes",
    }
]
CONTAINERS = {"glm5-01": ("pve1", "201"), "glm5-02": ("pve2", "202")}
FIRST, SECOND = CONTAINERS
MODEL = "/srv/models/toy-glm"


@dataclasses.dataclass
class Run:
    """What all steps share.

    Attributes:
        gpus: how many the engine takes; 0 with stand-ins, where it runs on a processor.
        facts: what one step found and a later one needs.
    """

    name: str
    gpus: int
    torch: Path
    cuda: Path
    first: GpuPlace | None = None
    second: GpuPlace | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def one(self) -> GpuPlace:
        require(self.first, "there is no laboratory")
        assert self.first is not None
        return self.first

    @property
    def two(self) -> GpuPlace:
        require(self.second, "there is no laboratory")
        assert self.second is not None
        return self.second


class GpuPlace(Place):
    """A container of a laboratory that is up."""

    def __init__(self, name: str, container: str) -> None:
        self.name, self.container = name, container
        self.host, self.vmid = CONTAINERS[container]
        told = json.loads(self.lab("status", "--json"))
        self.site, self.directory = Path(told["site"]), Path(told["directory"])

    def inside(self, *command: str, data: bytes | None = None) -> str:
        return self.lab("shell", self.container, *command, data=data).strip()

    def on_host(self, *command: str) -> str:
        return self.lab("shell", self.host, *command).strip()

    def declare(self, variables: dict[str, Any]) -> None:
        path = self.site / "host_vars" / f"{self.container}.yml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **variables}, sort_keys=False))

    def status(self) -> dict[str, Any]:
        row: dict[str, Any] = self.rackwell("status", self.container).result["containers"][0]
        return row

    @property
    def models(self) -> Path:
        """The host's directory of weights, which its containers get parts of."""
        return self.directory / "hosts" / self.host / "models"

    def events(self) -> list[dict[str, Any]]:
        """What the container's journal tells of its server."""
        text = self.script("cat /var/lib/rackwell/journal.jsonl 2>/dev/null || true")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def ready_seconds(self) -> float | None:
        """From start to the answers that were asked for, of the last switch."""
        found = [one["ready_seconds"] for one in self.events() if one.get("ready_seconds")]
        return found[-1] if found else None

    def current(self) -> str:
        return self.script("basename $(readlink /opt/rackwell/current)")

    def digest(self, build: str) -> str:
        return (self.site / ".rackwell/builds" / build).resolve().name

    @contextmanager
    def told(self) -> Iterator[None]:
        """What went wrong inside, with the last lines of the server's log."""
        try:
            yield
        except FailedError as error:
            raise FailedError(f"{error}\n{self.tail()}") from error

    def tail(self, lines: int = 60) -> str:
        try:
            return self.script(
                f"journalctl -q -o cat --no-pager -n {lines} -u rackwell-inference.service | cut -c1-400"
            )
        except FailedError as error:
            return str(error)


__all__ = ["FailedError", "GpuPlace", "Run", "require", "until"]
