# SPDX-License-Identifier: Apache-2.0
"""What is done to one host during a roll, and how it can end."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any


class Step(enum.StrEnum):
    """In the order in which a host meets them when all goes well; RETURN and LOOK when it does not.

    All but STAGE, LOCK and LOOK carry the epoch that LOCK gave: the host refuses an epoch older than one it has seen.
    Each may be asked for twice, since an answer can be lost, and then does nothing that is done already.
    """

    #: bring the release, verified, without touching what serves
    STAGE = "stage"
    #: take the host for this run: a new epoch, and a lease. A run takes its own lock anew, which fences its dead
    #: process; on a host with an open change it also sets the deadline of the return anew
    LOCK = "lock"
    PREFLIGHT = "preflight"
    #: out of rotation
    DRAIN = "drain"
    #: the host switches, starts, and passes ``ready`` and ``sane`` by itself, or returns by itself; from here on it
    #: returns by itself unless it is promoted before its deadline
    SWITCH = "switch"
    #: hold the new release against the host's baseline
    BENCH = "bench"
    #: keep it: over a new connection, after all gates
    PROMOTE = "promote"
    #: back into rotation
    UNDRAIN = "undrain"
    UNLOCK = "unlock"
    #: back to what ran before this roll, open or promoted, verified by the same gates
    RETURN = "return"
    #: wait for what the host itself is in the middle of, and ask what it knows; changes nothing
    LOOK = "look"


class Outcome(enum.StrEnum):
    """How a step ended."""

    OK = "ok"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    #: nobody knows whether it was done: the host could not be asked
    UNREACHABLE = "unreachable"
    #: the host did not let it: somebody else holds it, or has held it since
    REFUSED = "refused"


class Change(enum.StrEnum):
    """What a host says of the change that a roll made to it."""

    NONE = "none"
    #: switched and healthy; the host returns by itself unless it is promoted in time
    OPEN = "open"
    PROMOTED = "promoted"
    #: what ran before runs again, verified
    RETURNED = "returned"
    #: neither the new nor the old release was seen to serve
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a step ended, and why.

    Attributes:
        data: of LOCK ``epoch``; of LOOK ``change``, ``drained``, ``ours`` (whether the host's lock is this run's) and
            ``unhealthy`` (an open change that was never seen to serve); of a failed SWITCH ``change``, where NONE means
            that nothing was touched; more for people to read.
    """

    outcome: Outcome
    why: str = ""
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def change(self) -> Change | None:
        """What the host says of its change; None when it was not asked."""
        found = self.data.get("change")
        return Change(found) if found else None


#: steps after whose loss nobody knows what the host did
MUTATING = frozenset({Step.LOCK, Step.DRAIN, Step.SWITCH, Step.PROMOTE, Step.UNDRAIN, Step.UNLOCK, Step.RETURN})
