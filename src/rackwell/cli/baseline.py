# SPDX-License-Identifier: Apache-2.0
"""``rackwell baseline``: record, show, diff."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rackwell.cli.command import HERE, ContainerArgument, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.provision.baselining import Held
    from rackwell.topology.baseline import Baseline

_MOST = 20
"""Lines of deltas for people; --json has all of them."""

group = typer.Typer(
    help="Record what a machine's GPUs reach, and hold later reports against it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(group, name="baseline")


@group.command("record")
def record(
    container: ContainerArgument,
    site: SiteOption = HERE,
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=2, max=50, help="How often to measure.")] = 5,
    allow_stop_server: Annotated[
        bool,
        typer.Option("--allow-stop-server", help="Stop a server that runs meanwhile; it is started again afterwards."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the GPUs of a container several times and keep the result as its baseline.

    A machine whose check fails gets none. Exit code 4 when a server runs and may not be stopped.
    """
    execute("baseline", as_json, lambda terminal: _record(terminal, site, container, runs, allow_stop_server))


@group.command("show")
def show(container: ContainerArgument, site: SiteOption = HERE, as_json: JsonOption = False) -> None:
    """Show the baseline of a container."""
    execute("baseline", as_json, lambda terminal: _show(terminal, site, container))


@group.command("diff")
def diff(
    container: Annotated[
        str,
        typer.Argument(metavar="CONTAINER|BASELINE", help="Name of the container in the site, or a baseline's file."),
    ],
    reports: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[REPORT]...", help="gpu.json files; else the newest one of the container."),
    ] = None,
    site: SiteOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Hold reports against a baseline.

    Exit code 0 when they differ by noise only, 1 when a figure lost more than that, or when the baseline is of another
    machine or of another driver, kernel or BIOS.
    """
    execute("baseline", as_json, lambda terminal: _diff(terminal, site, container, reports or []))


def _record(terminal: Terminal, path: Path, name: str, runs: int, consent: bool) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.provision import baselining

    done = baselining.record(path, name, terminal, runs, consent)

    def told(out: Console) -> None:
        if done.baseline is not None:
            _summary(out, done.baseline)
            out.print(f"baseline {done.file}")

    return Outcome(done.as_dict(), done.problems, done.exit_code, told)


def _show(terminal: Terminal, path: Path, name: str) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.provision import baselining

    terminal.safety = "show changes nothing"
    file, baseline = baselining.show(path, name)

    def told(out: Console) -> None:
        _summary(out, baseline)
        _map(out, baseline)
        out.print(f"baseline {file}")

    values = {key: value.model_dump() for key, value in baseline.values.items()}
    result = {"container": name, "file": str(file), **baselining.summary(baseline), "values": values}
    return Outcome(result, show=told)


def _diff(terminal: Terminal, path: Path, what: str, reports: list[Path]) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem
    from rackwell.provision import baselining

    terminal.safety = "diff changes nothing"
    file, baseline, held = baselining.diff(path, what, reports)
    problems = [baselining.refused(file, one) for one in held if not one.comparison.fits]
    for one in held:
        worse = one.comparison.worse
        if worse:
            what_ = f"{len(worse)} figures are below the baseline, {worse[0].name} by {100 * worse[0].loss:.1f} %"
            fix = "measure again: rackwell verify CONTAINER, which confirms before it tells"
            problems.append(Problem("p2p-below-baseline", what_, str(one.against), "more than noise explains", fix))

    def told(out: Console) -> None:
        for one in held:
            _held(out, one)

    result: dict[str, Any] = {
        "file": str(file),
        **baselining.summary(baseline),
        "held": [one.as_dict() for one in held],
    }
    return Outcome(result, problems, ExitCode.FAILED if problems else ExitCode.DONE, told)


def _summary(out: Console, baseline: Baseline) -> None:
    machine = baseline.machine
    names = sorted({gpu.name for gpu in machine.gpus})
    out.print(f"recorded {baseline.recorded}, {baseline.runs} runs, {len(baseline.values)} figures")
    out.print(f"GPUs     {len(machine.gpus)} x {', '.join(names)}")
    facts = (("driver", machine.driver_version), ("kernel", machine.kernel), ("board", machine.board))
    for name, value in (*facts, ("BIOS", machine.bios_version)):
        if value:
            out.print(f"{name:<8} {value}")
    for name, noise in sorted(baseline.pooled_sd.items()):
        out.print(f"noise    {name}: {100 * noise:.2f} % from run to run")
    out.print(f"digest   {baseline.digest[:12]}")


def _map(out: Console, baseline: Baseline) -> None:
    """The baseline's own bandwidths as a heat map."""
    from rackwell.cli import tables
    from rackwell.topology import compare, heat

    report, named = compare.as_matrix(baseline)
    if named is not None:
        out.print("")
        tables.plain(out, heat.heat(named, report, {}))
        out.print("")


def _held(out: Console, one: Held) -> None:
    from rackwell.cli import tables
    from rackwell.topology import compare, figures, heat

    found = one.comparison
    out.print(f"{one.against}: {found.verdict.replace('-', ' ')}")
    if not found.fits:
        rows = [[d.fact, str(d.then), str(d.now)] for d in found.differences]
        tables.table(out, ["fact", "then", "now"], rows)
        return
    key = next((named.key for named in figures.matrices(one.report)), "copy/write/1")
    named = figures.Named(key, f"Change of {key} against the baseline", "%", compare.changes(one.report, found, key))
    if named.known:
        tables.plain(out, heat.heat(named, one.report, compare.worse_pairs(found)))
    # a whole link says more than its pairs, so the links stand first, and all of them
    shown = [*sorted(found.links, key=lambda delta: -delta.loss), *(d for d in found.worse if d not in found.links)]
    rows = [
        [
            delta.name,
            f"{delta.then:.4g}",
            f"{delta.now:.4g}",
            f"{100 * delta.change:+.1f} %",
            f"{100 * delta.allowed:.1f} %",
            "degraded" if delta.worse else "pass",
        ]
        for delta in shown[: len(found.links) + _MOST]
    ]
    tables.table(out, ["figure", "then", "now", "change", "noise", "verdict"], rows)
    if found.missing:
        out.print(f"{found.missing} figures of the baseline were not measured now")
