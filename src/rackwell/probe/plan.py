# SPDX-License-Identifier: Apache-2.0
"""What a check measures, and what it leaves out and why: by mode, beside a server, and as asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any, ClassVar

from rackwell.probe.topology import Pair, Topology

MIB = 1 << 20
QUICK, FULL = "quick", "full"
#: bytes of a buffer beside a running server: enough to compare, too little to be missed
BESIDE_SIZE = 4 * MIB
#: samples of a repetition, and of one of many pairs
_SAMPLES, _SAMPLES_OF_MANY, _MANY = 15, 8, 16
_SERVER_RUNS = "the server runs: no figure taken beside it counts"


@dataclasses.dataclass(frozen=True)
class Plan:
    """One check. ``size``: bytes of a buffer; ``only``: check ids, empty = all."""

    mode: str
    beside_server: bool
    size: int
    only: frozenset[str] = frozenset()

    #: checks whose figures a running server spoils
    MEASURED: ClassVar = ("p2p.bandwidth", "p2p.latency", "p2p.concurrent", "collectives")

    @property
    def quick(self) -> bool:
        return self.mode == QUICK

    def skipped(self) -> Iterator[tuple[str, str]]:
        """(check id, why) of what is left out on purpose."""
        for check in self.MEASURED:
            if self.beside_server:
                yield check, _SERVER_RUNS
            elif not self._asked(check):
                yield check, "not asked for"
            elif self.quick and check in ("p2p.concurrent", "collectives"):
                yield check, "only in the full check"
        if not self._asked("p2p.data"):
            yield "p2p.data", "not asked for"

    def timed(self, check: str) -> bool:
        """Whether a check of :attr:`MEASURED` is made."""
        return check not in dict(self.skipped())

    def pairs(self, topology: Topology) -> dict[str, Any]:
        """Arguments of the first measurement of pairs."""
        tests = ["capability"]
        left_out = dict(self.skipped())
        tests += [test for test in ("data", "bandwidth", "latency") if f"p2p.{test}" not in left_out]
        if not self.beside_server:
            tests.append("links")
            if not self.quick and "bandwidth" in tests:
                tests.append("memory")
        size = min(self.size, BESIDE_SIZE) if self.beside_server else self.size
        return {"size": size, "pairs": None, "tests": tests, "quick": self.quick, "switches": topology.switch_groups()}

    def repeat(self, pairs: Collection[Pair]) -> dict[str, Any]:
        """Arguments of the repetition: these pairs with more samples."""
        tests = [test for test in ("bandwidth", "latency") if self.timed(f"p2p.{test}")]
        return {
            "size": self.size,
            "pairs": [list(pair) for pair in sorted(pairs)],
            "tests": tests,
            "samples": _SAMPLES if len(pairs) <= _MANY else _SAMPLES_OF_MANY,
            "quick": self.quick,
        }

    def concurrent(self, topology: Topology) -> dict[str, Any]:
        """Arguments of the measurement of many copies at once."""
        return {
            "size": self.size,
            "quick": self.quick,
            "patterns": None,
            "switches": topology.switch_groups(),
            "roots": {str(gpu.index): gpu.root for gpu in topology.gpus if gpu.root},
        }

    def _asked(self, check: str) -> bool:
        return not self.only or check in self.only or ("baseline" in self.only and check in self.MEASURED)
