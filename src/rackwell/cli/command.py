# SPDX-License-Identifier: Apache-2.0
"""How every command ends: its result or its problems, in the form that was asked for, and its exit code."""

from __future__ import annotations

import errno
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from rackwell.cli import output
from rackwell.cli.output import Outcome, Terminal
from rackwell.errors import ExitCode, Problem, RackwellError

SiteOption = Annotated[
    Path,
    typer.Option(
        "-i", "--inventory", metavar="SITE", envvar="RACKWELL_SITE", help="Directory of the site.", show_default=True
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Result as JSON on stdout.")]
ContainerArgument = Annotated[str, typer.Argument(metavar="CONTAINER", help="Name of the container in the site.")]
HERE = Path()


def execute(command: str, as_json: bool, body: Callable[[Terminal], Outcome]) -> None:
    """Run `body`, print what it came to, and end with its exit code (raises ``typer.Exit``)."""
    terminal = Terminal()
    ending = _Ending(command, terminal)
    with ending, terminal:
        ending.outcome = body(terminal)
    outcome = ending.outcome
    try:
        if as_json:
            output.print_json(command, outcome)
        else:
            outcome.show(output.stdout())
        sys.stdout.flush()
    except OSError as error:
        output.abandon(sys.stdout)
        if outcome.exit_code == ExitCode.DONE:
            outcome.exit_code = ExitCode.FAILED
        # one who reads no further (`| head`) knows; a full disk is told of
        if error.errno not in {errno.EPIPE, errno.EIO}:
            outcome.problems.append(Problem("no-output", "the result could not be written", "", error.strerror or ""))
    output.print_problems(
        outcome.problems,
        terminal.log if outcome.exit_code != ExitCode.DONE else None,
        frozenset() if as_json else outcome.shown,
    )
    raise typer.Exit(int(outcome.exit_code))


class _Ending:
    """Turns whatever a command raises into its outcome."""

    def __init__(self, command: str, terminal: Terminal) -> None:
        self.outcome = Outcome()
        self._command = command
        self._terminal = terminal

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, RackwellError):
            self.outcome = Outcome(problems=error.problems, exit_code=error.exit_code)
        elif isinstance(error, KeyboardInterrupt):
            problem = interrupted(self._command, self._terminal.safety)
            self.outcome = Outcome(problems=[problem], exit_code=ExitCode.INTERRUPTED)
        elif isinstance(error, Exception):
            self.outcome = Outcome(problems=[unexpected(error, self._terminal)], exit_code=ExitCode.FAILED)
        else:
            return False
        return True


def interrupted(command: str, safety: str) -> Problem:
    """Ctrl-C outside a play."""
    return Problem("interrupted", f"interrupted: {safety}", "", "", f"run `rackwell {command}` again when you like")


def unexpected(error: Exception, terminal: Terminal) -> Problem:
    """A defect of rackwell: one line, and the traceback in a file."""
    text = "".join(traceback.format_exception(error))
    try:
        if terminal.log is not None:
            path = terminal.log
            with path.open("a", encoding="utf-8") as stream:
                stream.write(text)
        else:
            with tempfile.NamedTemporaryFile("w", prefix="rackwell-", suffix=".log", delete=False) as stream:
                stream.write(text)
                path = Path(stream.name)
    except OSError:
        path = Path("(no log could be written)")
    what = f"unexpected {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    return Problem("unexpected", what, "", f"this is a defect of rackwell; {terminal.safety}", f"report it with {path}")
