#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How often the bench gate is right: made-up runs of known difference and noise, judged as real ones are.

    benchmarks/gate_verdicts.py                     # the table of docs/compare.md
    benchmarks/gate_verdicts.py --comparisons 200   # sooner, coarser

What is simulated are measurements, not machines: each output rate is the true rate of its load times normal noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from rackwell.bench.compare_gate import judge
from rackwell.bench.result import BenchPoint, BenchResult, Throughput

RATES = {16: 420.0, 64: 1010.0, 256: 1950.0, 512: 2800.0, 1024: 3740.0}
EFFECTS = (0.0, -0.03, -0.05, -0.10)


@dataclasses.dataclass(frozen=True)
class Design:
    """What is measured, and what the machine does meanwhile.

    Attributes:
        loads, repeats: of each side. noise: of one point. shared: part of that noise (of its variance) that all loads
            of a repeat have in common. around: the baseline is measured half before and half after. drift: what the
            machine loses from the first measurement to the last, whatever it serves.
    """

    title: str
    loads: int = 3
    repeats: int = 4
    noise: float = 0.03
    shared: float = 0.0
    around: bool = False
    drift: float = 0.0


DESIGNS = (
    Design("A, B: 3 loads, 4 repeats"),
    Design("A, B: 3 loads, 5 repeats", 3, 5),
    Design("A, B: 3 loads, 2 repeats", 3, 2),
    Design("A, B: 3 loads, 4 repeats, half of the noise common to all loads", shared=0.5),
    Design("A, B: 3 loads, 4 repeats, noise 6 % where 3 % is declared", noise=0.06),
    Design("A, B: 3 loads, 4 repeats, machine drifts by -6 %", drift=-0.06),
    Design("A/B/A: 3 loads, 2 + 4 + 2 repeats", around=True),
    Design("A/B/A: 3 loads, 4 + 4 + 4 repeats", repeats=8, around=True),
    Design("A/B/A: 3 loads, 4 + 4 + 4 repeats, machine drifts by -6 %", repeats=8, around=True, drift=-0.06),
)


def run(name: str, date: str, rates: dict[tuple[int, int], float]) -> BenchResult:
    """A run of which only rates are known: (streams, repeat) -> output tok/s."""
    points = [
        BenchPoint(
            concurrency=streams,
            num_prompts=streams * 4,
            input_tokens=1024,
            output_tokens=512,
            repeat=repeat,
            status="measured",
            valid=True,
            throughput=Throughput(
                duration_s=60.0,
                request_per_s=rate / 512,
                input_tok_per_s=rate * 2,
                output_tok_per_s=rate,
                total_tok_per_s=rate * 3,
            ),
        )
        for (streams, repeat), rate in rates.items()
    ]
    return BenchResult(run_id=name, container="c", host="h", date_utc=date, bench="quick", points=points)


def simulate(design: Design, effect: float, rng: random.Random) -> tuple[list[BenchResult], list[BenchResult]]:
    """Baseline and candidate runs whose true rates differ by `effect`."""
    loads = list(RATES)[: design.loads]
    half = design.repeats // 2
    candidates = half if design.around else design.repeats
    parts = [("a1", half, 0.0), ("b", candidates, effect), ("a2", half, 0.0)]
    if not design.around:
        parts = [("a1", design.repeats, 0.0), ("b", candidates, effect)]
    if design.around and design.repeats == 4:
        parts[1] = ("b", 4, effect)
    total = sum(count for _, count, _ in parts) - 1
    done, runs = 0, []
    for number, (name, count, change) in enumerate(parts):
        rates = {}
        for repeat in range(1, count + 1):
            common = rng.gauss(0, design.noise * math.sqrt(design.shared))
            for streams in loads:
                own = rng.gauss(0, design.noise * math.sqrt(1 - design.shared))
                factor = (1 + change) * (1 + design.drift * done / total) * math.exp(common + own)
                rates[streams, repeat] = RATES[streams] * factor
            done += 1
        runs.append(run(name, f"2026-11-30T0{number}:00:00Z", rates))
    return [r for r in runs if r.run_id != "b"], [r for r in runs if r.run_id == "b"]


def verdicts(design: Design, effect: float, comparisons: int, seed: int, replicates: int = 1000) -> dict[str, int]:
    """Verdict -> how often."""
    rng = random.Random(f"{seed}{design}{effect}")  # noqa: S311
    found = {"pass": 0, "inconclusive": 0, "fail": 0}
    for _ in range(comparisons):
        baseline, candidate = simulate(design, effect, rng)
        found[judge(baseline, candidate, replicates=replicates).verdict] += 1
    return found


def _job(arguments: tuple[Design, float, int, int]) -> tuple[Design, float, dict[str, int]]:
    design, effect, comparisons, seed = arguments
    return design, effect, verdicts(design, effect, comparisons, seed)


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    arguments = parser.parse_args()
    designs = [design for design in DESIGNS if arguments.only in design.title]
    jobs = [(design, effect, arguments.comparisons, arguments.seed) for design in designs for effect in EFFECTS]
    print(f"pass / inconclusive / fail of {arguments.comparisons:,} comparisons each, in percent\n")
    print("| measured | " + " | ".join("equal" if not e else f"{e:+.0%}" for e in EFFECTS) + " |")
    print("| --- |" + " --- |" * len(EFFECTS))
    with multiprocessing.Pool(arguments.jobs) as pool:
        cells: list[str] = []
        for design, _effect, found in pool.imap(_job, jobs):
            cells.append(" / ".join(f"{100 * count / arguments.comparisons:.1f}" for count in found.values()))
            if len(cells) == len(EFFECTS):
                print(f"| {design.title} | " + " | ".join(cells) + " |", flush=True)
                cells = []


if __name__ == "__main__":
    main()
