# SPDX-License-Identifier: Apache-2.0
"""A roll from the command line's side: begun, gone on with, ended early, taken back; and what is told of it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import getpass
import os
import secrets
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import builds, declared
from rackwell.provision.builds import Built
from rackwell.provision.declared import Target
from rackwell.provision.lock import container_lock
from rackwell.provision.progress import Progress
from rackwell.rollout import telling
from rackwell.rollout.chain import Chain, ChainError, read
from rackwell.rollout.plan import OnFailure, Plan, batches
from rackwell.rollout.run import Roll, Threads
from rackwell.rollout.state import Result, State, replay
from rackwell.site import declaration
from rackwell.site.declaration import Site

FOLDER = "rolls"
JOURNAL = "journal.jsonl"


@dataclasses.dataclass(frozen=True)
class Wishes:
    """How to roll. The fields are the options of ``rackwell roll``."""

    limit: tuple[str, ...] = ()
    canary: tuple[str, ...] = ()
    batch: str = "1,30%"
    on_failure: OnFailure = "return"
    skip: tuple[str, ...] = ()
    reason: str = ""
    bench: str = ""
    baseline: str = "recorded"
    min_effect: float = 0.05
    energy: bool = False
    confirm_s: int = 120
    hold_s: int = 86400


@dataclasses.dataclass
class Rolled:
    """What a roll came to."""

    state: State
    exit_code: ExitCode
    problems: list[Problem]
    journal: Path

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**telling.as_dict(self.state), "journal": str(self.journal)}


def roll(path: Path, build: str, wishes: Wishes, progress: Progress) -> Rolled:
    """Roll `build` over the containers of the site at `path`.

    Raises:
        RackwellError: the declaration does not hold (exit 2), another run holds a container (exit 5), or the release
            could not be made (exit 1). What happens on the hosts is in the result.
    """
    site = declaration.load(path)
    names = _names(site, wishes.limit)
    skip = _skips(wishes)
    targets = {name: declared.target(site, name) for name in names}
    cut = batches(names, wishes.batch, wishes.canary)
    progress.safety = "no machine was touched"
    first = targets[names[0]]
    built = builds.make_all(first.site, first.container, progress)
    built["release"] = builds.make(site, build, progress)
    _one_python(targets, site, build)
    moment = dt.datetime.now(dt.UTC)
    run = f"{moment:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    settings = {
        "confirm_s": wishes.confirm_s,
        "hold_s": wishes.hold_s,
        "bench": wishes.bench,
        "baseline": wishes.baseline,
        "min_effect": wishes.min_effect,
        "energy": wishes.energy,
    }
    plan = Plan(run, build, built["release"].digest, cut, wishes.on_failure, skip, settings)
    progress.line("controller", f"roll {run}: {build} {plan.release[:12]} over {telling.batches(plan)}")
    with _locked(site, names, "roll"):
        return _carry_out(site, targets, built, progress, run, plan)


def resume(path: Path, reference: str, progress: Progress, record: dict[str, Any] | None = None, **ask: Any) -> Rolled:
    """Go on with a roll, after a `record` (``stop`` with ``abort``, ``answer``) when one is given.

    Args:
        reference: a run's id or its beginning; empty for the newest.
        ask: ``finished``: also one that came to its end.

    Raises:
        RackwellError: there is no such roll, or nothing to go on with (exit 2), or another process carries it out
            (exit 5).
    """
    site = declaration.load(path)
    place = find(site.state, reference)
    state = load(place)
    if state.finished in (0, 1, 3) and not ask.get("finished"):
        what = {0: "promoted everywhere", 1: "failed, and a person has to look", 3: "taken back"}[state.finished]
        raise RackwellError(
            Problem(
                "roll-finished", f"roll {place.name} is over: {what}", str(place / JOURNAL), "", "begin a new roll"
            ),
            ExitCode.INVALID,
        )
    plan = state.plan
    names = list(plan.hosts)
    targets = {name: declared.target(site, name) for name in names}
    first = targets[names[0]]
    built = builds.make_all(first.site, first.container, progress)
    built["release"] = _kept(site, plan)
    with _locked(site, names, "resume"):
        return _carry_out(site, targets, built, progress, place.name, None, record)


def _kept(site: Site, plan: Plan) -> Built:
    """The release of a roll as it was made for it, whatever its build says by now."""
    import json

    path = site.state / "releases" / plan.release
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RackwellError(
            Problem(
                "release-missing",
                f"the release of the roll is not on this machine: {plan.release[:12]}",
                str(path),
                str(error),
                "abort the roll, or bring the release back",
            )
        ) from error
    return Built(plan.build, plan.release, path, False, manifest)


def _names(site: Site, limit: Sequence[str]) -> list[str]:
    for name in limit:
        site.container(name)
    names = [name for name in site.containers if not limit or name in limit]
    if not names:
        raise RackwellError(
            Problem("no-containers", "this site has no containers to roll over", str(site.path)), ExitCode.INVALID
        )
    return names


def _skips(wishes: Wishes) -> dict[str, str]:
    known = ("bench", "healthy")
    for gate in wishes.skip:
        if gate not in known:
            raise RackwellError(
                Problem(
                    "unknown-gate",
                    f"{gate!r} is no gate that can be skipped",
                    "--skip-gate",
                    f"there is: {', '.join(known)}",
                ),
                ExitCode.INVALID,
            )
    if wishes.skip and not wishes.reason.strip():
        raise RackwellError(
            Problem(
                "no-reason", "a gate is skipped for a reason, which is recorded", "--reason", "", "add --reason TEXT"
            ),
            ExitCode.INVALID,
        )
    return dict.fromkeys(wishes.skip, wishes.reason)


def _one_python(targets: Mapping[str, Target], site: Site, build: str) -> None:
    """The small releases take their Python from the server's build: one set of them is staged for all."""
    from rackwell.build import load_build

    wanted = load_build(declared.build_file(site, build)).python
    for name, target in targets.items():
        has = load_build(declared.build_file(site, site.build_name(target.container, "release"))).python
        if has != wanted:
            raise RackwellError(
                Problem(
                    "python-differs",
                    f"build {build} is for Python {wanted}, and {name} was provisioned with {has}",
                    str(declared.build_file(site, build)),
                    "the probe and the benchmark client are of the same Python",
                    f"declare the build and run rackwell provision {name}",
                ),
                ExitCode.INVALID,
            )


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
) -> Rolled:
    from rackwell.rollout.live import LiveFleet, LiveWorkers

    directory = RunDirectory.create(site.state, "roll")
    progress.log = directory.log
    place = site.state / FOLDER / run
    fleet = LiveFleet(targets, built, directory, progress, who(), site.path / "hooks")
    try:
        journal = Chain(place / JOURNAL)
    except BlockingIOError as error:
        raise RackwellError(
            Problem("locked", f"another process carries roll {run} out", str(place / JOURNAL)), ExitCode.LOCKED
        ) from error
    except ChainError as error:
        raise RackwellError(broken(error)) from error
    with journal:

        def told(record: Mapping[str, Any], state: State) -> None:
            for name, text in telling.lines(record):
                progress.line(name, text)
                directory.write(f"{name}: {text}")
            progress.safety = telling.safety(state, f"rackwell resume {run} -i {site.path}")

        going = Roll(
            journal,
            lambda state: LiveWorkers(fleet, state.plan, lambda: Threads(fleet, state.plan)),
            plan,
            told,
            owner={"who": who(), "pid": os.getpid()},
        )
        if record is not None:
            going.ask(record)
        with _signals(going, progress):
            code = going.carry_out()
        problems = telling.problems(going.state, f"rackwell resume {run} -i {site.path}")
        return Rolled(going.state, code, problems, place / JOURNAL)


