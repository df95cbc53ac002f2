# SPDX-License-Identifier: Apache-2.0
"""``rackwell check``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sized
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from pydantic import BaseModel

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.lint import Finding


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    site: SiteOption = HERE,
    schema: Annotated[
        str,
        typer.Option("--schema", metavar="NAME", help="Print a JSON Schema for editors instead; 'list' names them."),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Check the declaration; touches no machine.

    It is held against its schema and against itself.
    Names every problem with file and line. Exit code 2 when there is one.
    """
    if schema:
        _print_schema(schema, as_json)
        return
    execute("check", as_json, lambda terminal: _body(terminal, site))


def _body(terminal: Terminal, path: Path) -> Outcome:
    import concurrent.futures
    import importlib

    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode
    from rackwell.site import declaration

    del terminal
    # most of the time goes into Ansible's reading, a process of its own: what comes after it is loaded meanwhile
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        loading = pool.submit(importlib.import_module, "rackwell.provision.declared")
        site = declaration.load(path)
        loading.result()
    from rackwell.provision import declared

    checked = declared.check(site)
    problems, risks = checked.problems, checked.risks
    result = {
        "site": str(site.path),
        "hosts": sorted(site.hosts),
        "containers": sorted(site.containers),
        "accepted_risks": [dataclasses.asdict(risk) for risk in risks],
        "findings": [finding.as_dict() for finding in checked.findings],
    }
    told = _told(checked.findings) + "".join(
        f"\nbuild {risk.build} has the harmful patch {risk.patch}; accepted in {risk.where}: {risk.reason}"
        for risk in risks
    )
    if problems:
        return Outcome(
            result,
            problems,
            ExitCode.INVALID,
            lambda out: out.print(f"{site.path}: {_count(problems, 'problem')}; nothing was touched{told}"),
        )
    return Outcome(
        result,
        show=lambda out: out.print(
            f"{site.path}: {_count(site.hosts, 'Proxmox host')}, {_count(site.containers, 'container')}; "
            f"the declaration holds{told}"
        ),
    )


def _told(findings: list[Finding]) -> str:
    """Warnings and notes in full, what is ignored in a line each; errors are told as all problems are."""
    lines = []
    for finding in findings:
        if finding.ignored:
            lines.append(f"{finding.severity}[{finding.code}] ignored in {finding.where}: {finding.ignored}")
        elif finding.severity != "error":
            lines.append(f"{finding.severity}[{finding.code}]: {finding.what}")
            details = (("where", finding.where), ("why", finding.why), ("fix", finding.fix))
            lines += [f"  {label:<6}{text}" for label, text in details if text]
    counts = {s: sum(f.severity == s and not f.ignored for f in findings) for s in ("warning", "note")}
    if any(counts.values()):
        parts = [f"{number} {word}{'' if number == 1 else 's'}" for word, number in counts.items() if number]
        lines.append(f"{' and '.join(parts)}; docs/lint.md has the rules")
    return "".join(f"\n{line}" for line in lines)


def _count(things: Sized, what: str) -> str:
    return f"{len(things)} {what}{'' if len(things) == 1 else 's'}"


def _print_schema(name: str, as_json: bool) -> None:
    import json

    from rackwell.build import BuildSpec
    from rackwell.build.catalogue.meta import PatchMeta
    from rackwell.cli import output
    from rackwell.errors import ExitCode, Problem
    from rackwell.site import schema, validation

    models: dict[str, type[BaseModel]] = {**schema.models(), "build": BuildSpec, "patch": PatchMeta}
    names = sorted(models)
    if name == "list":
        typer.echo("\n".join(names))
    elif name in models:
        typer.echo(json.dumps(schema.of(models[name], name), indent=2))
    else:
        hint = validation.suggest(name, names, 0.5) or f"there is: {', '.join(names)}"
        problem = Problem("unknown-schema", f"there is no schema '{name}'", "--schema", "", hint)
        if as_json:
            output.print_json("check", output.Outcome(problems=[problem], exit_code=ExitCode.INVALID))
        output.print_problems([problem], None)
        raise typer.Exit(int(ExitCode.INVALID))
