# SPDX-License-Identifier: Apache-2.0
"""The baseline of a host: what its links reached when it was known to be good, of which machine, and whether it fits.

A file ``rackwell.gpu_baseline/1``. Its digest is the sha256 of the rest in canonical JSON (sorted keys, no spaces), so
that a baseline that was cut off or edited is refused and not used. A machine that lacks a GPU still fits: what is left
of it is compared, and the GPU is named as missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rackwell import __version__
from rackwell.probe import regression

SCHEMA = "rackwell.gpu_baseline/1"
ABSENT, USED, REFUSED = "absent", "used", "refused"
#: facts whose change makes a baseline outdated, in the order in which they are told
FITTING = ("driver_version", "kernel", "bios_version")
#: facts that name the machine itself
NAMING = ("board", "product")


@dataclasses.dataclass(frozen=True)
class Difference:
    """One fact that is not as it was recorded."""

    fact: str
    then: Any
    now: Any

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A baseline as it was found: ``state`` absent, used or refused; when refused, the ``code`` and why."""

    state: str = ABSENT
    code: str = ""
    why: str = ""
    path: str | None = None
    content: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    differences: tuple[Difference, ...] = ()

    @property
    def values(self) -> Mapping[str, Mapping[str, float]]:
        """Empty unless it is used."""
        return self.content["values"] if self.state == USED else {}

    @property
    def pooled_sd(self) -> Mapping[str, float]:
        return self.content["pooled_sd"] if self.state == USED else {}

    @property
    def gpus(self) -> Sequence[Mapping[str, Any]]:
        """The GPUs of the machine, also of a baseline that is outdated; of another machine's, none."""
        known = self.state == USED or self.code == "baseline-outdated"
        return self.content["machine"]["gpus"] if known else ()

    def as_dict(self) -> dict[str, Any]:
        """As it stands in the report."""
        return {
            "state": self.state,
            "path": self.path,
            "digest": self.content.get("digest"),
            "recorded": self.content.get("recorded"),
            "differences": [difference.as_dict() for difference in self.differences],
        }


def build(machine: Mapping[str, Any], runs: Sequence[regression.Values], recorded: str) -> dict[str, Any]:
    """A baseline of some full runs of one machine (see :func:`machine_of`). Raises ValueError of too little."""
    values, pooled = regression.record(list(runs))
    if not values:
        raise ValueError("the runs have no figure in common")
    rest = {
        "schema": SCHEMA,
        "recorded": recorded,
        "runs": len(runs),
        "machine": dict(machine),
        "values": {key: {**value, "n": int(value["n"])} for key, value in values.items()},
        "pooled_sd": pooled,
    }
    return {**rest, "digest": digest(rest)}


def digest(content: Mapping[str, Any]) -> str:
    """sha256 of a baseline without its digest."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def machine_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that a baseline is bound to, from a report."""
    seen = report["surroundings"].get("machine") or {}
    dmi = (report.get("host_facts") or {}).get("dmi") or {}
    links = report["measurements"].get("links") or ()
    return {
        "gpus": [{key: gpu.get(key) for key in ("uuid", "bus_id", "name")} for gpu in report["gpus"]],
        "driver_version": report["driver_version"],
        "kernel": seen.get("kernel"),
        "board": seen.get("board") or dmi.get("board"),
        "product": seen.get("product") or dmi.get("product"),
        "bios_version": seen.get("bios_version") or dmi.get("bios_version"),
        "boot_id": seen.get("boot_id"),
        "link_max": {
            link["bus_id"]: [_least(link.get("gen_gpu_max"), link.get("gen_host_max")), link.get("width_max")]
            for link in links
        },
        "probe_version": __version__,
    }


def load(path: Path | None) -> Baseline:
    """Read a baseline; ``refused`` with ``baseline-damaged`` when it is none. Never raises for what lies there."""
    if path is None:
        return Baseline()
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Baseline(path=str(path))
    except OSError as error:
        return _damaged(path, f"it cannot be read: {error.strerror}")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return _damaged(path, "it is no JSON")
    wrong = _misshapen(content)
    return _damaged(path, wrong) if wrong else Baseline(USED, path=str(path), content=content)


def fit(baseline: Baseline, machine: Mapping[str, Any]) -> Baseline:
    """The baseline, refused when it is not of this machine as it is now. Facts that one side lacks prove nothing."""
    if baseline.state != USED:
        return baseline
    then = baseline.content["machine"]
    old, new = ({gpu["uuid"]: gpu for gpu in side["gpus"] if gpu.get("uuid")} for side in (then, machine))
    foreign = _changed(NAMING, then, machine)
    foreign += [Difference("gpu", None, f"{uuid} at {gpu['bus_id']}") for uuid, gpu in new.items() if uuid not in old]
    gone = [Difference("gpu", f"{uuid} at {gpu['bus_id']}", None) for uuid, gpu in old.items() if uuid not in new]
    if foreign:
        return _refused(baseline, "baseline-foreign", (*foreign, *gone))
    changed = _changed(FITTING, then, machine)
    changed += [
        Difference(f"bus id of {uuid}", old[uuid]["bus_id"], gpu["bus_id"])
        for uuid, gpu in new.items()
        if old[uuid]["bus_id"] != gpu["bus_id"]
    ]
    links = then.get("link_max") or {}
    for bus_id, now in (machine.get("link_max") or {}).items():
        before = links.get(bus_id)
        if before and all(before) and all(now) and list(before) != list(now):
            changed.append(Difference(f"link of {bus_id}", f"Gen{before[0]} x{before[1]}", f"Gen{now[0]} x{now[1]}"))
    if changed:
        return _refused(baseline, "baseline-outdated", (*changed, *gone))
    told = _changed(("probe_version",), then, machine)
    return dataclasses.replace(baseline, differences=(*gone, *told))


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file in one step, so that an interrupted run leaves the old one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(content, sort_keys=True, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def _refused(baseline: Baseline, code: str, differences: tuple[Difference, ...]) -> Baseline:
    why = "; ".join(f"{d.fact}: {d.then or 'none'} then, {d.now or 'none'} now" for d in differences[:4])
    if len(differences) > 4:
        why += f" and {len(differences) - 4} more differences"
    return dataclasses.replace(baseline, state=REFUSED, code=code, why=why, differences=differences)


def _damaged(path: Path, why: str) -> Baseline:
    return Baseline(REFUSED, "baseline-damaged", why, str(path))


def _changed(facts: Sequence[str], then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    pairs = [(fact, then.get(fact), now.get(fact)) for fact in facts]
    return [Difference(fact, old, new) for fact, old, new in pairs if old and new and old != new]


def _least(*numbers: int | None) -> int | None:
    told = [number for number in numbers if number]
    return min(told) if told else None


def _misshapen(content: Any) -> str:
    """What of a baseline is not as it must be; empty when nothing."""
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        return f"it is no {SCHEMA}"
    if content.get("digest") != digest(content):
        return "its digest does not hold: it was cut off or edited"
    machine, values, pooled = (content.get(key) for key in ("machine", "values", "pooled_sd"))
    if not isinstance(machine, dict) or not isinstance(values, dict) or not isinstance(pooled, dict) or not values:
        return "machine, values or pooled_sd is missing"
    gpus = machine.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(gpu, dict) and gpu.get("bus_id") for gpu in gpus):
        return "machine.gpus does not name the GPUs"
    numbers = [entry.get(key) for entry in values.values() if isinstance(entry, dict) for key in ("mean", "sd", "n")]
    if len(numbers) != 3 * len(values) or not all(_number(number) for number in (*numbers, *pooled.values())):
        return "a value is no number"
    return ""


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
