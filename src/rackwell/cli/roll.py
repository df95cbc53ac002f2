# SPDX-License-Identifier: Apache-2.0
"""``rackwell roll``, ``resume``, ``abort``, ``rollback``, ``history``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rich.console import Console

    from rackwell.cli.output import Outcome, Terminal
    from rackwell.rollout.board import Board
    from rackwell.rollout.planning import Preview
    from rackwell.rollout.rolling import Rolled

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Id of a roll, or a part of it; the newest without.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("roll")(roll)
    app.command("resume")(resume)
    app.command("abort")(abort)
    app.command("rollback")(rollback)
    app.command("history")(history)


def roll(
    build: Annotated[str, typer.Argument(metavar="BUILD", help="Name of the build to roll.", show_default=False)] = "",
    site: SiteOption = HERE,
    limit: Annotated[list[str] | None, typer.Option("--limit", metavar="CONTAINER", help="Only these.")] = None,
    canary: Annotated[list[str] | None, typer.Option("--canary", metavar="CONTAINER", help="First, by itself.")] = None,
    batch: Annotated[
        str, typer.Option("--batch", metavar="SIZES", help="Sizes of the batches, the last one repeated.")
    ] = "1,30%",
    on_failure: Annotated[
        str, typer.Option("--on-failure", metavar="return|keep", help="What becomes of hosts promoted before.")
    ] = "return",
    bench: Annotated[
        str, typer.Option("--bench", metavar="NAME", help="Sweep of the gate; else the declared one.")
    ] = "",
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="recorded|measure", help="What the new release is held against.")
    ] = "recorded",
    interleave: Annotated[
        int,
        typer.Option("--interleave", min=0, max=9, help="Times that old and new are measured once more, in turn."),
    ] = 0,
    min_effect: Annotated[
        float, typer.Option("--min-effect", min=0.001, max=0.9, help="Least loss that fails, as a share.")
    ] = 0.05,
    energy: Annotated[bool, typer.Option("--energy", help="Joules per token are asked about, too.")] = False,
    confirm_within: Annotated[
        int, typer.Option("--confirm-within", min=60, help="Seconds after which a host returns by itself.")
    ] = 120,
    hold_for: Annotated[
        int, typer.Option("--hold-for", min=1, help="Hours that a held host waits for a person before it returns.")
    ] = 24,
    skip_gate: Annotated[
        list[str] | None, typer.Option("--skip-gate", metavar="bench|healthy", help="Not to be asked; needs --reason.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why a gate is skipped; is recorded.")] = "",
    driver: Annotated[
        str,
        typer.Option("--driver", metavar="VERSION", help="Roll this NVIDIA driver over the Proxmox hosts instead."),
    ] = "",
    kernel: Annotated[
        str, typer.Option("--kernel", metavar="RELEASE", help="With --driver: pin this kernel, not the pair's.")
    ] = "",
    allow_reboot: Annotated[
        bool, typer.Option("--allow-reboot", help="Consent: each Proxmox host is rebooted, one after the other.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Tell what would be done, and touch no machine.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Roll a build over the containers: canary, then batches; promoted by its benchmark, or taken back.

    Staged everywhere before anything is switched. Each host switches by itself, and returns by itself unless it is
    promoted in time, whatever becomes of this command.

    With --driver a driver and its kernel are rolled, one Proxmox host after the other with all of its containers.
    """

    def body(terminal: Terminal) -> Outcome:
        from rackwell.errors import ExitCode, Problem, RackwellError
        from rackwell.rollout import preparing, rolling

        for option, value, known in (
            ("--on-failure", on_failure, ("return", "keep")),
            ("--baseline", baseline, ("recorded", "measure")),
        ):
            if value not in known:
                raise RackwellError(
                    Problem("usage", f"{option} is {' or '.join(known)}", "command line", f"it is {value!r}"),
                    ExitCode.INVALID,
                )
        wishes = preparing.Wishes(
            tuple(limit or ()),
            tuple(canary or ()),
            batch,
            "keep" if on_failure == "keep" else "return",
            tuple(skip_gate or ()),
            reason,
            bench,
            baseline,
            interleave,
            min_effect,
            energy,
            confirm_within,
            hold_for * 3600,
            allow_reboot,
        )
        if bool(build) == bool(driver) or (kernel and not driver) or (driver and interleave):
            why = "one of BUILD and --driver VERSION; --kernel with --driver only, --interleave with BUILD only"
            raise RackwellError(Problem("usage", "what is to be rolled?", "command line", why), ExitCode.INVALID)
        if driver and plan:
            from rackwell.rollout.drivers import planning as driver_planning

            return _preview(driver_planning.preview(site, driver, kernel, wishes, terminal))
        if driver:
            return _outcome(rolling.roll_driver(site, driver, kernel, wishes, terminal, _board_of(terminal)))
        if plan:
            from rackwell.rollout import planning

            return _preview(planning.preview(site, build, wishes, terminal))
        return _outcome(rolling.roll(site, build, wishes, terminal, _board_of(terminal)))

    execute("roll", as_json, body)


