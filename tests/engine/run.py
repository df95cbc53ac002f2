#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does rackwell's main job work with the real SGLang, and does what it does when that dies?

    tests/engine/run.py [--name N] [--out FILE] [--only NAME...] [--keep]

Root, scripts/setup before. Exit status: 0 all hold, 1 one does not (the others are tried all the same, but the build
and the first provision), 2 usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from faults import FAULTS
from job import STEPS
from place import FailedError, Place

SCHEMA = "rackwell.engine_run/1"
NEEDED = ("build", "provision")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--name", default="engine", help="laboratory instance; default: %(default)s")
    parser.add_argument("--out", type=Path, help="results, JSON")
    parser.add_argument("--only", nargs="+", choices=[*STEPS, *FAULTS], metavar="NAME", help="of: %(choices)s")
    parser.add_argument("--keep", action="store_true", help="leave the laboratory up")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("tests/engine/run.py: must run as root: it starts containers", file=sys.stderr)
        return 2
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[engine {time.monotonic() - began:5.0f}s] {text}", flush=True)

    place = Place(arguments.name)
    say(f"laboratory {arguments.name} is up; its site: {place.site}")
    place.prepare()
    results, failed = [], 0
    for name, case in {**STEPS, **FAULTS}.items():
        if arguments.only and name not in arguments.only:
            continue
        since = time.monotonic()
        try:
            told, holds = case(place), True
        except FailedError as error:
            told, holds = str(error), False
            failed += 1
        seconds = round(time.monotonic() - since, 1)
        say(f"{'ok    ' if holds else 'FAILED'} {name} ({seconds:.0f} s): {told}")
        results.append({"name": name, "holds": holds, "seconds": seconds, "told": told})
        if not holds and name in NEEDED:
            break
    if arguments.out:
        document = {
            "schema": SCHEMA,
            "date_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "engine": "sglang 0.5.16, torch 2.11.0, on a processor",
            "cores": os.cpu_count(),
            "seconds": round(time.monotonic() - began),
            "cases": results,
        }
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    if not arguments.keep:
        place.lab("down", "--purge")
    say(f"{len(results) - failed} of {len(results)} hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
