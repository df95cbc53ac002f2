# SPDX-License-Identifier: Apache-2.0
"""The commands ``check``, ``baseline`` and ``codes``: from arguments to output and exit status."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackwell.probe.codes import CHECKS, CODES, FAIL

PASSED, FAILED, USAGE = 0, 1, 2
CODES_SCHEMA = "rackwell.gpu_codes/1"


class UsageError(Exception):
    """A file or value on the command line cannot be used."""


def register(commands: Any) -> None:
    """Add the three to what ``add_subparsers`` gave."""
    check = commands.add_parser("check", help="prove that the GPUs start, copy to each other and are as fast as due")
    _options(check)
    check.add_argument("--baseline", type=Path, metavar="FILE", help="what this host was once; may be absent")
    check.add_argument("--beside-server", action="store_true", help="a server uses the GPUs: take no figures")
    check.add_argument("--only", type=_checks, default=(), metavar="ID,…", help="of: " + ", ".join(CHECKS))
    check.add_argument("--mode", choices=("quick", "full"), default="full", help="default: %(default)s")
    check.set_defaults(run=_guarded(run_check))
    record = commands.add_parser("baseline", help="measure several times and record what this host reaches")
    _options(record)
    record.add_argument("--runs", type=_runs, default=5, metavar="N", help="2 or more, default: %(default)s")
    record.add_argument("--out", type=Path, required=True, metavar="FILE", help="rackwell.gpu_baseline/1")
    record.set_defaults(run=_guarded(run_baseline))
    codes = commands.add_parser("codes", help="print what a check can find, with causes and remedies")
    codes.add_argument("--json", action="store_true", help="as one JSON object")
    codes.set_defaults(run=run_codes)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--gpus", type=_count, metavar="N", help="how many GPUs there must be")
    parser.add_argument("--expect", type=Path, metavar="FILE", help="JSON with floors, environment, nccl_library")
    parser.add_argument("--host-facts", metavar="FILE", help="rackwell.gpu_host/1 of the Proxmox host; - = stdin")
    parser.add_argument("--timeout", type=_positive, default=600.0, metavar="S", help="default: %(default)g")
    parser.add_argument("--size", type=_count, default=256, metavar="MIB", help="a buffer's, default: %(default)s")


def run_check(arguments: argparse.Namespace) -> int:
    from rackwell.probe import render
    from rackwell.probe.check import check

    report = check(
        mode=arguments.mode,
        baseline=arguments.baseline,
        beside_server=arguments.beside_server,
        only=arguments.only,
        **_shared(arguments),
    )
    sys.stdout.write(json.dumps(report) + "\n" if arguments.json else render.text(report))
    return FAILED if report["verdict"] == FAIL else PASSED


def run_baseline(arguments: argparse.Namespace) -> int:
    from rackwell.probe import baseline, regression, render
    from rackwell.probe.check import check

    if not arguments.out.parent.is_dir():
        raise UsageError(f"{arguments.out.parent} is not a directory")
    options = _shared(arguments)
    runs, report = [], {}
    for number in range(1, arguments.runs + 1):
        sys.stderr.write(f"run {number} of {arguments.runs}\n")
        report = check(mode="full", **options)
        if report["verdict"] == FAIL:
            # what is recorded now would be taken for healthy ever after
            sys.stdout.write(json.dumps(report) + "\n" if arguments.json else render.text(report))
            sys.stderr.write("this machine's check fails: nothing was recorded\n")
            return FAILED
        names = {gpu["index"]: gpu["uuid"] for gpu in report["gpus"]}
        runs.append(regression.values_of(report["measurements"], names.__getitem__))
    recorded = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        content = baseline.build(baseline.machine_of(report), runs, recorded)
    except ValueError as error:
        sys.stderr.write(f"nothing was recorded: {error}\n")
        return FAILED
    baseline.write(arguments.out, content)
    told = f"{len(content['values'])} figures of {arguments.runs} runs recorded in {arguments.out}\n"
    sys.stdout.write(json.dumps(content) + "\n" if arguments.json else told)
    return PASSED


def run_codes(arguments: argparse.Namespace) -> int:
    from rackwell.probe.errors import BY_CODE

    table = [code.as_dict() for code in CODES.values()]
    if arguments.json:
        errors = [
            {"code": code, "causes": [{"when": a.when, "why": a.cause, "fix": a.fix} for a in advice]}
            for code, advice in sorted(BY_CODE.items())
        ]
        told = {"schema": CODES_SCHEMA, "checks": CHECKS, "codes": table, "driver_errors": errors}
        sys.stdout.write(json.dumps(told) + "\n")
        return PASSED
    for entry in table:
        sys.stdout.write(f"{entry['code']} ({entry['check']}, {entry['verdict']}): {entry['title']}\n")
        sys.stdout.write(f"  why: {entry['why']}\n  fix: {entry['fix']}\n")
    return PASSED


def _guarded(function: Any) -> Any:
    """A file that cannot be used is a matter of usage, told in one line."""

    def run(arguments: argparse.Namespace) -> int:
        from rackwell.probe.expectation import ExpectationError

        try:
            status: int = function(arguments)
        except (UsageError, ExpectationError) as error:
            sys.stderr.write(f"{error}\n")
            return USAGE
        return status

    return run


def _shared(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "gpus": arguments.gpus,
        "expect": _read(arguments.expect) if arguments.expect else None,
        "host_facts": _facts(arguments.host_facts) if arguments.host_facts else None,
        "timeout": arguments.timeout,
        "size": arguments.size,
    }


def _read(path: Path | None) -> Mapping[str, Any]:
    """A JSON object from a file, None = stdin. Raises UsageError."""
    try:
        content = json.loads(sys.stdin.read() if path is None else path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path or 'stdin'} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path or 'stdin'} holds no JSON object")
    return content


def _facts(name: str) -> Mapping[str, Any]:
    content = _read(None if name == "-" else Path(name))
    if not str(content.get("schema", "")).startswith("rackwell.gpu_host/"):
        raise UsageError(f"{name} is no rackwell.gpu_host/1")
    return content


def _checks(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no check {unknown[0]}; there are {', '.join(CHECKS)}")
    return names


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _runs(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError("must be at least 2: one run does not show its noise")
    return value
