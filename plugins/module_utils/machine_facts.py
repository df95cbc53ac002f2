# SPDX-License-Identifier: Apache-2.0
"""What a benchmark's result must say of the machine and the server beside its figures, without a secret in it.

Everything is read, nothing is asked of the server. What cannot be read is None.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional

SCHEMA = "rackwell.bench_facts/1"

#: names of the server's environment that can explain a difference
_TELLING = re.compile(
    r"^(NCCL|CUDA|NVIDIA|SGLANG|SGL|FLASHINFER|TORCH|PYTORCH|TRITON|OMP|MKL|HF_HUB_OFFLINE|LD_PRELOAD)"
)
_SECRET_NAME = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)
_SECRET_FLAG = re.compile(r"(--(?:[a-z-]*-)?(?:key|password|secret|auth-token|hf-token)[ =]+)(\"[^\"]*\"|\S+)")
_PROXY = re.compile(r"(://)[^/@\s]+@")
HIDDEN = "***"

#: what must be equal for a sweep to go on: what serves, and on what
SAME = ("server_release", "unit_sha256", "environment_sha256", "driver", "kernel")


def read(path: str) -> Optional[str]:
    """A small file's text without blanks around it; None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(1 << 20).strip()
    except OSError:
        return None


def masked(name: str, value: str) -> str:
    """A variable's value without what may be a secret: by its name, and a password in an address."""
    return HIDDEN if _SECRET_NAME.search(name) else _PROXY.sub(r"\1%s@" % HIDDEN, value)


def environment(entries: Iterable[str]) -> Dict[str, str]:
    """The telling variables of ``NAME=value`` entries, sorted."""
    pairs = [entry.partition("=") for entry in entries if "=" in entry]
    return {name: masked(name, value) for name, _, value in sorted(pairs) if _TELLING.match(name)}


def digest(text: Optional[str]) -> Optional[str]:
    """SHA-256 of a text in which secrets are masked: a digest of them could be tried out."""
    if text is None:
        return None
    lines = []
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        plain = name + "=" + masked(name, value) if equals and re.match(r"^[A-Za-z_]\w*$", name) else line
        lines.append(_SECRET_FLAG.sub(lambda found: found.group(1) + HIDDEN, plain))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def driver(text: Optional[str]) -> Optional[str]:
    """The version in ``/proc/driver/nvidia/version``."""
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text or "")
    return found.group(1) if found else None


def cpu(text: Optional[str]) -> Optional[str]:
    """``/proc/cpuinfo`` in a line: how many of what."""
    names = re.findall(r"^model name\s*:\s*(.+)$", text or "", re.MULTILINE)
    return "%d x %s" % (len(names), " ".join(names[0].split())) if names else None


def system(text: Optional[str]) -> Optional[str]:
    """The name in ``/etc/os-release``."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', text or "", re.MULTILINE)
    return found.group(1) if found else None


def properties(text: str) -> Dict[str, str]:
    """``systemctl show`` as a mapping."""
    return {name: value for name, _, value in (line.partition("=") for line in text.splitlines()) if name}


def facts(unit: Mapping[str, str], root: str, unit_file: str, environment_file: str) -> Dict[str, Any]:
    """``rackwell.bench_facts/1``. ``unit``: properties of the server's unit. ``root``: where the releases are."""
    pid = unit.get("MainPID", "0")
    process = read("/proc/%s/environ" % pid) if pid not in ("", "0") else None
    link = os.path.join(root, "current")
    release = os.path.basename(os.path.realpath(link)) if os.path.lexists(link) else None
    return {
        "schema": SCHEMA,
        "kernel": read("/proc/sys/kernel/osrelease"),
        "driver": driver(read("/proc/driver/nvidia/version")) or read("/sys/module/nvidia/version"),
        "container_os": system(read("/etc/os-release")),
        "cpu": cpu(read("/proc/cpuinfo")),
        "boot_id": read("/proc/sys/kernel/random/boot_id"),
        "server_release": release,
        "server_state": unit.get("ActiveState"),
        "server_invocation": unit.get("InvocationID") or None,
        "unit_sha256": digest(read(unit_file)),
        "environment_sha256": digest(read(environment_file)),
        "server_environment": environment((process or "").split("\0")),
    }


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> List[str]:
    """What of :data:`SAME` is no longer what was expected: ``driver: 595.58.03 then, 590.48.01 now``."""

    def short(value: Any) -> str:
        text = str(value)
        return text[:12] if re.match(r"^[0-9a-f]{64}$", text) else text

    return [
        "%s: %s then, %s now" % (name, short(expected[name]), short(found.get(name)))
        for name in SAME
        if expected.get(name) is not None and expected[name] != found.get(name)
    ]
