# SPDX-License-Identifier: Apache-2.0
"""One fault, one finding: what follows from a cause goes under it.

The table is read from the top, causes before their effects, so that an effect lands under the deepest cause that was
found. A row may ask that cause and effect are about the same GPUs or pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from rackwell.probe.findings import Finding
from rackwell.probe.judge.context import Context
from rackwell.probe.judge.host import ACS_REDIRECT, acs_controls

Related = Callable[[Finding, Finding, Context], bool]


def always(_cause: Finding, _effect: Finding, _context: Context) -> bool:
    return True


def same_gpus(cause: Finding, effect: Finding, _context: Context) -> bool:
    """The effect is about nothing but the cause's GPUs: each of its pairs has one of them."""
    gpus = set(cause.gpus)
    if effect.pairs:
        return all(set(pair) & gpus for pair in effect.pairs)
    return not effect.gpus or set(effect.gpus) <= gpus


def same_pairs(cause: Finding, effect: Finding, _context: Context) -> bool:
    """All of the effect's pairs are the cause's, one way or the other."""
    pairs = {frozenset(pair) for pair in cause.pairs}
    return all(frozenset(pair) in pairs for pair in effect.pairs)


def shared_pairs(cause: Finding, effect: Finding, _context: Context) -> bool:
    """Cause and effect have a pair in common, or one of them names none."""
    pairs = {frozenset(pair) for pair in cause.pairs}
    return not pairs or not effect.pairs or any(frozenset(pair) in pairs for pair in effect.pairs)


def redirected(_cause: Finding, effect: Finding, context: Context) -> bool:
    """ACS redirects on the way of each of the effect's pairs."""
    on = {bdf for bdf, ctl in acs_controls(context).items() if ctl & ACS_REDIRECT}
    paths = {gpu.index: set(gpu.path) for gpu in context.topology.gpus}
    return all((paths.get(s, set()) | paths.get(t, set())) & on for s, t in effect.pairs)


def covers_all(cause: Finding, _effect: Finding, context: Context) -> bool:
    """The link of a GPU that all GPUs wait for: what they do together is slow with it."""
    return bool(cause.touches() & {gpu.index for gpu in context.topology.gpus})


@dataclasses.dataclass(frozen=True)
class Fold:
    """``effects`` found beside one of ``causes`` are its consequences, if ``related``."""

    causes: tuple[str, ...]
    effects: tuple[str, ...]
    related: Related = always


_CUDA = (
    "cuda-not-initialized",
    "cuda-no-device",
    "cuda-os-refused",
    "cuda-fabric-not-ready",
    "cuda-compat-libraries",
    "cuda-unknown",
    "cuda-failed",
    "cuda-hang",
    "cuda-crash",
    "hmm-on",
)
_NODES = (
    "uvm-node-missing",
    "ctl-node-missing",
    "node-not-device",
    "uvm-node-stale",
    "node-denied",
    "gpu-node-missing",
)
_CORRUPT = ("p2p-corrupt", "p2p-corrupt-one-way")
_SLOW_PAIRS = (
    "p2p-slow-pair",
    "p2p-slow-direction",
    "p2p-slow-gpu",
    "p2p-slow-cross-root",
    "p2p-slow-cross-socket",
)
_BELOW_PAIRS = ("p2p-below-baseline", "link-below-baseline")
_TOGETHER = ("p2p-concurrent-collapse", "p2p-concurrent-slow", "concurrent-below-baseline")
_ALLREDUCE_SLOW = ("allreduce-slow", "allreduce-below-baseline")
_ALLREDUCE_BROKEN = ("allreduce-hang", "allreduce-wrong", "allreduce-failed")
_SLOWER = (*_SLOW_PAIRS, "p2p-latency", *_BELOW_PAIRS)
_ALL_TOGETHER = (*_TOGETHER, *_ALLREDUCE_SLOW)

