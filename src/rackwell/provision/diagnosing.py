# SPDX-License-Identifier: Apache-2.0
"""A diagnosis of a machine: collect what it is made from, say what it means, and keep it as a bundle when asked."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rackwell.ansible import runner
from rackwell.ansible.results import PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import bundles, collection
from rackwell.provision.collection import Collection
from rackwell.provision.progress import Progress
from rackwell.provision.scrubbing import Scrubber
from rackwell.site import declaration, files
from rackwell.site.declaration import Site
from rackwell.site.node import Node

if TYPE_CHECKING:
    from rackwell.diagnose import Diagnosis

_SHOWN_TEXT = 200_000


@dataclasses.dataclass(frozen=True)
class Diagnosed:
    """What came of it. bundle: the file that was written; index: what it holds."""

    told: Diagnosis
    collected: Collection
    problems: list[Problem] = dataclasses.field(default_factory=list)
    exit_code: ExitCode = ExitCode.DONE
    bundle: Path | None = None
    index: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return self.told.as_dict() | {
            "container": self.collected.container,
            "host": self.collected.host,
            "unit": self.collected.facts.get("unit"),
            "sources": [
                {"machine": one.machine, "name": one.name, "lines": one.text.count("\n") + 1, "unread": one.unread}
                for one in self.collected.taken
            ],
            "bundle": str(self.bundle) if self.bundle else None,
        }


def machine(
    path: Path,
    container: str,
    host: str,
    progress: Progress,
    *,
    bundle: Path | None = None,
    names: bool = False,
) -> Diagnosed:
    """Collect from `container` and its host, or from `host` alone, and say what it means. Changes nothing.

    The declaration need not hold: a machine is diagnosed as it is, and no lock is taken.

    Args:
        bundle: a file for the bundle. names: whether the names of users are hidden in it too.

    Raises:
        RackwellError: there is no such site, container or host (exit 2), or the bundle cannot be written (exit 1).
    """
    site = declaration.load(path)
    node = site.container(container) if container else None
    if node is None:
        _known_host(site, host)
    else:
        host = site.host_of(node)
    run = RunDirectory.create(site.state, "diagnose")
    progress.log = run.log
    progress.safety = "diagnose changes nothing"
    limit = [name for name in (container, host) if name]
    extra = {} if container else {"rackwell_diagnose_host": True}
    played = runner.play(
        "diagnose", site.path, run, limit, listener=progress.step, extra=extra, retries=0, connect_timeout=5
    )
    if played.interrupted:
        raise KeyboardInterrupt
    found = collection.of_play(played, container or host, host)
    told = collection.diagnosed(found)
    problems, code = _problems(played, found)
    done = Diagnosed(told, found, problems, code)
    return done if bundle is None else _bundled(done, site, node, bundle, names)


def saved(path: Path) -> Diagnosed:
    """The diagnosis of a bundle. Raises RackwellError as :func:`bundles.read`."""
    found = bundles.read(path)
    return Diagnosed(collection.diagnosed(found), found)


def _known_host(site: Site, host: str) -> None:
    if host not in site.hosts:
        known = ", ".join(sorted(site.hosts)) or "none"
        problem = Problem(
            "unknown-host", f"'{host}' is not a host of this site", site.sources.hosts.where(), f"it has: {known}"
        )
        raise RackwellError(problem, ExitCode.INVALID)


def _problems(played: PlayResult, found: Collection) -> tuple[list[Problem], ExitCode]:
    """Who did not answer. It is an error of the command only when nobody did."""
    silent = [failure for failure in [*played.tolerated, *played.failures] if failure.unreachable]
    failed = [failure for failure in played.failures if not failure.unreachable]
    problems = list(dict.fromkeys(problem for failure in [*failed, *silent] for problem in failure.problems))
    if any(one.text for one in found.taken):
        return problems, ExitCode.FAILED if failed else ExitCode.DONE
    if not problems:
        problems = [Problem("nothing-collected", "nothing could be collected", found.container, "no machine reported")]
    return problems, ExitCode.UNREACHABLE if silent and not failed else ExitCode.FAILED


def _bundled(done: Diagnosed, site: Site, node: Node | None, path: Path, names: bool) -> Diagnosed:
    from rackwell.diagnose.render import text

    extra = {
        "diagnosis.txt": text(done.told),
        "diagnosis.json": json.dumps(done.told.as_dict(), indent=1, sort_keys=True, ensure_ascii=False),
    }
    if node is not None:
        extra |= _declared(site, node)
    index = bundles.write(path, done.collected, extra, Scrubber(names=names))
    return dataclasses.replace(done, bundle=path, index=index)


def _declared(site: Site, node: Node) -> dict[str, str]:
    """The profile and the build as they are declared."""
    places = {}
    with contextlib.suppress(RackwellError):
        places["site/profile.yml"] = site.profile_file(node)
    if build := site.build_name(node, "release"):
        places["site/build.yml"] = site.path / "builds" / f"{build}.yml"
    found = {}
    for name, path in places.items():
        with contextlib.suppress(OSError):
            if files.is_file(path):
                found[name] = path.read_text(encoding="utf-8", errors="replace")[:_SHOWN_TEXT]
    return found
