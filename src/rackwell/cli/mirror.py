# SPDX-License-Identifier: Apache-2.0
"""``rackwell mirror``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.provision.mirroring import Filled


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mirror")(mirror)


def mirror(
    folder: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="The mirror.")],
    site: SiteOption = HERE,
    check: Annotated[bool, typer.Option("--check", help="Hash every file of it instead; brings nothing.")] = False,
    without_debs: Annotated[bool, typer.Option("--without-debs", help="Leave out the packages of Debian.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring into a directory all that the site's machines need from outside.

    Wheels by hash, sources, drivers, templates, Debian packages. A site that declares `rackwell_mirror` (that
    directory, or an address at which a web server has it) builds and provisions from it alone. What is there and whole
    is not brought again.
    """
    execute("mirror", as_json, lambda terminal: _body(terminal, site, folder.absolute(), check, without_debs))


def _body(terminal: Terminal, path: Path, folder: Path, check: bool, without_debs: bool) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.provision import mirroring
    from rackwell.site import declaration

    if check:
        return _check(folder)
    filled = mirroring.fill(declaration.load(path), folder, terminal, debs=not without_debs)
    return Outcome(filled.as_dict(), show=lambda out: _show(out, filled))


def _check(folder: Path) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem
    from rackwell.mirror import store

    bad = list(store.damaged(folder))
    files = store.Mirror(str(folder)).manifest.files
    size = sum(entry.size for entry in files.values())
    problems = [
        Problem("mirror-damaged", f"{entry.name} is damaged", str(folder / entry.path), why, "run `rackwell mirror`")
        for entry, why in bad
    ]
    result = {"mirror": str(folder), "files": len(files), "bytes": size, "damaged": [entry.path for entry, _ in bad]}
    text = f"{len(files)} files, {size / 1e9:,.2f} GB, {len(bad)} damaged"
    code = ExitCode.FAILED if bad else ExitCode.DONE
    return Outcome(result, problems, code, lambda out: out.print(text))


def _show(out: Console, filled: Filled) -> None:
    from rackwell.cli import tables

    rows = [[kind, str(files), f"{size / 1e6:,.1f} MB"] for kind, (files, size) in sorted(filled.kinds.items())]
    tables.table(out, ["what", "files", "size"], rows)
    for note in filled.notes:
        out.print(f"note: {note}")
    out.print(f"{filled.place}: {filled.added} files came, {filled.added_bytes / 1e6:,.1f} MB; the rest was there")
