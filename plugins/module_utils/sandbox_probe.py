# SPDX-License-Identifier: Apache-2.0
"""Tries the sandbox on this very machine: transient units with the real options, which must reach what a bare one does.

One unit without and one with all options, when they hold; only when they do not is each group tried, and of a group
that fails each option. What this start of the machine answered is kept under /run, which is empty after the next one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files
from ansible_collections.rackwell.gpu.plugins.module_utils import sandbox_options as asked
from ansible_collections.rackwell.gpu.plugins.module_utils.sandbox_options import Group, Needs, Option

FULL, PARTIAL, REDUCED = "full", "partial", "reduced"
NESTING = "with nesting the rest can be had: pct set VMID --features nesting=1 on the host, then restart the container"
_DEADLINE_S = 60
_CREDENTIAL = "rackwell-probe"
#: what a service must reach; each line that a bare unit prints, one with the options must print as well
_SCRIPT = """\
for node in /dev/nvidia* /dev/nvidia-caps/* /dev/infiniband/*; do
  [ -c "$node" ] && [ -r "$node" ] && [ -w "$node" ] && echo "the device node $node"
done
for file in /proc/driver/nvidia/version /proc/devices; do [ -r "$file" ] && echo "the file $file"; done
[ -d /sys/bus/pci/devices ] && echo "the PCI devices in /sys"
echo "the container's memory of $(sed -n 's/^MemTotal: *//p' /proc/meminfo) and $(nproc) processors"
[ -w /dev/shm ] && echo "shared memory in /dev/shm"
[ -w /tmp ] && echo "temporary files in /tmp"
while [ "$1" != -- ]; do
  for folder in "$1" "$1"/*; do [ -d "$folder" ] && [ -w "$folder" ] && echo "writing to $folder"; done
  shift
done
shift
for path; do [ -r "$path" ] && echo "reading $path"; done
[ -s "$CREDENTIALS_DIRECTORY/%(credential)s" ] && echo "%(credential)s"
:
""" % {"credential": _CREDENTIAL}
_STATUS = {217: "USER", 218: "CAPABILITIES", 226: "NAMESPACE", 228: "SECCOMP", 243: "CREDENTIALS"}


class Dropped(NamedTuple):
    """An option that does not hold here."""

    option: str
    why: str


class Sandbox(NamedTuple):
    """What holds on this machine.

    Attributes:
        form: full, partial (some options do not hold) or reduced (nothing that needs a mount namespace).
        options: those that hold, in the order of a unit file. credentials: whether LoadCredential works.
        units: how many transient units it took. problem: why nothing could be tried; empty when it was.
    """

    form: str
    options: list[Option]
    dropped: list[Dropped]
    credentials: bool
    units: int = 0
    problem: str = ""

    @property
    def lines(self) -> list[str]:
        """As they stand in a unit file."""
        found: list[str] = asked.lines(self.options)
        return found

    def facts(self) -> dict[str, Any]:
        """For the record: what does not change from one try to the next."""
        return {
            "form": self.form,
            "options": self.lines,
            "dropped": [dict(one._asdict()) for one in self.dropped],
            "credentials": self.credentials,
            "problem": self.problem,
        }

    def as_json(self) -> dict[str, Any]:
        """For the file of this start."""
        return {**self._asdict(), "dropped": [list(one) for one in self.dropped]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Sandbox:
        """From the file. Raises TypeError, KeyError, ValueError: it is none."""
        options = [(str(name), str(value)) for name, value in data["options"]]
        dropped = [Dropped(str(option), str(why)) for option, why in data["dropped"]]
        return cls(**{**data, "options": options, "dropped": dropped})


class Tried(NamedTuple):
    """What a transient unit came to: what it reached, or why it did not run."""

    reached: frozenset[str]
    why: str


Try = Callable[[Sequence[Option]], Tried]


def transient(needs: Needs) -> Try:
    """Gives the function that tries options on this machine."""

    def run(options: Sequence[Option]) -> Tried:
        properties = [("User", needs.user), ("RuntimeMaxSec", "30"), *options]
        command = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--service-type=simple"]
        for name, value in properties:
            command += ["-p", f"{name}={value}"]
        command += ["--", "/bin/sh", "-c", _SCRIPT, "sh", asked.CACHES, *needs.writable, "--", *needs.readable]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, cwd="/",
                timeout=_DEADLINE_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return Tried(frozenset(), str(error))
        if done.returncode != 0:
            name = _STATUS.get(done.returncode)
            told = " ".join(done.stderr.split())[-300:]
            status = f"status {done.returncode}{f'/{name}' if name else ''}"
            return Tried(frozenset(), f"{status}: {told}" if told else status)
        return Tried(frozenset(done.stdout.splitlines()), "")

    return run


def probe(needs: Needs, attempt: Try) -> Sandbox:
    """Find out what holds. Raises ValueError for a path that cannot stand in a unit file."""
    wanted = asked.groups(needs)
    everything = [option for group in wanted for option in group.options]
    credential = ("LoadCredential", _CREDENTIAL + ":/etc/hostname")
    count = 0

    def missing(options: Sequence[Option]) -> str:
        nonlocal count
        count += 1
        tried = attempt(options)
        return tried.why or ", ".join(sorted(bare.reached - tried.reached))

    count += 1
    bare = attempt([])
    if bare.why:
        mild = [option for group in wanted if not group.mounts for option in group.options]
        return Sandbox(REDUCED, mild, [], False, count, bare.why)
    bare = Tried(bare.reached | {_CREDENTIAL}, "")
    if not missing([*everything, credential]):
        return Sandbox(FULL, everything, [], True, count)
    # without the credential first: it is the likelier of two reasons, and costs one unit
    bare = Tried(bare.reached - {_CREDENTIAL}, "")
    kept: list[Option] = []
    dropped: list[Dropped] = []
    if not missing(everything):
        kept = everything
    else:
        for group in wanted:
            _try_group(group, missing, kept, dropped)
        if kept and (why := missing(kept)):
            # each of them holds, and all together do not: what needs no mount namespace remains
            mild = [option for group in wanted if not group.mounts for option in group.options if option in kept]
            dropped += [Dropped(name, why) for name, value in kept if (name, value) not in mild]
            kept = mild
    bare = Tried(bare.reached | {_CREDENTIAL}, "")
    credentials = not missing([*kept, credential])
    return Sandbox(_form(wanted, kept, dropped), kept, dropped, credentials, count)


def _try_group(
    group: Group, missing: Callable[[Sequence[Option]], str], kept: list[Option], dropped: list[Dropped]
) -> None:
    if not (whole := missing(group.options)):
        kept += group.options
        return
    held = []
    for option in group.options:
        # an exception to another option says nothing by itself
        why = "" if option[0] == "ReadWritePaths" else missing([option, *_exceptions(option, group)])
        if why:
            dropped.append(Dropped(option[0], why))
        else:
            held.append(option)
    if not any(name == "ProtectSystem" for name, _ in held):
        held = [option for option in held if option[0] != "ReadWritePaths"]
    if len(held) == len(group.options):
        # all by themselves hold, together they do not
        dropped += [Dropped(name, whole) for name, _ in held]
        return
    kept += held


def _exceptions(option: Option, group: Group) -> list[Option]:
    return [other for other in group.options if option[0] == "ProtectSystem" and other[0] == "ReadWritePaths"]


def _form(wanted: Sequence[Group], kept: Sequence[Option], dropped: Sequence[Dropped]) -> str:
    if not dropped:
        return FULL
    # the hostname is kept by a namespace of another kind, which a container has without nesting
    with_mounts = {name for group in wanted if group.mounts for name, _ in group.options} - {"ProtectHostname"}
    return PARTIAL if with_mounts & {name for name, _ in kept} else REDUCED


# -- what is kept -------------------------------------------------------------------------------------------------


class Places(NamedTuple):
    """Where it is kept; tests give others."""

    start: str = "/run/rackwell-sandbox.json"
    record: str = "/var/lib/rackwell/sandbox.json"


def _version() -> str:
    try:
        done = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.split("\n", maxsplit=1)[0]


def _key(needs: Needs) -> str:
    text = json.dumps([needs, asked.groups(needs), _SCRIPT, _version()])
    return hashlib.sha256(text.encode()).hexdigest()


def _of_this_start(places: Places) -> dict[str, Any]:
    try:
        known = json.loads(files.read_text(places.start) or "{}")
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        return {}


def found(needs: Needs, places: Places = Places(), attempt: Optional[Try] = None, keep: bool = True) -> Sandbox:  # noqa: B008
    """What holds here, tried when this start of the machine was not asked for the same.

    Args:
        keep: whether the answer is kept for this start of the machine.

    Raises:
        ValueError: a path cannot stand in a unit file. OSError: the answer cannot be kept.
    """
    key = _key(needs)
    known = _of_this_start(places)
    try:
        return Sandbox.from_json(known[key])
    except (TypeError, KeyError, ValueError):
        sandbox = probe(needs, attempt or transient(needs))
    # a machine that could not be asked may answer the next time
    if keep and not sandbox.problem:
        files.write(places.start, json.dumps({**known, key: sandbox.as_json()}, sort_keys=True) + "\n", 0o644)
    return sandbox


def record_text(sandbox: Sandbox, exposure: Optional[float]) -> str:
    """The machine's record, rackwell.unit_sandbox/1."""
    record = {"schema": "rackwell.unit_sandbox/1", "systemd": _version(), "exposure": exposure, **sandbox.facts()}
    return json.dumps(record, indent=2, sort_keys=True) + "\n"


_SCORE = re.compile(r"Overall exposure level for \S+: ([\d.]+)")


def exposure(sandbox_lines: Sequence[str], user: str, folder: str = "/run") -> Optional[float]:
    """What ``systemd-analyze security`` gives a unit with these lines; None where it cannot tell."""
    name = os.path.join(folder, f"rackwell-exposure-{os.getpid()}.service")
    text = ["[Service]", "Type=exec", f"User={user}", "ExecStart=/bin/true", "KillMode=mixed", *sandbox_lines]
    try:
        files.write(name, "\n".join(text) + "\n")
        command = ["systemd-analyze", "security", "--offline=true", "--no-pager", name]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return None
    finally:
        files.remove(name)
    score = _SCORE.search(done.stdout)
    return float(score.group(1)) if score else None
