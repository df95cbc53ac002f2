# SPDX-License-Identifier: Apache-2.0
"""``rackwell report``."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rackwell.bench.report.asked import Asked
    from rackwell.cli.output import Outcome, Terminal

FLEET = "fleet.html"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The command line."""

    site: Path
    what: list[str]
    baseline: str
    out: Path | None
    form: str
    plots: Path | None
    plot_format: str
    fleet: bool


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONTAINER|RUN|FILE]...",
            help="Newest run of a container, CONTAINER~1 for the one before, a run, or a bench.json; "
            "else the newest of all.",
            show_default=False,
        ),
    ] = None,
    site: SiteOption = HERE,
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="RUN", help="Hold against this run; else the valid one before.")
    ] = "",
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the report there.")] = None,
    form: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help="html, markdown, text or json; all but html are printed."),
    ] = "html",
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="DIR", help="Write each plot as a file there, for a paper.")
    ] = None,
    plot_format: Annotated[str, typer.Option("--plot-format", metavar="FORMAT", help="svg or png.")] = "svg",
    fleet: Annotated[bool, typer.Option("--fleet", help="One page of all containers of the site.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the report of a stored benchmark.

    One HTML file that opens without a network; its path is printed. As Markdown or text it goes into a ticket.
    """
    wanted = Wanted(site, what or [], baseline, out, form, plots, plot_format, fleet)
    execute("report", as_json, lambda terminal: _fleet(terminal, wanted) if fleet else _body(terminal, wanted))


def _body(terminal: Terminal, wanted: Wanted) -> Outcome:
    from rackwell.bench.report import asked as reports
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError

    del terminal
    if wanted.out is not None and len(wanted.what) > 1:
        raise RackwellError(
            Problem("report-out", "--out names one file, but several runs are asked for", str(wanted.out)),
            ExitCode.INVALID,
        )
    found = _chosen(wanted)
    made: list[dict[str, Any]] = []
    lines: list[str] = []
    for each in found:
        text = reports.form(each, wanted.form)
        target = wanted.out
        if target is None and wanted.form == "html":
            target = each.place / "report.html"
        one: dict[str, Any] = {
            "report": str(reports.save(text, target)) if target is not None else "",
            "container": each.result.container,
            "run_id": each.result.run_id,
            "valid": each.result.valid,
            "baseline": each.previous.run_id if each.previous is not None else None,
        }
        if target is None:
            one["text"] = text
        if wanted.plots is not None:
            folder = wanted.plots if len(found) == 1 else wanted.plots / each.result.run_id
            one["plots"] = [str(file) for file in reports.plots(each, folder, wanted.plot_format)]
        lines.append(str(target) if target is not None else text.rstrip("\n"))
        made.append(one)

    def show(_console: object) -> None:
        between = "\n\n" if wanted.form != "html" and wanted.out is None else "\n"
        typer.echo(between.join(lines))
        if wanted.plots is not None:
            typer.echo(f"{sum(len(one['plots']) for one in made)} plots in {wanted.plots}", err=True)

    return Outcome({**made[0], "reports": made}, show=show)


def _chosen(wanted: Wanted) -> list[Asked]:
    """The runs; where there is none, what is wrong: the site, the name, or that nothing was measured yet."""
    from rackwell.bench.report import asked as reports
    from rackwell.errors import ExitCode, Problem, RackwellError
    from rackwell.site import declaration

    try:
        found = reports.choose(wanted.site.absolute(), wanted.what, wanted.baseline)
        if found:
            return found
        name = ""
    except RackwellError as error:
        # what may be a container's name and has no result may be declared all the same
        names = [each for each in wanted.what if re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", each)]
        if [problem.code for problem in error.problems] != ["run-unknown"] or len(names) != len(wanted.what):
            raise
        site = declaration.load(wanted.site)
        for each in names:
            site.container(each)
        name = names[0] if len(names) == 1 else ""
        if not name:
            raise
    declaration.load(wanted.site)
    raise RackwellError(
        Problem(
            "no-result",
            f"there is no benchmark{f' of {name}' if name else ''} yet",
            str(wanted.site.absolute() / ".rackwell" / "results"),
            "",
            f"measure one: rackwell bench {name or 'CONTAINER'} -i {wanted.site}",
        ),
        ExitCode.INVALID,
    )


def _fleet(terminal: Terminal, wanted: Wanted) -> Outcome:
    from rackwell.bench.fleet import render
    from rackwell.bench.fleet.gather import gather
    from rackwell.bench.report import asked as reports
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError
    from rackwell.site import declaration

    del terminal
    if wanted.what or wanted.plots is not None or wanted.baseline or wanted.form != "html":
        raise RackwellError(
            Problem("report-fleet", "--fleet is one HTML page of the whole site", "", "", "leave the others out"),
            ExitCode.INVALID,
        )
    site = declaration.load(wanted.site)
    declared = {name: site.host_of(node) for name, node in site.containers.items()}
    target = wanted.out or site.path / ".rackwell" / "results" / FLEET
    members = gather(site.path, declared, target.absolute().parent)
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    reports.save(render(members, site=site.path.name, now=now), target)
    result = {
        "report": str(target),
        "container": "",
        "run_id": "",
        "valid": all(member.runs and member.runs[0].result.valid for member in members),
        "containers": len(members),
    }
    return Outcome(result, show=lambda _: typer.echo(str(target)))
