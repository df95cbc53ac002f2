# SPDX-License-Identifier: Apache-2.0
"""``rackwell bench list``, ``show`` and ``export``: the runs that are stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.bench.result import BenchResult
    from rackwell.bench.store import Entry
    from rackwell.cli.output import Outcome, Terminal

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="CONTAINER for its newest run, CONTAINER~1 for the one before, CONTAINER/RUN, RUN or enough of it, "
        "or a bench.json.",
    ),
]
FORMATS = ("csv", "jsonl")


def register(group: typer.Typer) -> None:
    """Add the commands."""
    group.command("list")(listing)
    group.command("show")(show)
    group.command("export")(export)


def listing(
    container: Annotated[str, typer.Argument(metavar="CONTAINER", help="Only its runs; else all of the site.")] = "",
    site: SiteOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """List the runs that are stored, the newest first; interrupted and imported ones among them."""
    execute("bench", as_json, lambda terminal: _list(terminal, site, container))


def show(run: RunArgument, site: SiteOption = HERE, as_json: JsonOption = False) -> None:
    """Show one run: what was measured, of what, and why a point does not count."""
    execute("bench", as_json, lambda terminal: _show(terminal, site, run))


def export(
    form: Annotated[str, typer.Argument(metavar="csv|jsonl", help="A row, or a JSON object, for each point.")],
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="As for show.")],
    site: SiteOption = HERE,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it there; else to stdout.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the points of runs as CSV, or as a JSON object a line.

    Numbers are plain and units are in the columns' names; what is not known is empty, or null.
    """
    execute("bench", as_json, lambda terminal: _export(terminal, site, form, runs, out))


def _list(terminal: Terminal, path: Path, container: str) -> Outcome:
    from rackwell.bench.store import Store
    from rackwell.cli import tables
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError

    terminal.safety = "list changes nothing"
    store = Store(path.absolute())
    rows, problems = [], []
    for entry in store.entries(container or None):
        try:
            rows.append(_row(entry, entry.load()))
        except RackwellError as error:
            problems += error.problems
    if container and not rows and not problems:
        problem = Problem(
            "no-result",
            f"there is no benchmark of {container} yet",
            str(store.root),
            "",
            f"measure one: rackwell bench {container} -i {path}",
        )
        raise RackwellError(problem, ExitCode.INVALID)

    def told(out: Console) -> None:
        head = ["run", "container", "sweep", "release", "profile", "points", "best output tok/s", "state"]
        shown = [[str(row[key]) for key in ("run", "container", "sweep")] + _cells(row) for row in rows]
        if shown:
            tables.table(out, head, shown)

    code = ExitCode.FAILED if problems else ExitCode.DONE
    return Outcome({"runs": rows}, problems, code, told)


def _row(entry: Entry, result: BenchResult) -> dict[str, Any]:
    best = result.best
    rate = best.throughput.output_tok_per_s if best is not None and best.throughput is not None else None
    matrix = result.environment.get("matrix")
    return {
        "run": entry.name,
        "container": entry.container,
        "date_utc": result.date_utc,
        "sweep": result.bench,
        "release": result.release.digest if result.release else None,
        "build": result.release.name if result.release else None,
        "profile": result.profile.name if result.profile else None,
        "points": len(result.points),
        "valid_points": sum(point.valid for point in result.points),
        "complete": result.complete,
        "origin": result.origin.tool if result.origin else None,
        "variant": matrix.get("variant") if isinstance(matrix, dict) else None,
        "best_output_tok_per_s": rate,
        "best_concurrency": best.concurrency if best is not None else None,
        "file": str(entry.file),
    }


def _cells(row: dict[str, Any]) -> list[str]:
    best = row["best_output_tok_per_s"]
    points = f"{row['valid_points']} of {row['points']}" if row["valid_points"] != row["points"] else str(row["points"])
    state = "interrupted" if not row["complete"] else f"from {row['origin']}" if row["origin"] else "done"
    if row["variant"]:
        state = f"{state}, matrix: {row['variant']}"
    return [
        f"{row['build']} {row['release'][:12]}" if row["release"] else "-",
        row["profile"] or "-",
        points,
        f"{best:,.0f} at {row['best_concurrency']:,}" if best is not None else "-",
        state,
    ]


def _show(terminal: Terminal, path: Path, reference: str) -> Outcome:
    from rackwell.bench import store
    from rackwell.bench.table import text
    from rackwell.cli.output import Outcome

    terminal.safety = "show changes nothing"
    entry = store.resolve(path.absolute(), reference)
    result = entry.load()

    def told(out: Console) -> None:
        out.print(text(result) if result.points else "no point is measured yet")
        for name, value in _facts(entry, result):
            out.print(f"{name:<9} {value}")

    return Outcome({**_row(entry, result), "result": result.as_json()}, show=told)


def _facts(entry: Entry, result: BenchResult) -> list[tuple[str, str]]:
    """What stands beside the figures, a line each."""
    environment, topology, origin = result.environment, result.topology, result.origin
    found = [
        ("state", "" if result.complete else "interrupted: the same command goes on with it"),
        ("kernel", environment.get("kernel") or ""),
        ("CPU", environment.get("cpu") or ""),
        ("topology", f"{topology.verdict or 'no verdict'}, {topology.date_utc or ''}" if topology else ""),
        ("from", " ".join(filter(None, (origin.tool, origin.version, origin.file))) if origin else ""),
        ("not told", "; ".join(origin.lost) if origin else ""),
    ]
    found.append(("file", str(entry.file)))
    return [(name, str(value)) for name, value in found if value]


def _export(terminal: Terminal, path: Path, form: str, runs: list[str], out: Path | None) -> Outcome:
    from rackwell.bench import export as exporting
    from rackwell.bench import store
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError
    from rackwell.site import files

    terminal.safety = "export changes no run"
    if form not in FORMATS:
        problem = Problem("usage", f"'{form}' is no format", "command line", "", f"name {' or '.join(FORMATS)}")
        raise RackwellError(problem, ExitCode.INVALID)
    entries = [store.resolve(path.absolute(), run) for run in runs]
    rows = [row for entry in entries for row in exporting.rows(entry.load(), entry.name)]
    text = exporting.as_csv(rows) if form == "csv" else exporting.as_jsonl(rows)
    if out is not None:
        try:
            files.write(out, text)
        except OSError as error:
            raise RackwellError(
                Problem("cannot-write", "the export cannot be written", str(out), error.strerror or str(error))
            ) from error
    result = {"format": form, "rows": rows, "file": str(out) if out else None}

    def told(console: Console) -> None:
        if out is not None:
            console.print(str(out))
        else:
            typer.echo(text, nl=False)

    return Outcome(result, show=told)
