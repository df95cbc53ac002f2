# SPDX-License-Identifier: Apache-2.0
"""A budget in words: what each part is, what bounds the step, what a change would bring, what it rests on."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rackwell.bench.result import BenchPoint
from rackwell.bench.steptime_facts import Facts
from rackwell.bench.steptime_model import kv_bytes, weight_bytes
from rackwell.bench.steptime_types import StepBudget
from rackwell.page.scales import number


def part_texts(budget: StepBudget, facts: Facts, context: float) -> Iterator[tuple[str, str, str]]:
    """Name, title and text of each part."""
    shape = facts.shape
    read = weight_bytes(shape, budget.batch, facts.ranks) / 1e9
    kept = kv_bytes(shape, budget.batch, context, facts.ranks, facts.kv_bytes, dense=facts.dense) / 1e9
    speed = f"at {number(facts.bandwidth.value)} GB/s"
    experts = f", {budget.experts_touched:.3g} of {shape.experts} experts a layer" if shape.experts else ""
    yield "weights", "reading weights", f"{number(read)} GB a GPU {speed}{experts}"
    yield "kv", "reading the KV cache", f"{number(kept)} GB a GPU {speed}"
    each = budget.allreduce_us
    told = "latency not known: in the rest" if each.value is None else f"{number(each.value)} us each ({each.known})"
    yield "allreduce", f"{budget.allreduces} allreduces", f"of {size(budget.allreduce_bytes)}, {told}"
    yield "rest", "the rest", "starting kernels, arithmetic, sampling, waiting"


def statements(budget: StepBudget, facts: Facts, points: Sequence[BenchPoint]) -> list[str]:
    """What bounds the step, and what a change would bring."""
    step = budget.step_ms.value or 0.0
    how = "" if budget.step_ms.known == "measured" else ", reckoned from the rate"
    found = [
        f"A step takes {ms(step)} ({number(1e3 / step)} tok/s a stream{how}); memory"
        + (" and allreduces" if budget.allreduce_us.value is not None else "")
        + f" need at least {ms(budget.floor_ms)} of it ({percent(budget.floor_share)})."
    ]
    if budget.allreduces:
        found += _allreduces(budget, facts, step)
    rest = next(part for part in budget.parts if part.name == "rest")
    if rest.ms is not None and rest.ms < 0:
        found.append("The floor is above what was measured: one of the assumptions does not hold here.")
    elif rest.share is not None and rest.share >= 0.5:
        found.append(
            f"{percent(rest.share)} of the step is neither memory nor an allreduce"
            + (" of that latency" if budget.allreduce_us.value is not None else " of known latency")
            + ": look at CUDA graphs, the CPU, and how long an allreduce takes inside the engine."
        )
    found += _power(points)
    return found


def _allreduces(budget: StepBudget, facts: Facts, step: float) -> Iterator[str]:
    count, each = budget.allreduces, budget.allreduce_us
    whose = "single-stream decoding" if budget.batch <= 1 else "a step"
    order = f"{count} allreduces a step (2 in each of {facts.shape.layers} layers), one after another, bound {whose}"
    limit = budget.allreduce_limit_us
    if each.value is None:
        yield (
            f"{order}: each microsecond that one takes costs {count / 1e3:.3f} ms a step "
            f"({percent(count / 1e3 / step)}). Their latency is not measured; it can be {number(limit)} us at most."
        )
        return
    total = count * each.value / 1e3
    known = "" if each.known == "measured" else f" ({each.source.partition(':')[0]}; not measured here)"
    yield (
        f"{order}: at {number(each.value)} us each{known} they take {ms(total)}, {percent(total / step)} of it; "
        f"without anything else a stream could not have more than {number(1e3 / total)} tok/s."
    )
    yield (
        f"An allreduce twice as fast would save at most {ms(total / 2)}: {number(1e3 / (step - total / 2))} instead of "
        f"{number(1e3 / step)} tok/s a stream ({(step / (step - total / 2) - 1):+.1%})."
    )
    if limit is not None and total < 0.5 * step:
        yield f"To explain all that memory does not, each would have to take {number(limit)} us."


def _power(points: Sequence[BenchPoint]) -> Iterator[str]:
    """What a lower limit would change: nothing, down to what was drawn."""
    gpus = [gpu for point in points if point.telemetry for gpu in point.telemetry.gpus]
    drawn = [gpu.power_w.max for gpu in gpus if gpu.power_w.max]
    limits = [gpu.power_limit_w for gpu in gpus if gpu.power_limit_w]
    if not drawn or not limits or len(drawn) != len(gpus):
        return
    highest, limit = max(drawn), min(limits)
    if highest < 0.97 * limit:
        yield (
            f"A power limit down to {number(highest)} W would change nothing at this load: no reading was higher, the "
            f"limit is {number(limit)} W. What a lower one would cost is not told by this."
        )
    else:
        yield (
            f"The GPUs reach their limit of {number(limit)} W: a lower one would lower clocks. Reading memory and "
            "allreduces hang little on them; the rest may."
        )


def assumptions(budget: StepBudget, facts: Facts, context: float) -> list[str]:
    """What the figures rest on."""
    shape, each, memory = facts.shape, facts.shape.bytes_per_weight, facts.bandwidth
    reads = f"; sparse attention reads {shape.indexer.topk:,} at most" if shape.indexer and not facts.dense else ""
    width = f"{facts.kv_bytes:g} byte{'' if facts.kv_bytes == 1 else 's'}"
    weights = f"{each.experts:g} bytes a weight of an expert, {each.other:g} of the rest"
    whole = "projections to latents, router and indexer whole on each"
    found = [
        f"step: {budget.step_ms.source}",
        f"batch: {count(budget.batch)} decode together" if budget.batch != 1 else "batch: one stream decodes",
        f"memory: {number(memory.value)} GB/s a GPU ({memory.known}: {memory.source}); kernels reach less",
        f"weights: {weights}, over {facts.ranks} GPUs; {whole} ({shape.source})",
        f"KV cache: {number(context)} tokens a stream{reads}, {width} a value ({facts.kv_known})",
    ]
    if shape.experts:
        found.append("experts: each is as likely as the next; where some are liked more, fewer are read")
    if budget.allreduces:
        found.append(f"allreduces: 2 a layer, of bf16; {budget.allreduce_us.source}")
        if facts.custom_allreduce and budget.allreduce_us.value is not None:
            found.append("allreduces: the latency is NCCL's; the engine may use another kernel where it can")
        elif budget.allreduce_us.known == "measured":
            found.append(
                "allreduces: timed back to back from one thread; inside the engine one also waits for the slowest"
            )
    found.append("nothing overlaps; arithmetic is not counted, and counts at large batches")
    return found


def text(budgets: Sequence[StepBudget]) -> str:
    """For a terminal or a ticket."""
    lines: list[str] = []
    for budget in budgets:
        of, step = budget.load, budget.step_ms.value
        lines.append(f"{count(of[2])} ({of[0]:,} in, {of[1]:,} out): {ms(step)} a step")
        width = max(len(part.title) for part in budget.parts)
        for part in budget.parts:
            share = percent(part.share) if part.share is not None else "?"
            lines.append(f"  {part.title:<{width}}  {ms(part.ms):>9}  {share:>6}  {part.text}")
        lines += [line for said in budget.statements for line in wrapped(said)]
        lines.append("")
    shared = [line for line in budgets[0].assumptions if all(line in b.assumptions for b in budgets)] if budgets else []
    if shared:
        lines += ["Assumed:", *(line for said in shared for line in wrapped(said))]
    return "\n".join(lines).rstrip()


def wrapped(sentence: str) -> list[str]:
    """Lines of a sentence, the first with a dash."""
    return textwrap.wrap(sentence, 96, initial_indent="  - ", subsequent_indent="    ", break_long_words=False)


def count(streams: float) -> str:
    """Such as ``1 stream`` or ``63.5 streams``."""
    return f"{number(streams) if streams % 1 else f'{streams:,.0f}'} stream{'' if streams == 1 else 's'}"


def ms(value: float | None) -> str:
    """Milliseconds."""
    return "?" if value is None else f"{number(value)} ms"


def percent(share: float | None) -> str:
    """Such as ``43 %``."""
    if share is None:
        return "?"
    return f"{100 * share:.1f} %" if abs(share) < 0.1 else f"{100 * share:.0f} %"


def size(value: float) -> str:
    """Bytes in KiB or MiB."""
    return f"{number(value / 1024)} KiB" if value < 1 << 20 else f"{number(value / (1 << 20))} MiB"
