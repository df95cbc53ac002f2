# SPDX-License-Identifier: Apache-2.0
"""STATE/lab.json: what a laboratory is made of and what of it runs."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

from rwlab import files
from rwlab.errors import LabError
from rwlab.paths import Instance

_VERSION = 1


@dataclasses.dataclass
class Host:
    """One outer container.

    Attributes:
        octet: last part of its address. layer: name of the layer below its root filesystem.
        rootfs: ``overlay`` or ``copy``. pid, started: of its init, and that process's start in clock ticks; 0 when
            it is down. applied: digest of the tree that was last put into it.
    """

    name: str
    octet: int
    layer: str
    rootfs: str = "overlay"
    pid: int = 0
    started: int = 0
    applied: str = ""


@dataclasses.dataclass
class Record:
    """The whole file.

    Attributes:
        id: eight hex digits that tell this laboratory's bridge and firewall rules from all others'.
        subnet: the x of 10.213.x.0/24; -1 until one was taken. forward_was: ip_forward before the first ``up``.
        suites: those whose templates the hosts offer. missing: device nodes taken away by ``set node``.
    """

    id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(4))
    subnet: int = -1
    nat: bool = False
    forward_was: str = ""
    suites: list[str] = dataclasses.field(default_factory=lambda: ["bookworm"])
    gpus: str = "stand-in"
    driver_version: str = ""
    hosts: list[Host] = dataclasses.field(default_factory=list)
    version: int = _VERSION

    @property
    def network(self) -> str:
        return f"10.213.{self.subnet}.0/24"

    def address(self, octet: int) -> str:
        return f"10.213.{self.subnet}.{octet}"

    @property
    def bridge(self) -> str:
        return f"rwl-{self.id}"

    def host(self, name: str) -> Host:
        for host in self.hosts:
            if host.name == name:
                return host
        raise LabError(
            "host-unknown",
            f"no host {name!r} in this laboratory",
            why=f"it has {', '.join(host.name for host in self.hosts) or 'none'}",
            exit_code=2,
        )


def load(instance: Instance) -> Record | None:
    """The record of an instance; None when it was never brought up.

    Raises:
        LabError: the file is damaged, or of another version of the laboratory.
    """
    try:
        data: Any = files.read_json(instance.record)
        if data is None:
            return None
        if data.get("version") != _VERSION:
            raise ValueError(f"version {data.get('version')}")
        hosts = [Host(**host) for host in data.pop("hosts")]
        return Record(**data, hosts=hosts)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LabError(
            "record-damaged",
            "the laboratory's record cannot be read",
            where=str(instance.record),
            why=f"{type(error).__name__}: {error}",
            fix=f"lab.py down --purge --name {instance.name}, then up",
        ) from error


def save(instance: Instance, record: Record) -> None:
    """Write it whole or not at all."""
    files.write_json(instance.record, dataclasses.asdict(record))
