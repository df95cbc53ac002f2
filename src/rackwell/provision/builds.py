# SPDX-License-Identifier: Apache-2.0
"""The releases of a container: of the server, the probe, the benchmark client, and of what brings its model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rackwell import shipped
from rackwell.build import load_build, make_release
from rackwell.provision import mirrored
from rackwell.provision.declared import BUILD_ROLES, build_file
from rackwell.provision.progress import Progress
from rackwell.site.declaration import Site
from rackwell.site.node import Node

_BUNDLE = {
    "release": "release_bundle",
    "gpu_probe": "gpu_probe_bundle",
    "bench_client": "bench_client_bundle",
    "model_weights": "model_weights_bundle",
    "router": "router_bundle",
}


@dataclasses.dataclass(frozen=True)
class Built:
    """A release that lies ready on the controller."""

    build: str
    digest: str
    path: Path
    changed: bool
    manifest: dict[str, Any]

    @property
    def accepted_risks(self) -> list[dict[str, str]]:
        """Each harmful patch in it (``patch``), and why it was taken all the same (``reason``)."""
        return [
            {"patch": patch["name"], "reason": patch["accept_risk"]}
            for patch in self.manifest.get("patches", [])
            if "accept_risk" in patch
        ]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "build": self.build,
            "digest": self.digest,
            "path": str(self.path),
            "changed": self.changed,
            "wheels": len(self.manifest.get("wheels", [])),
            "patches": [patch["name"] for patch in self.manifest.get("patches", [])],
            "accepted_risks": self.accepted_risks,
        }


def make(
    site: Site,
    name: str,
    progress: Progress,
    *,
    relock: bool = False,
    python: str | None = None,
    online: bool = False,
) -> Built:
    """Make the release of build `name`; at a site with a mirror, from that alone.

    Args:
        online: from the network, though the site has a mirror: to fill it.

    Raises:
        RackwellError: exit 2 or 1.
    """
    spec = load_build(build_file(site, name))
    mirror = None if online else mirrored.use(site, progress)
    if mirror is not None:
        mirrored.prepare(site, mirror, name, python)

    def tell(text: str) -> None:
        # the builder indents what belongs to the line before, such as each wheel of a fetch
        told = progress.detail if text.startswith(" ") else progress.line
        told("controller", f"build {name}: {text.strip()}")

    release = make_release(
        spec,
        site_state=site.state,
        catalog=shipped.catalog(),
        progress=tell,
        relock=relock,
        python=python,
        mirror=mirror,
    )
    return Built(name, release.digest, release.path, release.changed, release.manifest)


def make_all(site: Site, container: Node, progress: Progress, server: str = "") -> dict[str, Built]:
    """Role -> its release, for `container`. The small ones take their Python from the server's build.

    Args:
        server: the server's build; empty takes the one that the container declares.

    Raises:
        RackwellError: as `make`.
    """
    server = server or site.build_name(container, "release")
    python = load_build(build_file(site, server)).python
    made = {
        role: make(site, server, progress)
        if role == "release"
        else make(site, site.build_name(container, role), progress, python=python)
        for role in BUILD_ROLES
    }
    if weights := site.weights_build(container):
        made["model_weights"] = make(site, weights[0], progress, python=weights[1])
    return made


def make_router(site: Site, router: Node, progress: Progress) -> Built:
    """The release of a router, for its machine's own Python. Raises RackwellError as `make`."""
    return make(site, site.build_name(router, "router"), progress, python=router.text("router_python"))


def used(site: Site) -> list[tuple[str, str | None]]:
    """The builds of all containers and routers, with the Python that the small ones take from the server's build.

    A build that is needed for several versions comes last for its own: its plain link leads to what was made last.

    Raises:
        RackwellError: a build file does not hold (exit 2).
    """
    wanted: set[tuple[str, str]] = set()
    own: dict[str, str] = {}
    for container in site.containers.values():
        server = site.build_name(container, "release")
        if not server:
            continue
        python = load_build(build_file(site, server)).python
        for role in BUILD_ROLES:
            if name := site.build_name(container, role):
                own.setdefault(name, load_build(build_file(site, name)).python)
                wanted.add((name, own[name] if role == "release" else python))
        if weights := site.weights_build(container):
            own.setdefault(weights[0], load_build(build_file(site, weights[0])).python)
            wanted.add(weights)
    for router in site.routers.values():
        name, its_own = site.build_name(router, "router"), router.text("router_python")
        if name and its_own:
            own.setdefault(name, load_build(build_file(site, name)).python)
            wanted.add((name, its_own))
    ordered = sorted(wanted, key=lambda pair: (pair[1] == own[pair[0]], pair))
    return [(name, None if python == own[name] else python) for name, python in ordered]


def bundles(container: Node, built: dict[str, Built]) -> dict[str, Any]:
    """Extra variables that name the exact releases, where the declaration does not name a bundle itself."""
    return {
        _BUNDLE[role]: str(release.path) for role, release in built.items() if _BUNDLE[role] not in container.variables
    }
