# SPDX-License-Identifier: Apache-2.0
"""The declaration of a site: read, typed and cross-checked. Every problem is collected, not the first only."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site import files, shipping, validation, yamlsource
from rackwell.site import inventory as inventories
from rackwell.site.benchfile import BenchProfile
from rackwell.site.checks import Checker
from rackwell.site.inventory import Inventory, Sources
from rackwell.site.node import CONTAINER_GROUP, Node
from rackwell.site.profile import Profile


@dataclasses.dataclass(frozen=True)
class Site:
    """A site's declaration and everything that is wrong with it.

    Attributes:
        problems: (hosts concerned, problem); no hosts concerned means the whole site.
    """

    path: Path
    inventory: Inventory
    sources: Sources
    hosts: Mapping[str, Node]
    containers: Mapping[str, Node]
    routers: Mapping[str, Node]
    problems: tuple[tuple[frozenset[str], Problem], ...]

    @property
    def state(self) -> Path:
        """The directory of rackwell's own state in the site."""
        return self.path / ".rackwell"

    def container(self, name: str) -> Node:
        """The container `name`.

        Raises:
            RackwellError: it is not declared (exit 2).
        """
        if name in self.containers:
            return self.containers[name]
        known = ", ".join(sorted(self.containers)) or "none"
        hint = validation.suggest(name, self.containers, 0.6)
        why = f"the group {CONTAINER_GROUP} has: {known}"
        raise RackwellError(
            Problem(
                "unknown-container", f"'{name}' is not a container of this site", self.sources.hosts.where(), why, hint
            ),
            ExitCode.INVALID,
        )

    def host_of(self, container: Node) -> str:
        """Inventory name of the Proxmox host of `container`; empty when it is not declared well."""
        return container.text("pve_container_host") or ""

    def workers_of(self, router: Node) -> list[str]:
        """The containers behind a router: those that it names, else all."""
        named = router.value("router_workers")
        return [str(name) for name in named] if isinstance(named, list) and named else list(self.containers)

    def routers_of(self, container: str) -> list[Node]:
        """The routers that a container is behind."""
        return [router for router in self.routers.values() if container in self.workers_of(router)]

    def problems_of(self, *names: str) -> list[Problem]:
        """The problems of the whole site and of the hosts named; all when none is named."""
        return [p for concerned, p in self.problems if not names or not concerned or concerned & set(names)]

    def profile_file(self, container: Node) -> Path:
        """The serving profile of `container`: the site's, else the one of that name that ships with rackwell."""
        own = self._file(container, "inference_server_profile_file", "profiles", "inference_server_profile")
        return own if "inference_server_profile_file" in container.variables else shipping.profile_file(own)

    def bench_file(self, container: Node, name: str | None = None) -> Path:
        """The benchmark sweep of `container`, or the one called `name`."""
        if name:
            return self.path / "bench" / f"{name}.yml"
        return self._file(container, "bench_client_profile_file", "bench", "bench_client_profile")

    def build_name(self, container: Node, role: str) -> str:
        """The build that `role` (release, gpu_probe, bench_client) of `container` uses; empty when not known."""
        return container.text(f"{role}_build") or ""

    def weights_build(self, container: Node) -> tuple[str, str] | None:
        """Build and Python of what brings the model to the host of `container`; None where nobody brings it."""
        try:
            if not self.profile(container).model.repository:
                return None
        except RackwellError:
            return None
        name, python = container.text("model_weights_build"), container.text("model_weights_python")
        return (name, python) if name and python else None

    def profile(self, container: Node) -> Profile:
        """The validated serving profile of `container`. Raises RackwellError (exit 2)."""
        return validation.validate(Profile, yamlsource.load(self.profile_file(container)), "profile")

    def bench(self, container: Node, name: str | None = None) -> BenchProfile:
        """The validated sweep. Raises RackwellError (exit 2)."""
        return validation.validate(BenchProfile, yamlsource.load(self.bench_file(container, name)), "bench file")

    def _file(self, container: Node, variable: str, folder: str, name_variable: str) -> Path:
        # the default is a template of Ansible's; a value that a person gave was resolved already
        explicit = container.text(variable)
        if explicit and variable in container.variables:
            return Path(explicit)
        return self.path / folder / f"{container.text(name_variable) or ''}.yml"


def load(path: Path) -> Site:
    """Read and check the site at `path`.

    Raises:
        RackwellError: the site cannot be read at all (exit 2). What is wrong within it is in `Site.problems`.
    """
    path = path.absolute()
    if files.is_file(path):
        path = path.parent
    if not files.exists(path / inventories.HOSTS_FILE):
        raise RackwellError(
            Problem(
                "no-site",
                "there is no site here",
                str(path),
                f"a site is a directory with {inventories.HOSTS_FILE}",
                "name it with -i SITE, or make one: rackwell init DIR",
            ),
            ExitCode.INVALID,
        )
    # Ansible reads the site in a process of its own; meanwhile this one looks for the lines
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(inventories.read_sources, path)
        refused: RackwellError | None = None
        try:
            inventory = inventories.read(path)
        except RackwellError as error:
            refused = error
        sources, problems = reading.result()
    if sources is None or problems:
        raise RackwellError(problems, ExitCode.INVALID)
    if refused is not None:
        raise refused
    checker = Checker(path, inventory, sources)
    checker.run()
    problems_found = tuple(checker.problems.items_in_order())
    return Site(path, inventory, sources, checker.hosts, checker.containers, checker.routers, problems_found)
