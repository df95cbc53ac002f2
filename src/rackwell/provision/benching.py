# SPDX-License-Identifier: Apache-2.0
"""A benchmark on its own, of what a container serves now."""

from __future__ import annotations

from pathlib import Path

from rackwell.ansible.runner import RunDirectory
from rackwell.provision import builds, declared, measure
from rackwell.provision.lock import container_lock
from rackwell.provision.measure import Wishes
from rackwell.provision.measured import Measured
from rackwell.provision.progress import Progress
from rackwell.site import declaration


def bench(
    site: Path, name: str, progress: Progress, sweep: str | None = None, wishes: Wishes | None = None
) -> Measured:
    """Measure container `name` with `sweep`, or the declared one; go on with an interrupted run where there is one.

    Raises:
        RackwellError: the declaration does not hold, or a run cannot be gone on with (exit 2), another run holds the
            container (exit 5), or the client could not be built (exit 1).
    """
    root = declaration.load(site)
    root.container(name)
    with container_lock(root.state, name, "bench"):
        target = declared.target(root, name)
        target.site.bench(target.container, sweep)
        progress.safety = "no machine was touched"
        run = RunDirectory.create(root.state, "bench")
        progress.log = run.log
        built = builds.make_all(target.site, target.container, progress)
        progress.safety = "the server was not touched; the measurement may end on the machine by itself"
        return measure.measure(target, built, run, progress, sweep, wishes)
