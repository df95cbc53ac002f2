# SPDX-License-Identifier: Apache-2.0
"""One fault in one roll: put in when a record of the journal appears, taken back, and judged."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import watch
from check import Wrong
from place import CONFIRM, Controller, Place
from report import Report

QUICK = ("--skip-gate", "bench", "--reason", "the harness has other faults")
#: losses of less than a third cannot be told from noise by one short point
GATE = ("--min-effect", "0.3")
RETURNED, HELD, UNREACHABLE, INTERRUPTED = 3, 4, 6, 130


@dataclasses.dataclass
class Case:
    """What a case works with. ``target`` is the build that is not served yet; ``stop_at``: begin nothing after it."""

    place: Place
    report: Report
    name: str
    target: str
    stop_at: float

    @property
    def first(self) -> str:
        """The canary."""
        return self.place.names[0]

    def command(self, *options: str) -> list[str]:
        """A roll of the target over all hosts."""
        return ["roll", self.target, "--batch", "1,2", "--confirm-within", str(CONFIRM), *options]


@dataclasses.dataclass
class Fault:
    """How to put one in.

    Attributes:
        kind, name: for the report. options: of the roll. at: host, kind and step of the record at which `act` is
            called; None: before the roll. back: takes it back; called when the command has ended, or `back_after`
            seconds after `act`.
        codes: how the command may end, before a `resume` that follows 6 and 130. results: what may become of hosts.
        mend: what a person does about what the roll has told, before the next one.
    """

    kind: str
    name: str
    act: Callable[[], object]
    codes: frozenset[int]
    options: tuple[str, ...] = QUICK
    at: tuple[str, str, str] | None = None
    back: Callable[[], object] = lambda: None
    back_after: float | None = None
    results: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    last: frozenset[int] = frozenset({0, 3})
    mend: Callable[[], object] = lambda: None


def put(it: Case, fault: Fault) -> None:
    """Roll with the fault; afterwards everything must be as it is told, and one more roll must converge."""
    place = it.place
    began, before = time.monotonic(), watch.slots(place)
    wrong: list[Wrong] = []
    if fault.at is None:
        fault.act()
    controller = place.begin(*it.command(*fault.options))
    try:
        if fault.at is not None:
            if controller.until(lambda one: _is(one, fault.at)) is None:
                wrong.append(Wrong("-", "harness", f"it ended before {fault.at}: {controller.told[-300:]}"))
            fault.act()
        if fault.back_after is not None:
            with contextlib.suppress(Exception):
                controller.process.wait(fault.back_after)
            fault.back()
        code = controller.wait()
    finally:
        fault.back()
    journal = controller.journal()
    if code not in fault.codes:
        wrong.append(Wrong("I6", "controller", f"exit {code}, not {sorted(fault.codes)}: {controller.told[-500:]}"))
    codes = [code]
    if code in (UNREACHABLE, INTERRUPTED) and journal is not None:
        watch.rest(place)
        controller = place.begin("resume", journal.parent.name)
        codes.append(controller.wait())
        if codes[-1] not in fault.last:
            wrong.append(Wrong("I5", "controller", f"resume: exit {codes[-1]}: {controller.told[-500:]}"))
    if code == HELD and journal is not None:
        # a person decides
        controller = place.begin("resume", journal.parent.name, "--return", it.first)
        codes.append(controller.wait())
        if codes[-1] != RETURNED:
            wrong.append(Wrong("I5", "controller", f"resume: exit {codes[-1]}: {controller.told[-500:]}"))
    watch.rest(place)
    wrong += watch.over(place, controller, journal, before) if journal else _nothing(place, before)
    said = {one["name"]: one["result"] for one in (controller.answer.get("result") or {}).get("hosts", [])}
    for name, may in fault.results.items():
        if said.get(name) not in may:
            wrong.append(Wrong("I6", name, f"it is told to be {said.get(name)}, not {sorted(may)}"))
    fault.mend()
    converges(it, wrong)
    it.report.add(fault.kind, fault.name, wrong, began, f"exit {', '.join(map(str, codes))}")


def _is(record: Mapping[str, Any], at: tuple[str, str, str] | None) -> bool:
    return at is not None and (record.get("host"), record.get("kind"), record.get("step")) == at


def _nothing(place: Place, before: Mapping[str, str]) -> list[Wrong]:
    """A roll that was refused before it began has changed nothing."""
    after = watch.slots(place)
    return [Wrong("I1", name, "it was changed without a journal") for name in after if after[name] != before[name]]


def converges(it: Case, wrong: list[Wrong]) -> None:
    """I5, without the fault."""
    it.place.reset()
    wrong += watch.converge(it.place, it.target)


# -- how to break things ---------------------------------------------------------------------------------------------


def fill(place: Place, container: str, path: str, kib: int = 1024) -> Callable[[], object]:
    """Have a directory on a file system of its own that is full; what is in it stays readable."""
    script = f"""set -e
