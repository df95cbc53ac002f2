# SPDX-License-Identifier: Apache-2.0
"""What the Proxmox host can tell of a container and its GPUs: the kernel's log, pct, its tasks, memory, the driver."""

from __future__ import annotations

import re
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils import gpu_host_facts
from ansible_collections.rackwell.gpu.plugins.module_utils.diagnosis_read import Reader, Source, clipped

NODES_UNIT = "rackwell-gpu-nodes.service"
_STAMP = re.compile(r"^\[\s*(\d+\.\d+)\]")
#: what happened so many seconds before a start may be its cause
_AHEAD_S = 60.0
_TASKS = "/var/log/pve/tasks"


class Host:
    """Collects the sources of a host.

    Args:
        vmid: of the container; None for the host alone.
        since: when the container's server was started, seconds since boot; None when that is not known.
    """

    def __init__(self, reader: Reader, vmid: Optional[int], since: Optional[float]) -> None:
        self.reader = reader
        self.vmid = vmid
        self.since = since
        self.sources: list[Source] = []
        self.facts: dict[str, Any] = {}

    def kernel(self) -> None:
        """The kernel's log: all of it since the start; from before only what concerns GPUs, their ports and the IOMMU.

        That another process was killed for memory days ago is no cause of today's failure. A GPU that was lost days ago
        is still lost.
        """
        lines, why = self._kernel_lines()
        if self.since is None:
            self.sources.append(Source("kernel", clipped("\n".join(lines)), why))
            return
        place = next((n for n, line in enumerate(lines) if self._late(line)), len(lines))
        self.sources.append(Source("kernel", clipped("\n".join(lines[place:])), why))
        earlier = gpu_host_facts.matching(lines[:place])
        if earlier:
            self.sources.append(Source("kernel-earlier", clipped("\n".join(earlier))))

    def _late(self, line: str) -> bool:
        stamp = _STAMP.match(line)
        return stamp is not None and float(stamp.group(1)) >= (self.since or 0.0) - _AHEAD_S

    def _kernel_lines(self) -> tuple[list[str], str]:
        ring = self.reader.ask("dmesg")
        lines = ring.text.splitlines() if not ring.why else []
        # a ring that does not begin with the kernel's first moment has lost its beginning: the journal has it
        if not lines or not re.match(r"\[\s*0\.\d+\]", lines[0]):
            kept = self.reader.ask(
                "journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-monotonic", "--lines=50000"
            )
            told = [re.sub(r"^(\[\s*[\d.]+\]) \S+ kernel: ", r"\1 ", line) for line in kept.text.splitlines()]
            if not kept.why and len(told) > len(lines):
                return told, ""
        return lines, ring.why

    def container(self) -> None:
        """What Proxmox knows of the container, and what its last start said."""
        vmid = str(self.vmid)
        status = self.reader.ask("pct", "status", vmid)
        self.facts["container"] = status.text.strip().rpartition("status: ")[2] if not status.why else ""
        self.sources.append(Source("pct", "\n".join(["# pct status " + vmid, clipped(status.text)]), status.why))
        config = self.reader.source("pct-config", "pct", "config", vmid, head="# pct config " + vmid)
        self.sources.append(config)
        self.sources.append(self._start_log())
        for name, unit in (("pve-container", f"pve-container@{vmid}.service"), ("gpu-nodes", NODES_UNIT)):
            said = self.reader.ask(
                "journalctl", "--quiet", "--no-pager", "--boot", "--output=cat", "--lines=80", "--unit=" + unit
            )
            if said.text.strip():
                self.sources.append(Source(name, clipped(said.text), said.why))

    def _start_log(self) -> Source:
        """The log of the newest task that started the container, by the index of Proxmox' own tasks."""
        index = self.reader.file(_TASKS + "/index")
        mine = re.compile(rf"^(UPID:[^:]+:[0-9A-F]+:[0-9A-F]+:([0-9A-F]+):vz(?:start|reboot):{self.vmid}:\S*:)\s?(.*)$")
        found = [match for line in index.text.splitlines() if (match := mine.match(line))]
        if not found:
            return Source("pct-start", "", index.why or "no task that started it is in the index")
        upid, stamp, ended = found[-1].group(1), found[-1].group(2), found[-1].group(3)
        said = self.reader.file(f"{_TASKS}/{stamp[-1]}/{upid}")
        return Source("pct-start", clipped(said.text), said.why or ("" if ended.endswith("OK") else f"ended: {ended}"))

    def memory(self) -> None:
        """Space, and how often something of the container was killed for want of memory."""
        events = f"/sys/fs/cgroup/lxc/{self.vmid}/memory.events" if self.vmid else "/dev/null"
        script = f"free -m; df -h / /var/lib/vz 2>/dev/null; echo 'memory.events:' $(cat {events} 2>/dev/null)"
        self.sources.append(self.reader.source("host-memory", "sh", "-c", script, look=False))

    def driver(self) -> None:
        """nvidia-smi of the host, where there is one; module, kernel and Proxmox VE."""
        smi = self.reader.ask("nvidia-smi")
        if smi.text.strip() or "No such file" not in smi.why:
            self.sources.append(Source("host-nvidia-smi", clipped(smi.text), smi.why))
        script = (
            "uname -r; cat /proc/driver/nvidia/version /proc/cmdline; pveversion 2>/dev/null; "
            "cat /sys/module/nvidia/version; cat /sys/module/nvidia_uvm/parameters/uvm_disable_hmm"
        )
        self.sources.append(self.reader.source("host-versions", "sh", "-c", script, look=False))
        version = self.reader.ask("cat", "/sys/module/nvidia/version")
        self.facts["versions"] = {} if version.why else {"driver": version.text.strip()}

    def collect(self) -> dict[str, Any]:
        """All of it."""
        self.kernel()
        if self.vmid is not None:
            self.container()
        self.memory()
        self.driver()
        return {"sources": [source.as_dict() for source in self.sources], "facts": self.facts}
