# SPDX-License-Identifier: Apache-2.0
"""What a container can tell of its inference server: this start, the one before, GPUs, memory, versions."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_log as log
from ansible_collections.rackwell.gpu.plugins.module_utils.diagnosis_read import (
    Reader,
    Source,
    clipped,
    message,
    number,
    records,
    values,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_files import without_secrets

GATE_UNIT = "rackwell-gpu-gate.service"
GATE_FILE = "/run/rackwell/gate.json"
ENVIRONMENT = "/etc/rackwell/inference.env"
_SHOWN = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "ExecMainCode",
    "ExecMainStatus",
    "ExecMainPID",
    "NRestarts",
    "InvocationID",
    "MemoryCurrent",
    "MemoryPeak",
    "MemoryMax",
    "OOMPolicy",
    "ExecMainStartTimestampMonotonic",
    "ExecMainStartTimestamp",
    "ExecMainExitTimestamp",
    "UnitFileState",
)
_GPU_FIELDS = (
    "index,name,pci.bus_id,uuid,driver_version,pstate,memory.total,memory.used,utilization.gpu,temperature.gpu,"
    "power.draw,power.limit,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max"
)
_PACKAGES = ("sglang", "flashinfer-python", "torch", "sglang-kernel", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
#: lines of one start that are asked for
_LINES = 20_000
_INVOCATION = re.compile(r"[0-9a-f]{32}")


class Container:
    """Collects the sources, and the facts that go with them.

    Args:
        root: directory of the releases.
    """

    def __init__(self, reader: Reader, unit: str, root: str) -> None:
        self.reader = reader
        self.unit = unit
        self.root = root
        self.facts: dict[str, Any] = {}
        self.sources: list[Source] = []

    def start(self) -> None:
        """The unit's state, and what this start of it wrote; of the one before, when that failed."""
        state = self.reader.ask("systemctl", "show", self.unit, "--property=" + ",".join(_SHOWN))
        shown = values(state.text)
        if state.why or shown.get("LoadState") != "loaded":
            # whoever looks into a container that was never provisioned
            why = state.why or f"{self.unit} is {shown.get('LoadState') or 'unknown'} here"
            self.sources.append(Source("unit", "", why))
            return
        self.facts["unit"] = {name: shown.get(name, "") for name in _SHOWN}
        started = number(shown.get("ExecMainStartTimestampMonotonic"))
        self.facts["started_monotonic"] = None if not started else started / 1e6
        self.sources.append(Source("unit", "\n".join(f"{name}={shown.get(name, '')}" for name in _SHOWN)))
        current = shown.get("InvocationID", "")
        if _INVOCATION.fullmatch(current):
            self.sources.append(self._journal("journal", current))
        before = self._failed_before(current)
        if before:
            self.sources.append(self._journal("journal-before", before, earlier=True))

    def _journal(self, name: str, invocation: str, earlier: bool = False) -> Source:
        """What one start wrote, and what systemd said of it."""
        answer = self.reader.ask(
            "journalctl",
            "--quiet",
            "--no-pager",
            "--output=json",
            "--output-fields=MESSAGE",
            f"--lines={_LINES}",
            "_SYSTEMD_INVOCATION_ID=" + invocation,
            "+",
            "INVOCATION_ID=" + invocation,
        )
        lines = log.for_diagnosis([line for entry in records(answer.text) for line in message(entry).splitlines()], 3)
        return Source(name, clipped("\n".join(lines)), answer.why if not lines else "", earlier)

    def _failed_before(self, current: str) -> Optional[str]:
        """The invocation id of the newest earlier start that systemd calls failed."""
        answer = self.reader.ask(
            "journalctl",
            "--quiet",
            "--no-pager",
            "--output=json",
            "--output-fields=MESSAGE,INVOCATION_ID",
            "--lines=400",
            "_PID=1",
            "UNIT=" + self.unit,
        )
        told: list[tuple[str, str]] = [
            (str(entry.get("INVOCATION_ID") or ""), message(entry)) for entry in records(answer.text)
        ]
        # the engine ends a stop that was asked for by SIGKILL, which systemd calls a failure too
        stopped = {invocation for invocation, text in told if text.startswith("Stopping ")}
        for invocation, text in reversed(told):
            failed = "Failed with result" in text and "exec-condition" not in text
            if failed and invocation not in {current, *stopped} and _INVOCATION.fullmatch(invocation):
                return invocation
        return None

    def gate(self) -> None:
        """What the boot gate said in this boot, and its verdict with all that it found."""
        said = self.reader.ask(
            "journalctl", "--quiet", "--no-pager", "--boot", "--output=cat", "--lines=60", "--unit=" + GATE_UNIT
        )
        self.sources.append(Source("gate", clipped(said.text), said.why))
        verdict = self.reader.file(GATE_FILE, 2_000_000)
        try:
            self.facts["gate"] = json.loads(verdict.text) if not verdict.why else None
        except ValueError:
            self.facts["gate"] = None

    def gpus(self) -> None:
        """What nvidia-smi shows; it hangs when the driver does."""
        self.sources.append(self.reader.source("nvidia-smi", "nvidia-smi"))
        self.sources.append(
            self.reader.source("nvidia-smi-query", "nvidia-smi", "--query-gpu=" + _GPU_FIELDS, "--format=csv")
        )
        self.sources.append(
            self.reader.source("nodes", "sh", "-c", "ls -ln /dev/nvidia* 2>&1; grep nvidia /proc/devices", look=False)
        )

    def memory(self) -> None:
        """Space in memory and on disks, and how often something was killed for want of it."""
        script = (
            "free -m; df -h / /dev/shm /tmp " + self.root + " /var/cache/rackwell 2>/dev/null; "
            "for f in memory.max memory.current memory.events; do echo \"$f: $(tr '\\n' ' ' </sys/fs/cgroup/$f)\"; done"
        )
        self.sources.append(self.reader.source("memory", "sh", "-c", script, look=False))

    def release(self) -> None:
        """What runs: the release's packages, the unit's command line, its environment."""
        manifest = self.reader.file(os.path.join(self.root, "current", "manifest.json"), 4_000_000)
        versions: dict[str, str] = {}
        try:
            told = json.loads(manifest.text)
            self.facts["release"] = {"name": told["name"], "python": told["python"]}
            for wheel in told["wheels"]:
                name, version = str(wheel["filename"]).split("-")[:2]
                if name.replace("_", "-").lower() in _PACKAGES:
                    versions[name.replace("_", "-").lower()] = version
        except (ValueError, LookupError, TypeError):
            self.sources.append(Source("release", "", manifest.why or "the manifest cannot be read"))
        self.facts["versions"] = versions
        lines = [f"{name} {version}" for name, version in sorted(versions.items())]
        for command in (("uname", "-r"), ("cat", "/proc/driver/nvidia/version"), ("cat", "/etc/os-release")):
            lines += self.reader.ask(*command).text.splitlines()[:3]
        self.sources.append(Source("versions", "\n".join(lines), look=False))
        unit = self.reader.ask("systemctl", "cat", "--no-pager", self.unit)
        self.sources.append(Source("unit-file", clipped(without_secrets(unit.text)), unit.why, look=False))
        environment = self.reader.file(ENVIRONMENT)
        self.sources.append(
            Source("environment", clipped(without_secrets(environment.text)), environment.why, look=False)
        )

    def collect(self, quick: bool) -> dict[str, Any]:
        """All of it, or with ``quick`` the present start alone."""
        self.start()
        if not quick:
            for part in (self.gate, self.gpus, self.memory, self.release):
                part()
        return {"sources": [source.as_dict() for source in self.sources], "facts": self.facts}
