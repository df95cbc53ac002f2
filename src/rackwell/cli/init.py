# SPDX-License-Identifier: Apache-2.0
"""``rackwell init``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import JsonOption, execute

if TYPE_CHECKING:
    from rackwell.cli.output import Outcome, Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init")(init)


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the site goes; must be empty or absent.")],
    as_json: JsonOption = False,
) -> None:
    """Start a site: a commented declaration to fill in."""

    def body(terminal: Terminal) -> Outcome:
        import shutil

        from rackwell import shipped
        from rackwell.cli.output import Outcome
        from rackwell.errors import ExitCode, Problem, RackwellError

        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise RackwellError(
                Problem("not-empty", "the directory is not empty", str(directory), "", "name a new directory"),
                ExitCode.INVALID,
            )
        terminal.safety = f"{directory} may be half-written: remove it"
        try:
            shutil.copytree(shipped.example(), directory, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            raise RackwellError(
                Problem("cannot-write", "the site cannot be written", str(directory), str(error))
            ) from error
        files = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
        return Outcome(
            {"directory": str(directory), "files": files},
            show=lambda out: out.print(
                f"wrote {len(files)} files to {directory}\nnext, to see what to fill in: rackwell check -i {directory}"
            ),
        )

    execute("init", as_json, body)
