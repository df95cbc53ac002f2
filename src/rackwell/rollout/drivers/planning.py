# SPDX-License-Identifier: Apache-2.0
"""What a roll of a driver would do, host by host; changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rackwell.errors import ExitCode
from rackwell.provision.progress import Progress
from rackwell.rollout.drivers import preparing
from rackwell.rollout.drivers.move import on_disk
from rackwell.rollout.drivers.pair import Pair
from rackwell.rollout.planning import Line, Preview, baseline, drained_by, note
from rackwell.rollout.preparing import Prepared, Wishes, skips
from rackwell.site import declaration


def preview(path: Path, version: str, kernel: str, wishes: Wishes, progress: Progress) -> Preview:
    """Look at hosts and containers, and tell what would be done. Nobody is asked for consent yet.

    Raises:
        RackwellError: as :func:`rackwell.rollout.drivers.preparing.prepare`.
    """
    site = declaration.load(path)
    ready, seen = preparing.looked(site, version, kernel, wishes, skips(wishes), progress)
    lines = [_line(number, name, ready, seen) for number, batch in enumerate(ready.plan.batches, 1) for name in batch]
    return Preview(ready.plan, lines, [], ExitCode.DONE)


def _line(batch: int, name: str, ready: Prepared, seen: preparing.Looked) -> Line:
    told = ready.plan.settings["hosts"][name]
    before, after = Pair(**told["before"]), Pair(**told["after"])
    containers: list[str] = told["containers"]
    notes = [f"{each}: {text}" for each in containers for text in [_note(seen.containers.get(each))] if text]
    todo = seen.hosts[name]["todo"]
    there = on_disk(todo) and not todo["reboot"] and all(seen.libraries.get(each, False) for each in containers)
    if there:
        notes.append("it is there already: not touched")
    elif todo["reboot"] and not ready.plan.settings["allow_reboot"]:
        notes.append("needs --allow-reboot")
    details = () if there else tuple(_details(seen.hosts[name], after, containers))
    held = "-" if there else "; ".join(f"{each}: {_baseline(each, before, ready, seen)}" for each in containers)
    out = tuple(dict.fromkeys(front for each in containers for front in drained_by(ready.site, each)))
    return Line(batch, name, _words(before), _words(after), held, "; ".join(notes), out, details)


def _note(told: Mapping[str, Any] | None) -> str:
    """What is in the way in a container."""
    return note({**told, "installed": True}) if told else "it told nothing: the roll would stop before any host"


def _words(pair: Pair) -> str:
    return f"{pair.version} {pair.kernel}".rstrip()


def _baseline(container: str, before: Pair, ready: Prepared, seen: preparing.Looked) -> str:
    serving = str((seen.containers.get(container) or {}).get("release") or "")
    return baseline(container, serving, ready, before.version)


def _details(told: Mapping[str, Any], after: Pair, containers: list[str]) -> Iterator[str]:
    """Sentences: what would be done, in its order."""
    todo = told["todo"]
    if todo["packages"]:
        yield f"packages: {', '.join(todo['packages'])}"
    if todo["run"]:
        yield f"the driver {after.version}, built by DKMS for every kernel"
    elif todo["build"]:
        yield f"its modules for {', '.join(todo['build'])}"
    if todo["pin"]:
        yield f"pin kernel {todo.get('kernel') or after.kernel}"
    if todo["reboot"]:
        yield f"reboot: {'; '.join(todo['reboot'])}; {told['disturbs']}"
    yield f"then in {', '.join(containers)}: libraries, boot gate, server, benchmark"
