# SPDX-License-Identifier: Apache-2.0
"""``rackwell provision``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rackwell.cli.command import HERE, ContainerArgument, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.provision.provisioning import Provisioned


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("provision")(provision)


def provision(
    container: ContainerArgument,
    site: SiteOption = HERE,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Say what would change. Touches no machine; releases are made on this machine "
            "(builds/*.lock, .rackwell).",
        ),
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what changes in files and configuration.")] = False,
    bench: Annotated[
        bool | None,
        typer.Option(
            "--bench/--no-bench", help="Measure in any case, or not at all.", show_default="when something changed"
        ),
    ] = None,
    allow_restart: Annotated[
        bool, typer.Option("--allow-restart", help="Restart the container if a changed declaration needs it.")
    ] = False,
    allow_reboot: Annotated[
        bool, typer.Option("--allow-reboot", help="Reboot the Proxmox host if its driver or kernel needs it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring a container to its declaration, and measure it.

    From a bare machine to a served and benchmarked model.
    Checks the declaration, builds the releases, brings host and container there, starts the server, proves that it
    answers, measures it. A second run changes nothing.
    """
    execute(
        "provision",
        as_json,
        lambda terminal: _body(terminal, site, container, Wishes(check, diff, bench, allow_restart, allow_reboot)),
    )


class Wishes(NamedTuple):
    """What the options ask for."""

    check: bool
    diff: bool
    bench: bool | None
    allow_restart: bool
    allow_reboot: bool


def _body(terminal: Terminal, site: Path, name: str, wishes: Wishes) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.provision.provisioning import provision as run

    done = run(site, name, terminal, **wishes._asdict())
    return Outcome(done.as_dict(), done.problems, done.exit_code, lambda out: _show(out, done, wishes.diff))


def _staging(out: Console, done: Provisioned) -> None:
    """The space that releases take, and whether compiled kernels came with them."""
    from rackwell.cli.gc import size

    for one in done.staging:
        parts = f"{size(one['blobs'])} wheels, {size(one['installed'])} installed, {size(one['caches'])} caches"
        rest = f"{size(one['available'])} were free; rackwell gc could free {size(one['could_free'])}"
        out.print(f"space for {one['name']} {one['digest'][:12]}: {size(one['needed'])} ({parts}); {rest}")
    cache = done.cache
    if cache is not None and cache["state"] == "restored":
        out.print(f"caches {cache['id']}: {cache['files']} files {'would be' if done.check else 'were'} unpacked")
    elif cache is not None and cache["state"] == "refused":
        out.print(f"caches not used: {cache['why']}")


def _show(out: Console, done: Provisioned, diff: bool) -> None:
    name = done.target.container.name
    changes = done.played.changes
    verb = "would change" if done.check else "changed"
    out.print(f"{name} on {done.target.host}: {done.played.changed} {verb}, in {done.played.seconds:.0f} s")
    for change in changes:
        out.print(f"  {verb:<8} {change.host}: {change.role + ': ' if change.role else ''}{change.task}")
        if diff and change.diff:
            out.print("\n".join("      " + line for line in change.diff.splitlines()))
    _staging(out, done)
    if done.exit_code not in {0, 1} or (done.measured is None and done.problems):
        return
    release = done.built["release"]
    out.print(f"release {release.build} {release.digest[:12]}")
    if done.check:
        return
    endpoint = done.endpoint
    where = f"inside {name} only" if endpoint["inside_only"] else name
    out.print(f"API {endpoint['url']} ({where}), model {endpoint['served_name']}")
    if endpoint["proxy"]:
        out.print(f"  for clients with a key: {endpoint['proxy']}")
    if endpoint["tunnel"]:
        out.print(f"  from here: {endpoint['tunnel']}")
    for router in done.routers:
        out.print(f"router {router.name}: {router.url}, {router.changed} changed")
    if done.bench_note:
        out.print(f"bench: {done.bench_note}")
    if done.measured is not None and done.measured.result is not None:
        from rackwell.cli import tables

        tables.bench(out, done.measured.result)
        if done.measured.report:
            out.print(f"report {done.measured.report}")
