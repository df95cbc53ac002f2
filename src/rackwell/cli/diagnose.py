# SPDX-License-Identifier: Apache-2.0
"""``rackwell diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import JsonOption, execute

if TYPE_CHECKING:
    from rackwell.cli.output import Outcome, Terminal
    from rackwell.diagnose import Facts


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diagnose")(diagnose)


def diagnose(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE|-", help="Logs or outputs of commands, of one machine; - or none: standard input."),
    ] = None,
    facts: Annotated[
        Path | None,
        typer.Option("--facts", metavar="FILE", help="What is known beforehand: YAML with sglang, driver, flags, ..."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a log or a command's output means: the cause, how sure, the lines that say so, and what to do.

    Reads journals (short, json, export), dmesg, docker, kubectl and plain logs of SGLang and vLLM, and pasted shell
    transcripts. Only the last start of a server counts. Touches no machine.
    """
    execute("diagnose", as_json, lambda terminal: _body(terminal, files or ["-"], facts))


def _body(terminal: Terminal, files: list[str], facts: Path | None) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.diagnose import diagnoser
    from rackwell.diagnose.render import text

    terminal.safety = "diagnose only reads"
    known = _facts(facts) if facts is not None else None
    told = diagnoser().diagnose(_sources(files), known)
    return Outcome(told.as_dict(), show=lambda out: out.print(text(told)))


def _facts(path: Path) -> Facts:
    from rackwell.diagnose import Facts
    from rackwell.errors import ExitCode, Problem, RackwellError
    from rackwell.site import yamlsource

    data = yamlsource.load(path).data
    if not isinstance(data, dict):
        raise RackwellError(Problem("not-a-mapping", "the facts are no mapping", str(path)), ExitCode.INVALID)
    return Facts.of(data)


def _sources(files: list[str]):  # type: ignore[no-untyped-def]
    import sys

    from rackwell.errors import Problem, RackwellError

    for name in files:
        if name == "-":
            yield ("" if len(files) == 1 else "standard input", sys.stdin.buffer)
            continue
        try:
            with Path(name).open("rb") as stream:
                yield ("" if len(files) == 1 else name, stream)
        except OSError as error:
            problem = Problem("file-unreadable", f"{name} cannot be read", name, error.strerror or str(error))
            raise RackwellError(problem) from error
