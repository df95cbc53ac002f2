# SPDX-License-Identifier: Apache-2.0
"""``rackwell version``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

import rackwell
from rackwell.cli.command import JsonOption, execute

if TYPE_CHECKING:
    from rackwell.cli.output import Outcome, Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("version")(version)


def version(as_json: JsonOption = False) -> None:
    """Print versions."""

    def body(terminal: Terminal) -> Outcome:
        import platform
        from importlib import metadata

        from rackwell.cli.output import Outcome

        del terminal
        versions = {"rackwell": rackwell.__version__, "python": platform.python_version()}
        for name in ("ansible-core", "ansible-runner", "uv"):
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                versions[name] = "not installed"
        return Outcome(versions, show=lambda out: out.print("\n".join(f"{k} {v}" for k, v in versions.items())))

    execute("version", as_json, body)
