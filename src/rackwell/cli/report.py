# SPDX-License-Identifier: Apache-2.0
"""``rackwell report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rackwell.cli.output import Outcome, Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    what: Annotated[
        str,
        typer.Argument(
            metavar="CONTAINER|FILE", help="Latest result of a container, or a bench.json; else the latest of all."
        ),
    ] = "",
    site: SiteOption = HERE,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the HTML there.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the HTML report of a stored benchmark.

    One file that opens without a network. Prints its path.
    """
    execute("report", as_json, lambda terminal: _body(terminal, site, what, out))


def _body(terminal: Terminal, path: Path, what: str, out: Path | None) -> Outcome:
    from rackwell.bench import store as stores
    from rackwell.bench.report import render
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError
    from rackwell.site import declaration

    del terminal
    store = stores.Store(path.absolute())
    if what and (what.endswith(".json") or Path(what).is_file() or (Path(what) / stores.FILE).is_file()):
        place = Path(what) if Path(what).is_dir() else Path(what).parent
        result = stores.load(Path(what))
    else:
        entry = next(iter(store.entries(what or None)), None)
        if entry is None:
            site = declaration.load(path)
            if what:
                site.container(what)
            raise RackwellError(
                Problem(
                    "no-result",
                    f"there is no benchmark{f' of {what}' if what else ''} yet",
                    str(store.root),
                    "",
                    f"measure one: rackwell bench {what or 'CONTAINER'} -i {path}",
                ),
                ExitCode.INVALID,
            )
        place, result = entry.path, entry.load()
    target = out or place / stores.REPORT
    try:
        target.write_text(render(result, store.previous(result)), encoding="utf-8")
    except OSError as error:
        raise RackwellError(
            Problem("cannot-write", "the report cannot be written", str(target), error.strerror or str(error))
        ) from error
    return Outcome(
        {"report": str(target), "container": result.container, "run_id": result.run_id, "valid": result.valid},
        show=lambda console: console.print(str(target)),
    )
