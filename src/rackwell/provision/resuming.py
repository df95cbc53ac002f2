# SPDX-License-Identifier: Apache-2.0
"""Whether a sweep that was interrupted can be gone on with: only by the same sweep of the same server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from rackwell.bench.result import BenchResult
from rackwell.bench.store import Entry, Store
from rackwell.errors import ExitCode, Problem, RackwellError

SERVER_CHANGED = "bench-server-changed"
"""What the role fails with when the server is no longer the one of the first points."""
SAME = ("server_release", "unit_sha256", "environment_sha256", "driver", "kernel")
"""Facts of the machine that must be the same; the collection's ``bench_facts`` compares them."""


@dataclasses.dataclass(frozen=True)
class Found:
    """An interrupted run. refused: why it cannot be gone on with; empty when it can."""

    name: str
    run: BenchResult
    refused: str = ""


def choose(store: Store, wanted: BenchResult, named: Entry | None) -> Found | None:
    """The interrupted run to go on with: `named`, else the newest of this container and sweep; None when there is none.

    Args:
        wanted: the run as it would begin now.

    Raises:
        RackwellError: the named run is none that can be gone on with at all (exit 2).
    """
    if named is not None:
        return _named(named, wanted)
    refused: Found | None = None
    for entry, run in store.interrupted(wanted.container, wanted.bench):
        why = "; ".join(differences(run, wanted))
        if not why:
            return Found(entry.name, run)
        # of several the newest is told
        refused = refused or Found(entry.name, run, why)
    return refused


def differences(run: BenchResult, wanted: BenchResult) -> Iterator[str]:
    """What `wanted` measures that `run` did not: each makes its points another benchmark's."""
    if run.bench_digest != wanted.bench_digest:
        yield f"its sweep {run.bench} said something else"
    then, now = run.release, wanted.release
    if then is None or now is None or then.digest != now.digest:
        yield f"its release was {then.digest[:12] if then else 'none'}, now it is {now.digest[:12] if now else 'none'}"
    if run.profile is None or wanted.profile is None or run.profile.digest != wanted.profile.digest:
        yield f"its profile {run.profile.name if run.profile else ''} said something else"
    if run.environment.get("client_build") != wanted.environment.get("client_build"):
        yield "its load generator was another release"
    if _variant(run) != _variant(wanted):
        yield "it is a step of another matrix" if _variant(run) else "it is no step of this matrix"


def _variant(run: BenchResult) -> Any:
    matrix = run.environment.get("matrix")
    return (matrix.get("id"), matrix.get("step")) if isinstance(matrix, dict) else None


def expected(run: BenchResult) -> dict[str, Any]:
    """What of the machine must still be so, for the role."""
    return {name: run.environment[name] for name in SAME if run.environment.get(name) is not None}


def _named(named: Entry, wanted: BenchResult) -> Found:
    run = named.load()
    why = ""
    if run.origin is not None:
        why = f"it was imported from {run.origin.tool}"
    elif run.container != wanted.container:
        why = f"it is of {run.container}"
    elif run.complete:
        why = "it is complete"
    elif run.bench != wanted.bench:
        why = f"it is of the sweep {run.bench}: name that with --profile"
    if why:
        raise RackwellError(
            Problem(
                "cannot-resume",
                f"the run {named.name} cannot be gone on with",
                str(named.file),
                why,
                "name a run that was interrupted (rackwell bench list), or none",
            ),
            ExitCode.INVALID,
        )
    return Found(named.name, run, "; ".join(differences(run, wanted)))
