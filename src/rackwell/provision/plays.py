# SPDX-License-Identifier: Apache-2.0
"""A play about one container, and what its end means for whoever asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rackwell.ansible import runner
from rackwell.ansible.results import PlayResult, Reported
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem
from rackwell.provision import explaining
from rackwell.provision.declared import Target
from rackwell.provision.progress import Progress

if TYPE_CHECKING:
    from rackwell.diagnose import Facts

GUARD_TASK = "Require a ready Proxmox host"
"""The task of the playbooks that stops a container whose host failed: a consequence, not a cause."""


def play(
    name: str,
    target: Target,
    run: RunDirectory,
    progress: Progress,
    *,
    extra: Mapping[str, Any] | None = None,
    check: bool = False,
    diff: bool = False,
    retries: int = 2,
    connect_timeout: int = 10,
    on_result: Callable[[Reported], None] = lambda _: None,
) -> PlayResult:
    """Run playbook `name` on the container and its host. Returns the result, whatever it is.

    Args:
        on_result: given what a module reports, as soon as it does; called from another thread.
    """

    def on_interrupt() -> None:
        progress.line("controller", "interrupted: ending the running step (Ctrl-C again kills it)")

    progress.log = run.log
    result = runner.play(
        name,
        target.site.path,
        run,
        target.limit,
        listener=progress.step,
        on_interrupt=on_interrupt,
        on_result=on_result,
        extra=extra,
        check=check,
        diff=diff,
        retries=retries,
        connect_timeout=connect_timeout,
    )
    progress.safety = _safety(result, check)
    return result


def problems(result: PlayResult, again: str, facts: Facts | None = None) -> list[Problem]:
    """What to tell of `result`: causes without their consequences; where it stood when it was interrupted.

    Args:
        again: the command that goes on from here.
        facts: versions and flags, for the diagnosis of a start that failed.
    """
    causes = [failure for failure in result.failures if failure.task != GUARD_TASK] or result.failures
    found = explaining.all_explained(causes, facts)
    if result.interrupted:
        steps = ", ".join(f"'{label}' on {host}" for host, label in result.running) or "no step"
        found.insert(
            0,
            Problem(
                "interrupted",
                f"interrupted; {steps} was running",
                "",
                f"{result.changed} changes were made before; what the step began may end on the machine by itself",
                f"go on with: {again}",
            ),
        )
    if result.exit_code == ExitCode.ROLLED_BACK:
        # the module says what it went back to; this says that the run ended well in spite of its failure
        found = [
            p if "again" in p.why else dataclasses.replace(p, why=f"{p.why}; what ran before runs again".lstrip("; "))
            for p in found
        ]
    return [
        dataclasses.replace(p, fix=f"{p.fix}; or once: {again} --allow-restart") if p.code == "restart-needed" else p
        for p in found
    ]


def _safety(result: PlayResult, check: bool) -> str:
    if check:
        return "nothing was touched: this was check mode"
    if result.changed:
        return f"{result.changed} changes were made and are kept; running again goes on from there"
    return "no machine was changed"
