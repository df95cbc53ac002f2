# SPDX-License-Identifier: Apache-2.0
"""The whole declaration, builds and patches included: what the site's own checks cannot see."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from rackwell.build import BuildSpec, load_build, patch_requirements
from rackwell.build.catalogue import flags
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import paths
from rackwell.site import files, validation, yamlsource
from rackwell.site.declaration import Site
from rackwell.site.node import Node
from rackwell.site.profile import Profile

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
    problems = [*site.problems_of(name, host), *build_problems(site, container)]
    if problems:
        raise RackwellError(list(dict.fromkeys(problems)), ExitCode.INVALID)
    return Target(site, container, host)


def problems(site: Site) -> list[Problem]:
    """Every problem of every container, host and build of `site`, once each."""
    found = site.problems_of()
    for container in site.containers.values():
        found += build_problems(site, container)
    return list(dict.fromkeys(found))


def build_file(site: Site, name: str) -> Path:
    """The file of build `name`: the site's, else the one that ships with rackwell.

    Raises:
        RackwellError: there is none (exit 2).
    """
    own, shipped = site.path / "builds" / f"{name}.yml", paths.catalog() / "builds" / f"{name}.yml"
    for path in (own, shipped):
        if files.is_file(path):
            return path
    there = sorted({name for folder in (own.parent, shipped.parent) for name in files.stems(folder)})
    hint = validation.suggest(name, there, 0.5) or f"there is: {', '.join(there) or 'none'}"
    raise RackwellError(
        Problem("file-missing", f"the build '{name}' does not exist", str(own), "nor does rackwell ship one", hint),
        ExitCode.INVALID,
    )


def build_problems(site: Site, container: Node) -> list[Problem]:
    """What is wrong with the builds of `container`, and between its server build and its profile."""
    found: list[Problem] = []
    for role in BUILD_ROLES:
        name = site.build_name(container, role)
        if not name:
            continue
        try:
            spec = load_build(build_file(site, name))
        except RackwellError as error:
            found += [_at_variable(site, container, role, problem) for problem in error.problems]
            continue
        try:
            # a profile is the server's: what other builds patch needs no flags, and must hold all the same
            found += _patch_problems(site, container, spec) if role == "release" else _holds(spec)
        except RackwellError as error:
            found += error.problems
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


def _patch_problems(site: Site, container: Node, spec: BuildSpec) -> Iterator[Problem]:
    """Flags without which a patch of the server build would do nothing."""
    requirements = patch_requirements(spec, paths.catalog())
    try:
        document = yamlsource.load(site.profile_file(container))
        profile = validation.validate(Profile, document, "profile")
    except RackwellError:
        return  # told by the site's own checks
    for requirement in requirements:
        for flag, wanted in requirement.needs_flags.items():
            if not flags.satisfied(profile.flags, flag, wanted):
                yield Problem(
                    "patch-without-effect",
                    f"the patch {requirement.name} needs the flag {flags.told(flag, wanted)}",
                    document.where(("flags", flag)),
                    f"the profile has {profile.flags[flag]!r}"
                    if flag in profile.flags
                    else f"the profile does not set it; {requirement.where} asks for the patch",
                    f"set `{flags.told(flag, wanted)}` under flags, or take the patch out of the build",
                )
        for flag, value in requirement.hindering_flags.items():
            if flag in profile.flags and flags.satisfied(profile.flags, flag, value):
                yield Problem(
                    "patch-without-effect",
                    f"the patch {requirement.name} has no effect with the flag {flags.told(flag, value)}",
                    document.where(("flags", flag)),
                    f"{requirement.where} asks for the patch, and the profile switches off what it changes",
                    f"remove `{flag}` from flags, or take the patch out of the build",
                )


def _holds(spec: BuildSpec) -> list[Problem]:
    """Raises RackwellError when a patch of the build does not hold."""
    patch_requirements(spec, paths.catalog())
    return []


@dataclasses.dataclass(frozen=True)
class AcceptedRisk:
    """A harmful patch that a build takes all the same, and why."""

    build: str
    patch: str
    reason: str
    where: str


def accepted_risks(site: Site) -> list[AcceptedRisk]:
    """Every harmful patch that a build of the site's containers takes; builds that do not hold tell nothing."""
    found: dict[str, list[AcceptedRisk]] = {}
    for container in site.containers.values():
        for name in filter(None, (site.build_name(container, role) for role in BUILD_ROLES)):
            if name in found:
                continue
            found[name] = []
            try:
                spec = load_build(build_file(site, name))
            except RackwellError:
                continue
            found[name] = [
                AcceptedRisk(name, use.name, use.accept_risk, spec.where("patches", index))
                for index, use in enumerate(spec.patches)
                if use.accept_risk is not None
            ]
    return [risk for risks in found.values() for risk in risks]
