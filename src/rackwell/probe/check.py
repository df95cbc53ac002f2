# SPDX-License-Identifier: Apache-2.0
"""The whole check, stage by stage: look around, ask NVML, start CUDA, copy between the GPUs, repeat what looked slow,
copy all at once, reduce, ask NVML again, judge.

Every stage that calls a driver is a child with a deadline of its own. What a failure makes pointless, or what would
disturb a running server, is left out and said to be. Host memory: the children hand over figures, never data.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rackwell.probe import baseline as baselines
from rackwell.probe import expectation, report
from rackwell.probe.judge import Context, judge
from rackwell.probe.judge.suspicion import suspicious_allreduce, suspicious_pairs, suspicious_patterns
from rackwell.probe.plan import MIB, Plan
from rackwell.probe.stages import Plain, Stages

#: the longest that a stage may take, as a part of the whole; what is left of the whole limits it further
SHARES = {
    "before": 0.15,
    "cuda": 0.3,
    "pairs": 0.6,
    "repeat": 0.3,
    "concurrent": 0.3,
    "collectives": 0.35,
    "after": 0.1,
}
#: and in seconds: what has not answered by then never will
_CAPS = {"before": 45.0, "cuda": 150.0, "after": 45.0}
#: kept back for the last stage, so that a hang before it does not keep it from telling what is left
_KEPT = 0.05
#: with less time than this a repetition would be cut off
_LEAST = 5.0


def check(
    *,
    mode: str = "full",
    gpus: int | None = None,
    expect: Mapping[str, Any] | None = None,
    baseline: Path | None = None,
    host_facts: Mapping[str, Any] | None = None,
    beside_server: bool = False,
    timeout: float = 600.0,
    size: int = 256,
    only: Sequence[str] = (),
    stages: Stages | None = None,
) -> dict[str, Any]:
    """The report ``rackwell.gpu/1``.

    Args:
        mode: quick (structure, CUDA, some pairs verified and timed) or full.
        gpus: how many there must be; None = as many as the baseline has, else any number.
        expect: the content of --expect. baseline: a file that may be absent. host_facts: rackwell.gpu_host/1.
        beside_server: a server uses the GPUs: small verified copies only, no figure is taken.
        timeout: seconds for everything. size: MiB of a buffer, of which each GPU has two.
        only: check ids to be made; empty = all. stages: for tests.

    Raises ExpectationError.
    """
    plan = Plan(mode, beside_server, size * MIB, frozenset(only))
    context, started, began = _Run(plan, timeout, stages or Stages()).run(
        gpus, expectation.parse(expect), baseline, host_facts
    )
    checks, findings = judge(context)
    return report.build(context, checks, findings, started, time.monotonic() - began)


class _Run:
    def __init__(self, plan: Plan, timeout: float, stages: Stages) -> None:
        self.plan, self.timeout, self.stages = plan, timeout, stages
        self.started, self.began = time.time(), time.monotonic()
        self.measurements: dict[str, Any] = {}
        self.repetition: dict[str, Any] = {}
        self.skipped = dict(plan.skipped())

    def deadline(self, stage: str) -> float:
        """Seconds that a stage may take; never less than one, so that it can at least be told that it hung."""
        end = self.timeout * (1.0 if stage == "after" else 1.0 - _KEPT)
        left = end - (time.monotonic() - self.began)
        return max(1.0, min(left, SHARES[stage] * self.timeout, _CAPS.get(stage, left)))

    def run(
        self,
        gpus: int | None,
        expected: expectation.Expectation,
        baseline: Path | None,
        host_facts: Mapping[str, Any] | None,
    ) -> tuple[Context, float, float]:
        seen, tree = self.stages.surroundings(), self.stages.tree()
        context = Context(
            surroundings=seen,
            tree=tree,
            measurements=self.measurements,
            repetition=self.repetition,
            expectation=expected,
            baseline=baselines.load(baseline),
            host_facts=host_facts,
            declared=gpus,
            skipped=self.skipped,
            mode=self.plan.mode,
            beside_server=self.plan.beside_server,
            host=report.host(),
        )
        state = self.stages.before(tree, self.deadline("before"))
        self.measurements["nvml"] = state.get("nvml") or {}
        cuda = self.stages.cuda(self.deadline("cuda"), seen.findings)
        self.measurements["cuda"] = cuda
        self._place(context, cuda, state)
        context.baseline = baselines.fit(context.baseline, self._machine(context))
        blocked = _blocked(cuda)
        if blocked:
            for check in ("p2p.access", "p2p.data", *self.plan.MEASURED):
                self.skipped.setdefault(check, blocked)
        else:
            self._measure(context)
        self._after(context, state)
        context.baseline = baselines.fit(context.baseline, self._machine(context))
        return context, self.started, self.began

    def _place(self, context: Context, cuda: Plain, state: Plain) -> None:
        """Give CUDA's GPUs their place in the tree."""
        identities = [device for device in cuda.get("devices") or () if device.get("bus_id")]
        topology = context.tree.select(identities)
        order = [gpu.bus_id for gpu in topology.gpus]
        counts = self.stages.nvlinks(state, order) if order else []
        pairs = {(one, two): counts[i][j] for i, one in enumerate(order) for j, two in enumerate(order) if counts[i][j]}
        facts = context.host_facts or {}
        numa = {str(k).lower(): v for k, v in (facts.get("numa") or {}).items() if v is not None and v >= 0}
        paths = {str(gpu.get("bus_id")).lower(): gpu.get("path") or () for gpu in facts.get("gpus") or ()}
        context.topology = topology.with_nvlinks(pairs).with_numa(numa).with_paths(paths)

    def _measure(self, context: Context) -> None:
        """Pairs, their repetition, all at once, allreduce."""
        findings = context.surroundings.findings
        first = self.stages.pairs(self.plan.pairs(context.topology), self.deadline("pairs"), findings)
        self.measurements["p2p"] = first
        if first.get("not_measured"):
            for check in ("p2p.data", *self.plan.MEASURED):
                self.skipped.setdefault(check, str(first["not_measured"]))
        if first.get("state") not in (None, "done"):
            self._leave_out(f"because of {'P2P that hangs' if first['state'] != 'crashed' else 'P2P that crashes'}")
            return
        if self.plan.timed("p2p.bandwidth") or self.plan.timed("p2p.latency"):
            self._repeat_pairs(context)
        if self.plan.timed("p2p.concurrent"):
            self._together(context)
        if self.plan.timed("collectives"):
            self._reduce(context)

    def _repeat_pairs(self, context: Context) -> None:
        pairs = suspicious_pairs(context)
        if pairs and self.deadline("repeat") >= _LEAST:
            arguments = self.plan.repeat(pairs)
            again = self.stages.pairs(arguments, self.deadline("repeat"), context.surroundings.findings)
            self.repetition["p2p"] = {key: again.get(key) or [] for key in ("bandwidth", "latency")}
            self.repetition["p2p"]["state"] = again.get("state")
        context.forget()

    def _together(self, context: Context) -> None:
        first = dict(self.measurements["p2p"])
        arguments = self.plan.concurrent(context.topology)
        found = self.stages.concurrent(arguments, self.deadline("concurrent"), context.surroundings.findings)
        first["concurrent"] = found.get("concurrent") or []
        first["concurrent_run"] = {key: found.get(key) for key in ("state", "at", "errors", "describe", "data")}
        self.measurements["p2p"] = first
        context.forget()
        if found.get("not_measured"):
            self.skipped.setdefault("p2p.concurrent", str(found["not_measured"]))
        if found.get("state") not in (None, "done"):
            self._leave_out("because copies that run at once do not return")
            return
        patterns = suspicious_patterns(context)
        if patterns and self.deadline("repeat") >= _LEAST:
            arguments = {**arguments, "patterns": sorted(patterns)}
            again = self.stages.concurrent(arguments, self.deadline("repeat"), context.surroundings.findings)
            self.repetition["concurrent"] = again.get("concurrent") or []

    def _reduce(self, context: Context) -> None:
        if "collectives" in self.skipped:
            return
        expected = context.expectation
        call = (dict(expected.environment), expected.nccl_library)
        found = self.stages.collectives(*call, self.deadline("collectives"), self.plan.quick)
        self.measurements["collectives"] = found
        context.forget()
        if suspicious_allreduce(context) and self.deadline("repeat") >= _LEAST:
            self.repetition["collectives"] = self.stages.collectives(*call, self.deadline("repeat"), self.plan.quick)

    def _after(self, context: Context, state: Plain) -> None:
        """NVML and the counters once more; a hang before leaves only what was there at first."""
        load = (self.measurements.get("p2p") or {}).get("link_load") or {}
        links, health, nvml = self.stages.after(state, load, self.deadline("after"))
        indices = {gpu.bus_id: gpu.index for gpu in context.topology.gpus}
        for name, entries in (("links", links), ("health", health)):
            kept = [{**entry, "gpu": indices[entry["bus_id"]]} for entry in entries if entry["bus_id"] in indices]
            self.measurements[name] = sorted(kept, key=lambda entry: int(entry["gpu"]))
        self.measurements["nvml"] = nvml
        if self.repetition:
            self.measurements["repetition"] = self.repetition
        context.forget()

    def _leave_out(self, why: str) -> None:
        for check in self.plan.MEASURED:
            if check not in ("p2p.bandwidth", "p2p.latency") or not (self.measurements.get("p2p") or {}).get(
                check.partition(".")[2]
            ):
                self.skipped.setdefault(check, why)

    def _machine(self, context: Context) -> dict[str, Any]:
        return baselines.machine_of(
            {
                "surroundings": {"machine": context.surroundings.machine},
                "host_facts": context.host_facts,
                "measurements": self.measurements,
                "gpus": report.gpus(context),
                "driver_version": context.surroundings.kernel_module_version or context.nvml.get("driver_version"),
            }
        )


def _blocked(cuda: Plain) -> str:
    """Why nothing can be measured between the GPUs; empty when it can."""
    devices = cuda.get("devices") or ()
    if cuda.get("state", "done") != "done":
        return "because CUDA does not return" if cuda["state"] != "crashed" else "because CUDA crashes"
    if any(step.get("error") for step in cuda.get("steps") or ()) or not devices:
        return "because CUDA does not start"
    bad = [str(d["index"]) for d in devices if any(step.get("error") for step in d.get("steps") or ())]
    if bad:
        return f"because GPU {', '.join(bad)} fails the check of CUDA"
    return "there is one GPU only" if len(devices) == 1 else ""
