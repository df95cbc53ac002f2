# SPDX-License-Identifier: Apache-2.0
"""What a roll of a driver would be: the hosts, the pair of each, and the pair that each could return to."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackwell import runid
from rackwell.ansible import runner
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import builds, declared
from rackwell.provision.progress import Progress
from rackwell.rollout.drivers import pair as pairs
from rackwell.rollout.drivers.fleet import DRIVER, USERSPACE
from rackwell.rollout.drivers.pair import Pair
from rackwell.rollout.plan import Plan, batches
from rackwell.rollout.planning import SCHEMA as ROLLOUT
from rackwell.rollout.preparing import Prepared, Wishes
from rackwell.site.declaration import Site


def prepare(
    site: Site, version: str, kernel: str, wishes: Wishes, skip: dict[str, str], progress: Progress
) -> Prepared:
    """Check what is asked for, and look at the hosts. Changes nothing on them.

    Raises:
        RackwellError: the declaration or an option does not hold, or a host could not return to what it has (exit 2);
            a reboot is needed and was not consented to (exit 4); a host does not answer (exit 6).
    """
    ready, seen = looked(site, version, kernel, wishes, skip, progress)
    _consent(seen.hosts, wishes.allow_reboot)
    return ready


@dataclasses.dataclass(frozen=True)
class Looked:
    """What hosts and containers told.

    Attributes:
        hosts: of module ``pve_driver``. containers: of their own side of a roll. libraries: whether a container's are
            the wanted driver's.
    """

    hosts: dict[str, dict[str, Any]]
    containers: dict[str, dict[str, Any]]
    libraries: dict[str, bool]


def looked(
    site: Site, version: str, kernel: str, wishes: Wishes, skip: dict[str, str], progress: Progress
) -> tuple[Prepared, Looked]:
    """As :func:`prepare`, without asking for consent; and what hosts and containers told.

    Raises:
        RackwellError: as there, but for the consent.
    """
    progress.safety = "no machine was touched"
    containers = _containers(site, wishes.limit)
    targets = {name: declared.target(site, name) for names in containers.values() for name in names}
    for target in targets.values():
        if "bench" not in skip:
            site.bench(target.container, wishes.bench or None)
        if not target.container.value("pve_container_onboot"):
            raise _invalid(
                "container-not-at-boot",
                f"{target.container.name} does not start with its host",
                target.container.name,
                "pve_container_onboot is false, and the host is rebooted",
                "set pve_container_onboot: true and provision it",
            )
    canary = tuple(dict.fromkeys(site.host_of(site.container(name)) for name in wishes.canary))
    # one host at a time: each takes all of its containers away
    cut = batches(list(containers), "1", canary)
    after = {name: pairs.wanted(site, site.hosts[name], version, kernel) for name in containers}
    for one in set(after.values()):
        _check_file(one)
    seen = _look(site, after, containers, progress)
    hosts = {
        name: {
            "containers": names,
            "before": pairs.before(site, site.hosts[name], seen.hosts[name]["facts"]).as_dict(),
            "after": after[name].as_dict(),
        }
        for name, names in containers.items()
    }
    first = next(iter(targets.values()))
    built = builds.make_all(first.site, first.container, progress)
    settings = {
        "driver": version,
        "hosts": hosts,
        "allow_reboot": wishes.allow_reboot,
        "bench": wishes.bench,
        "baseline": wishes.baseline,
        "min_effect": wishes.min_effect,
        "energy": wishes.energy,
    }
    digest = next(iter(after.values())).digest
    plan = Plan(runid.new()[0], f"driver {version}", digest, cut, wishes.on_failure, skip, settings)
    return Prepared(site, targets, built, plan), seen


def containers_of(plan: Plan) -> list[str]:
    """The containers of all hosts of a roll of a driver."""
    return [name for told in plan.settings["hosts"].values() for name in told["containers"]]


def undeclared(site: Site, plan: Plan, promoted: list[str]) -> list[str]:
    """Hosts that have the new driver while the site declares another one for them."""
    version = plan.settings["driver"]
    return [name for name in promoted if site.hosts[name].text("pve_host_driver_version") != version]


def _containers(site: Site, limit: tuple[str, ...]) -> dict[str, list[str]]:
    """Host -> its containers. Raises RackwellError when only some of a host's are named."""
    for name in limit:
        site.container(name)
    found: dict[str, list[str]] = {}
    for name, container in site.containers.items():
        found.setdefault(site.host_of(container), []).append(name)
    if limit:
        found = {host: names for host, names in found.items() if set(names) & set(limit)}
        for host, names in found.items():
            left = [name for name in names if name not in limit]
            if left:
                raise _invalid(
                    "containers-share-a-host",
                    f"the containers of {host} get another driver together",
                    "--limit",
                    f"not named: {', '.join(left)}",
                    " ".join(f"--limit {name}" for name in names),
                )
    if not found:
        raise _invalid("no-containers", "this site has no containers to roll over", str(site.path), "", "")
    return found