#: from the root of all evil to what comes of it
FOLDS: tuple[Fold, ...] = (
    Fold(("module-missing",), (*_NODES, *_CUDA, "driver-mismatch", "nvml-failed", "nvml-lost", "gpu-missing")),
    Fold(("ctl-node-missing", "node-not-device", "node-denied"), ("nvml-failed",)),
    Fold(_NODES, (*_CUDA, "gpu-missing", "driver-mismatch", "p2p-failed", "p2p-hang")),
    Fold(("driver-mismatch",), ("driver-mismatch", *_CUDA, "nvml-failed", "nvml-lost", "gpu-missing")),
    Fold(("hmm-on", "cuda-hang"), ("hmm-enabled", "cuda-failed", "cuda-crash")),
    Fold(("gpu-missing",), ("xid-since-boot", "nvml-lost", "nvml-failed", "cuda-failed")),
    Fold(("recovery-action", "ecc-uncorrected"), ("xid-since-boot",), same_gpus),
    Fold(
        ("cuda-wrong-data",),
        (*_CORRUPT, "p2p-failed", "ecc-uncorrected", "xid-since-boot", "allreduce-wrong"),
        same_gpus,
    ),
    Fold(_CUDA, ("xid-since-boot", "nvml-lost", "nvml-failed", "gpu-missing")),
    Fold(("nvml-lost",), ("xid-since-boot", "p2p-hang", "p2p-failed", *_ALLREDUCE_BROKEN)),
    Fold(("hmm-enabled",), ("p2p-hang", "allreduce-hang")),
    Fold(("iommu-translated",), (*_CORRUPT, "p2p-hang")),
    Fold(("acs-on",), (*_CORRUPT, *_SLOWER), redirected),
    Fold(("iommu-translated",), _SLOWER),
    Fold(("iommu-translated", "acs-on"), (*_ALL_TOGETHER, *_ALLREDUCE_BROKEN)),
    Fold(("bar1-small",), ("p2p-failed", "p2p-no-access"), same_gpus),
    Fold(("registry-keys",), ("p2p-latency", *_SLOW_PAIRS, *_BELOW_PAIRS), same_pairs),
    Fold(("link-generation", "link-width"), ("link-errors", "baseline-outdated"), same_gpus),
    Fold(("link-generation", "link-width"), _SLOWER, same_gpus),
    Fold(("link-generation", "link-width"), _ALL_TOGETHER, covers_all),
    Fold(("p2p-hang", "p2p-failed"), (*_ALLREDUCE_BROKEN, "p2p-no-access")),
    Fold(_CORRUPT, _ALLREDUCE_BROKEN),
    Fold(("p2p-no-access",), (*_SLOW_PAIRS, "p2p-latency", *_BELOW_PAIRS, "p2p-failed"), same_pairs),
    Fold(("p2p-no-access",), (*_ALL_TOGETHER, *_ALLREDUCE_BROKEN)),
    Fold(("p2p-latency",), (*_SLOW_PAIRS, *_BELOW_PAIRS), same_pairs),
    Fold(("p2p-latency",), _ALL_TOGETHER),
    Fold(("p2p-slow-gpu",), ("link-below-baseline", "link-errors", "p2p-latency"), same_gpus),
    Fold(_SLOW_PAIRS, _BELOW_PAIRS, shared_pairs),
    Fold(_SLOW_PAIRS, _ALL_TOGETHER),
    Fold(("p2p-concurrent-collapse", "p2p-concurrent-slow"), ("concurrent-below-baseline", *_ALLREDUCE_SLOW)),
    Fold(("allreduce-hang", "allreduce-wrong", "allreduce-failed"), _ALLREDUCE_SLOW),
    Fold(("allreduce-slow",), ("allreduce-below-baseline",)),
    Fold(("link-below-baseline",), ("p2p-below-baseline",), same_gpus),
    Fold(_BELOW_PAIRS, ("concurrent-below-baseline", "allreduce-below-baseline")),
    Fold(("concurrent-below-baseline",), ("allreduce-below-baseline",)),
)


def fold(findings: Sequence[Finding], context: Context) -> list[Finding]:
    """The findings that no other explains, each with its consequences; order is kept."""
    top = list(findings)
    for row in FOLDS:
        for effect in [finding for finding in top if finding.code in row.effects]:
            cause = next((found for found in _causes(row, top, effect) if row.related(found, effect, context)), None)
            if cause is not None:
                cause.absorb(effect)
                top.remove(effect)
    return top


def _causes(row: Fold, top: Sequence[Finding], effect: Finding) -> Iterator[Finding]:
    """What may explain an effect, by the row's order; of its own code only what was told before it."""
    for code in row.causes:
        for finding in top:
            if finding is effect and code == effect.code:
                break
            if finding.code == code and finding is not effect:
                yield finding
