# SPDX-License-Identifier: Apache-2.0
"""``rackwell verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rackwell.cli.command import HERE, ContainerArgument, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.provision.verifying import Verified


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


def verify(
    container: ContainerArgument,
    site: SiteOption = HERE,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what takes seconds: structure, CUDA, verified sampled pairs.")
    ] = False,
    release_gate: Annotated[
        bool,
        typer.Option("--release-gate", help="Run the boot gate again, in full; start the server when it passes."),
    ] = False,
    page: Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Write the GPUs' page there.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Prove that a container is what it is declared to be.

    Host, configuration, GPUs (CUDA, every pair with its data compared, links, allreduce), boot gate, release, server.
    Changes nothing, unless --release-gate asks for it. Exit code 0 also when GPUs are degraded, 1 when something fails,
    4 when the boot gate holds the server back.
    """
    execute("verify", as_json, lambda terminal: _body(terminal, site, container, Wishes(quick, release_gate, page)))


class Wishes(NamedTuple):
    """What the options ask for."""

    quick: bool
    release_gate: bool
    page: Path | None


def _body(terminal: Terminal, path: Path, name: str, wishes: Wishes) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError
    from rackwell.provision.verifying import verify as run

    if wishes.quick and wishes.release_gate:
        problem = Problem(
            "usage",
            "--quick and --release-gate exclude each other",
            "command line",
            "a held gate is released by a full run",
        )
        raise RackwellError(problem, ExitCode.INVALID)
    if wishes.page is not None and not wishes.page.absolute().parent.is_dir():
        raise RackwellError(
            Problem("no-directory", "the directory of --page does not exist", str(wishes.page.parent)), ExitCode.INVALID
        )
    done = run(path, name, terminal, quick=wishes.quick, release_gate=wishes.release_gate, page=wishes.page)
    report = done.found.report
    shown = {(finding.code, finding.what) for finding in report.findings} if report is not None else set()
    return Outcome(done.as_dict(), done.problems, done.exit_code, lambda out: _show(out, done), frozenset(shown))


def _show(out: Console, done: Verified) -> None:
    from rackwell.cli import gpus, tables

    rows = [[item.item, item.verdict.replace("-", " "), item.evidence] for item in done.items]
    tables.table(out, ["item", "verdict", "evidence"], rows)
    report = done.found.report
    if report is None:
        return
    gpus.maps(out, report)
    gpus.findings(out, report.findings)
    for name, path in (("report", done.kept.report), ("page", done.kept.page)):
        if path is not None:
            out.print(f"{name} {path}")
    if done.verdict == "degraded":
        count = len(report.findings)
        out.print(
            f"{done.container} is DEGRADED: {count} finding{'' if count == 1 else 's'}, above", style="bold yellow"
        )
