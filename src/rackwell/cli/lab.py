# SPDX-License-Identifier: Apache-2.0
"""``rackwell lab``."""

from __future__ import annotations

import typer

from rackwell.errors import ExitCode, Problem


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "lab",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(lab)


def lab(context: typer.Context) -> None:
    """Run the laboratory; `rackwell lab --help` lists what it can do."""
    import os
    import sys

    from rackwell import shipped
    from rackwell.cli import output

    root = shipped.checkout()
    program = root / "tests" / "lab" / "lab.py" if root else None
    if program is None or not program.exists():
        problem = Problem(
            "no-laboratory",
            "the laboratory is not part of an installed rackwell",
            str(shipped.catalog().parent),
            "it lives in the checkout, under tests/lab",
            "clone the repository and run `make demo`, or its .venv/bin/rackwell lab",
        )
        if "--json" in context.args:
            output.print_json("lab", output.Outcome(problems=[problem], exit_code=ExitCode.INVALID))
        output.print_problems([problem], None)
        raise typer.Exit(int(ExitCode.INVALID))
    # signals must reach it, and its exit code is ours: it takes the place of this process
    os.execv(sys.executable, [sys.executable, str(program), *context.args])  # noqa: S606 - no shell is wanted
