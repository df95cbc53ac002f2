# SPDX-License-Identifier: Apache-2.0
"""``rackwell verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.provision.accepting import Acceptance
    from rackwell.provision.verifying import Verified


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


def verify(
    containers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="A container, or a Proxmox host; with --acceptance several containers, or all if none."
        ),
    ] = None,
    site: SiteOption = HERE,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what takes seconds: structure, CUDA, verified sampled pairs.")
    ] = False,
    release_gate: Annotated[
        bool,
        typer.Option("--release-gate", help="Run the boot gate again, in full; start the server when it passes."),
    ] = False,
    page: Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Write the GPUs' page there.")] = None,
    acceptance: Annotated[
        bool,
        typer.Option("--acceptance", help="Run the acceptance suite instead: the declared state, by other means."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Prove that a container, or a Proxmox host, is what it is declared to be.

    Host, configuration, GPUs (CUDA, every pair with its data compared, links, allreduce), boot gate, release, server.
    Changes nothing, unless --release-gate asks for it. Exit code 0 also when GPUs are degraded, 1 when something fails,
    4 when the boot gate holds the server back.

    --acceptance has tests of pytest-testinfra hold the machines against the declaration, independently of all that
    provisions and verifies else, and writes JUnit and JSON into the run's directory.
    """
    names = list(containers or [])
    if acceptance:
        # what it prints has a form of its own
        execute("acceptance", as_json, lambda terminal: _accept(terminal, site, names, quick or release_gate or page))
    else:
        execute("verify", as_json, lambda terminal: _body(terminal, site, names, Wishes(quick, release_gate, page)))


class Wishes(NamedTuple):
    """What the options ask for."""

    quick: bool
    release_gate: bool
    page: Path | None


def _usage(what: str, why: str) -> Exception:
    from rackwell.errors import ExitCode, Problem, RackwellError

    return RackwellError(Problem("usage", what, "command line", why, "rackwell verify --help"), ExitCode.INVALID)


def _accept(terminal: Terminal, path: Path, names: list[str], other: object) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.provision import accepting

    if other:
        raise _usage("--acceptance goes with no other option of verify", "it is a verification of its own")
    try:
        done = accepting.accept(path, names, terminal)
    except KeyboardInterrupt:
        raise accepting.interrupted() from None
    return Outcome(
        done.as_dict(), list(done.problems), done.exit_code, lambda out: _show_acceptance(out, done), frozenset()
    )


def _show_acceptance(out: Console, done: Acceptance) -> None:
    from rackwell.cli import tables

    for accepted in done.containers:
        rows = [[check.item, check.verdict.replace("-", " "), check.evidence] for check in accepted.checks]
        out.print(f"{accepted.container} on {accepted.host}: {accepted.verdict}, {accepted.seconds:.1f} s")
        tables.table(out, ["item", "verdict", "evidence"], rows)
        for name, file in accepted.files().items():
            if file is not None:
                out.print(f"{name} {file}")
    count = len(done.containers)
    out.print(f"{count} container{'' if count == 1 else 's'}, {done.seconds:.1f} s in all")


def _body(terminal: Terminal, path: Path, names: list[str], wishes: Wishes) -> Outcome:
    from rackwell.cli import host
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError
    from rackwell.provision.verifying import verify as run

    if len(names) != 1:
        raise _usage("name one container", "several, or all of the site, are for --acceptance")
    (name,) = names
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
    try:
        done = run(path, name, terminal, quick=wishes.quick, release_gate=wishes.release_gate, page=wishes.page)
    except RackwellError as error:
        if [problem.code for problem in error.problems] != ["unknown-container"]:
            raise
        if any(wishes):
            raise
        outcome = host.verified(terminal, path, name)
        if outcome is None:
            raise
        return outcome
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
