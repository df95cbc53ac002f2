# SPDX-License-Identifier: Apache-2.0
"""``rackwell adopt``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.provision.adopting import Adopted


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("adopt")(adopt)


def adopt(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Name of the Proxmox host in the site.")],
    vmid: Annotated[int, typer.Argument(metavar="VMID", min=100, help="Number of the container there.")],
    site: SiteOption = HERE,
    name: Annotated[str, typer.Option("--name", help="Name in the site; its hostname when it is not given.")] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over a host_vars file of that name.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the declaration; write nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Declare a container that exists already.

    Looks at it, writes host_vars/NAME.yml and the entry in hosts.yml, and holds the container against what it wrote.
    Changes no machine. Exit code 4 when something waits for a person: what cannot be declared, what is to be filled in.
    """
    execute("adopt", as_json, lambda terminal: _body(terminal, site, host, vmid, name, overwrite, dry_run))


def _body(terminal: Terminal, path: Path, host: str, vmid: int, name: str, overwrite: bool, dry_run: bool) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.provision.adopting import adopt as run

    done = run(path, host, vmid, terminal, name=name, overwrite=overwrite, dry_run=dry_run)
    return Outcome(done.as_dict(), done.problems, done.exit_code, lambda out: _show(out, done))


def _show(out: Console, done: Adopted) -> None:
    if done.dry_run:
        out.print(done.text, end="")
    for path in done.files:
        out.print(f"wrote {path}")
    for one in done.untold:
        if not one["blocks"]:
            out.print(f"note: line {one['number']}, {one['line']}: {one['what']}")
    for odd in done.seen.get("oddities") or []:
        out.print(f"{odd['severity']}: line {odd['number']}, {odd['line']}: {odd['what']}; {odd['fix']}")
    for note in done.notes:
        out.print(f"note: {note}")
    if done.proof is None and not done.dry_run:
        out.print(f"not held against the machine yet: fill in what is left, then: rackwell drift {done.container}")
    elif done.proof is not None:
        verdict = "it differs, see below" if done.proof.changed else "a run of role pve_container changes nothing"
        out.print(f"held against the machine: {verdict}")
        out.print(f"next: rackwell check, then rackwell provision {done.container} --check")
