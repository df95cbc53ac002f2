# SPDX-License-Identifier: Apache-2.0
"""``rackwell verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rackwell.cli.command import HERE, ContainerArgument, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rackwell.cli.output import Outcome, Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


def verify(container: ContainerArgument, site: SiteOption = HERE, as_json: JsonOption = False) -> None:
    """Prove that a container is what it is declared to be.

    Host, configuration, CUDA, peer to peer copies, release and server; changes nothing.
    """
    execute("verify", as_json, lambda terminal: _body(terminal, site, container))


def _body(terminal: Terminal, path: Path, name: str) -> Outcome:
    from rackwell.cli import tables
    from rackwell.cli.output import Outcome
    from rackwell.provision.verifying import verify as run

    done = run(path, name, terminal)
    rows = [[item.item, item.verdict, item.evidence] for item in done.items]
    return Outcome(
        done.as_dict(),
        done.problems,
        done.exit_code,
        lambda out: tables.table(out, ["item", "verdict", "evidence"], rows),
    )
