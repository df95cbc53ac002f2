# SPDX-License-Identifier: Apache-2.0
"""``rackwell bench``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, ContainerArgument, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rackwell.cli.output import Outcome, Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    container: ContainerArgument,
    site: SiteOption = HERE,
    profile: Annotated[
        str, typer.Option("--profile", metavar="NAME", help="Sweep bench/NAME.yml; else the declared one.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Copy the result's JSON there as well.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what a container serves.

    GPU power and utilisation are sampled inside the window; the result is stored and reported.
    """
    execute("bench", as_json, lambda terminal: _body(terminal, site, container, profile or None, out))


def _body(terminal: Terminal, path: Path, name: str, sweep: str | None, copy: Path | None) -> Outcome:
    from rackwell.cli import tables
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError
    from rackwell.provision.benching import bench as run

    if copy is not None and not copy.parent.is_dir():
        raise RackwellError(
            Problem("no-directory", "the directory of --out does not exist", str(copy.parent)), ExitCode.INVALID
        )
    done = run(path, name, terminal, sweep)
    if copy is not None and done.result is not None:
        try:
            copy.write_text(done.result.model_dump_json(by_alias=True, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            stored = f"the result is in {done.stored}"
            done.problems.append(
                Problem("cannot-write", "the copy cannot be written", str(copy), error.strerror or str(error), stored)
            )
            done = dataclasses.replace(done, exit_code=done.exit_code or ExitCode.FAILED)

    def show(out: object) -> None:
        if done.result is not None:
            tables.bench(out, done.result)
        if done.report is not None:
            typer.echo(f"report {done.report}")

    return Outcome(done.as_dict(), done.problems, done.exit_code, show)