def resume(
    run: RunArgument = "",
    site: SiteOption = HERE,
    promote: Annotated[str, typer.Option("--promote", metavar="CONTAINER", help="Keep the new release there.")] = "",
    give_back: Annotated[str, typer.Option("--return", metavar="CONTAINER", help="Take it back there.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Go on with a roll that was interrupted, died, lost a host, or is held.

    A held host waits for --promote or --return; without them it goes on waiting.
    """

    def body(terminal: Terminal) -> Outcome:
        from rackwell.errors import ExitCode, Problem, RackwellError
        from rackwell.rollout import rolling

        if promote and give_back:
            problem = Problem("usage", "one decision at a time: --promote or --return", "command line")
            raise RackwellError(problem, ExitCode.INVALID)
        record: dict[str, Any] | None = None
        if promote or give_back:
            host, verdict = (promote, "ok") if promote else (give_back, "fail")
            record = {"kind": "answer", "host": host, "verdict": verdict, "by": rolling.who()}
        return _outcome(rolling.resume(site, run, terminal, record, view=_board_of(terminal)))

    execute("resume", as_json, body)


def abort(run: RunArgument = "", site: SiteOption = HERE, as_json: JsonOption = False) -> None:
    """End a roll: what it switched returns to what ran before, verified."""
    execute("abort", as_json, lambda terminal: _back(terminal, site, run, finished=False))


def rollback(run: RunArgument = "", site: SiteOption = HERE, as_json: JsonOption = False) -> None:
    """Take back a roll that was promoted: every host returns to what it ran before it, verified."""
    execute("rollback", as_json, lambda terminal: _back(terminal, site, run, finished=True))


def _back(terminal: Terminal, site: Path, run: str, *, finished: bool) -> Outcome:
    from rackwell.rollout import rolling

    record = {"kind": "stop", "abort": True, "why": "taken back" if finished else "aborted", "by": rolling.who()}
    return _outcome(rolling.resume(site, run, terminal, record, finished=finished, view=_board_of(terminal)))


def _board_of(terminal: Terminal) -> Callable[[Board], None]:
    """Have the terminal draw all hosts while the roll goes on."""

    def show(board: Board) -> None:
        terminal.board = board.lines

    return show


def _preview(found: Preview) -> Outcome:
    from rackwell.cli.output import Outcome
    from rackwell.rollout import telling

    def show(out: Console) -> None:
        plan = found.plan
        out.print(f"{plan.build} {plan.release[:12]} over {telling.batches(plan)}; no machine was touched")
        # a driver is named by its version and kernel, a release by the beginning of its digest
        size = None if plan.one_at_a_time else 12
        rows = [
            (
                str(line.batch),
                line.host,
                line.before[:size] or "-",
                line.after[:size],
                ", ".join(line.drained_by) or "nobody",
                line.baseline,
                line.note,
            )
            for line in found.lines
        ]
        what = "host" if plan.one_at_a_time else "container"
        _table(out, rows, ("batch", what, "from", "to", "drained by", "baseline", "note"))
        for line in found.lines:
            for text in line.details:
                out.print(f"{line.host}: {text}")
        for gate, reason in plan.skip.items():
            out.print(f"gate {gate} would not be asked: {reason}")

    return Outcome(found.as_dict(), found.problems, found.exit_code, show)


def _outcome(done: Rolled) -> Outcome:
    from rackwell.cli.output import Outcome

    return Outcome(done.as_dict(), done.problems, done.exit_code, lambda out: _show(out, done))


def _show(out: Console, done: Rolled) -> None:
    from rackwell.rollout import telling

    plan = done.state.plan
    out.print(f"roll {plan.run}: {plan.build} {plan.release[:12]}")
    _table(out, telling.table(done.state), ("batch", "host" if plan.one_at_a_time else "container", "state", "why"))
    for gate, reason in plan.skip.items():
        out.print(f"gate {gate} was not asked: {reason}")
    for name in done.undeclared:
        other, setting = ("driver", "driver_version") if plan.one_at_a_time else ("build", "release_build")
        out.print(f"{name} is declared with another {other}: set {setting}, or rackwell provision brings that back")


def _table(out: Console, rows: Sequence[tuple[str, ...]], heads: tuple[str, ...]) -> None:
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads) - 1)]
    for row in [heads, *rows]:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        out.print("  ".join([*cells, row[-1]]).rstrip())


def history(run: RunArgument = "", site: SiteOption = HERE, as_json: JsonOption = False) -> None:
    """All rolls of a site, the newest first; or what one of them did, record by record."""

    def body(_terminal: Terminal) -> Outcome:
        import datetime as dt

        from rackwell.cli.output import Outcome
        from rackwell.errors import ExitCode, RackwellError
        from rackwell.rollout import rolls, telling
        from rackwell.rollout.chain import read
        from rackwell.site import declaration

        state_directory = declaration.load(site).state
        if run:
            place = rolls.find(state_directory, run)
            state = rolls.load(place)
            records = read(place / rolls.JOURNAL)

            def show(out: Console) -> None:
                for record in records:
                    moment = dt.datetime.fromtimestamp(record["time"], dt.UTC)
                    what = " ".join(
                        str(record[key]) for key in ("host", "kind", "step", "outcome", "why") if record.get(key)
                    )
                    out.print(f"{moment:%Y-%m-%dT%H:%M:%SZ}  {what}")

            return Outcome({**telling.as_dict(state), "records": records}, show=show)
        states, bad = [], []
        for place in rolls.places(state_directory):
            try:
                states.append(rolls.load(place))
            except RackwellError as error:
                bad += error.problems
        code = ExitCode.FAILED if bad else ExitCode.DONE

        def show_all(out: Console) -> None:
            rows: list[tuple[str, ...]] = [
                (
                    state.plan.run,
                    state.plan.build,
                    state.plan.release[:12],
                    f"{len(rolls.promoted(state))} of {len(state.hosts)}",
                    "under way, or died" if state.finished is None else f"exit {state.finished}",
                )
                for state in states
            ]
            _table(out, rows, ("run", "build", "release", "promoted", "end"))

        return Outcome({"rolls": [telling.as_dict(state) for state in states]}, bad, code, show_all)

    execute("history", as_json, body)
