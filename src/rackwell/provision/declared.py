# SPDX-License-Identifier: Apache-2.0
"""The whole declaration, builds and patches included: what the site's own checks cannot see."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from rackwell import shipped
from rackwell.build import BuildSpec, PatchRequirement, load_build, patch_requirements
from rackwell.build.routes import Inventories
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.lint import Finding
from rackwell.provision import linting, patching
from rackwell.provision.patching import AcceptedRisk
from rackwell.provision.proxying import Proxies
from rackwell.site import files, validation, yamlsource
from rackwell.site.benchfile import BenchProfile
from rackwell.site.declaration import Site
from rackwell.site.node import Node
from rackwell.site.profile import Profile
from rackwell.site.yamlsource import Document

BUILD_ROLES = {"release": "server", "gpu_probe": "probe", "bench_client": "bench client"}
"""Roles that install a release, and what it is for."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A container of a site whose declaration holds."""

    site: Site
    container: Node
    host: str

    @property
    def limit(self) -> list[str]:
        """The hosts that a play about this container runs on."""
        return [self.container.name, self.host]


def target(site: Site, name: str) -> Target:
    """The container `name` of `site`, checked with its host.

    Raises:
        RackwellError: anything about the two, or about the site as a whole, does not hold (exit 2).
    """
    container = site.container(name)
    host = site.host_of(container)
    looked = _Looked(site)
    routers = [router.name for router in site.routers_of(name)]
    problems = [*site.problems_of(name, host, *routers), *build_problems(site, container, looked)]
    problems += router_problems(site, routers, looked)
    lint = linting.Lint(site)
    problems += _lint(site, container, lint, looked)
    proxies = _proxies(site, [container], lint, looked)
    problems = _once(problems, linting.errors([*lint.findings(whole=False), *proxies]))
    if problems:
        raise RackwellError(list(dict.fromkeys(problems)), ExitCode.INVALID)
    return Target(site, container, host)


@dataclasses.dataclass(frozen=True)
class Checked:
    """What a check of a whole site comes to.

    Attributes:
        problems: everything that is refused, once each, errors of the lint included.
        findings: everything that the lint says, also what is ignored, and why.
        risks: harmful patches that builds of the site's containers take all the same.
    """

    problems: list[Problem]
    findings: list[Finding]
    risks: list[AcceptedRisk]


def check(site: Site) -> Checked:
    """Every container, host, build and profile of `site`."""
    found = site.problems_of()
    looked = _Looked(site)
    lint = linting.Lint(site)
    for container in site.containers.values():
        found += build_problems(site, container, looked)
        found += _lint(site, container, lint, looked)
    found += router_problems(site, list(site.routers), looked)
    findings = [*lint.findings(whole=True), *_proxies(site, list(site.containers.values()), lint, looked)]
    return Checked(_once(found, linting.errors(findings)), findings, _accepted_risks(site, looked))


def problems(site: Site) -> list[Problem]:
    """Every problem of every container, host and build of `site`, once each."""
    return check(site).problems


def _once(found: list[Problem], linted: list[Problem]) -> list[Problem]:
    """Each problem once. That the autotune patch has no effect is told by the patch already."""
    told = {(problem.code, problem.where) for problem in found}
    rest = [p for p in linted if not (p.code == "RW302" and ("patch-without-effect", p.where) in told)]
    return list(dict.fromkeys([*found, *rest]))


def _lint(site: Site, container: Node, lint: linting.Lint, looked: _Looked) -> list[Problem]:
    """Lint what `container` runs; what does not hold by itself is told elsewhere."""
    with contextlib.suppress(RackwellError):
        if name := site.build_name(container, "bench_client"):
            lint.client(looked.build(name))
    name = site.build_name(container, "release")
    try:
        spec = looked.build(name) if name else None
        profile, document = looked.profile(site.profile_file(container))
    except RackwellError:
        return []
    if spec is None:
        return []
    try:
        lint.server(container, spec, profile, document, looked.tokens(site.bench_file(container)))
    except RackwellError as error:
        return error.problems
    return []


def _proxies(site: Site, containers: Sequence[Node], lint: linting.Lint, looked: _Looked) -> list[Finding]:
    """What the proxies let through, against their engines; a build that does not hold is told elsewhere."""
    proxies = Proxies(site, lint, Inventories(shipped.catalog()))
    for container in containers:
        with contextlib.suppress(RackwellError):
            if name := site.build_name(container, "release"):
                proxies.check(container, functools.partial(looked.build, name))
    return proxies.findings


