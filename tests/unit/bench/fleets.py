# SPDX-License-Identifier: Apache-2.0
"""Made-up fleets."""

from __future__ import annotations

import random

from rackwell.bench.fleet import Member
from rackwell.bench.fleet.rows import Run
from rackwell.bench.result import BenchResult

from . import sweeps

NOW = "2026-11-30T12:00:00Z"


def light(result: BenchResult) -> BenchResult:
    """Without what is long."""
    points = [point.model_copy(update={"timeline": None, "latency_samples": {}}) for point in result.points]
    return result.model_copy(update={"points": points})


def fleet(count: int) -> list[Member]:
    """`count` containers, some of them slower, invalid, never measured or of another model."""
    noise = random.Random(7)
    members = []
    for i in range(count):
        name = f"glm5-{i:03d}"
        runs = []
        for age in range(noise.randint(1, 5)):
            factor = 1 + noise.gauss(0, 0.02) - (0.2 if i % 17 == 3 and age == 0 else 0)
            rates = {s: tuple(v * factor for v in sweeps.STORY[s]) for s in (256, 1024)}
            points = [sweeps.point(s, r, seconds=10) for s, r in rates.items()]  # type: ignore[arg-type]
            if i % 11 == 4 and age == 0:
                points[1] = sweeps.died(1024)
            run = sweeps.run(
                points,
                run_id=f"202611{29 - age:02d}T101500Z-{i:04x}",
                date=f"2026-11-{29 - age:02d}T10:15:00Z",
                container=name,
                patches=("p",) if i % 3 else (),
            )
            runs.append(Run(light(run), f"{name}/{run.run_id}/report.html"))
        verdict = ("pass", "pass", "pass", "degraded", "fail")[noise.choice([0, 0, 0, 0, 0, 1, 2, 3]) if i % 23 else 4]
        members.append(Member(name, f"pve{i // 2}", [] if i % 19 == 7 else runs, verdict))
    return members
