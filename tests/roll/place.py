# SPDX-License-Identifier: Apache-2.0
"""The laboratory of the harness: its site, its machines, and rackwell as a process of its own that can be killed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
sys.path.insert(0, str(REPO / "tests/lab"))

from rwlab.paths import Instance  # noqa: E402 (the laboratory is no installed package)
from rwlab.record import load  # noqa: E402

#: the one that this Python knows; PYTHONPATH names another checkout
RACKWELL = [sys.executable, "-c", "from rackwell.cli.main import run; run()"]
MODEL = "/srv/models/toy"
#: two builds that can be made to misbehave alone, while the other one, to which a host returns, is well
BUILDS = ("ping", "pong")
#: and one with a patch that is harmful here, whose risk is accepted
HARMFUL = "fusion"
#: the second because the first needs it
RISKS = [
    {"name": name, "accept_risk": "the story: it is tried all the same"}
    for name in ("sglang/allreduce-fusion-sm120", "flashinfer-python/trtllm-comm-jit-sm120")
]
TOKEN = "RACKWELL_ROLL_CASE"
#: seconds of the profile and of the rolls
READY, CONFIRM = 40, 60
#: every answer at its time, whatever else the machine does: the gate's noise is then the client's alone
ENGINE = {"load_seconds": 1.0, "exact": {"ttft_ms": [40], "itl_ms": [10]}}
#: one short point: a gate that is to see less than a fifth needs more (MANY)
SWEEP = """\
concurrency: [4]
input_tokens: 32
output_tokens: 64
prompts_per_stream: 2
warmup_requests: 1
point_timeout: 60
tolerate: [bench-client-bound]
"""
MANY = SWEEP.replace("[4]", "[2, 4]").replace("input_tokens", "repeats: 3\ninput_tokens")
#: after the first lines of the stand-in's patch, which end with a line of context
_LAUNCH = """\
+# STAND-IN: this build alone behaves so
+import os
+
+if os.path.exists("{file}"):
+    with open("{file}", encoding="utf-8") as stream:
+        os.environ["RACKWELL_LAB_ENGINE"] = stream.read()
+
"""
_CONTEXT = " import sys\n \n"


@dataclasses.dataclass
class Place:
    """One laboratory with as many containers as hosts.

    Attributes:
        site: of the harness. rotation: what the hooks did last, a file a container.
    """

    instance: Instance
    site: Path
    secret: str
    addresses: dict[str, str]

    # -- making it -----------------------------------------------------------------------------------------------

    @classmethod
    def at(cls, name: str, site: Path) -> Place:
        """The harness's site beside an instance that is up; made from the instance's own when absent."""
        instance = Instance.of(name)
        record = load(instance)
        if record is None:
            raise SystemExit(f"there is no laboratory: rackwell lab up --name {name} --suite bookworm --hosts 3")
        if not (site / "hosts.yml").exists():
            shutil.copytree(instance.site, site, symlinks=True, dirs_exist_ok=True)
        addresses = {f"glm5-{n:02}": record.address(20 + n) for n in range(1, len(record.hosts) + 1)}
        place = cls(instance, site, "", addresses)
        place._edit()
        return place

    def _edit(self) -> None:
        path = self.site / "secret"
        if not path.exists():
            path.write_text(f"harness-{secrets.token_hex(12)}")
        self.secret = path.read_text()
        plain = yaml.safe_load((self.site / "builds/lab.yml").read_text())
        original = (HERE.parent / "lab/engine/patches/lab-engine/0.5.9.patch").read_text()
        meta = yaml.safe_load((HERE.parent / "lab/engine/patches/lab-engine/patch.yml").read_text())
        for build in (*BUILDS, HARMFUL):
            patch = self.site / f"builds/patches/lab-{build}"
            patch.mkdir(parents=True, exist_ok=True)
            (patch / "patch.yml").write_text(yaml.safe_dump({**meta, "name": patch.name}))
            added = _LAUNCH.format(file=f"{MODEL}/rackwell-lab-{build}.json")
            grown = added.count("\n")
            text = original.replace(_CONTEXT, _CONTEXT + added, 1)
            head = next(line for line in text.splitlines() if line.startswith("@@"))
            start, size = head.split("+")[1].split(" ")[0].split(",")
            text = text.replace(head, head.replace(f"+{start},{size}", f"+{start},{int(size) + grown}"), 1)
            (patch / "0.5.9.patch").write_text(text)
            patches = [one for one in plain["patches"] if "lab-engine" not in one] + [f"./patches/lab-{build}"]
            patches += RISKS if build == HARMFUL else []
            (self.site / f"builds/{build}.yml").write_text(yaml.safe_dump({**plain, "patches": patches}))
        (self.site / "bench/harness.yml").write_text(SWEEP)
        (self.site / "bench/many.yml").write_text(MANY)
        profile = self.site / "profiles/glm5-lab.yml"
        text = yaml.safe_load(profile.read_text())
        text["limits"] = {"ready_timeout": READY, "stop_timeout": 5}
        text["environment"]["HARNESS_TOKEN"] = self.secret
        profile.write_text(yaml.safe_dump(text, sort_keys=False))
        rotation = self.site / "rotation"
        rotation.mkdir(exist_ok=True)
        (self.site / "hooks").mkdir(exist_ok=True)
        for hook, word in (("drain", "out"), ("undrain", "in")):
            program = self.site / "hooks" / hook
            program.write_text(f'#!/bin/sh\nprintf {word} >"{rotation}/$1"\n')
            program.chmod(0o755)
        for path in sorted((self.site / "host_vars").glob("glm5-*.yml")):
            text = yaml.safe_load(path.read_text())
            text["release_build"], text["bench_client_profile"] = BUILDS[0], "harness"
            path.write_text(yaml.safe_dump(text))

    # -- machines ------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The containers."""
        return list(self.addresses)

    def server(self, container: str) -> str:
        """The Proxmox host of a container."""
        return f"pve{int(container.rpartition('-')[2])}"

    def vmid(self, container: str) -> int:
        """Its number there."""
        return 200 + int(container.rpartition("-")[2])

    def ssh(self, machine: str, *command: str, text: str | None = None, check: bool = True, timeout: float = 60) -> str:
        """Run a command as root in a container or on a Proxmox host."""
        record = load(self.instance)
        assert record is not None
        container = machine in self.addresses
        address = self.addresses[machine] if container else record.address(record.host(machine).octet)
        known = self.site / "known_hosts"
        argv = ["ssh", "-F", "none", "-i", str(self.site / "id_ed25519"), "-o", f"UserKnownHostsFile={known}"]
        for option in ("GlobalKnownHostsFile=none", "StrictHostKeyChecking=yes", "BatchMode=yes", "ConnectTimeout=5"):
            argv += ["-o", option]
        argv += ["-o", "LogLevel=ERROR", f"root@{address}", *command]
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=timeout)
        if check and done.returncode != 0:
            raise RuntimeError(f"{machine}: {' '.join(command)[:200]}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def pct(self, container: str, *command: str, check: bool = True) -> str:
        """Run `pct COMMAND VMID ...` on its host; the first word is the command."""
        first, *rest = command
        return self.ssh(self.server(container), "pct", first, str(self.vmid(container)), *rest, check=check)

    def inside(self, container: str, script: str) -> str:
        """Run a shell script in a container through its host, for when its network is cut."""
        return self.ssh(self.server(container), "pct", "exec", str(self.vmid(container)), "--", "sh", "-s", text=script)

    def behave(self, build: str | None, containers: Iterable[str] = (), **settings: Any) -> None:
        """How the engine of a build, or of all (None), behaves on these containers' hosts from its next start on."""
        name = "rackwell-lab-engine.json" if build is None else f"rackwell-lab-{build}.json"
        for container in containers or self.names:
            path = self.instance.host(self.server(container)).models / "toy" / name
            if build is not None and not settings:
                path.unlink(missing_ok=True)
                continue
            new = path.with_name(f".{name}.new")
            new.write_text(json.dumps({**(ENGINE if build is None else {}), **settings}))
            new.replace(path)

    def see(self, wheels: bool = False, only: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
        """The facts of all containers."""
        text = (HERE / "probe.py").read_text()
        words = ["wheels"] * wheels + ["secret", self.secret]

        def one(name: str) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(self.ssh(name, "python3", "-", *words, text=text))
            return found

        names = list(only) or self.names
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            return dict(zip(names, pool.map(one, names), strict=True))

    def digest(self, build: str) -> str:
        """The newest release of a build on this machine; empty before the first."""
        made = sorted((self.state / "releases").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
        fitting = [path.parent.name for path in made if json.loads(path.read_text()).get("name") == build]
        return fitting[-1] if fitting else ""

    def reset(self) -> None:
        """Take every fault back that lies in the machines' surroundings."""
        self.behave(None)
        for build in (*BUILDS, HARMFUL):
            self.behave(build)
        for container in self.names:
            self.cable(container, True)

    def cable(self, container: str, plugged: bool) -> None:
        """Plug the container's network in, or pull it."""
        link = f"veth{self.vmid(container)}i0"
        self.ssh(self.server(container), "ip", "link", "set", link, "up" if plugged else "down", check=plugged)

    def rotation(self, container: str) -> str:
        """``in`` or ``out``."""
        path = self.site / "rotation" / container
        return path.read_text() if path.exists() else "in"

    @property
    def state(self) -> Path:
        """Where rackwell keeps what it makes of the site."""
        return self.site / ".rackwell"

    def rolls(self) -> list[Path]:
        """Journals of all rolls, the oldest first."""
        return sorted((self.state / "rolls").glob("*/journal.jsonl"))

    def begin(self, *arguments: str, site: Path | None = None) -> Controller:
        """Start a rackwell command."""
        return Controller(self, [*arguments, "-i", str(site or self.site), "--json"])


class Controller:
    """One rackwell process, in a session of its own, as a terminal gives it one."""

    def __init__(self, place: Place, arguments: list[str]) -> None:
        self.place, self.arguments = place, arguments
        self.token = secrets.token_hex(8)
        #: the journal of its roll, where several begin at once
        self.known: Path | None = None
        self._before = set(place.rolls())
        self._out = place.site / f".out-{self.token}"
        self.began = time.monotonic()
        with self._out.open("wb") as out, self._out.with_suffix(".err").open("wb") as err:
            self.process = subprocess.Popen(
                [*RACKWELL, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={**os.environ, TOKEN: self.token, "NO_COLOR": "1"},
            )

    def journal(self) -> Path | None:
        """The journal of a roll that this process began."""
        new = [path for path in self.place.rolls() if path not in self._before]
        return new[-1] if new else None

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal to the process alone, or to all that it started as well."""
        if self.process.poll() is None:
            (os.killpg if group else os.kill)(self.process.pid, number)

    def kill(self, group: bool = False) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL, group)
        self.process.wait()

    def until(
        self,
        wanted: Callable[[dict[str, Any]], bool],
        journal: Path | None = None,
        timeout: float = 300,
        whole: bool = False,
    ) -> dict[str, Any] | None:
        """The first record that is wanted; None when the process ends before.

        Args:
            journal: one that was there before; what is written from now on counts, or all of it (`whole`).
        """
        path, at, end = journal, journal.stat().st_size if journal and not whole else 0, time.monotonic() + timeout
        rest = b""
        while time.monotonic() < end:
            over = self.process.poll() is not None
            path = path or self.journal()
            if path is not None:
                with path.open("rb") as stream:
                    stream.seek(at)
                    new = stream.read()
                at += len(new)
                *lines, rest = (rest + new).split(b"\n")
                for line in lines:
                    record: dict[str, Any] = json.loads(line) if line else {}
                    if record and wanted(record):
                        return record
            if over:
                return None
            time.sleep(0.002)
        raise TimeoutError(f"{' '.join(self.arguments)}: the record did not come within {timeout:.0f} s")

    def wait(self, timeout: float = 420) -> int:
        """Its exit code; negative for a signal."""
        return self.process.wait(timeout)

    @property
    def answer(self) -> dict[str, Any]:
        """What it printed."""
        text = self._out.read_text()
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    @property
    def told(self) -> str:
        """Its progress."""
        return self._out.with_suffix(".err").read_text()

    def orphans(self) -> list[int]:
        """Processes on this machine that it started, or that those started, and that still run."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if f"{TOKEN}={self.token}".encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:
                continue
        return [pid for pid in found if pid != self.process.pid]

    def clean(self) -> None:
        """End what it left running: the harness's machine is not what is tested here."""
        for pid in self.orphans():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