def accepted_risks(site: Site) -> list[AcceptedRisk]:
    """Every harmful patch that a build of the site's containers takes; builds that do not hold tell nothing."""
    return _accepted_risks(site, _Looked(site))


def _accepted_risks(site: Site, looked: _Looked) -> list[AcceptedRisk]:
    names = {site.build_name(container, role) for container in site.containers.values() for role in BUILD_ROLES}
    found: list[AcceptedRisk] = []
    for name in sorted(filter(None, names)):
        with contextlib.suppress(RackwellError):
            found += patching.accepted(looked.build(name))
    return found


def build_file(site: Site, name: str) -> Path:
    """The file of build `name`: the site's, else the one that ships with rackwell.

    Raises:
        RackwellError: there is none (exit 2).
    """
    own, ours = site.path / "builds" / f"{name}.yml", shipped.catalog() / "builds" / f"{name}.yml"
    for path in (own, ours):
        if files.is_file(path):
            return path
    there = sorted({name for folder in (own.parent, ours.parent) for name in files.stems(folder)})
    hint = validation.suggest(name, there, 0.5) or f"there is: {', '.join(there) or 'none'}"
    raise RackwellError(
        Problem("file-missing", f"the build '{name}' does not exist", str(own), "nor does rackwell ship one", hint),
        ExitCode.INVALID,
    )


def build_problems(site: Site, container: Node, looked: _Looked | None = None) -> list[Problem]:
    """What is wrong with the builds of `container`, and between its server build and its profile."""
    looked = looked or _Looked(site)
    found: list[Problem] = []
    for role in BUILD_ROLES:
        name = site.build_name(container, role)
        if not name:
            continue
        try:
            looked.build(name)
        except RackwellError as error:
            found += [_at_variable(site, container, role, problem) for problem in error.problems]
            continue
        try:
            requirements = looked.requirements(name)
        except RackwellError as error:
            found += error.problems
            continue
        # a profile is the server's: what other builds patch needs no flags, and must hold all the same
        if role == "release" and requirements:
            # a profile that does not hold is told by the site's own checks
            with contextlib.suppress(RackwellError):
                found += patching.flag_problems(requirements, *looked.profile(site.profile_file(container)))
    return found


def router_problems(site: Site, names: Sequence[str], looked: _Looked | None = None) -> list[Problem]:
    """What is wrong with the builds of routers."""
    looked = looked or _Looked(site)
    found: list[Problem] = []
    for router in (site.routers[name] for name in names):
        if name := site.build_name(router, "router"):
            try:
                looked.build(name)
            except RackwellError as error:
                found += [_at_variable(site, router, "router", problem) for problem in error.problems]
    return found


def _at_variable(site: Site, container: Node, role: str, problem: Problem) -> Problem:
    """A missing build is told where it is asked for."""
    if problem.code != "file-missing":
        return problem
    variable = f"{role}_build"
    if variable not in container.variables:
        return problem
    where = site.sources.find(container.name, variable, site.inventory)
    return dataclasses.replace(problem, where=where, why=f"{problem.where} is not there, {problem.why}")


_T = TypeVar("_T")


class _Looked:
    """What was read for one answer: a thousand containers of one build read it once."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._known: dict[tuple[str, str], Any] = {}

    def build(self, name: str) -> BuildSpec:
        """Raises RackwellError, each time anew."""
        return self._once(("build", name), lambda: load_build(build_file(self._site, name)))

    def requirements(self, name: str) -> list[PatchRequirement]:
        """What the patches of build `name` need. Raises as `build`."""
        return self._once(("patches", name), lambda: patch_requirements(self.build(name), shipped.catalog()))

    def profile(self, path: Path) -> tuple[Profile, Document]:
        """Raises as `build`."""

        def read() -> tuple[Profile, Document]:
            document = yamlsource.load(path)
            return validation.validate(Profile, document, "profile"), document

        return self._once(("profile", str(path)), read)

    def tokens(self, path: Path) -> int | None:
        """Tokens of one request of a benchmark; None when there is none that holds."""

        def read() -> int:
            bench = validation.validate(BenchProfile, yamlsource.load(path), "bench file")
            return bench.longest

        with contextlib.suppress(RackwellError):
            return self._once(("bench", str(path)), read)
        return None

    def _once(self, key: tuple[str, str], make: Callable[[], _T]) -> _T:
        if key not in self._known:
            try:
                self._known[key] = make()
            except RackwellError as error:
                self._known[key] = error
        if isinstance(known := self._known[key], RackwellError):
            raise RackwellError(known.problems, known.exit_code)
        return cast(_T, known)
