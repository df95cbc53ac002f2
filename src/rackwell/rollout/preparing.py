# SPDX-License-Identifier: Apache-2.0
"""What a roll of a build would be: what is asked for, checked, and the release made. Touches no machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from rackwell import runid
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import builds, declared
from rackwell.provision.builds import Built
from rackwell.provision.declared import Target
from rackwell.provision.progress import Progress
from rackwell.rollout.plan import OnFailure, Plan, batches
from rackwell.site import declaration
from rackwell.site.declaration import Site


@dataclasses.dataclass(frozen=True)
class Wishes:
    """How to roll. The fields are the options of ``rackwell roll``."""

    limit: tuple[str, ...] = ()
    canary: tuple[str, ...] = ()
    batch: str = "1,30%"
    on_failure: OnFailure = "return"
    skip: tuple[str, ...] = ()
    reason: str = ""
    bench: str = ""
    baseline: str = "recorded"
    interleave: int = 0
    min_effect: float = 0.05
    energy: bool = False
    confirm_s: int = 120
    hold_s: int = 86400
    allow_reboot: bool = False


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What a roll would be: everything that can be known of it on this machine."""

    site: Site
    targets: dict[str, Target]
    built: dict[str, Built]
    plan: Plan


def prepare(path: Path, build: str, wishes: Wishes, progress: Progress) -> Prepared:
    """Check what is asked for, and make the release. Touches no machine.

    Raises:
        RackwellError: the declaration or an option does not hold (exit 2), or the release could not be made (exit 1).
    """
    progress.safety = "no machine was touched"
    site = declaration.load(path)
    names = _names(site, wishes.limit)
    skip = skips(wishes)
    cut = batches(names, wishes.batch, wishes.canary)
    targets = {name: declared.target(site, name) for name in names}
    _one_python(targets, site, build)
    if "bench" not in skip:
        for target in targets.values():
            # a sweep that is not there must be found out now, and not on the canary
            site.bench(target.container, wishes.bench or None)
    first = targets[names[0]]
    built = builds.make_all(first.site, first.container, progress, build)
    run, _ = runid.new()
    settings = {
        "confirm_s": wishes.confirm_s,
        "hold_s": wishes.hold_s,
        "bench": wishes.bench,
        # what is measured in turn is held against what is measured now
        "baseline": "measure" if wishes.interleave else wishes.baseline,
        "interleave": wishes.interleave,
        "min_effect": wishes.min_effect,
        "energy": wishes.energy,
    }
    plan = Plan(run, build, built["release"].digest, cut, wishes.on_failure, skip, settings)
    return Prepared(site, targets, built, plan)


def _names(site: Site, limit: Sequence[str]) -> list[str]:
    for name in limit:
        site.container(name)
    names = [name for name in site.containers if not limit or name in limit]
    if not names:
        raise RackwellError(
            Problem("no-containers", "this site has no containers to roll over", str(site.path)), ExitCode.INVALID
        )
    return names


def skips(wishes: Wishes) -> dict[str, str]:
    """Gate -> why it is not asked. Raises RackwellError: there is no such gate, or no reason (exit 2)."""
    known = ("bench", "healthy")
    for gate in wishes.skip:
        if gate not in known:
            raise RackwellError(
                Problem(
                    "unknown-gate",
                    f"{gate!r} is no gate that can be skipped",
                    "--skip-gate",
                    f"there is: {', '.join(known)}",
                ),
                ExitCode.INVALID,
            )
    if wishes.skip and not wishes.reason.strip():
        raise RackwellError(
            Problem(
                "no-reason", "a gate is skipped for a reason, which is recorded", "--reason", "", "add --reason TEXT"
            ),
            ExitCode.INVALID,
        )
    return dict.fromkeys(wishes.skip, wishes.reason)


def _one_python(targets: Mapping[str, Target], site: Site, build: str) -> None:
    """The small releases take their Python from the server's build: one set of them is staged for all."""
    from rackwell.build import load_build

    wanted = load_build(declared.build_file(site, build)).python
    for name, target in targets.items():
        has = load_build(declared.build_file(site, site.build_name(target.container, "release"))).python
        if has != wanted:
            raise RackwellError(
                Problem(
                    "python-differs",
                    f"build {build} is for Python {wanted}, and {name} was provisioned with {has}",
                    str(declared.build_file(site, build)),
                    "the probe and the benchmark client are of the same Python",
                    f"declare the build and run rackwell provision {name}",
                ),
                ExitCode.INVALID,
            )
