# SPDX-License-Identifier: Apache-2.0
"""``rackwell unlock``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, ContainerArgument, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("unlock")(unlock)


def unlock(
    container: ContainerArgument,
    run: Annotated[str, typer.Option("--run", metavar="ID", help="The roll that holds it, as status names it.")],
    site: SiteOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Take a container's lock from a roll that is dead.

    Only with a proof: its lease is over, or it ran on this machine and its process is gone. An open change is not
    decided by it: that returns by itself, or by `rackwell resume` or `abort`.
    """
    execute("unlock", as_json, lambda terminal: _body(terminal, site, container, run))


def _body(terminal: Terminal, site: Path, container: str, run: str) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.rollout import unlocking

    done = unlocking.unlock(site, container, run, terminal)

    def show(out: Console) -> None:
        if done.unlocked:
            out.print(f"{container} is free: {done.proof}")
        else:
            out.print(f"{container} is held by nobody")
        if done.change.get("state") in {"switching", "open", "returning"}:
            left = done.change.get("returns_in_s")
            when = "" if left is None else f" in {left:.0f} s"
            out.print(
                f"its change is {done.change['state']}, and returns by itself{when}, unless: rackwell resume {run}"
            )

    return Outcome(done.as_dict(), show=show)
