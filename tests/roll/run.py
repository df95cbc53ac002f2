#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real rolls over a laboratory's hosts, with faults put in; after each the invariants I1 to I7 are checked.

    rackwell lab up --name roll --suite bookworm --hosts 3
    for n in 1 2 3; do rackwell provision glm5-0$n -i SITE --no-bench; done        SITE is made by: run.py --prepare
    tests/roll/run.py --name roll --site SITE [--only PATTERN…] [--minutes N] [--out FILE]

Exit status: 0 every injection was survived, 1 one was not, 2 it cannot be run here.
"""

from __future__ import annotations

import argparse
import fnmatch
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cases
import watch
from place import BUILDS, Place
from report import Report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="roll", help="the laboratory's instance")
    parser.add_argument("--site", type=Path, required=True, help="where the harness keeps its site")
    parser.add_argument("--prepare", action="store_true", help="only make the site")
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of cases' names")
    parser.add_argument("--minutes", type=float, default=600, help="begin no case after so long")
    parser.add_argument("--out", type=Path, help="results, as JSON")
    parser.add_argument("--list", action="store_true", help="name the cases")
    arguments = parser.parse_args()
    chosen = [name for name in cases.CASES if any(fnmatch.fnmatch(name, one) for one in arguments.only)]
    if arguments.list or not chosen:
        print("\n".join(f"{name:<24} {(case.__doc__ or '').splitlines()[0]}" for name, case in cases.CASES.items()))
        return 0 if arguments.list else 2
    place = Place.at(arguments.name, arguments.site)
    if arguments.prepare:
        return 0
    # under nohup the rolls would inherit that they ignore it, which rackwell honours; a handler is not inherited
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    report, stop_at = Report(arguments.out), time.monotonic() + arguments.minutes * 60
    for name in chosen:
        if time.monotonic() > stop_at:
            print(f"not run: {name}")
            continue
        place.reset()
        runs = set(watch.slots(place).values())
        # to what it does not serve yet
        target = BUILDS[1] if place.digest(BUILDS[0]) in runs else BUILDS[0]
        began = time.monotonic()
        try:
            cases.CASES[name](cases.Case(place, report, name, target, stop_at))
        except Exception as error:  # noqa: BLE001 - the next case is to run; this one counts as failed
            report.add(name.partition("-")[0], f"{name}: the harness itself failed", [repr(error)], began)
        finally:
            place.reset()
    report.table()
    return 0 if all(one.survived for one in report.injections) else 1


if __name__ == "__main__":
    raise SystemExit(main())
