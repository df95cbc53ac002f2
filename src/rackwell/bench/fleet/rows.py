# SPDX-License-Identifier: Apache-2.0
"""A line for each container: its best run, its newest one, and how they stand to the earlier ones and to the others."""

from __future__ import annotations

import dataclasses
import datetime as dt
import statistics
from collections.abc import Sequence

from rackwell.bench.report import loads as of
from rackwell.bench.report.loads import Load
from rackwell.bench.result import BenchResult

#: A median of fewer containers than this says nothing of the fleet.
FEWEST = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A stored run, and the relative link to its page; empty where there is none."""

    result: BenchResult
    link: str


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A container. runs: the newest first. verdict, validated: of the newest validation of its GPUs, and its date."""

    name: str
    host: str
    runs: list[Run]
    verdict: str = ""
    validated: str = ""
    declared: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What the page says of a container; None for what is not known.

    Attributes:
        state: ``valid``, ``invalid`` or ``interrupted`` of the newest run, ``never`` without one.
        best: of the newest run that counts. Its figures are those of its best load.
        to_previous: output at that load over that of the valid run before it.
        to_fleet: the same over the median of all containers that serve the same model at the same load.
        trend: output at that load of every run in which it counts, the oldest first.
    """

    name: str
    host: str
    state: str
    declared: bool
    release: str = ""
    digest: str = ""
    profile: str = ""
    model: str = ""
    gpus: str = ""
    date: str = ""
    age_s: float | None = None
    link: str = ""
    run_id: str = ""
    newest_link: str = ""
    reason: str = ""
    load: tuple[int, int, int] | None = None
    output: float | None = None
    total: float | None = None
    joules: float | None = None
    power: float | None = None
    share: float | None = None
    verdict: str = ""
    to_previous: float | None = None
    to_fleet: float | None = None
    peers: int = 0
    trend: list[float] = dataclasses.field(default_factory=list)


def rows(members: Sequence[Member], now: str) -> list[Row]:
    """The lines, in the order of `members`."""
    made = [_row(member, now) for member in members]
    groups: dict[tuple[str, tuple[int, int, int]], list[float]] = {}
    for member, row in zip(members, made, strict=True):
        run = _counting(member)
        if run is None or not row.model:
            continue
        for load in of.loads(run.result.points):
            rate = load.middle(of.output)
            if rate is not None:
                groups.setdefault((row.model, load.key), []).append(rate)
    found = []
    for row in made:
        peers = groups.get((row.model, row.load), []) if row.load else []
        middle = statistics.median(peers) if len(peers) >= FEWEST else None
        ratio = row.output / middle if row.output is not None and middle else None
        found.append(dataclasses.replace(row, to_fleet=ratio, peers=len(peers)))
    return found


def _counting(member: Member) -> Run | None:
    """The newest finished run with a load that counts; one that is valid as a whole is preferred."""
    usable = [run for run in member.runs if run.result.complete and of.best(of.loads(run.result.points))]
    return next((run for run in usable if run.result.valid), usable[0] if usable else None)


def _row(member: Member, now: str) -> Row:
    if not member.runs:
        verdict = member.verdict
        return Row(member.name, member.host, "never", member.declared, verdict=verdict)
    newest = member.runs[0]
    state = _state(newest.result)
    run = _counting(member)
    shown = (run or newest).result
    best = of.best(of.loads(shown.points)) if run else None
    release, profile, topology = shown.release, shown.profile, shown.topology
    row = Row(
        member.name,
        member.host or shown.host,
        state,
        member.declared,
        release=release.name if release else "",
        digest=release.digest[:12] if release else "",
        profile=profile.name if profile else "",
        model=(profile.served_name or profile.name) if profile else "",
        gpus=shown.hardware.summary if shown.hardware.gpus else "",
        date=shown.date_utc,
        age_s=_age(shown.date_utc, now),
        link=(run or newest).link,
        run_id=shown.run_id,
        newest_link=newest.link,
        reason=_reason(newest.result) if state == "invalid" else "",
        verdict=member.verdict or (topology.verdict if topology and topology.verdict else ""),
    )
    if best is None or run is None:
        return row
    return dataclasses.replace(
        row,
        load=best.key,
        output=best.middle(of.output),
        total=best.middle(of.total),
        joules=best.middle(of.joules),
        power=best.middle(of.gpu_power),
        share=best.middle(of.power_share),
        to_previous=_to_previous(member, run, best),
        trend=_trend(member, best),
    )


def _state(result: BenchResult) -> str:
    return "interrupted" if not result.complete else "valid" if result.valid else "invalid"


def _reason(result: BenchResult) -> str:
    lost = [point for point in result.points if not point.valid]
    words = [point.reasons[0].what if point.reasons else point.status for point in lost[:1]]
    return f"{len(lost)} of {len(result.points)} points: {words[0]}" if words else ""


def _to_previous(member: Member, run: Run, best: Load) -> float | None:
    """Against the next older valid run that has the load, whatever its release."""
    output = best.middle(of.output)
    for older in member.runs[member.runs.index(run) + 1 :]:
        if not (older.result.valid and older.result.complete):
            continue
        match = of.matching([best], older.result)[0]
        rate = match.middle(of.output) if match else None
        if rate and output is not None:
            return output / rate
    return None


def _trend(member: Member, best: Load) -> list[float]:
    found = []
    for run in reversed(member.runs):
        match = of.matching([best], run.result)[0] if run.result.complete else None
        rate = match.middle(of.output) if match else None
        if rate is not None:
            found.append(rate)
    return found


def _age(date: str, now: str) -> float | None:
    try:
        return (dt.datetime.fromisoformat(now) - dt.datetime.fromisoformat(date)).total_seconds()
    except (ValueError, TypeError):
        return None
