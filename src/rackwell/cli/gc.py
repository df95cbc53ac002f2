# SPDX-License-Identifier: Apache-2.0
"""``rackwell gc``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.provision.collecting import Collected


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gc")(gc)


def gc(
    container: Annotated[
        str, typer.Argument(metavar="[CONTAINER]", help="One container; else all of the site.", show_default=False)
    ] = "",
    site: SiteOption = HERE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=0, help="How many earlier releases stay, to return to.")
    ] = 1,
    local: Annotated[
        bool,
        typer.Option("--local", help="This machine's releases, wheels and caches (.rackwell of the site)."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove releases, wheels and caches that nothing needs.

    What is active, declared, or would be returned to stays, and so does what a process runs from. With --local and no
    CONTAINER only this machine is looked at.
    """
    execute("gc", as_json, lambda terminal: _body(terminal, site, container, dry_run, keep, local))


def _body(terminal: Terminal, site: Path, name: str, dry_run: bool, keep: int, local: bool) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.provision.collecting import collect

    done = collect(site, name, terminal, dry_run=dry_run, keep=keep, local=local)
    return Outcome(done.as_dict(), done.problems, done.exit_code, lambda out: _show(out, done))


def _show(out: Console, done: Collected) -> None:
    verb = "would free" if done.dry_run else "freed"
    for found in done.machines:
        out.print(
            f"{found['container']}: {verb} {size(found['bytes'])}; {size(found['available_after'])} are free then"
        )
        for one in found["kept"]:
            out.print(f"  keeps    {one['build'] or 'release'} {one['digest'][:12]} ({', '.join(one['why'])})")
        _things(out, found["removed"], done.dry_run)
        for note in found["notes"]:
            out.print(f"  note     {note}")
    if done.local is not None:
        out.print(f"this machine: {verb} {size(done.local['bytes'])}")
        _things(out, done.local["removed"], done.dry_run)


def _things(out: Console, removed: list[dict[str, Any]], dry_run: bool) -> None:
    verb = "would go" if dry_run else "removed"
    for kind in ("release", "cache"):
        for one in [one for one in removed if one["kind"] == kind]:
            out.print(f"  {verb:<8} {kind} {one['build'] + ' ' if one['build'] else ''}{one['name'][:40]}")
    rest: dict[str, int] = {}
    for one in removed:
        if one["kind"] not in {"release", "cache"}:
            rest[one["kind"]] = rest.get(one["kind"], 0) + 1
    names = {"wheel": "wheels", "unpacked": "unpacked wheels", "installer": "installers", "leftover": "leftovers"}
    if rest:
        told = ", ".join(f"{count} {names.get(kind, kind)}" for kind, count in sorted(rest.items()))
        out.print(f"  {verb:<8} {told}")


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
