# SPDX-License-Identifier: Apache-2.0
"""``rackwell compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from rackwell.bench.compare_types import Comparison
    from rackwell.bench.result import BenchResult
    from rackwell.cli.output import Outcome

_COLOURS = {
    "title": "bold",
    "head": "dim",
    "faster": "green",
    "slower": "red",
    "inconclusive": "yellow",
    "not-comparable": "dim",
    "cause": "bold",
    "refused": "bold yellow",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare)


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C ...]",
            help="Runs: CONTAINER, CONTAINER~1, RUN or a bench.json. Each is held against A. Several runs of the same "
            "thing are one side: A1,A2.",
        ),
    ],
    site: SiteOption = HERE,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="Only this one, or those that begin so; may be repeated."),
    ] = None,
    min_effect: Annotated[
        float, typer.Option("--min-effect", metavar="SHARE", help="The least difference that counts.")
    ] = 0.03,
    noise: Annotated[
        float,
        typer.Option("--noise", metavar="SHARE", help="What a rate differs by from run to run, where runs are few."),
    ] = 0.03,
    as_json: JsonOption = False,
) -> None:
    """Compare stored benchmarks: per load a ratio, its interval and a verdict.

    Names the part that differs, when it is one; refuses to name a cause when several do. Points that do not count
    are listed, never compared.
    """
    execute("compare", as_json, lambda _terminal: _body(site, runs, metric, min_effect, noise))


def _body(path: Path, names: list[str], metric: list[str] | None, min_effect: float, noise: float) -> Outcome:
    from rackwell.bench.compare import compare as run
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError

    problems = []
    if len(names) < 2:
        what = "two runs are needed to compare"
        problems.append(Problem("usage", what, "command line", "", "rackwell compare A B; see `rackwell bench list`"))
    for name, value in (("--min-effect", min_effect), ("--noise", noise)):
        if not 0 < value < 1:
            what = f"{name} must be a share between 0 and 1"
            problems.append(Problem("usage", what, "command line", str(value), f"{name} 0.03 is 3 %"))
    if problems:
        raise RackwellError(problems, ExitCode.INVALID)
    sides = [_side(path.absolute(), name) for name in names]
    found = [run(sides[0], side, metric, min_effect=min_effect, noise=noise) for side in sides[1:]]
    outcome = Outcome({"runs": names, "comparisons": [comparison.as_dict() for comparison in found]})
    for name, comparison in zip(names[1:], found, strict=True):
        if all(row.ratio is None for row in comparison.rows):
            what = f"nothing of {names[0]} and {name} can be compared"
            why = comparison.rows[0].why if comparison.rows else "they have no load in common"
            outcome.problems.append(Problem("nothing-comparable", what, "", why, "measure both with the same sweep"))
            outcome.exit_code = ExitCode.FAILED
    outcome.show = lambda out: _show(out, found, sides, every=metric is not None)
    return outcome


def _side(site: Path, name: str) -> list[BenchResult]:
    """The runs of one side; a comma may also be part of a file's name."""
    from rackwell.bench import store

    parts = [name] if "," not in name or Path(name).exists() else [part for part in name.split(",") if part]
    return [store.resolve(site, part).load() for part in parts]


def _show(out: Console, found: Sequence[Comparison], sides: Sequence[list[BenchResult]], *, every: bool) -> None:
    from rich.text import Text

    from rackwell.bench.compare_text import lines

    for number, comparison in enumerate(found):
        if number:
            out.print()
        for text, kind in lines(comparison, sides[0], sides[number + 1], every=every):
            out.print(Text(text, style=_COLOURS.get(kind, "")))
