# SPDX-License-Identifier: Apache-2.0
"""``rackwell bench matrix``: variants of a profile, one change at a time, measured and ranked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, ContainerArgument, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.provision.matrix import Tried, Wanted
    from rackwell.provision.ranking import Place

_Many = list[str] | None


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("matrix")(matrix)


def matrix(
    container: ContainerArgument,
    site: SiteOption = HERE,
    vary: Annotated[
        Path | None, typer.Option("--vary", metavar="FILE", help="Variants as a file (docs/bench.md).")
    ] = None,
    settings: Annotated[
        _Many, typer.Option("--set", metavar="FLAG[=VALUE]", help="A variant with this flag; may be repeated.")
    ] = None,
    unset: Annotated[
        _Many, typer.Option("--unset", metavar="FLAG", help="A variant without this flag; may be repeated.")
    ] = None,
    env: Annotated[
        _Many,
        typer.Option(
            "--env", metavar="NAME[=VALUE]", help="A variant with this variable, or without; may be repeated."
        ),
    ] = None,
    profile: Annotated[
        str, typer.Option("--profile", metavar="NAME", help="Sweep bench/NAME.yml; else the declared one.")
    ] = "",
    client: Annotated[str, typer.Option("--client", metavar="CLIENT", help="Load generator; else the sweep's.")] = "",
    metric: Annotated[
        str, typer.Option("--metric", metavar="NAME", help="What to rank by; see `rackwell compare`.")
    ] = "output_tok_per_s",
    allow_restart: Annotated[
        bool, typer.Option("--allow-restart", help="Consent: the server is restarted for each variant.")
    ] = False,
    anew: Annotated[bool, typer.Option("--anew", help="Go on with no interrupted matrix.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure variants of the declared profile, each with one change, and rank them.

    The declared profile comes first and last, and is served at the end whatever happens. A variant that does not come
    to serve is a result. The same command goes on with a matrix that was interrupted.
    """

    def body(terminal: Terminal) -> Outcome:
        from rackwell.bench.compare_metrics import select
        from rackwell.provision import variants
        from rackwell.provision.matrix import Wanted

        select(metric)  # before hours are spent
        changes = variants.from_file(vary) if vary is not None else []
        changes += variants.from_options(settings or [], unset or [], env or [])
        wanted = Wanted(changes, profile or None, client, metric, allow_restart, anew)
        return _body(terminal, site, container, wanted)

    execute("bench", as_json, body)


def _body(terminal: Terminal, path: Path, name: str, wanted: Wanted) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.provision import matrix as matrices

    done = matrices.run(path, name, terminal, wanted)
    return Outcome(done.as_dict(), done.problems, done.exit_code, lambda out: _show(out, done))


def _show(out: Console, done: Tried) -> None:
    from rackwell.cli import tables

    if done.ranking is not None:
        head = ["", "variant", "against declared", "interval", "verdict", "run"]
        rows = [_row(str(number), place) for number, place in enumerate(done.ranking.places, 1)]
        if done.ranking.drift is not None:
            rows.append(_row("", done.ranking.drift))
        out.print(f"by {done.ranking.metric}, over all loads")
        tables.table(out, head, rows)
        for place in done.ranking.places:
            if place.ratio is None and place.why:
                out.print(f"{place.variant}: {place.why}")
        for note in done.ranking.notes:
            out.print(note)
    left = len(done.place.matrix.left)
    if left:
        out.print(f"{left} of {len(done.place.matrix.steps)} steps are left: the same command goes on with them")
    out.print(f"matrix {done.place.file}")
    out.print("the declared profile is served" if done.restored else "the declared profile is NOT served")


def _row(number: str, place: Place) -> list[str]:
    if place.ratio is None:
        return [number, place.variant, "-", "-", place.verdict or place.state, place.run or "-"]
    interval = f"{place.low:.3f} to {place.high:.3f}" if place.low is not None and place.high is not None else "-"
    return [number, place.variant, f"{place.ratio:.3f}x", interval, place.verdict, place.run or "-"]
