# SPDX-License-Identifier: Apache-2.0
"""The baseline: whether it fits, and what is below it in the measurement and again in the repetition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rackwell.probe import regression
from rackwell.probe.baseline import REFUSED, USED
from rackwell.probe.findings import BASELINE, Finding, make, pair_names
from rackwell.probe.judge.context import Context
from rackwell.probe.regression import Loss
from rackwell.probe.topology import Pair

_LINK_SUBJECTS = ("out", "in", "both")


def fit(context: Context) -> Iterator[Finding]:
    if context.baseline.state == REFUSED:
        what = f"the baseline is not used: {context.baseline.why}"
        yield make(context.baseline.code, what, context.baseline.path or context.host)


def suspects(context: Context, prefixes: tuple[str, ...]) -> list[Loss]:
    """What the first measurement shows below the baseline, of the values whose keys begin so."""
    if not comparable(context):
        return []
    values = regression.values_of(context.measurements, context.uuid)
    values = {key: value for key, value in values.items() if key.startswith(prefixes)}
    return regression.suspects(values, context.baseline.values, context.baseline.pooled_sd)


def comparable(context: Context) -> bool:
    return context.baseline.state == USED and not context.beside_server


def below(context: Context) -> Iterator[Finding]:
    """Confirmed losses, widest first: what a slow link explains is not told again of its pairs."""
    if not comparable(context):
        return
    first = regression.values_of(context.measurements, context.uuid)
    again: dict[str, Any] = {
        "p2p": {
            **(context.repetition.get("p2p") or {}),
            "concurrent": context.repetition.get("concurrent") or (),
        },
        "collectives": context.repetition.get("collectives") or {},
    }
    second = regression.values_of(again, context.uuid)
    found = regression.confirmed(first, second, context.baseline.values, context.baseline.pooled_sd)
    if not whole(context):
        # what all GPUs do together is another thing with fewer of them
        found = [loss for loss in found if not str(loss.subject[1]).startswith(("concurrent", "collectives"))]
    links = _links(found)
    explained = {key for loss in links for key in loss.keys}
    for loss in links:
        index = context.index_of(str(loss.subject[1]))
        gpus = [index] if index is not None else []
        yield _finding(context, "link-below-baseline", [loss], f"GPU {index}, {_SIDES[loss.subject[0]]}", gpus)
    rest = [loss for loss in found if loss.subject[0] not in _LINK_SUBJECTS and not set(loss.keys) <= explained]
    pairs = [loss for loss in rest if regression.ends_of(loss.keys[0])]
    if pairs:
        named = sorted({_pair(context, loss) for loss in pairs})
        yield _finding(context, "p2p-below-baseline", pairs, f"GPU {pair_names(named)}", [], named)
    for prefix, code in (("concurrent", "concurrent-below-baseline"), ("collectives", "allreduce-below-baseline")):
        losses = [loss for loss in rest if loss.keys[0].startswith(prefix)]
        if losses:
            yield _finding(context, code, losses, max(losses, key=lambda loss: loss.loss).keys[0], [])


_SIDES = {"out": "all that it sends", "in": "all that it receives", "both": "its whole link"}


def whole(context: Context) -> bool:
    """Whether all GPUs of the baseline are here."""
    return {gpu.uuid for gpu in context.topology.gpus} == {gpu.get("uuid") for gpu in context.baseline.gpus}


def _links(found: Sequence[Loss]) -> list[Loss]:
    """One loss a GPU, the widest."""
    chosen: dict[str, Loss] = {}
    for side in ("both", "out", "in"):
        for loss in found:
            if loss.subject[0] == side:
                chosen.setdefault(str(loss.subject[1]), loss)
    return list(chosen.values())


def _pair(context: Context, loss: Loss) -> Pair:
    ends = regression.ends_of(loss.keys[0]) or ("", "")
    source, target = (context.index_of(uuid) for uuid in ends)
    return (-1 if source is None else source, -1 if target is None else target)


def _finding(
    context: Context, code: str, losses: Sequence[Loss], of: str, gpus: list[int], pairs: Sequence[Pair] = ()
) -> Finding:
    worst = max(losses, key=lambda loss: loss.loss)
    unit = "us" if worst.keys[0].startswith("latency/") else "GB/s"
    what = (
        f"{of}: {worst.measured:.1f} {unit}, {worst.expected:.1f} were recorded ({worst.loss:.1%} worse, "
        f"{worst.limit:.1%} would be noise)"
    )
    return make(
        code,
        what,
        context.names(gpus) if gpus else context.pairs(pairs) if pairs else context.host,
        gpus=gpus,
        pairs=pairs,
        measured=round(worst.measured, 3),
        expected=round(worst.expected, 3),
        unit=unit,
        basis=BASELINE,
        fill={"bus_id": context.bus_id(gpus[0])} if gpus else None,
    )
