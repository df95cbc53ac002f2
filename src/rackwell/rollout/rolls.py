# SPDX-License-Identifier: Apache-2.0
"""The rolls that a site remembers, and what may still be done with one."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.rollout.chain import ChainError, read
from rackwell.rollout.state import Result, State, replay

FOLDER = "rolls"
JOURNAL = "journal.jsonl"


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


def _refuse(code: str, what: str, where: Path, why: str, fix: str) -> RackwellError:
    return RackwellError(Problem(code, what, str(where), why, fix), ExitCode.INVALID)


def can_go_on(place: Path, state: State) -> None:
    """Refuse a roll that is over. One that failed before anything was switched can be tried again."""
    here = place / JOURNAL
    back = f"begin a new roll, or take it back: rackwell rollback {place.name}"
    if state.finished == 0:
        raise _refuse("roll-finished", f"roll {place.name} is over: it came to its end", here, "", back)
    if state.finished == 3:
        raise _refuse("roll-finished", f"roll {place.name} is over: it was rolled back", here, "", back)
    broken = [host.name for host in state.hosts.values() if host.result is Result.BROKEN]
    if state.finished == 1 and broken:
        why = f"a person has to look at {', '.join(broken)}"
        raise _refuse("roll-finished", f"roll {place.name} is over: it failed", here, why, back)


def can_be_taken_back(place: Path, state: State) -> None:
    """Refuse when there is nothing to take back, or a later roll stands on it."""
    open_or_kept = {Result.PROMOTED, Result.LOST, None}
    if state.finished is not None and not any(
        host.switched and host.result in open_or_kept for host in state.hosts.values()
    ):
        why = "none of its hosts keeps what it brought"
        raise _refuse(
            "nothing-to-return", f"roll {place.name} has nothing to take back", place, why, "rackwell history"
        )
    found: list[tuple[Path, str]] = []
    for later in places(place.parents[1]):
        if later.name <= place.name:
            continue
        with contextlib.suppress(RackwellError):
            other = load(later)
            both = [
                name for name, host in other.hosts.items() if host.result is Result.PROMOTED and name in state.hosts
            ]
            if both:
                what = f"roll {later.name} changed {', '.join(both)} after it"
                found.append((later, what))
    if found:
        later, what = found[0]
        raise _refuse("roll-superseded", what, place, "", f"first: rackwell rollback {later.name}")


def is_held(place: Path, state: State, name: str) -> None:
    """Refuse an answer to what nobody asked."""
    if name in held(state):
        return
    waiting = held(state)
    why = f"held are: {', '.join(waiting)}" if waiting else "no host of this roll is held"
    raise _refuse("not-held", f"{name} does not wait for a decision", place / JOURNAL, why, "rackwell history")
