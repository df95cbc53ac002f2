# SPDX-License-Identifier: Apache-2.0
"""What the readers of other tools' results have in common: careful looks into JSON, and one judgement."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rackwell.bench.result import BenchPoint, Distribution, Reason, RequestError, ServerInfo

MOST_SAMPLES = 400
"""Values of a kind that a point keeps for resampling, as quantiles of equal distance."""
_RECEIVED_SHARE = 0.99


class NotThisError(Exception):
    """The document is not what the reader reads. Its text says what is missing."""


@dataclasses.dataclass
class Told:
    """The points of one document, and what it does not say.

    Attributes:
        lost: what the tool does not tell, in words. date: of the measurement, ISO 8601; None when not told.
    """

    points: list[BenchPoint]
    lost: list[str] = dataclasses.field(default_factory=list)
    date: str | None = None
    version: str | None = None
    client: str = ""
    model: str | None = None
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)


def number(data: Mapping[str, Any], name: str) -> float | None:
    """A finite number; None for anything else, also for the ``Infinity`` that some tools write."""
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def needed(data: Mapping[str, Any], name: str) -> float:
    """As `number`. Raises NotThisError when there is none."""
    value = number(data, name)
    if value is None:
        raise NotThisError(f"'{name}' is no number")
    return value


def whole(data: Mapping[str, Any], name: str) -> int | None:
    """`number` without its fraction."""
    value = number(data, name)
    return None if value is None else int(value)


def numbers(value: Any) -> list[float]:
    """The finite numbers of a list; empty for anything else."""
    if not isinstance(value, list):
        return []
    return [float(x) for x in value if isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)]


def summary(data: Mapping[str, Any], name: str, *, prefixes: bool = True) -> Distribution | None:
    """A distribution from ``mean_NAME``, ``median_NAME``, ``p99_NAME``...; None without mean and median."""
    mean, median = number(data, f"mean_{name}"), number(data, f"median_{name}")
    if not prefixes or mean is None or median is None:
        return None
    shares = {share: number(data, f"{share}_{name}") for share in ("p90", "p95", "p99")}
    return Distribution(mean=mean, p50=median, **shares)


def distribution(milliseconds: Iterable[float]) -> Distribution | None:
    """Of the values themselves; None when there is none."""
    ordered = sorted(milliseconds)
    if not ordered:
        return None
    shares = {f"p{share}": _percentile(ordered, share) for share in (50, 90, 95, 99)}
    mean = math.fsum(ordered) / len(ordered)
    found = {"mean": mean, "min": ordered[0], "max": ordered[-1], **shares}
    return Distribution(**{name: round(value, 4) for name, value in found.items()})


def thinned(values: Iterable[float]) -> list[float]:
    """At most `MOST_SAMPLES` of them: quantiles of equal distance, so that resampling sees the same distribution."""
    ordered = sorted(values)
    if len(ordered) <= MOST_SAMPLES:
        return [round(value, 4) for value in ordered]
    last = MOST_SAMPLES - 1
    return [round(_percentile(ordered, 100 * place / last), 4) for place in range(MOST_SAMPLES)]


def _percentile(ordered: Sequence[float], share: float) -> float:
    place = (len(ordered) - 1) * share / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def errors(texts: Any) -> list[RequestError]:
    """Distinct error texts of requests, the most frequent first, each by its last line."""
    counts: dict[str, int] = {}
    for text in texts if isinstance(texts, list) else []:
        if text:
            last = str(text).strip().splitlines()[-1:] or [""]
            counts[last[0][:400]] = counts.get(last[0][:400], 0) + 1
    return [RequestError(text=text, count=count) for text, count in sorted(counts.items(), key=lambda one: -one[1])[:5]]


def judged(failed: int | None, silent: int | None, asked: int | None, received: int | None) -> list[Reason]:
    """Why the numbers must not be used, by the rules for our own points, as far as they can be applied.

    Args:
        failed: requests. silent: answers without a token. asked, received: output tokens of the answered requests.
    """
    found = []
    if failed:
        found.append(Reason(code="bench-requests-failed", what=f"{failed} requests failed", why="so the file says"))
    if silent:
        found.append(
            Reason(
                code="bench-empty-answers",
                what=f"{silent} answers came without a single token",
                why="the client counts them as successes, which inflates every throughput",
            )
        )
    if asked and received is not None and received < _RECEIVED_SHARE * asked:
        found.append(
            Reason(
                code="bench-short-answers",
                what=f"{received} of {asked} requested output tokens were received",
                why="the answers ended early: other work was done than asked for",
            )
        )
    return found


def server(info: Any) -> ServerInfo:
    """What a server said of itself, its secrets left behind."""
    if not isinstance(info, Mapping):
        return ServerInfo()
    texts = {
        name: info[name] for name in ("version", "model_path", "served_model_name") if isinstance(info.get(name), str)
    }
    return ServerInfo(**texts, tp_size=whole(info, "tp_size"))