def _check_file(one: Pair) -> None:
    """A file on this machine is the declared one; a URL is fetched, and compared, when it is needed."""
    if one.run_file.startswith(("http://", "https://")):
        return
    path = Path(one.run_file)
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise _invalid(
            "run-file-missing",
            "the driver's .run file cannot be read",
            str(path),
            error.strerror or str(error),
            "correct run_file in pve_host_drivers, or put the file there",
        ) from error
    if found != one.sha256:
        raise _invalid(
            "run-file-checksum",
            "the driver's .run file is not the declared one",
            str(path),
            f"its sha256 is {found}, declared is {one.sha256}",
            "download it anew, or correct sha256 in pve_host_drivers after comparing it with NVIDIA's page",
        )


def _look(site: Site, after: Mapping[str, Pair], containers: Mapping[str, list[str]], progress: Progress) -> Looked:
    """What they told. Raises RackwellError when a host told nothing."""
    directory = RunDirectory.create(site.state, "rolldriver")
    progress.log = directory.log
    found = Looked({}, {}, {})
    for one in dict.fromkeys(after.values()):
        names = [name for name, pair in after.items() if pair == one]
        inner = [each for name in names for each in containers[name]]
        played = runner.play(
            "driver_look",
            site.path,
            directory,
            [*names, *inner],
            listener=progress.step,
            extra=one.extra(allow_reboot=False),
        )
        if played.interrupted:
            raise KeyboardInterrupt
        if played.problems:
            raise RackwellError(played.problems, played.exit_code)
        found.hosts.update({name: told[-1] for name in names if (told := played.payloads(DRIVER, name))})
        found.containers.update({name: told[-1] for name in inner if (told := played.payloads(ROLLOUT, name))})
        for name in inner:
            found.libraries[name] = any(not told["needed"] for told in played.payloads(USERSPACE, name))
    silent = [name for name in after if name not in found.hosts]
    if silent:
        why = f"{', '.join(silent)} told nothing"
        raise RackwellError(Problem("unreachable", "not every host could be looked at", "", why), ExitCode.UNREACHABLE)
    return found


def _consent(told: Mapping[str, Mapping[str, Any]], allowed: bool) -> None:
    problems = [
        Problem(
            "reboot-needed",
            f"{name} has to be rebooted",
            name,
            f"{'; '.join(one['todo']['reboot'])}; what it disturbs: {one['disturbs']}; nothing was changed",
            "when that is acceptable: --allow-reboot",
        )
        for name, one in told.items()
        if one["todo"]["reboot"] and not allowed
    ]
    if problems:
        raise RackwellError(problems, ExitCode.HELD)


def _invalid(code: str, what: str, where: str, why: str, fix: str) -> RackwellError:
    return RackwellError(Problem(code, what, where, why, fix), ExitCode.INVALID)
