# SPDX-License-Identifier: Apache-2.0
"""``rackwell status``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rackwell.cli.output import Outcome, Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status")(status)


def status(
    container: Annotated[str, typer.Argument(metavar="CONTAINER", help="One container; else all of the site.")] = "",
    site: SiteOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Show what runs where.

    Exit code 6 when a machine does not answer; the others are shown all the same.
    """
    execute("status", as_json, lambda terminal: _body(terminal, site, container))


def _body(terminal: Terminal, path: Path, name: str) -> Outcome:
    from rackwell.cli import tables
    from rackwell.cli.output import Outcome
    from rackwell.provision.looking import status as run

    terminal.safety = "status changes nothing"
    done = run(path, name, terminal)
    head = ["container", "host", "host state", "container state", "release", "server", "last bench"]
    rows = [[cell[:12] if name == "release" else cell for name, cell in row.as_dict().items()] for row in done.rows]
    return Outcome(
        {"containers": [row.as_dict() for row in done.rows]},
        done.problems,
        done.exit_code,
        lambda out: tables.table(out, head, rows),
    )
