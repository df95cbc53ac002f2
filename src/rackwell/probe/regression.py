# SPDX-License-Identifier: Apache-2.0
"""Is this measurement below what was recorded, by more than noise? The statistics, free of files and of the driver.

A *value* is one figure of one run, by key: ``p2p/copy/write/1/<uuid>/<uuid>`` (GB/s), ``latency/remote-read/…`` (us),
``concurrent/all-to-all/write`` (GB/s), ``collectives/busbw/268435456`` (GB/s). A *loss* is 1 - x/mean, for latencies
x/mean - 1.

Two sorts of noise are told apart by looking at the runs themselves: the samples of one run scatter, and each pair is a
little faster or slower in each run. The spread is therefore taken between runs, and of each statistic that is judged:
of single values, of a pair's mean over its measurements, of a GPU's mean over its pairs. With few runs the spread is
itself uncertain, so it is pooled over all keys of a group, and the limit follows Student's t, not the normal
distribution. An alarm needs a second measurement, made only for what looked slow in the first.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

#: a loss smaller than this is no alarm, however quiet the machine is
MIN_EFFECT = 0.05
#: quantile of the normal distribution: one healthy statistic in 4300 passes it, and then not again in the repetition
K = 3.5
#: taken where one run was recorded only and there is no spread to look at
DEFAULT_SD = 0.03
#: of small messages the time is a few microseconds of software: their spread is no measure of a link's
COLLECTIVE_BYTES = 8 << 20

Values = dict[str, float]
#: what one statistic is about: ("value", key), ("pair", (uuid, uuid)), ("out", uuid), ("in", uuid), ("both", uuid)
Subject = tuple[str, Any]


@dataclasses.dataclass(frozen=True)
class Loss:
    """One statistic that was compared: the loss, the limit above which it counts, and the values behind it.

    ``typical`` is the median loss of the pairs behind a mean: one bad pair pulls the mean over its GPU's pairs down,
    and is not the GPU's link.
    """

    subject: Subject
    loss: float
    limit: float
    measured: float
    expected: float
    keys: tuple[str, ...]
    typical: float

    @property
    def alarm(self) -> bool:
        return self.loss > self.limit and self.typical > self.loss / 2


def values_of(measurements: Mapping[str, Any], uuid: Callable[[int], str]) -> Values:
    """The figures of one run that are recorded and compared."""
    p2p = measurements.get("p2p") or {}
    found: Values = {}
    for entry in p2p.get("bandwidth") or ():
        if entry.get("gb_per_s"):
            ends = f"{uuid(entry['src'])}/{uuid(entry['dst'])}"
            found[f"p2p/{entry['engine']}/{entry['op']}/{entry['ways']}/{ends}"] = float(entry["gb_per_s"])
    for entry in p2p.get("latency") or ():
        if entry.get("us") and entry.get("kind") == "remote-read":
            ends = f"{uuid(entry['src'])}/{uuid(entry['dst'])}"
            found[f"latency/{entry['kind']}/{ends}"] = float(entry["us"])
    for entry in p2p.get("concurrent") or ():
        if entry.get("gb_per_s"):
            found[f"concurrent/{concurrent_name(entry)}"] = float(entry["gb_per_s"])
    for point in (measurements.get("collectives") or {}).get("points") or ():
        if point.get("busbw") and point["bytes"] >= COLLECTIVE_BYTES:
            found[f"collectives/busbw/{point['bytes']}"] = float(point["busbw"])
    return found


def concurrent_name(entry: Mapping[str, Any]) -> str:
    """Names a pattern with its hub, where one GPU sends to, or takes from, all others."""
    flows = [tuple(flow) for flow in entry.get("flows") or ()]
    name = f"{entry['pattern']}/{entry.get('op', 'write')}"
    sources, targets = {flow[0] for flow in flows}, {flow[1] for flow in flows}
    if entry["pattern"] in ("one-to-all", "all-to-one") and 1 in (len(sources), len(targets)):
        return f"{name}/{min(sources if len(sources) == 1 else targets)}"
    if entry["pattern"].startswith("switch-") and flows:
        return name + "/" + ",".join(f"{s}-{t}" for s, t in sorted(flows))
    return name


def group_of(key: str) -> str:
    """Keys of one group scatter alike: ``p2p/copy/write/1``, ``latency/remote-read``, ``concurrent``."""
    parts = key.split("/")
    return "/".join(parts[:4]) if parts[0] == "p2p" else "/".join(parts[:2]) if parts[0] == "latency" else parts[0]


def ends_of(key: str) -> tuple[str, str] | None:
    """UUIDs of the pair that a key is about."""
    parts = key.split("/")
    return (parts[-2], parts[-1]) if parts[0] in ("p2p", "latency") else None


def subjects(keys: Iterable[str]) -> dict[Subject, list[str]]:
    """The statistics that these keys allow. Means are of bandwidths only: latency is judged value by value."""
    return _subjects(frozenset(keys))


@functools.lru_cache(maxsize=32)
def _subjects(keys: frozenset[str]) -> dict[Subject, list[str]]:
    found: dict[Subject, list[str]] = {}
    for key in sorted(keys):
        found[("value", key)] = [key]
        ends = ends_of(key)
        if ends and key.startswith("p2p/"):
            for subject in (("pair", ends), ("out", ends[0]), ("in", ends[1]), ("both", ends[0]), ("both", ends[1])):
                found.setdefault(subject, []).append(key)
    return {subject: keys for subject, keys in found.items() if subject[0] == "value" or len(keys) > 1}


def spread_name(subject: Subject) -> str:
    """The group that a statistic's spread is pooled in."""
    return group_of(subject[1]) if subject[0] == "value" else subject[0]


