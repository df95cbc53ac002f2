# SPDX-License-Identifier: Apache-2.0
"""The main job: from a bare machine to a served and benchmarked model."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from rackwell.ansible.results import PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import builds, declared, explaining, gpus, measure, plays, routing
from rackwell.provision.builds import Built
from rackwell.provision.declared import Target
from rackwell.provision.lock import container_lock
from rackwell.provision.measured import Measured
from rackwell.provision.progress import Progress
from rackwell.provision.routing import Routed
from rackwell.site import declaration, proxychecks


@dataclasses.dataclass
class Provisioned:
    """What a provision came to."""

    target: Target
    built: dict[str, Built]
    played: PlayResult
    check: bool
    problems: list[Problem]
    exit_code: ExitCode
    measured: Measured | None = None
    bench_note: str = ""
    routers: list[Routed] = dataclasses.field(default_factory=list)

    @property
    def address(self) -> str:
        """The address of the container, without the length of its network."""
        return (self.target.container.text("pve_container_ip") or self.target.container.name).partition("/")[0]

    @property
    def endpoint(self) -> dict[str, Any]:
        """Where the API is."""
        profile = self.target.site.profile(self.target.container)
        listens = profile.server.host
        local = listens in {"127.0.0.1", "localhost", "::1"}
        host = self.address if listens.strip("[]0.:") == "" else listens
        return {
            "url": f"http://{host}:{profile.server.port}/v1",
            "served_name": profile.model.served_name,
            "inside_only": local,
            "tunnel": f"ssh -L {profile.server.port}:127.0.0.1:{profile.server.port} root@{self.address}"
            if local
            else "",
            "proxy": self._proxy,
        }

    @property
    def _proxy(self) -> str:
        """The address that clients ask, where a proxy stands before the server; empty where none does."""
        container = self.target.container
        if not proxychecks.declared(container):
            return ""
        names = container.value("api_proxy_names") or []
        port = container.value("api_proxy_port")
        return f"https://{next(iter(names), self.address)}{'' if port == 443 else f':{port}'}/v1"

    @property
    def staging(self) -> list[dict[str, Any]]:
        """What the releases that were not there took, or would take: name, digest, bytes (``rackwell.release_store``).

        Each once, as it was told last; none for what was there already.
        """
        found = {
            report["digest"]: {"name": report["name"], "digest": report["digest"], **report["budget"]}
            for report in self.played.payloads("rackwell.release_store", self.target.container.name)
            if report.get("budget")
        }
        return list(found.values())

    @property
    def cache(self) -> dict[str, Any] | None:
        """What became of the captured caches of the server's release; None when it was not come to."""
        return next(iter(self.played.payloads("rackwell.release_cache", self.target.container.name)), None)

    @property
    def sandbox(self) -> dict[str, Any] | None:
        """What holds of systemd's sandbox for the server's unit; None when it was not come to."""
        found = self.played.payloads("rackwell.unit_sandbox", self.target.container.name)
        return next(iter(reversed(found)), None)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "container": self.target.container.name,
            "host": self.target.host,
            "check": self.check,
            "changed": self.played.changed,
            "changes": [change.as_dict() for change in self.played.changes],
            "hosts": {name: counts.as_dict() for name, counts in sorted(self.played.hosts.items())},
            "releases": {role: built.as_dict() for role, built in self.built.items()},
            "staging": self.staging,
            "cache": self.cache,
            "sandbox": self.sandbox,
            "endpoint": self.endpoint,
            "bench": self.measured.as_dict() if self.measured else None,
            "bench_note": self.bench_note,
            "routers": [router.as_dict() for router in self.routers],
            "log": str(self.played.log),
            "seconds": round(self.played.seconds, 1),
        }


def provision(
    site: Path,
    name: str,
    progress: Progress,
    *,
    check: bool = False,
    diff: bool = False,
    bench: bool | None = None,
    allow_restart: bool = False,
    allow_reboot: bool = False,
) -> Provisioned:
    """Bring container `name` of `site` to its declaration.

    Args:
        check: say what would change; no machine is touched, releases are made on this machine.
        bench: True always measures, False never, None when something changed or this release, profile and sweep have no
            valid result yet.
        allow_restart: consent, for this run, to a restart of the container that a changed declaration needs.
        allow_reboot: the same to a reboot of its Proxmox host, which ends every guest there.

    Raises:
        RackwellError: the declaration does not hold (exit 2), another run holds the container (exit 5), or a release
            could not be made (exit 1). What happens on the machines is in the result.
    """
    root = declaration.load(site)
    root.container(name)
    with container_lock(root.state, name, "provision"):
        target = declared.target(root, name)
        progress.line("controller", f"declaration of {name} on {target.host} holds")
        progress.safety = "no machine was touched; the next run goes on from what was fetched"
        run = RunDirectory.create(root.state, "provision")
        progress.log = run.log
        built = builds.make_all(target.site, target.container, progress)
        played = plays.play(
            "provision",
            target,
            run,
            progress,
            extra=builds.bundles(target.container, built) | _consent(allow_restart, allow_reboot),
            check=check,
            diff=diff,
        )
        _keep_figures(played, run, target, check)
        again = f"rackwell provision {name} -i {target.site.path}"
        facts = explaining.known(target.site, target.container, built) if played.failures else None
        outcome = Provisioned(target, built, played, check, plays.problems(played, again, facts), played.exit_code)
        if outcome.exit_code == ExitCode.DONE and not check:
            _bench(outcome, run, progress, bench)
        # one that was not measured well serves all the same
        if played.exit_code == ExitCode.DONE and not played.interrupted:
            _route(outcome, progress, diff)
        return outcome


def _route(outcome: Provisioned, progress: Progress, diff: bool) -> None:
    site, name = outcome.target.site, outcome.target.container.name
    progress.safety = f"{name} is provisioned; a router in front of it is not"
    outcome.routers = routing.set_up(site, name, progress, check=outcome.check, diff=diff)
    for router in outcome.routers:
        outcome.problems += router.problems
        if outcome.exit_code == ExitCode.DONE:
            outcome.exit_code = router.exit_code


def _keep_figures(played: PlayResult, run: RunDirectory, target: Target, check: bool) -> None:
    """Keep the report of the GPUs when it was made without a server beside it: its figures explain the benchmark."""
    with contextlib.suppress(RackwellError):
        found = gpus.seen(played, target.container.name)
        if not check and found.report is not None and not found.report.beside_server:
            gpus.keep(found, run, target.site.state, target.container.name)


def _consent(allow_restart: bool, allow_reboot: bool) -> dict[str, Any]:
    given = {"pve_container_allow_restart": allow_restart, "pve_host_allow_reboot": allow_reboot}
    return {name: True for name, allowed in given.items() if allowed}


def _bench(outcome: Provisioned, run: RunDirectory, progress: Progress, wanted: bool | None) -> None:
    if wanted is False:
        outcome.bench_note = "not measured (--no-bench)"
        return
    if wanted is None and outcome.played.changed == 0:
        found = measure.find(outcome.target, outcome.built)
        if found is not None:
            outcome.measured = found
            outcome.bench_note = (
                "nothing changed and this release, profile and sweep are measured already; --bench measures anew"
            )
            progress.line(outcome.target.container.name, f"bench: {outcome.bench_note}")
            return
    progress.safety = "the server is provisioned and serves; only the benchmark is missing"
    outcome.measured = measure.measure(outcome.target, outcome.built, run, progress)
    outcome.problems += outcome.measured.problems
    outcome.exit_code = outcome.measured.exit_code
