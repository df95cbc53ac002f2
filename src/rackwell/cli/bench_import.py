# SPDX-License-Identifier: Apache-2.0
"""``rackwell bench import``: results of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.bench.result import BenchResult
    from rackwell.cli.output import Outcome, Terminal


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("import")(bring)


def bring(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What the tool wrote.")],
    site: SiteOption = HERE,
    container: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Container under whose runs they are stored.")
    ] = "imported",
    label: Annotated[
        str, typer.Option("--label", metavar="NAME", help="Name of the sweep; else that of the file.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Store results of other tools as runs, to compare and report them.

    Knows by their content: JSONL of sglang.bench_serving (several lines a file), JSON of vllm bench serve, aiperf's
    profile_export_aiperf.json. Says what the tool does not tell; the same file again changes nothing.
    """
    execute("bench", as_json, lambda terminal: _body(terminal, site, files, container, label))


def _body(terminal: Terminal, path: Path, files: list[Path], container: str, label: str) -> Outcome:
    from rackwell.bench.imports import read
    from rackwell.bench.store import Store
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError
    from rackwell.site import inventory

    terminal.safety = "what was read before is stored"
    if not (path / inventory.HOSTS_FILE).exists() and not (path / ".rackwell").is_dir():
        problem = Problem("no-site", "there is no site here", str(path.absolute()), "", "name it with -i SITE")
        raise RackwellError(problem, ExitCode.INVALID)
    # all are read before one is stored
    found = [(file, read(file, container, label)) for file in files]
    store = Store(path.absolute())
    entries = [(file, run, store.save(run)) for file, run in found]

    def told(out: Console) -> None:
        for file, run, entry in entries:
            points = f"{len(run.points)} point{'s' if len(run.points) != 1 else ''}"
            out.print(f"{file}: {points} of {run.origin.tool if run.origin else '?'}, stored as {entry.reference}")
            for text in run.origin.lost if run.origin else []:
                out.print(f"  not told: {text}")

    return Outcome({"runs": [_summary(file, run, entry.reference) for file, run, entry in entries]}, show=told)


def _summary(file: Path, run: BenchResult, reference: str) -> dict[str, Any]:
    origin = run.origin
    return {
        "file": str(file),
        "run": reference,
        "tool": origin.tool if origin else None,
        "version": origin.version if origin else None,
        "points": len(run.points),
        "valid_points": sum(point.valid for point in run.points),
        "lost": origin.lost if origin else [],
    }
