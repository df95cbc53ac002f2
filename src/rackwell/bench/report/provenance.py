# SPDX-License-Identifier: Apache-2.0
"""What was measured on what: rows of a table, and what the result says of each part."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from rackwell import page
from rackwell.bench.result import BenchResult
from rackwell.page.scales import UNKNOWN, number

#: Names whose values are secrets, should a result of others carry one.
_SECRET = re.compile(r"key|token$|secret|password|credential", re.IGNORECASE)
#: Of the environment, what is told elsewhere or is of no use to a reader.
_ELSEWHERE = {"driver", "boot_id", "unit_sha256", "server_invocation", "matrix"}

Rows = list[tuple[str, list[str], bool]]
"""Name, lines, and whether they are code."""


def rows(result: BenchResult) -> Rows:
    """Every part that is known."""
    release, profile = result.release, result.profile
    found: Rows = [("Date", [page.when(result.date_utc)], False)]
    found.append(("Host", [f"{result.container} on {result.host}" if result.host else result.container], False))
    if release:
        found += [
            ("Release", [release.name], False),
            ("Release digest", [release.digest], True),
            ("Sources", [f"{name} {version}" for name, version in release.sources.items()], False),
            ("Patches", release.patches or ["none"], False),
        ]
    if profile:
        found += [
            ("Profile", [profile.name], False),
            ("Profile digest", [profile.digest], True),
            ("Model", [_model(result)], False),
            ("Server flags", [flags(profile.flags)] if profile.flags else [], True),
        ]
    found += [
        ("Server says", [_server(result)], False),
        ("GPUs", _gpus(result), False),
        ("Driver", [result.hardware.driver_version or UNKNOWN], False),
        *_environment(result.environment),
        ("GPU validation", _topology(result), False),
        ("Sweep", [f"{result.bench}: {settings(result.sweep)}" if result.sweep else result.bench], False),
        ("Client", [f"{result.client.name} {result.client.version or ''}".strip()], False),
        ("Command of a point", [shlex.join(result.points[0].command)] if _command(result) else [], True),
        ("Run", [result.run_id], True),
    ]
    if result.origin:
        origin = result.origin
        found.append(("Imported from", [f"{origin.tool} {origin.version or ''}".strip(), origin.file or ""], False))
        found.append(("Digest of the file", [origin.sha256 or ""], True))
        found.append(("That tool does not tell", [", ".join(origin.lost)], False))
    return [(name, [line for line in lines if line], code) for name, lines, code in found if any(lines)]


def flags(values: Mapping[str, Any]) -> str:
    """Flags of the server as on a command line; secrets are masked."""
    words = []
    for name, value in values.items():
        if value is False:
            words.append(f"{name}=false")
        elif value is True:
            words.append(f"--{name}")
        else:
            words.append(f"--{name} {masked(name, value)}")
    return " ".join(words)


def settings(values: Mapping[str, Any]) -> str:
    """Settings as ``name value`` pairs; secrets are masked."""
    return ", ".join(f"{name} {_plain(masked(name, value))}" for name, value in values.items())


def masked(name: str, value: Any) -> Any:
    """The value, unless its name says that it is a secret."""
    return "***" if _SECRET.search(name) and value is not None else value


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({settings(value)})"
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    return str(value)


def _command(result: BenchResult) -> bool:
    return bool(result.points) and bool(result.points[0].command)


def _model(result: BenchResult) -> str:
    profile = result.profile
    if profile is None:
        return UNKNOWN
    words = [profile.served_name or UNKNOWN]
    if profile.repository:
        words.append(f"{profile.repository} at {profile.revision or 'an unknown commit'}")
    if profile.model_path:
        words.append(f"in {profile.model_path}")
    return ", ".join(words)


def _server(result: BenchResult) -> str:
    server = next((point.server for point in result.points if point.server.version), None)
    if server is None:
        return ""
    return f"version {server.version}, tensor parallel {server.tp_size or UNKNOWN}"


def _gpus(result: BenchResult) -> list[str]:
    lines = []
    for i, gpu in enumerate(result.hardware.gpus):
        limit = f", limit {number(gpu.power_limit_w)} W" if gpu.power_limit_w else ""
        lines.append(f"{i}: {gpu.name}{limit}{f', {gpu.uuid}' if gpu.uuid else ''}")
    return lines


def _topology(result: BenchResult) -> list[str]:
    seen = result.topology
    if seen is None or not seen.verdict:
        return []
    return [f"{seen.verdict}, {page.when(seen.date_utc)}" if seen.date_utc else seen.verdict]


def _environment(values: Mapping[str, Any]) -> Rows:
    names = {"kernel": "Kernel", "container_os": "Container", "cpu": "CPU", "power_limits_w": "Power limits, W"}
    found: Rows = []
    rest: list[str] = []
    for name, value in values.items():
        if name in _ELSEWHERE or value is None:
            continue
        shown = masked(name, value)
        if name in names:
            found.append((names[name], [_plain(shown)], False))
        elif isinstance(shown, Mapping):
            rest += [f"{key}={_plain(masked(key, each))}" for key, each in shown.items()]
        else:
            rest.append(f"{name}={_plain(shown)}")
    return [*found, ("Environment", rest, True)]
