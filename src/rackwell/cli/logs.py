# SPDX-License-Identifier: Apache-2.0
"""``rackwell logs``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.rollout.following import Told


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("logs")(logs)


def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of a roll, or a part of it; the newest without.")] = "",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the roll is over.")] = False,
    site: SiteOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Show what a roll did and does, in lines; needs no machine to answer."""
    execute("logs", as_json, lambda terminal: _body(terminal, site, run, follow, as_json))


def _line(told: Told) -> str:
    return f"{dt.datetime.fromtimestamp(told.time, dt.UTC):%Y-%m-%dT%H:%M:%SZ}  {told.where:<12} {told.text}"


def _body(terminal: Terminal, path: Path, run: str, follow: bool, as_json: bool) -> Outcome:
    from rackwell.cli import output
    from rackwell.errors import ExitCode, Problem, RackwellError
    from rackwell.rollout import following, rolls
    from rackwell.rollout.chain import read
    from rackwell.site import declaration

    terminal.safety = "logs changes nothing"
    if follow and as_json:
        why = "--json is one object, which comes when all is over"
        raise RackwellError(Problem("usage", "-f goes without --json", "command line", why), ExitCode.INVALID)
    place = rolls.find(declaration.load(path).state, run)
    rolls.load(place)  # a journal that somebody changed is not shown as if nothing were
    journal = place / rolls.JOURNAL
    if follow:
        out = output.stdout()
        for told in following.follow(journal):
            out.print(_line(told))
        return output.Outcome({})
    every = [told for record in read(journal) for told in following.lines(record)]
    result = {"run": place.name, "journal": str(journal), "lines": [told._asdict() for told in every]}

    def show(out: Console) -> None:
        for told in every:
            out.print(_line(told))

    return output.Outcome(result, show=show)
