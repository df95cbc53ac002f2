# SPDX-License-Identifier: Apache-2.0
"""The measurement of pairs: one child that takes them through the tests, and what becomes of its events."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from rackwell.probe import child, links
from rackwell.probe.child import Emit
from rackwell.probe.data import WrongDataError
from rackwell.probe.driver import CONTEXT_LOST, Driver, load
from rackwell.probe.p2p import bandwidth, latency, pairs, verify
from rackwell.probe.p2p.collect import collected, guarded, merged
from rackwell.probe.p2p.gpus import Gpu, Machine, opened
from rackwell.probe.p2p.load import Readers, readings
from rackwell.probe.steps import StepFailedError, step

#: bytes of each of the two buffers that every GPU gets; as nvbandwidth's: what a copy costs to start is then below
#: half a percent also where it takes a millisecond
SIZE = 512 << 20
TESTS = ("capability", "data", "bandwidth", "latency", "memory", "links")
_SAMPLES, _QUICK_SAMPLES = 5, 3
# latency differs between a GPU's multiprocessors: more samples, each of another one
_PLACES, _QUICK_PLACES = 12, 4
_LISTS = ("capability", "data", "bandwidth", "latency", "memory")


def measure(arguments: Mapping[str, Any], deadline: float, findings: Collection[str] = ()) -> dict[str, Any]:
    """``measurements["p2p"]`` of the report.

    Args:
        arguments: ``size`` (bytes of a buffer), ``pairs`` ([[src, dst], …]; None = all, in a quick look a choice of
            them), ``tests`` (of TESTS; None = all), ``samples`` (None = as the mode wants), ``quick``, ``switches``
            ([[indices of one switch], …], for that choice). All may be left out.
        deadline: seconds for everything; the pair that has not answered by then hangs.
        findings: what was seen around the driver, see :mod:`rackwell.probe.surroundings`.

    Besides what the report says it has ``link_load`` {bus id: reading}, ``devices``, ``steps`` of no pair,
    ``not_measured`` (why, when there is no GPU or too little memory) and ``describe`` (how the child ended, in words).
    """
    outcome = child.run("rackwell.probe.p2p.work:work", dict(arguments), deadline)
    return {**collected(outcome, findings, _LISTS), "link_load": merged(outcome, "link_load")}


def work(emit: Emit, arguments: dict[str, Any]) -> None:
    """The child's part."""
    guarded(emit, lambda: exercise(emit, arguments, load, links.reader))


def exercise(emit: Emit, arguments: Mapping[str, Any], loader: Callable[[], Driver], readers: Readers | None) -> None:
    """Take the pairs through the tests; a pair that fails does not keep the next from its turn."""
    with step(emit, "load", pair=None):
        driver = loader()
    with opened(emit, driver, arguments.get("size") or SIZE) as machine:
        _Exercise(emit, machine, arguments).run(readers)


