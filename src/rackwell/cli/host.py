# SPDX-License-Identifier: Apache-2.0
"""``rackwell host``, and what ``rackwell verify`` shows of a Proxmox host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.provision.hosting import Hosted, HostVerified

_INDENT = 6


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("host")(host)


def host(
    name: Annotated[str, typer.Argument(metavar="HOST", help="Name of the Proxmox host in the site.")],
    site: SiteOption = HERE,
    check: Annotated[bool, typer.Option("--check", help="Say what would change; touches nothing.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what changes in files and registers.")] = False,
    allow_reboot: Annotated[
        bool,
        typer.Option("--allow-reboot", help="Change the kernel's options and reboot the host where that is needed."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring a Proxmox host to its declaration, without its containers.

    Driver, boot options, ACS, device nodes. What needs a reboot is refused without --allow-reboot, naming what it would
    disturb, and nothing is touched. A second run changes nothing.
    """
    execute("host", as_json, lambda terminal: _body(terminal, site, name, check, diff, allow_reboot))


def _body(terminal: Terminal, path: Path, name: str, check: bool, diff: bool, allow_reboot: bool) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.provision.hosting import bring

    done = bring(path, name, terminal, check=check, diff=diff, allow_reboot=allow_reboot)
    return Outcome(done.as_dict(), done.problems, done.exit_code, lambda out: _show(out, done, diff))


def _show(out: Console, done: Hosted, diff: bool) -> None:
    verb = "would change" if done.check else "changed"
    out.print(f"{done.host}: {done.played.changed} {verb}, in {done.played.seconds:.0f} s")
    for change in done.played.changes:
        out.print(f"  {verb:<8} {change.role + ': ' if change.role else ''}{change.task}")
        if diff and change.diff:
            out.print("\n".join(" " * _INDENT + line for line in change.diff.splitlines()), markup=False)


def verified(terminal: Terminal, path: Path, name: str) -> Outcome | None:
    """Verify host `name`, for ``rackwell verify``; None when the site has none of this name."""
    from rackwell.cli.output import Outcome
    from rackwell.errors import RackwellError
    from rackwell.provision.hosting import verify

    try:
        done = verify(path, name, terminal)
    except RackwellError as error:
        if [problem.code for problem in error.problems] != ["unknown-host"]:
            raise
        return None
    return Outcome(done.as_dict(), done.problems, done.exit_code, lambda out: _show_verified(out, done))


def _show_verified(out: Console, done: HostVerified) -> None:
    from rich.text import Text

    from rackwell.cli import tables

    rows = [[item.item, item.verdict.replace("-", " "), item.evidence] for item in done.items]
    tables.table(out, ["item", "verdict", "evidence"], rows)
    for problem in done.degraded:
        out.print(Text.assemble(("degraded", "bold yellow"), f" [{problem.code}]: {problem.what}"))
        for label, text in (("where", problem.where), ("why", problem.why), ("fix", problem.fix)):
            if text:
                out.print(Text.assemble((f"  {label:<6}", "dim"), text))
