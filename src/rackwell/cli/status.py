# SPDX-License-Identifier: Apache-2.0
"""``rackwell status``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.provision.looking import Row


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status")(status)


def status(
    container: Annotated[str, typer.Argument(metavar="CONTAINER", help="One container; else all of the site.")] = "",
    site: SiteOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Show what runs where.

    Exit code 6 when a machine does not answer, 4 when a boot gate holds a server back; all are shown all the same.
    """
    execute("status", as_json, lambda terminal: _body(terminal, site, container))


def _cells(row: Row) -> list[str]:
    """The row for people, narrow enough for 80 columns; --json has all of it."""
    figure, _, date = row.bench.rpartition(", ")
    return [
        row.container,
        row.host,
        row.host_state.removeprefix("driver "),
        row.state,
        row.release[:12],
        row.unit,
        row.gate,
        figure.partition(" tok/s")[0] or "-",
        date[5:10],
    ]


def _body(terminal: Terminal, path: Path, name: str) -> Outcome:
    from rackwell.cli import tables
    from rackwell.cli.output import Outcome
    from rackwell.provision.looking import status as run
    from rackwell.rollout.drivers.waiting import waiting

    terminal.safety = "status changes nothing"
    done = run(path, name, terminal)
    head = ["container", "host", "driver", "state", "release", "server", "gate", "tok/s", "on"]
    rows = [_cells(row) for row in done.rows]
    hosts = {row.host for row in done.rows}
    moved = [f"{host}: {text}" for host, text in waiting(done.state) if host in hosts]

    def show(out: Console) -> None:
        tables.table(out, head, rows)
        for row in done.rows:
            if row.roll:
                out.print(f"{row.container}: {row.roll}")
            # a held gate is told as an error anyway
            if row.why and not row.gate.startswith("held"):
                out.print(f"{row.container}: {row.why}\n  fix   {row.fix}")

        for text in moved:
            out.print(text)
        for router in done.routers:
            out.print(router.line)

    told = {
        "containers": [row.as_dict() for row in done.rows],
        "routers": [router.as_dict() for router in done.routers],
        "hosts_in_a_roll": moved,
    }
    return Outcome(told, done.problems, done.exit_code, show)