class _Exercise:
    def __init__(self, emit: Emit, machine: Machine, arguments: Mapping[str, Any]) -> None:
        self.emit, self.machine = emit, machine
        self.quick = bool(arguments.get("quick"))
        self.tests = arguments.get("tests") or TESTS
        self.samples = arguments.get("samples") or (_QUICK_SAMPLES if self.quick else _SAMPLES)
        self.places = arguments.get("samples") or (_QUICK_PLACES if self.quick else _PLACES)
        count = len(machine.gpus)
        self.pairs = [(source, target) for source, target in arguments.get("pairs") or pairs.all_pairs(count)]
        self.chosen = self.pairs
        if self.quick and not arguments.get("pairs"):
            self.chosen = pairs.sample(count, arguments.get("switches") or [], random.SystemRandom())
        self.reachable: set[pairs.Pair] = set()
        self.atomic: set[pairs.Pair] = set()
        # what reads wrong pointers from a peer and follows them ends the process: not before the reads are proved
        self.misread: set[pairs.Pair] = set()

    def run(self, readers: Readers | None) -> None:
        for pair in self.pairs:
            self._try("capability", pair, self._capability)
        self.chosen = [pair for pair in self.chosen if pair in self.reachable]
        for pair in self.chosen:
            self._try("enable peer access", pair, self._connect)
        if "data" in self.tests:
            self._data()
        if "links" in self.tests and readers:
            with step(self.emit, "read the links under load", pair=None):
                self.emit({"link_load": readings(self.machine, readers)})
        if "latency" in self.tests:
            for pair in self.chosen:
                if pair not in self.misread:
                    self._try("time remote reads", pair, self._remote_read)
                self._try("time small copies", pair, self._small_copy)
        if "bandwidth" in self.tests:
            self._bandwidth()
        if "memory" in self.tests:
            for gpu in self.machine.gpus:
                with step(self.emit, f"time the memory of GPU {gpu.index}", pair=None):
                    self.emit({"memory": bandwidth.own_memory(self.machine, gpu, self.samples)})

    def _try(self, name: str, pair: pairs.Pair, test: Callable[[Gpu, Gpu], Iterable[dict[str, Any]]]) -> None:
        """One step of a pair: emits what it gives. A fault of the pair ends this step, one of the process all."""
        source, target = (self.machine.gpus[index] for index in pair)
        lost = False

        def watch(event: dict[str, Any]) -> None:
            nonlocal lost
            lost = lost or ((event.get("error") or {}).get("code") in CONTEXT_LOST)
            self.emit(event)

        try:
            with step(watch, name, pair=list(pair)):
                for event in test(source, target):
                    self.emit(event)
        except StepFailedError:
            if lost:
                raise

    def _capability(self, source: Gpu, target: Gpu) -> Iterable[dict[str, Any]]:
        write, read = self.machine.can_reach(source, target), self.machine.can_reach(target, source)
        told = self.machine.driver.p2p_attributes(source.device, target.device)
        pair = (source.index, target.index)
        if write and read:
            self.reachable.add(pair)
            if told["native_atomics"]:
                self.atomic.add(pair)
        entry = {"read": read, "write": write, "atomics": bool(told["native_atomics"])}
        yield {"capability": {**_named(pair), **entry, "performance_rank": told["performance_rank"]}}

    def _connect(self, source: Gpu, target: Gpu) -> Iterable[dict[str, Any]]:
        self.machine.connect(source, target)
        return ()

    def _data(self) -> None:
        for pair in self.chosen:
            for engine, op in verify.COPIES:
                self._try(f"{_verb(engine, op)} and compare", pair, self._verified(engine, op))
            if pair in self.atomic:
                self._try("count with atomics", pair, self._atomics)

    def _verified(self, engine: str, op: str) -> Callable[[Gpu, Gpu], Iterable[dict[str, Any]]]:
        def test(source: Gpu, target: Gpu) -> Iterable[dict[str, Any]]:
            self.machine.connect(source, target)
            found = verify.verify(self.machine, source, target, engine, op)
            if not found["ok"]:
                self.misread.add((source.index, target.index))
            yield {"data": found}

        return test

    def _atomics(self, source: Gpu, target: Gpu) -> Iterable[dict[str, Any]]:
        self.machine.connect(source, target)
        yield {"data": verify.verify_atomics(self.machine, source, target)}

    def _bandwidth(self) -> None:
        for engine, op in verify.COPIES[:1] if self.quick else verify.COPIES:
            for pair in self.chosen:
                self._try(f"time {_verb(engine, op)}", pair, self._one_way(engine, op))
            if self.quick:
                continue
            for one, other in sorted({(min(pair), max(pair)) for pair in self.chosen}):
                if (one, other) in self.reachable or (other, one) in self.reachable:
                    self._try(f"time {_verb(engine, op)} both ways", (one, other), self._two_way(engine, op))

    def _one_way(self, engine: str, op: str) -> Callable[[Gpu, Gpu], Iterable[dict[str, Any]]]:
        def test(source: Gpu, target: Gpu) -> Iterable[dict[str, Any]]:
            self.machine.connect(source, target)
            return bandwidth.one_way(self.machine, source, target, engine, op, self.samples)

        return test

    def _two_way(self, engine: str, op: str) -> Callable[[Gpu, Gpu], Iterable[dict[str, Any]]]:
        def test(source: Gpu, target: Gpu) -> Iterable[dict[str, Any]]:
            self.machine.connect(source, target)
            return bandwidth.two_way(self.machine, source, target, engine, op, self.samples)

        return test

    def _remote_read(self, source: Gpu, target: Gpu) -> Iterable[dict[str, Any]]:
        self.machine.connect(source, target)
        yield {"latency": latency.remote_read(self.machine, source, target, self.places)}
        if not latency.arrived(self.machine, source, target):
            raise WrongDataError("the pointers that were read from the other GPU led elsewhere than they should")

    def _small_copy(self, source: Gpu, target: Gpu) -> Iterable[dict[str, Any]]:
        self.machine.connect(source, target)
        yield {"latency": latency.small_copy(self.machine, source, target, self.samples)}


def _named(pair: pairs.Pair) -> dict[str, int]:
    return {"src": pair[0], "dst": pair[1]}


def _verb(engine: str, op: str) -> str:
    return f"{'copy' if engine == 'copy' else 'kernel'} {op}"
