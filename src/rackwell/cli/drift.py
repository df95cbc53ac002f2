# SPDX-License-Identifier: Apache-2.0
"""``rackwell drift``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rackwell.cli.command import HERE, ContainerArgument, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.provision.drifting import Drifted, Item

_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "dim"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("drift")(drift)


def drift(container: ContainerArgument, site: SiteOption = HERE, as_json: JsonOption = False) -> None:
    """Tell how a container differs from its declaration, line by line.

    Changes nothing, and asks the Proxmox host only. Exit code 1 when a provision would change something or be refused,
    4 when something needs a person's eye, 0 when there are notes at most.
    """
    execute("drift", as_json, lambda terminal: _body(terminal, site, container))


def _body(terminal: Terminal, path: Path, name: str) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.provision.drifting import drift as run

    done = run(path, name, terminal)
    summary = [(problem.code, problem.what) for problem in done.problems if problem.code == "needs-a-person"]
    shown = frozenset([*((item.code, item.what) for item in done.items), *summary])
    return Outcome(done.as_dict(), done.problems, done.exit_code, lambda out: show(out, done), shown)


def show(out: Console, done: Drifted) -> None:
    """Each difference with its line, what is declared and its remedy."""
    for item in done.items:
        _item(out, item)
    if not done.items and done.exists:
        out.print(f"{done.container} is as it is declared")
        return
    counts = [
        f"{count} {severity}{'' if count == 1 else 's'}" for severity in _STYLES if (count := done.count(severity))
    ]
    if counts:
        more = "a provision would change it" if done.changed else "a provision changes nothing"
        out.print(f"{done.container}: {', '.join(counts)}; {more}")


def _item(out: Console, item: Item) -> None:
    from rich.text import Text

    out.print(Text.assemble((item.severity, _STYLES[item.severity]), f"[{item.code}]: {item.what}"))
    parts = [("where", item.where), ("line", item.line), ("found", item.found), ("declared", item.declared)]
    if item.line.partition(":")[2].strip() == item.found:
        parts.remove(("found", item.found))
    for label, text in [*parts, ("fix", item.fix)]:
        if text:
            out.print(Text.assemble((f"  {label:<9}", "dim"), text))
