# SPDX-License-Identifier: Apache-2.0
"""Patches of builds against the profiles of those who run them, and the risks that builds take."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rackwell.build import BuildSpec, PatchRequirement
from rackwell.build.catalogue import flags
from rackwell.errors import Problem
from rackwell.site.profile import Profile
from rackwell.site.yamlsource import Document


@dataclasses.dataclass(frozen=True)
class AcceptedRisk:
    """A harmful patch that a build takes all the same, and why."""

    build: str
    patch: str
    reason: str
    where: str


def accepted(spec: BuildSpec) -> list[AcceptedRisk]:
    """The risks that one build accepts."""
    return [
        AcceptedRisk(spec.name, use.name, use.accept_risk, spec.where("patches", index))
        for index, use in enumerate(spec.patches)
        if use.accept_risk is not None
    ]


def flag_problems(requirements: list[PatchRequirement], profile: Profile, document: Document) -> Iterator[Problem]:
    """Flags of a profile, absent or given, with which a patch of its build does nothing."""
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