mkdir -p {path} /run/harness
rm -rf /run/harness/copy; cp -a {path} /run/harness/copy
mount -t tmpfs -o size=$(( $(du -sk /run/harness/copy | cut -f1) + {kib} ))k,mode=$(stat -c 0%a {path}) tmpfs {path}
cp -a /run/harness/copy/. {path}/
dd if=/dev/zero of={path}/.ballast bs=4k 2>/dev/null || true
"""
    place.ssh(container, "sh", "-s", text=script)
    return lambda: unmount(place, container, path, keep=True)


def read_only(place: Place, container: str, path: str) -> Callable[[], object]:
    """Remount a directory read-only, on itself."""
    place.ssh(
        container, "sh", "-s", text=f"mkdir -p {path} && mount --bind {path} {path} && mount -o remount,bind,ro {path}"
    )
    return lambda: unmount(place, container, path)


def unmount(place: Place, container: str, path: str, keep: bool = False) -> None:
    """Take either back; with `keep` what was written on the small file system comes along."""
    script = f"mountpoint -q {path} || exit 0\nrm -f {path}/.ballast 2>/dev/null\n"
    if keep:
        script += f"rm -rf /run/harness/copy; cp -a {path} /run/harness/copy\n"
    script += f"umount -l {path}\n"
    if keep:
        script += f"cp -a /run/harness/copy/. {path}/\n"
    place.inside(container, script)


def reboot(place: Place, container: str) -> None:
    """Stop the container as a power cut does, start it, and wait until it answers."""
    place.pct(container, "stop")
    place.pct(container, "start")
    answers(place, container)


def answers(place: Place, container: str, timeout: float = 60) -> None:
    """Wait until ssh answers."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        with contextlib.suppress(RuntimeError, OSError):
            place.ssh(container, "true", timeout=8)
            return
        time.sleep(0.5)
    raise TimeoutError(f"{container} does not answer")


def flip(path: Path) -> None:
    """Change one byte in the middle."""
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, 1)
        stream.write(bytes([byte[0] ^ 1]))


def forget(place: Place, container: str, digest: str) -> None:
    """Remove a release and its own wheels from a container, so that it has to be staged anew."""
    script = f"""import json, os, shutil
root = "/opt/rackwell"
path = os.path.join(root, "releases", "{digest}")
if os.path.exists(path):
    wheels = [one["sha256"] for one in json.load(open(path + "/manifest.json"))["wheels"] if one["project"] == "sglang"]
    shutil.rmtree(path)
    for one in wheels:
        os.path.exists(os.path.join(root, "store/sha256", one)) and os.remove(os.path.join(root, "store/sha256", one))
        shutil.rmtree(os.path.join(root, "store/wheels", one), ignore_errors=True)
"""
    place.ssh(container, "python3", "-", text=script)


def wait_for(controller: Controller, text: str, timeout: float = 120) -> bool:
    """Whether the progress comes to say something."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if text in controller.told:
            return True
        if controller.process.poll() is not None:
            return text in controller.told
        time.sleep(0.05)
    return False
