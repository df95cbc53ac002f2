# SPDX-License-Identifier: Apache-2.0
"""What the harness did and found: a line an injection, a table, one JSON file."""

from __future__ import annotations

import collections
import dataclasses
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SCHEMA = "rackwell.roll_harness/1"


@dataclasses.dataclass
class Injection:
    """One fault, and whether the invariants held after it.

    Attributes:
        kind: of the fault, a row of the table. name: what exactly. wrong: what did not hold.
    """

    kind: str
    name: str
    wrong: list[str]
    seconds: float
    note: str = ""

    @property
    def survived(self) -> bool:
        """Whether all held."""
        return not self.wrong


class Report:
    """All of a run; written after every injection, so that an interrupted run tells what it did."""

    def __init__(self, out: Path | None) -> None:
        self.injections: list[Injection] = []
        self._out = out

    def add(self, kind: str, name: str, wrong: Iterable[object], began: float, note: str = "") -> None:
        """Take one down."""
        one = Injection(kind, name, [str(each) for each in wrong], round(time.monotonic() - began, 1), note)
        self.injections.append(one)
        verdict = "survived" if one.survived else "FAILED"
        print(f"{verdict:<9}{one.seconds:7.1f} s  {kind:<12} {name}{'  ' + note if note else ''}", flush=True)
        for each in one.wrong:
            print(f"             {each}", flush=True)
        self.write()

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        rows = [{**dataclasses.asdict(one), "survived": one.survived} for one in self.injections]
        survived = sum(one.survived for one in self.injections)
        return {"schema": SCHEMA, "injections": len(rows), "survived": survived, "rows": rows}

    def write(self) -> None:
        """Write the file."""
        if self._out is not None:
            self._out.write_text(json.dumps(self.as_dict(), indent=1) + "\n")

    def table(self) -> None:
        """Print a row a kind."""
        kinds: dict[str, list[Injection]] = collections.defaultdict(list)
        for one in self.injections:
            kinds[one.kind].append(one)
        print(f"\n{'kind':<14}{'injections':>10}{'survived':>10}")
        for kind, every in kinds.items():
            print(f"{kind:<14}{len(every):>10}{sum(one.survived for one in every):>10}")
        told = self.as_dict()
        print(f"{'all':<14}{told['injections']:>10}{told['survived']:>10}")
        sys.stdout.flush()
