# SPDX-License-Identifier: Apache-2.0
"""The command line. One file a command; what is slow to import is imported by the command that needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import rackwell
from rackwell.cli import (
    adopt,
    baseline,
    bench,
    build,
    cache,
    check,
    compare,
    diagnose,
    drift,
    gc,
    host,
    init,
    lab,
    logs,
    mirror,
    patches,
    provision,
    report,
    roll,
    rules,
    status,
    topology,
    unlock,
    verify,
    version,
)
from rackwell.errors import ExitCode, Problem, RackwellError

app = typer.Typer(
    name="rackwell",
    help="Declares, provisions and proves GPU containers that serve a patched SGLang, on Proxmox VE hosts.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rackwell {rackwell.__version__}")
        raise typer.Exit


for module in (
    init,
    adopt,
    check,
    build,
    mirror,
    patches,
    provision,
    host,
    verify,
    drift,
    baseline,
    topology,
    status,
    diagnose,
    rules,
    bench,
    report,
    compare,
    roll,
    logs,
    unlock,
    cache,
    gc,
    lab,
    version,
):
    module.register(app)


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
    vault_password_file: Annotated[
        Path | None,
        typer.Option(
            "--vault-password-file", metavar="FILE", help="The vault's password; before the command, as the next two."
        ),
    ] = None,
    ask_vault_pass: Annotated[bool, typer.Option("--ask-vault-pass", help="Ask for the vault's password.")] = False,
    ask_become_pass: Annotated[
        bool, typer.Option("--ask-become-pass", help="Ask for the password of sudo on the machines.")
    ] = False,
) -> None:
    del show_version
    if vault_password_file is not None or ask_vault_pass or ask_become_pass:
        from rackwell.cli import passwords

        passwords.provide(vault_password_file, ask_vault=ask_vault_pass, ask_become=ask_become_pass)


def call(arguments: list[str]) -> int:
    """Run the command line `arguments`; returns the exit code."""
    try:
        code: Any = app(args=arguments, prog_name="rackwell", standalone_mode=False)
    except RackwellError as error:
        # what was said before the command
        from rackwell.cli import output

        if "--json" in arguments:
            output.print_json("usage", output.Outcome(problems=error.problems, exit_code=error.exit_code))
        output.print_problems(error.problems, None)
        return int(error.exit_code)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _usage(error, arguments)
    return code if isinstance(code, int) else 0


def _usage(error: Any, arguments: list[str]) -> int:
    """A command line that cannot be understood."""
    from rackwell.cli import output

    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{error.format_message()}\n")
        return int(ExitCode.INVALID)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "rackwell"
    problem = Problem("usage", str(error.format_message()), "command line", "", f"see: {path} --help")
    if "--json" in arguments:
        name = [*path.split(), "usage"][1]  # of a command in a group, the group's: `rackwell patches verify`
        output.print_json(name, output.Outcome(problems=[problem], exit_code=ExitCode.INVALID))
    output.print_problems([problem], None)
    return int(ExitCode.INVALID)
