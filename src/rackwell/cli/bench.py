# SPDX-License-Identifier: Apache-2.0
"""``rackwell bench``: measure; list, show, export and import runs; a matrix of variants."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rackwell.cli import bench_import, bench_matrix, bench_runs
from rackwell.cli.command import HERE, ContainerArgument, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rackwell.cli.output import Outcome, Terminal
    from rackwell.provision.measured import Measured

MEASURE = "run"


class _Group(TyperGroup):
    """``rackwell bench CONTAINER`` is ``bench run CONTAINER``, unless the container is called like a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in {"-h", "--help"}:
            args = [MEASURE, *args]
        return list(super().parse_args(ctx, args))


group = typer.Typer(
    cls=_Group,
    help="Measure what a container serves: rackwell bench CONTAINER. A container that is called like one of the "
    "commands below is measured by: rackwell bench run CONTAINER.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for module in (bench_runs, bench_import, bench_matrix):
        module.register(group)
    app.add_typer(group, name="bench")


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What the options ask for."""

    container: str
    sweep: str | None
    client: str
    resume: str
    anew: bool
    copy: Path | None


@group.command(MEASURE)
def bench(
    container: ContainerArgument,
    site: SiteOption = HERE,
    profile: Annotated[
        str, typer.Option("--profile", metavar="NAME", help="Sweep bench/NAME.yml; else the declared one.")
    ] = "",
    client: Annotated[
        str,
        typer.Option(
            "--client", metavar="CLIENT", help="Load generator: bench-client, server or aiperf; else the sweep's."
        ),
    ] = "",
    resume: Annotated[
        str,
        typer.Option(
            "--resume", metavar="RUN", help="Go on with this interrupted run; else with the newest one that fits."
        ),
    ] = "",
    anew: Annotated[bool, typer.Option("--anew", help="Go on with no interrupted run: measure all of it.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Copy the result's JSON there as well.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what a container serves.

    Each point is stored as soon as it is there. The same command goes on with a sweep that was interrupted, if release,
    profile, sweep and server are still the same. GPU power and utilisation are sampled inside the window.
    """
    asked = _Asked(container, profile or None, client, resume, anew, out)
    execute("bench", as_json, lambda terminal: _body(terminal, site, asked))


def _body(terminal: Terminal, path: Path, asked: _Asked) -> Outcome:
    from rackwell.bench import store
    from rackwell.cli import tables
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError
    from rackwell.provision.benching import bench as run
    from rackwell.provision.measure import Wishes

    if asked.copy is not None and not asked.copy.parent.is_dir():
        raise RackwellError(
            Problem("no-directory", "the directory of --out does not exist", str(asked.copy.parent)), ExitCode.INVALID
        )
    if asked.resume and asked.anew:
        problem = Problem("usage", "--resume and --anew exclude each other", "command line", "", "leave one out")
        raise RackwellError(problem, ExitCode.INVALID)
    entry = store.resolve(path.absolute(), asked.resume) if asked.resume else None
    wishes = Wishes(client=asked.client, resume=entry, anew=asked.anew)
    done = run(path, asked.container, terminal, asked.sweep, wishes)
    if asked.copy is not None:
        done = _copied(done, asked.copy)

    def show(out: object) -> None:
        if done.result is not None:
            tables.bench(out, done.result)
            if done.missing:
                typer.echo(f"{done.missing} points are missing")
            typer.echo(f"run {done.result.container}/{done.result.run_id}")
        if done.report is not None:
            typer.echo(f"report {done.report}")

    return Outcome(done.as_dict(), done.problems, done.exit_code, show)


def _copied(done: Measured, copy: Path) -> Measured:
    """`done` after its JSON was written to `copy`, with a problem when that failed."""
    from rackwell.errors import ExitCode, Problem

    if done.result is None:
        return done
    try:
        copy.write_text(done.result.model_dump_json(by_alias=True, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        stored = f"the result is in {done.stored}"
        problem = Problem("cannot-write", "the copy cannot be written", str(copy), error.strerror or str(error), stored)
        code = done.exit_code or ExitCode.FAILED
        return dataclasses.replace(done, problems=[*done.problems, problem], exit_code=code)
    return done
