# SPDX-License-Identifier: Apache-2.0
"""What the diagnosis rules make of a failure of a play: its cause and its remedy, in the message that is printed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rackwell.ansible.results import Failure
from rackwell.errors import Problem, RackwellError

if TYPE_CHECKING:
    from rackwell.diagnose import Diagnosis, Facts, Finding
    from rackwell.provision.builds import Built
    from rackwell.site.declaration import Site
    from rackwell.site.node import Node

_SURE = {"high": "", "likely": "likely: ", "possible": "possibly, not for certain: "}


_PACKAGES = {"flashinfer_python": "flashinfer", "nvidia_nccl_cu12": "nccl", "nvidia_nccl_cu13": "nccl"}


def known(site: Site, container: Node, built: Mapping[str, Built] | None = None) -> Facts:
    """What is declared: flags, environment and driver; with `built` also the versions of the server's release."""
    from rackwell.diagnose import Facts

    facts: dict[str, Any] = {"driver": container.text("nvidia_userspace_version")}
    with contextlib.suppress(RackwellError):
        profile = site.profile(container)
        facts |= {"flags": profile.flags, "environment": profile.environment}
    if built is not None and "release" in built:
        for wheel in built["release"].manifest.get("wheels") or []:
            name, _, rest = str(wheel.get("filename", "")).lower().partition("-")
            facts[_PACKAGES.get(name, name)] = rest.partition("-")[0]
    return Facts.of(facts)


def finding_in(lines: Sequence[str], facts: Facts | None = None) -> Finding | None:
    """The cause that `lines` tell of; None when no rule knows one, or they hold nothing but what is normal."""
    if not lines:
        return None
    told = _diagnosed("\n".join(lines), facts)
    first = told.first if told is not None else None
    return None if first is None or first.severity == "noise" else first


def _diagnosed(text: str, facts: Facts | None) -> Diagnosis | None:
    from rackwell.diagnose import diagnose

    # a rule that does not hold must not hide the failure itself
    with contextlib.suppress(RackwellError):
        return diagnose(text, facts)
    return None


def sentence(finding: Finding) -> str:
    """Cause, how sure, and the rule's id, in one line."""
    return f"{_SURE[finding.confidence]}{finding.cause.rstrip('.')} [{finding.id}]"


def line(finding: Finding) -> str:
    """The cause in a few words, for a row of a table."""
    return f"{_SURE[finding.confidence]}{finding.title} [{finding.id}]"


def explained(failure: Failure, facts: Facts | None = None) -> tuple[Problem, ...]:
    """The problems of a failure; what its log tells of the cause stands first in `why`, and the remedy in `fix`."""
    if not failure.journal or not failure.problems:
        return failure.problems
    finding = finding_in(failure.journal, facts)
    return failure.problems if finding is None else (told(failure.problems[0], finding), *failure.problems[1:])


def told(problem: Problem, finding: Finding) -> Problem:
    """`problem` with its cause and its remedy."""
    why = f"{sentence(finding)}. {problem.why[:1].upper()}{problem.why[1:]}" if problem.why else sentence(finding)
    what = f"{problem.what}: {finding.title}" if finding.confidence == "high" else problem.what
    return dataclasses.replace(problem, what=what, why=why, fix=finding.remedy)


def all_explained(failures: Iterable[Failure], facts: Facts | None = None) -> list[Problem]:
    """The problems of all failures, once each."""
    return list(dict.fromkeys(problem for failure in failures for problem in explained(failure, facts)))