def record(runs: list[Values]) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Values {key: {mean, sd, n}} and pooled_sd {group: relative sd}; keys that not all runs have are left out."""
    keys = set(runs[0]).intersection(*runs[1:]) if runs else set()
    values = {}
    for key in sorted(keys):
        series = [run[key] for run in runs]
        sd = statistics.stdev(series) if len(series) > 1 else 0.0
        values[key] = {"mean": statistics.fmean(series), "sd": sd, "n": len(series)}
    squares: dict[str, list[float]] = {}
    for subject, members in subjects(keys).items():
        if len(runs) > 1:
            series = [_mean_ratio(members, run, values) for run in runs]
            squares.setdefault(spread_name(subject), []).append(statistics.variance(series))
    return values, {name: math.sqrt(statistics.fmean(of)) for name, of in sorted(squares.items())}


def losses(
    values: Values, recorded: Mapping[str, Mapping[str, float]], pooled_sd: Mapping[str, float], k: float = K
) -> list[Loss]:
    """Every statistic that both have, compared."""
    common = [key for key in values if key in recorded and recorded[key]["mean"] > 0]
    whole = subjects(recorded)
    counts = _counts(frozenset(recorded))
    found = []
    for subject, members in subjects(common).items():
        if len(members) < 0.75 * len(whole[subject]):
            continue  # a mean over a few of its pairs only scatters more than what was recorded of it
        runs = min(recorded[key]["n"] for key in members)
        name = spread_name(subject)
        sd = pooled_sd.get(name, DEFAULT_SD)
        freedom = max(1.0, counts[name] * (runs - 1)) if runs > 1 else 8.0
        if subject[0] in ("out", "in", "both"):
            # few GPUs make an uncertain spread; the pairs' own says how small it can be at least
            sd = max(sd, pooled_sd.get("pair", 0.0) / math.sqrt(max(1, len({ends_of(key) for key in members}))))
            freedom = max(freedom, 1.0)
        limit = max(MIN_EFFECT, student(k, freedom) * sd * math.sqrt(1 + 1 / runs))
        ratio = _mean_ratio(members, values, recorded)
        loss = ratio - 1 if members[0].startswith("latency/") else 1 - ratio
        found.append(_loss(subject, loss, limit, members, values, recorded))
    return found


@functools.lru_cache(maxsize=8)
def _counts(keys: frozenset[str]) -> dict[str, int]:
    """How many statistics each spread was pooled over."""
    counts: dict[str, int] = {}
    for subject in _subjects(keys):
        counts[spread_name(subject)] = counts.get(spread_name(subject), 0) + 1
    return counts


def student(k: float, freedom: float) -> float:
    """Student's t where the normal distribution has k: Cornish-Fisher, two terms; good to 3 % from 6 degrees on."""
    first = (k**3 + k) / (4 * freedom)
    second = (5 * k**5 + 16 * k**3 + 3 * k) / (96 * freedom**2)
    return k + first + second


def suspects(values: Values, recorded: Mapping[str, Mapping[str, float]], pooled_sd: Mapping[str, float]) -> list[Loss]:
    """What looks slow in a first measurement and is worth a second one."""
    return [loss for loss in losses(values, recorded, pooled_sd) if loss.alarm]


def confirmed(
    first: Values, second: Values, recorded: Mapping[str, Mapping[str, float]], pooled_sd: Mapping[str, float]
) -> list[Loss]:
    """What is slow in the first measurement and in its repetition; the figures are the repetition's."""
    slow = {loss.subject for loss in suspects(first, recorded, pooled_sd)}
    return [loss for loss in suspects(second, recorded, pooled_sd) if loss.subject in slow]


def _loss(
    subject: Subject,
    loss: float,
    limit: float,
    members: list[str],
    values: Values,
    recorded: Mapping[str, Mapping[str, float]],
) -> Loss:
    measured = sum(values[key] for key in members) / len(members)
    expected = sum(recorded[key]["mean"] for key in members) / len(members)
    return Loss(subject, loss, limit, measured, expected, tuple(members), _typical(loss, members, values, recorded))


def _typical(loss: float, members: list[str], values: Values, recorded: Mapping[str, Mapping[str, float]]) -> float:
    if len(members) == 1:
        return loss
    by_pair: dict[tuple[str, str] | None, list[float]] = {}
    for key in members:
        by_pair.setdefault(ends_of(key), []).append(1 - values[key] / recorded[key]["mean"])
    if len(by_pair) < 2:
        return loss
    return statistics.median(sum(losses) / len(losses) for losses in by_pair.values())


def _mean_ratio(members: Iterable[str], run: Mapping[str, float], values: Mapping[str, Mapping[str, float]]) -> float:
    ratios = [run[key] / values[key]["mean"] for key in members]
    return sum(ratios) / len(ratios)
