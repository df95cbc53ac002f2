# SPDX-License-Identifier: Apache-2.0
"""The most telling lines of a text that no rule knows, and what to collect next."""

from __future__ import annotations

import dataclasses
import re

from rackwell.diagnose.blur import zeros
from rackwell.diagnose.hits import Hit

#: One expression for each word: a word of three letters and more is found at once in a large text.
PATTERNS = (
    r"(?i)error", r"(?i)exception", r"Traceback", r"(?i)fail(?:ed|ure|s)?\b", r"(?i)\bfatal", r"(?i)critical",
    r"(?i)\bcannot\b", r"(?i)\bcan't\b", r"(?i)\bunable\b", r"(?i)denied", r"(?i)refused", r"(?i)time[ds]?[ -]?out",
    r"(?i)\babort", r"(?i)\bkilled", r"(?i)segfault", r"(?i)segmentation", r"(?i)\bpanic", r"(?i)\bassert",
    r"(?i)not found", r"(?i)no such", r"(?i)undefined", r"(?i)\binvalid", r"(?i)unsupported", r"(?i)mismatch",
    r"(?i)corrupt", r"(?i)\bmissing", r"\bXid\b", r"\bNaN\b", r"(?i)\bdoes not\b", r"(?i)\bdied\b", r"(?i)\bcrash",
    r"NCCL WARN",
)  # fmt: skip
_SCORES = (
    (9, r"^\S*(?:Error|Exception|Interrupt)\b(?::|$)"),
    (8, r"(?i)\bXid\b|fatal|panic|segfault|CUDA error|illegal"),
    (12, r"NCCL WARN"),
    (6, r"(?i)\berror\b|exception|assert"),
    (3, r"\bERROR\b|\bCRITICAL\b|\bFATAL\b"),
    (-9, r"(?i)\bno (?:exceptions?|errors?|failures?)\b|ignore import error"),
    (5, r"(?i)failed|cannot|unable|denied|killed|abort|corrupt|mismatch|undefined|unsupported"),
    (3, r"(?i)not found|no such|timed? ?out|refused|invalid|missing"),
    (-4, r"(?i)warn|deprecat|retry|ignored|optional|fallback|falling back|\b0 (?:errors|failed)|no error|errors?: 0\b"),
    (-3, r"Traceback \(most recent|^\s*File \"|^\s+at "),
    (-6, r"^\s*[\w /-]*(?i:errors?)\s*: \d+$"),
    (-4, r"(?i)error_?(?:rate|count|code)[=:]? ?0\b|(?:log|error)[-_]level|on_?error|_error=|raise_error"),
)
_SHAPE = re.compile(r"0x[0a-fA-F]+|\d+")
_SHAPES = 2000
_ALARM = 8

_AREAS = (
    ("driver", r"(?i)nvidia|nvrm|xid|nvml|pcie?|\bgpu\b"),
    ("pve", r"(?i)\bpct\b|lxc|pve|apparmor|cgroup"),
    ("nccl", r"(?i)nccl|all_?reduce|peer access|p2p"),
    ("memory", r"(?i)out of memory|oom|killed|memory"),
    ("systemd", r"(?i)systemd|\.service|journal"),
    ("build", r"(?i)ninja|nvcc|ptxas|compil|gcc|\bcc1|linker|undefined symbol"),
    ("engine", r"(?i)sglang|vllm|flashinfer|torch|python|traceback|scheduler"),
    ("network", r"(?i)connection|address|port\b|socket|timed? ?out|dns|resolve"),
)
_COLLECT = {
    "driver": (
        "host: journalctl -k -b | grep -E 'NVRM|Xid|AER|AMD-Vi|DMAR'",
        "host: nvidia-smi -q; cat /proc/driver/nvidia/version; lspci -nnk -d 10de:",
    ),
    "pve": (
        "host: pct start CTID --debug; pct config CTID",
        "host: ls -l /dev/nvidia* /dev/nvidia-caps/; dmesg | grep -i apparmor | tail -20",
    ),
    "nccl": (
        "the server's log of one start with NCCL_DEBUG=INFO in its environment",
        "host: nvidia-smi topo -m; nvidia-smi topo -p2p r; cat /proc/cmdline",
    ),
    "memory": (
        "host: journalctl -k -b | grep -i -E 'oom|killed process'; free -g",
        "host: pct config CTID | grep -E 'memory|swap'",
    ),
    "systemd": ("container: systemctl status UNIT; systemctl cat UNIT; journalctl -u UNIT -b --no-pager | tail -300",),
    "build": (
        "the build's output from its first 'error:' or 'FAILED:' line on",
        "container: which nvcc; nvcc --version; echo $CUDA_HOME",
    ),
    "engine": (
        "the whole log of one start: journalctl _SYSTEMD_INVOCATION_ID=$(systemctl show -p InvocationID --value UNIT)",
        "container: pip list | grep -i -E 'torch|sgl|flashinfer|nccl'",
    ),
    "network": ("container: ss -ltnp; ip -br addr; cat /etc/resolv.conf",),
}
_ALWAYS = (
    "the lines before the first error, not only the last ones; with rackwell: rackwell diagnose --container NAME",
)


@dataclasses.dataclass
class Telling:
    """Collects lines that look like trouble; bounded."""

    shapes: dict[str, tuple[int, Hit]] = dataclasses.field(default_factory=dict)

    def add(self, hit: Hit) -> None:
        """A line in which one of `PATTERNS` was found. Of lines that differ in numbers alone the first one counts."""
        shape = _SHAPE.sub("#", zeros(hit.message[:200]))
        if shape not in self.shapes and len(self.shapes) < _SHAPES:
            self.shapes[shape] = (score(hit.message), hit)

    def alarming(self, least: int = _ALARM) -> list[Hit]:
        """Lines that hardly anybody writes when all is well."""
        return [hit for points, hit in self.shapes.values() if points >= least]

    def best(self, most: int = 8) -> list[Hit]:
        """The most telling lines, in their order."""
        ranked = sorted(self.shapes.values(), key=lambda pair: (-pair[0], pair[1].number))
        chosen = [hit for points, hit in ranked[:most] if points > 0]
        return sorted(chosen, key=lambda hit: hit.number)


def score(message: str) -> int:
    """How much a line looks like the cause of trouble."""
    text = message[:1000]
    return sum(points for points, pattern in _COMPILED if pattern.search(text))


_COMPILED = [(points, re.compile(pattern)) for points, pattern in _SCORES]


def collect(lines: list[str]) -> list[str]:
    """Commands whose output would tell more, by what `lines` are about."""
    text = "\n".join(line[:500] for line in lines)
    areas = [area for area, pattern in _AREAS if re.search(pattern, text)]
    wanted = [command for area in (areas[:3] or ["engine", "systemd"]) for command in _COLLECT[area]]
    return [*_ALWAYS, *wanted]
