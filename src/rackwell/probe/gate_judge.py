# SPDX-License-Identifier: Apache-2.0
"""How the boot gate comes to its verdict: which checks it makes, and what of two of them counts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rackwell.probe.gate_verdict import Moment, one_line

CONFIG_SCHEMA = "rackwell.gate_config/1"
Report = dict[str, Any]
Check = Callable[..., Report]
#: with less time left than this the full check would only be cut off, seconds
_LEAST_FOR_FULL = 30.0
#: checks that everything after them needs: when one of these fails, the full check can tell no more
_STRUCTURE = frozenset({"nodes", "driver", "gpus", "cuda"})
#: seen once is enough: a second run that does not show it proves nothing
_NEVER_FORGIVEN = frozenset(
    {
        "cuda-wrong-data",
        "cuda-hang",
        "p2p-corrupt",
        "p2p-corrupt-one-way",
        "p2p-hang",
        "allreduce-wrong",
        "allreduce-hang",
    }
)
#: a bug of the probe must not let the server start, and has to be told
_UNFORESEEN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
_SERVER_GROUPS = tuple(
    Path(root) / "system.slice/rackwell-inference.service/cgroup.procs"
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
)


class ConfigError(ValueError):
    """The gate's configuration cannot be used."""


def read_config(path: Path) -> dict[str, Any]:
    """The configuration, with its types looked at. Raises ConfigError."""
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict) or config.get("schema") != CONFIG_SCHEMA:
        raise ConfigError(f"{path} is not of the schema {CONFIG_SCHEMA}")
    for key in ("gpus", "timeout", "size"):
        value = config.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{path}: '{key}' must be a whole number above 0, found {value!r}")
    if config.get("hold_on") not in ("fail", "degraded"):
        raise ConfigError(f"{path}: 'hold_on' must be fail or degraded, found {config.get('hold_on')!r}")
    if not isinstance(config.get("expect", {}), dict):
        raise ConfigError(f"{path}: 'expect' must be an object")
    if not isinstance(config.get("baseline"), (str, type(None))):
        raise ConfigError(f"{path}: 'baseline' must be a path")
    return config


def _probe_check(**options: Any) -> Report:
    from rackwell.probe.check import check

    report: Report = check(**options)
    return report


def judge(path: Path, asked: bool, check: Check | None, moment: Callable[[], Moment]) -> dict[str, Any]:
    """The verdict without its stamps; whatever goes wrong with the gate itself holds the server."""
    try:
        config = read_config(path)
        return _checked(config, asked or config.get("full") is True, check or _probe_check, moment)
    except ConfigError as error:
        fix = "rackwell provision writes it anew"
        return _verdict("fail", "gate-config", f"gate-config: {error}. Fix: {fix}", True, None, None)
    except _UNFORESEEN as error:
        why = f"the gate itself failed: {type(error).__name__}: {error}"
        line = f"gate-failed: {why}. Fix: report this; log: journalctl -u rackwell-gpu-gate"
        return _verdict("fail", "gate-failed", line, True, None, None)


def _checked(config: dict[str, Any], full: bool, check: Check, moment: Callable[[], Moment]) -> dict[str, Any]:
    timeout = float(config["timeout"])
    begin = moment().uptime
    options = {
        "gpus": config["gpus"],
        "expect": config.get("expect", {}),
        "baseline": Path(config["baseline"]) if config.get("baseline") else None,
        "host_facts": None,
        "beside_server": server_runs(),
        "size": config["size"],
    }
    first = None
    report = _sound(check(mode="full" if full else "quick", timeout=timeout, **options))
    left = timeout - (moment().uptime - begin)
    if not full and report["verdict"] != "pass" and not _structural(report) and left >= _LEAST_FOR_FULL:
        first, report = report, _sound(check(mode="full", timeout=left, **options))
    verdict, code, line = _settle(first, report)
    held = verdict == "fail" or (verdict == "degraded" and config["hold_on"] == "degraded")
    return {
        **_verdict(verdict, code, line, held, report["mode"], report),
        "container": config.get("container"),
        "hold_on": config["hold_on"],
        "first": None
        if first is None
        else {"mode": "quick", "verdict": first["verdict"], "code": _worst(first)["code"]},
    }


def _verdict(verdict: str, code: str, line: str, held: bool, mode: str | None, report: Report | None) -> dict[str, Any]:
    return {"verdict": verdict, "held": held, "mode": mode, "code": code, "line": one_line(line), "report": report}


def _sound(report: Any) -> Report:
    """The report, when it is one. Raises ValueError."""
    if not isinstance(report, dict) or report.get("verdict") not in ("pass", "degraded", "fail"):
        raise ValueError("the check gave no verdict")
    return report


def _settle(first: Report | None, report: Report) -> tuple[str, str, str]:
    """Verdict, code and line of one check, or of two of which the second looked more closely."""
    verdict = str(report["verdict"])
    if first is not None and first["verdict"] == "fail" and verdict != "fail":
        worst = _worst(first)
        told = f"{_line(worst)} (seen by the quick check, and not again by the full one)"
        return ("fail" if _codes(first) & _NEVER_FORGIVEN else "degraded"), worst["code"], told
    if verdict == "pass":
        count = len(report.get("gpus") or [])
        return (
            verdict,
            "ok",
            f"{count} GPUs, {report.get('mode')} check clean, {float(report.get('seconds') or 0):.1f} s",
        )
    worst = _worst(report)
    others = len(report.get("problems") or []) - 1
    return verdict, worst["code"], _line(worst) + (f" (and {others} more)" if others > 0 else "")


def _worst(report: Report) -> dict[str, str]:
    """The first problem of the worst verdict, as code, what, where and fix."""
    codes = {f.get("code") for f in report.get("findings") or [] if f.get("verdict") == "fail"}
    problems = report.get("problems") or [{}]
    found = next((p for p in problems if p.get("code") in codes), problems[0])
    parts = {key: str(found.get(key) or "") for key in ("code", "what", "where", "why", "fix")}
    return {
        **parts,
        "code": parts["code"] or "gpu-check-failed",
        "what": parts["what"] or "the check failed without a reason",
    }


def _line(problem: dict[str, str]) -> str:
    fix = f" Fix: {problem['fix'].rstrip('.')}" if problem["fix"] else ""
    return f"{problem['code']}: {problem['what'].rstrip('.')}.{fix}"


def _codes(report: Report) -> set[Any]:
    return {problem.get("code") for problem in report.get("problems") or []}


def _structural(report: Report) -> bool:
    return any(f.get("check") in _STRUCTURE and f.get("verdict") == "fail" for f in report.get("findings") or [])


def server_runs(groups: tuple[Path, ...] = _SERVER_GROUPS) -> bool:
    """Whether the server's unit has processes. Asked of its control group: the service user may not ask systemd."""
    for path in groups:
        with contextlib.suppress(OSError):
            if path.read_text(encoding="ascii").strip():
                return True
    return False
