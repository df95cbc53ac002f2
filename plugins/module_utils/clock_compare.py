# SPDX-License-Identifier: Apache-2.0
"""Whether two machines' clocks differ, by more than the way between them explains."""

from __future__ import annotations

import datetime as dt
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import Finding

SCHEMA = "rackwell.host_clock/1"
#: seconds from which a difference is told: lines of two journals no longer stand in their order
TOLD_S = 5.0


def offset(before: float, there: float, after: float) -> float:
    """Seconds by which a clock that was read between two readings of ours is ahead; 0 when it may agree. At the least.

    Negative is behind.
    """
    if there > after:
        return there - after
    return min(there - before, 0.0)


def compare(
    name: str, before: float, there: float, after: float, limit: float, sure: tuple[Optional[bool], Optional[bool]]
) -> tuple[dict[str, Any], Optional[Finding]]:
    """The result, and what is wrong when it is more than the limit.

    Args:
        sure: whether the machine's clock is synchronized, and the controller's.
    """
    ahead = offset(before, there, after)
    size, way = abs(ahead), after - before
    times = "%s says %s, this machine %s" % (name, _text(there), _text((before + after) / 2))
    evidence = "within %.1f s of this machine's" % max(way, 1.0) if not ahead else times
    finding = None
    if size >= TOLD_S:
        finding = Finding(
            "clock-wrong",
            "the clock of %s is %s %s this machine's" % (name, _span(size), "ahead of" if ahead > 0 else "behind"),
            name,
            "%s; synchronized: %s %s, this machine %s; TLS refuses certificates of another time, journals and results "
            "do not fit together" % (times, name, _word(sure[0]), _word(sure[1])),
            _fix(name, sure),
        )
    verdict = "pass" if finding is None else "fail" if size >= limit else "degraded"
    told = [] if finding is None else [{"verdict": verdict, **finding.as_dict()}]
    what = "" if finding is None else finding.what + "; "
    row = {"item": "clock", "verdict": verdict, "evidence": what + evidence, "findings": told}
    result = {
        "schema": SCHEMA,
        "offset": round(ahead, 1),
        "way": round(way, 1),
        "synchronized": sure[0],
        "controller": sure[1],
        "checks": [row],
    }
    return result, finding if verdict == "fail" else None


def _fix(name: str, sure: tuple[Optional[bool], Optional[bool]]) -> str:
    if sure[0] and sure[1] is False:
        return "set this machine's clock: %s is synchronized, and this machine is not (timedatectl)" % name
    return (
        "on %s: timedatectl; chronyc tracking (systemctl enable --now chrony); a container has its host's clock" % name
    )


def _word(sure: Optional[bool]) -> str:
    return {True: "yes", False: "no", None: "unknown"}[sure]


def _text(moment: float) -> str:
    return dt.datetime.fromtimestamp(moment, dt.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _span(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return "%.1f %s" % (seconds / size, name)
    return "%.0f seconds" % seconds
