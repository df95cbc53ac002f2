# SPDX-License-Identifier: Apache-2.0
"""A roll from the command line's side: begun, gone on with, ended early, taken back; and what is told of it."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rackwell.ansible import runner
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import builds, declared
from rackwell.provision.builds import Built
from rackwell.provision.declared import Target
from rackwell.provision.lock import container_lock
from rackwell.provision.progress import Progress
from rackwell.rollout import telling
from rackwell.rollout.board import Board
from rackwell.rollout.chain import Chain, ChainError
from rackwell.rollout.plan import Plan
from rackwell.rollout.preparing import Wishes, prepare, skips
from rackwell.rollout.rolls import FOLDER, JOURNAL, broken, can_be_taken_back, can_go_on, find, is_held, load, promoted
from rackwell.rollout.run import Roll, Threads
from rackwell.rollout.state import Result, State
from rackwell.site import declaration
from rackwell.site.declaration import Site

if TYPE_CHECKING:
    from rackwell.rollout.live import LiveFleet

View = Callable[[Board], None]


def _no_view(_board: Board) -> None:
    """Nobody looks."""


@dataclasses.dataclass
class Rolled:
    """What a roll came to.

    Attributes:
        undeclared: hosts that keep the new release, while the site declares another build for them.
    """

    state: State
    exit_code: ExitCode
    problems: list[Problem]
    journal: Path
    undeclared: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**telling.as_dict(self.state), "journal": str(self.journal), "undeclared": self.undeclared}


def roll_driver(
    path: Path, version: str, kernel: str, wishes: Wishes, progress: Progress, view: View = _no_view
) -> Rolled:
    """Roll a driver, with its kernel, over the Proxmox hosts of the site's containers.

    Args:
        kernel: another kernel than the declared pair's; empty takes that one.

    Raises:
        RackwellError: as :func:`rackwell.rollout.drivers.preparing.prepare`, or another run holds a container (exit 5).
    """
    from rackwell.rollout.drivers import preparing

    ready = preparing.prepare(declaration.load(path), version, kernel, wishes, skips(wishes), progress)
    with _locked(ready.site, list(ready.targets), "roll"):
        return _carry_out(ready.site, ready.targets, ready.built, progress, ready.plan.run, ready.plan, view=view)


def roll(path: Path, build: str, wishes: Wishes, progress: Progress, view: View = _no_view) -> Rolled:
    """Roll `build` over the containers of the site at `path`.

    Args:
        view: given the board of all hosts, for those who can show it.

    Raises:
        RackwellError: the declaration does not hold (exit 2), another run holds a container (exit 5), or the release
            could not be made (exit 1). What happens on the hosts is in the result.
    """
    ready = prepare(path, build, wishes, progress)
    with _locked(ready.site, list(ready.targets), "roll"):
        return _carry_out(ready.site, ready.targets, ready.built, progress, ready.plan.run, ready.plan, view=view)


def resume(
    path: Path,
    reference: str,
    progress: Progress,
    record: dict[str, Any] | None = None,
    *,
    finished: bool = False,
    view: View = _no_view,
) -> Rolled:
    """Go on with a roll, after a `record` (``stop`` with ``abort``, ``answer``) when one is given.

    Args:
        reference: a run's id or its beginning; empty for the newest.
        finished: also one that came to its end, to take it back.

    Raises:
        RackwellError: there is no such roll, or nothing to go on with (exit 2), or another process carries it out
            (exit 5).
    """
    site = declaration.load(path)
    place = find(site.state, reference)
    state = load(place)
    if finished:
        can_be_taken_back(place, state)
    else:
        can_go_on(place, state)
    if record is not None and record["kind"] == "answer":
        is_held(place, state, str(record["host"]))
    plan = state.plan
    names = _containers(plan)
    targets = {name: declared.target(site, name) for name in names}
    if state.aborting or (record or {}).get("abort"):
        # the way back needs nothing of this machine: no release, no benchmark client
        built = {"release": Built(plan.build, plan.release, site.state / "releases" / plan.release, False, {})}
    else:
        first = targets[names[0]]
        built = builds.make_all(first.site, first.container, progress)
        if not plan.settings.get("driver"):
            built["release"] = _kept(site, plan)
    with _locked(site, names, "resume"):
        return _carry_out(site, targets, built, progress, place.name, None, record, view)


def _containers(plan: Plan) -> list[str]:
    """The containers that a roll concerns."""
    if not plan.settings.get("driver"):
        return list(plan.hosts)
    from rackwell.rollout.drivers import preparing

    return preparing.containers_of(plan)


def _fleet(plan: Plan, *given: Any) -> LiveFleet:
    """The hosts of a roll: containers, or Proxmox hosts with theirs."""
    from rackwell.rollout.live import LiveFleet

    if not plan.settings.get("driver"):
        return LiveFleet(*given)
    from rackwell.rollout.drivers.fleet import DriverFleet

    return DriverFleet(plan.settings, *given)


def _undeclared(site: Site, state: State, targets: Mapping[str, Target]) -> list[str]:
    plan = state.plan
    if plan.settings.get("driver"):
        from rackwell.rollout.drivers import preparing

        return preparing.undeclared(site, plan, promoted(state))
    return [name for name in promoted(state) if site.build_name(targets[name].container, "release") != plan.build]


def _kept(site: Site, plan: Plan) -> Built:
    """The release of a roll as it was made for it, whatever its build says by now."""
    import json

    path = site.state / "releases" / plan.release
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = f"the release of the roll is not on this machine: {plan.release[:12]}"
        fix = f"rackwell abort {plan.run}, or bring the release back"
        raise RackwellError(Problem("release-missing", what, str(path), str(error), fix)) from error
    return Built(plan.build, plan.release, path, False, manifest)


@contextlib.contextmanager
def _locked(site: Site, names: Sequence[str], verb: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(container_lock(site.state, name, verb))
        yield


def who() -> str:
    """Who holds the hosts' locks, for people."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _carry_out(
    site: Site,
    targets: Mapping[str, Target],
    built: dict[str, Built],
    progress: Progress,
    run: str,
    plan: Plan | None,
    record: dict[str, Any] | None = None,
    view: View = _no_view,
) -> Rolled:
    from rackwell.rollout.live import LiveWorkers

    directory = RunDirectory.create(site.state, "roll")
    progress.log = directory.log
    place = site.state / FOLDER / run
    again = f"rackwell resume {run} -i {site.path}"
    known = plan or load(place).plan
    fleet = _fleet(known, targets, built, directory, progress, who(), site.path / "hooks")
    board = Board()
    going: Roll | None = None
    runner.begin_again()
    try:
        with _journal(place, run) as journal:

            def told(record: Mapping[str, Any], state: State) -> None:
                for name, text in telling.lines(record):
                    progress.line(name, text)
                    with contextlib.suppress(OSError):
                        directory.write(f"{name}: {text}")
                progress.safety = telling.safety(state, again)
                board.take(record, state)
                host = state.hosts.get(str(record.get("host")))
                if host is not None and host.result is Result.LOST:
                    fleet.forget(host.name)

            going = Roll(
                journal,
                lambda state: LiveWorkers(fleet, state.plan, lambda: Threads(fleet, state.plan)),
                plan,
                told,
                owner={"who": who(), "pid": os.getpid()},
            )
            view(board)
            if record is not None:
                going.ask(record)
            with _signals(going):
                code = going.carry_out()
            others = _undeclared(site, going.state, targets)
            return Rolled(going.state, code, telling.problems(going.state, again), place / JOURNAL, others)
    except OSError as error:
        # what cannot be written down is not begun
        runner.end_all()
        why = error.strerror or str(error)
        told_of = telling.safety(going.state, again) if going is not None else "no machine was touched"
        raise RackwellError(
            Problem(
                "journal-unwritable",
                f"the roll's journal cannot be written, and nothing further was begun; {told_of}",
                str(place / JOURNAL),
                why,
                f"free space, then: {again}",
            )
        ) from error
    except KeyboardInterrupt:
        runner.end_all()
        if going is None:
            raise
        what = f"stopped at once: {telling.safety(going.state, again)}"
        raise RackwellError(Problem("interrupted", what, "", "", again), ExitCode.INTERRUPTED) from None
    finally:
        fleet.close()


@contextlib.contextmanager
def _journal(place: Path, run: str) -> Iterator[Chain]:
    try:
        journal = Chain(place / JOURNAL)
    except BlockingIOError as error:
        raise RackwellError(
            Problem("locked", f"another process carries roll {run} out", str(place / JOURNAL), "", "rackwell logs -f"),
            ExitCode.LOCKED,
        ) from error
    except ChainError as error:
        raise RackwellError(broken(error)) from error
    with journal:
        yield journal


@contextlib.contextmanager
def _signals(going: Roll) -> Iterator[None]:
    """Ctrl-C once: no further host is begun, those under way come to their end. Twice: stop now, the hosts return.

    The handler only asks: it may come in the middle of a line that is being printed, whose lock it would wait for.
    """
    count = 0

    def take(number: int, frame: FrameType | None) -> None:
        nonlocal count
        del frame
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        going.ask({"kind": "stop", "why": signal.Signals(number).name})

    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, take)
        yield
    finally:
        for taken, handler in before.items():
            signal.signal(taken, handler)
