# SPDX-License-Identifier: Apache-2.0
"""``rackwell diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.diagnose import Facts
    from rackwell.provision.diagnosing import Diagnosed


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diagnose")(diagnose)


def diagnose(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|-", help="Logs or outputs of commands, of one machine; - or none: standard input."
        ),
    ] = None,
    facts: Annotated[
        Path | None,
        typer.Option("--facts", metavar="FILE", help="What is known beforehand: YAML with sglang, driver, flags, ..."),
    ] = None,
    site: SiteOption = HERE,
    container: Annotated[
        str, typer.Option("--container", metavar="C", help="Collect from this container and its host instead.")
    ] = "",
    host: Annotated[str, typer.Option("--host", metavar="H", help="Collect from this Proxmox VE host alone.")] = "",
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", metavar="FILE.tar.gz", help="Keep what was collected there, without secrets."),
    ] = None,
    hide_names: Annotated[bool, typer.Option("--hide-names", help="In the bundle, hide users' names too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what a log or a command's output means: the cause, how sure, the lines that say so, and what to do.

    Reads journals (short, json, export), dmesg, docker, kubectl and plain logs of SGLang and vLLM, and pasted shell
    transcripts. Only the last start of a server counts. Touches no machine.

    With --container or --host it collects all that from the machines, read only; a container that does not answer is
    looked at from its host. A bundle that was kept is read again as FILE.
    """
    wishes = Wishes(files or [], facts, site, container, host, bundle, hide_names)
    execute("diagnose", as_json, lambda terminal: _chosen(terminal, wishes))


class Wishes(NamedTuple):
    """What the options ask for."""

    files: list[str]
    facts: Path | None
    site: Path
    container: str
    host: str
    bundle: Path | None
    hide_names: bool


def _chosen(terminal: Terminal, wishes: Wishes) -> Outcome:
    from rackwell.provision import bundles, diagnosing

    _refuse(wishes)
    if wishes.container or wishes.host:
        return _outcome(
            diagnosing.machine(
                wishes.site,
                wishes.container,
                wishes.host,
                terminal,
                bundle=wishes.bundle,
                names=wishes.hide_names,
            )
        )
    if len(wishes.files) == 1 and wishes.files[0] != "-" and bundles.is_bundle(Path(wishes.files[0])):
        terminal.safety = "diagnose only reads"
        return _outcome(diagnosing.saved(Path(wishes.files[0])))
    return _body(terminal, wishes.files or ["-"], wishes.facts)


def _refuse(wishes: Wishes) -> None:
    """Options that do not go together."""
    from rackwell.errors import ExitCode, Problem, RackwellError

    ways = [bool(wishes.files), bool(wishes.container), bool(wishes.host)]
    if sum(ways) > 1:
        what = "FILE, --container and --host exclude each other"
    elif wishes.bundle is not None and not (wishes.container or wishes.host):
        what = "--bundle needs --container or --host"
    elif wishes.bundle is not None and not wishes.bundle.absolute().parent.is_dir():
        what = f"the directory of {wishes.bundle} does not exist"
    else:
        return
    problem = Problem("usage", what, "command line", "", "see: rackwell diagnose --help")
    raise RackwellError(problem, ExitCode.INVALID)


def _outcome(done: Diagnosed) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.diagnose.render import text

    def show(out: Console) -> None:
        out.print(text(done.told))
        if done.bundle is not None and done.index is not None:
            hidden = sum(done.index["hidden"].values())
            out.print(f"\nbundle {done.bundle}: {len(done.index['files'])} texts, {hidden} secrets hidden")

    return Outcome(done.as_dict(), done.problems, done.exit_code, show)


def _body(terminal: Terminal, files: list[str], facts: Path | None) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.diagnose import diagnoser
    from rackwell.diagnose.render import text

    terminal.safety = "diagnose only reads"
    known = _facts(facts) if facts is not None else None
    told = diagnoser().diagnose(_sources(files), known, guess=True)
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
