# SPDX-License-Identifier: Apache-2.0
"""What the suite is to find, as plain data: the declaration of one container and its host, with all defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackwell.acceptance.reaching import Machine
from rackwell.site.declaration import Site
from rackwell.site.node import Node
from rackwell.site.profile import Profile

SCHEMA = "rackwell.acceptance_expected/1"
SECRET = re.compile(r"(^|[-_])(key|token|password|passwd|secret|credential)s?($|[-_])", re.IGNORECASE)
"""Names of variables whose values are nobody's business: the suite is told of the names alone."""
SECRET_FLAG = re.compile(r"(^|-)(api-key|password|secret|auth-token|hf-token)$")
"""Flags that must not be on the command line; the server is given them in a file."""

_LXC = (
    *("vmid", "hostname", "unprivileged", "cores", "memory", "swap", "onboot", "gpus", "device_mode", "bridge", "ip"),
    *("gateway", "memlock", "shm_size", "cpuset"),
)
_PVE = ("driver_version", "gpus", "modules", "disable_hmm", "nodes_unit", "manage_driver", "power_limit", "iommu")


def expected(site: Site, container: Node, machines: Mapping[str, Machine]) -> dict[str, Any]:
    """The expectation for `container`.

    Args:
        machines: how ``host`` and ``container`` are reached.

    Raises:
        RackwellError: the serving profile does not hold (exit 2).
    """
    host = site.hosts[site.host_of(container)]
    profile = site.profile(container)
    again = f"-i {site.path}"
    return {
        "schema": SCHEMA,
        "container": container.name,
        "host": host.name,
        "machines": {role: machine.as_dict() for role, machine in machines.items()},
        "pve": {name: host.value(f"pve_host_{name}") for name in _PVE} | {"kernel": _kernel(host)},
        "lxc": {name: container.value(f"pve_container_{name}") for name in _LXC}
        | {
            "devices": [_device(device) for device in container.value("pve_container_devices") or []],
            "mounts": [
                mount.model_dump(include={"source", "target", "read_only"})
                for mount in container.value("pve_container_mounts") or []
            ],
        },
        "driver": container.text("nvidia_userspace_version"),
        "gate": bool(container.value("gpu_probe_gate")),
        "gated": bool(container.value("gpu_probe_gate")) and bool(container.value("inference_server_gate")),
        "release": {
            "build": site.build_name(container, "release"),
            "digest": digest(site, container),
            "root": container.text("release_root") or "/opt/rackwell",
        },
        "model": {
            "path": container.text("model_weights_path") or profile.model.path,
            "files": container.value("model_weights_files") or [],
        },
        "server": _server(container, profile),
        "proxy": _proxy(site, container),
        "commands": {
            "provision": f"rackwell provision {container.name} {again}",
            "build": f"rackwell build --all {again}",
            "verify": f"rackwell verify {container.name} {again}",
            "release_gate": f"rackwell verify {container.name} --release-gate {again}",
            "logs": f"rackwell logs {container.name} {again}",
        },
    }


def digest(site: Site, container: Node) -> str:
    """The release that is declared, by what `rackwell build` made last; empty when it was not built here."""
    bundle = container.text("release_bundle")
    link = Path(bundle) if bundle else site.state / "builds" / site.build_name(container, "release")
    name = link.resolve().name
    return name if re.fullmatch(r"[0-9a-f]{64}", name) else ""


def _kernel(host: Node) -> str:
    """The kernel that is pinned with the declared driver; empty when none is."""
    if not host.value("pve_host_manage_driver"):
        return ""
    version = host.value("pve_host_driver_version")
    pairs = [pair for pair in host.value("pve_host_drivers") or [] if pair.version == version]
    return str((pairs[0].kernel if pairs else "") or host.value("pve_host_kernel") or "")


def _device(device: Any) -> dict[str, Any]:
    if isinstance(device, str):
        return {"path": device, "mode": None}
    return {"path": device.path, "mode": device.mode}


def _server(container: Node, profile: Profile) -> dict[str, Any]:
    flags: dict[str, Any] = {
        **profile.flags,
        "model-path": profile.model.path,
        "served-model-name": profile.model.served_name,
        "host": profile.server.host,
        "port": profile.server.port,
    }
    secret = {name for name in flags if SECRET_FLAG.search(name)}
    hidden = {name for name in profile.environment if SECRET.search(name)}
    return {
        "unit": "rackwell-inference.service",
        "user": container.text("inference_server_user") or "rackwell",
        "host": profile.server.host,
        "port": profile.server.port,
        "served_name": profile.model.served_name,
        "flags": {name: value for name, value in flags.items() if name not in secret},
        "secret_flags": sorted(name for name in secret if flags[name] not in (None, False)),
        "environment": {name: str(value) for name, value in profile.environment.items() if name not in hidden},
        "secret_environment": sorted(hidden),
        "sane": profile.sane.model_dump(),
    }


def _proxy(site: Site, container: Node) -> dict[str, Any] | None:
    # the role has defaults for all of it, and is applied only where its state is declared
    if site.inventory.variables[container.name].get("api_proxy_state") in (None, "absent"):
        return None
    routes = container.value("api_proxy_routes") or []
    return {
        "address": container.text("api_proxy_address"),
        "port": container.value("api_proxy_port"),
        "routes": [route.model_dump() for route in routes],
    }
