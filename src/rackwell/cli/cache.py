# SPDX-License-Identifier: Apache-2.0
"""``rackwell cache``: capture, list, show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rackwell.cli.command import HERE, ContainerArgument, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal

_MOST = 20
"""Files that are shown to people; --json has all of them."""

group = typer.Typer(
    help="Carry compiled kernels and tuned tactics from one container to others of its kind.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(group, name="cache")


@group.command("capture")
def capture(container: ContainerArgument, site: SiteOption = HERE, as_json: JsonOption = False) -> None:
    """Bring what a container's server compiled to this machine.

    Only from a server that is ready and compiles nothing. `provision` unpacks it on containers with the same release,
    GPU and driver before their first start.
    """
    execute("cache", as_json, lambda terminal: _capture(terminal, site, container))


@group.command("list")
def list_(site: SiteOption = HERE, as_json: JsonOption = False) -> None:
    """List the captured caches."""
    execute("cache", as_json, lambda terminal: _list(terminal, site))


@group.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="ID", help="Name of the cache, or how it begins.")],
    site: SiteOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Show a captured cache, and check its hashes. Exit code 1 when they do not hold."""
    execute("cache", as_json, lambda terminal: _show(terminal, site, name))


def _capture(terminal: Terminal, site: Path, name: str) -> Outcome:
    from rackwell.cli.gc import size
    from rackwell.cli.output import Outcome
    from rackwell.provision import caches

    done = caches.capture(site, name, terminal)

    def told(out: Console) -> None:
        if done.report is not None:
            found = done.report
            word = "captured" if found["state"] == "captured" else "the same as before"
            out.print(f"{found['id']}: {found['files']} files, {size(found['bytes'])}, {word}")

    result = {"action": "capture", "container": name, "captured": done.report}
    return Outcome(result, done.problems, done.exit_code, told)


def _list(terminal: Terminal, site: Path) -> Outcome:
    from rackwell.cli import tables
    from rackwell.cli.gc import size
    from rackwell.cli.output import Outcome
    from rackwell.provision import caches

    terminal.safety = "list changes nothing"
    found = [one.as_dict() for one in caches.listed(site)]
    rows = [
        [
            one["id"],
            str((one["key"] or {}).get("gpu", "")),
            str(one["machine"] or ""),
            str(one["captured"] or ""),
            str(one["files"]),
            size(one["bytes"] or 0),
            one["why"] or "ok",
        ]
        for one in found
    ]
    head = ["id", "GPU", "from", "captured", "files", "size", "state"]
    return Outcome({"action": "list", "caches": found}, show=lambda out: tables.table(out, head, rows))


def _show(terminal: Terminal, site: Path, name: str) -> Outcome:
    from rackwell.cli.gc import size
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem
    from rackwell.provision import caches

    terminal.safety = "show changes nothing"
    one = caches.shown(site, name)
    files: list[dict[str, Any]] = one.paper.get("files") or []
    problems = []
    if one.why:
        fix = "capture it again: rackwell cache capture CONTAINER"
        problems.append(
            Problem("cache-damaged", f"the captured cache {one.name} is damaged", str(one.path), one.why, fix)
        )

    def told(out: Console) -> None:
        out.print(
            f"{one.name}: {len(files)} files, {size(one.paper.get('bytes') or 0)}, {one.why or 'every hash holds'}"
        )
        out.print(f"captured {one.paper.get('captured')} on {one.paper.get('machine')}")
        for part, value in (one.paper.get("key") or {}).items():
            out.print(f"{part:<17} {value}")
        for file in files[:_MOST]:
            out.print(f"  {size(file['size']):>9}  {file['path']}")
        if len(files) > _MOST:
            out.print(f"  and {len(files) - _MOST} more")

    result = {"action": "show", "caches": [one.as_dict()], "contents": files}
    return Outcome(result, problems, ExitCode.FAILED if problems else ExitCode.DONE, told)
