# SPDX-License-Identifier: Apache-2.0
"""Which hosts, in which batches, and what is done when one of them fails."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

from rackwell.errors import ExitCode, Problem, RackwellError

OnFailure = Literal["return", "keep"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A roll as it was asked for.

    Attributes:
        run: its id. release: the digest that is rolled. build: its name.
        batches: names of containers; the first one is the canary.
        on_failure: what becomes of hosts that were promoted before another failed: ``return`` to what they ran, or
            ``keep`` the new release.
        skip: gate -> the reason for which it is not asked.
        settings: what else was asked for: ``confirm_s``, ``bench`` (name of the sweep), ``baseline`` (recorded or
            measure), ``min_effect``.
    """

    run: str
    build: str
    release: str
    batches: tuple[tuple[str, ...], ...]
    on_failure: OnFailure = "return"
    skip: dict[str, str] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All of them, in order."""
        return tuple(host for batch in self.batches for host in batch)

    @property
    def one_at_a_time(self) -> bool:
        """Whether nothing is begun on a host while another is not known to be whole: of a roll that reboots them."""
        return bool(self.settings.get("driver"))

    def as_dict(self) -> dict[str, Any]:
        """For the journal."""
        return {**dataclasses.asdict(self), "batches": [list(batch) for batch in self.batches]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """From the journal."""
        names = {field.name for field in dataclasses.fields(cls)}
        known = {key: value for key, value in data.items() if key in names}
        return cls(**{**known, "batches": tuple(tuple(batch) for batch in known["batches"])})


def batches(hosts: Sequence[str], sizes: str = "1,30%", canary: Sequence[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Cut hosts into batches.

    Args:
        sizes: counts or percentages of all hosts, comma-separated; the last one is repeated. A percentage is rounded
            down, to one at least.
        canary: hosts that make the first batch by themselves.

    Raises:
        RackwellError: a size makes no sense, or a canary is none of the hosts (exit 2).
    """
    unknown = [name for name in canary if name not in hosts]
    if unknown:
        raise _invalid("--canary", f"{', '.join(unknown)} is none of the hosts of this roll")
    cut = [tuple(dict.fromkeys(canary))] if canary else []
    rest = [host for host in hosts if host not in canary]
    wanted = [_size(part.strip(), len(hosts)) for part in sizes.split(",")]
    at = 0
    while rest:
        size = wanted[min(at, len(wanted) - 1)]
        cut.append(tuple(rest[:size]))
        rest = rest[size:]
        at += 1
    return tuple(cut)


def _size(text: str, total: int) -> int:
    number, percent = (text[:-1], True) if text.endswith("%") else (text, False)
    if not number.isascii() or not number.isdigit() or int(number) == 0 or (percent and int(number) > 100):
        raise _invalid("--batch", f"{text!r} is neither a count from 1 on nor a percentage from 1% to 100%")
    return max(1, math.floor(total * int(number) / 100)) if percent else int(number)


def _invalid(option: str, why: str) -> RackwellError:
    return RackwellError(Problem("batches", f"{option} makes no sense", option, why), ExitCode.INVALID)