@contextlib.contextmanager
def _signals(going: Roll, progress: Progress) -> Iterator[None]:
    """Ctrl-C once: no further host is begun, those under way come to their end. Twice: stop now, the hosts return."""
    count = 0

    def take(number: int, frame: FrameType | None) -> None:
        nonlocal count
        del frame
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        progress.line(
            "controller", "stopping: hosts under way come to their end (again: stop now, they return by themselves)"
        )
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


# -- what lies there -------------------------------------------------------------------------------------------------


def places(state: Path) -> list[Path]:
    """The directories of all rolls of a site, the newest first."""
    return sorted((path.parent for path in (state / FOLDER).glob(f"*/{JOURNAL}")), reverse=True)


def find(state: Path, reference: str = "") -> Path:
    """The directory of a roll by its id, or the beginning or end of it; the newest when empty.

    Raises:
        RackwellError: there is none, or there are several (exit 2).
    """
    every = places(state)
    fitting = [one for one in every if one.name.startswith(reference) or one.name.endswith(reference)]
    if fitting and (not reference or len(fitting) == 1):
        return fitting[0]
    why = f"it fits {', '.join(one.name for one in fitting)}" if fitting else "rackwell history lists what there is"
    what = f"there is no single roll {reference!r}" if reference else "nothing was ever rolled here"
    raise RackwellError(Problem("unknown-roll", what, str(state / FOLDER), why), ExitCode.INVALID)


def load(place: Path) -> State:
    """The state of a roll from its journal. Raises RackwellError."""
    try:
        state = replay(read(place / JOURNAL))
    except ChainError as error:
        raise RackwellError(broken(error)) from error
    except OSError as error:
        raise RackwellError(
            Problem(
                "journal-unreadable", "the journal cannot be read", str(place / JOURNAL), error.strerror or str(error)
            )
        ) from error
    if state is None:
        raise RackwellError(
            Problem("journal-empty", "the journal does not begin with a plan", str(place / JOURNAL)), ExitCode.INVALID
        )
    return state


def broken(error: ChainError) -> Problem:
    """A journal that somebody changed."""
    return Problem(
        "journal-broken",
        "the journal is not what was written",
        f"{error.path}:{error.line}",
        error.why,
        "compare with the hosts' own journals, /var/lib/rackwell/rollout/journal.jsonl; begin a new roll",
    )


def held(state: State) -> list[str]:
    """The hosts of a roll for which a person has to decide."""
    return [host.name for host in state.hosts.values() if host.held]


def promoted(state: State) -> list[str]:
    """The hosts of a roll that keep the new release."""
    return [host.name for host in state.hosts.values() if host.result is Result.PROMOTED]
