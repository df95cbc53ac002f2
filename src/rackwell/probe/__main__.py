# SPDX-License-Identifier: Apache-2.0
"""``python -m rackwell.probe cuda | p2p | record``. Exit status: 0 pass, 1 fail, 2 usage;
``record`` gives its command's.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rackwell.probe import cuda_check, p2p_check
from rackwell.probe.record import record
from rackwell.probe.report import PASS

MIB = 1 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rackwell.probe", description="Prove that the GPUs here work.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    cuda = commands.add_parser("cuda", help="start CUDA, then write to and read from each GPU")
    cuda.set_defaults(run=_cuda)
    p2p = commands.add_parser("p2p", help="copy between all ordered pairs of GPUs, compare the bytes, measure")
    p2p.set_defaults(run=_p2p)
    for command, timeout in ((cuda, 120), (p2p, 300)):
        command.add_argument("--json", action="store_true", help="print the report as one JSON object")
        command.add_argument("--timeout", type=_positive, default=timeout, metavar="S", help="default: %(default)s")
        command.add_argument("--gpus", type=_count, metavar="N", help="how many GPUs there must be")
    p2p.add_argument("--size", type=_count, default=64, metavar="MIB", help="bytes of one copy, default: %(default)s")
    p2p.add_argument("--min-bandwidth", type=_floor, default=0.0, metavar="GB/S", help="floor of each pair, 0 = none")

    recorder = commands.add_parser("record", help="run a command and record what the GPUs do meanwhile")
    recorder.set_defaults(run=_record)
    recorder.add_argument("--out", type=Path, required=True, metavar="FILE")
    recorder.add_argument("--hz", type=_positive, default=5.0, help="samples a second, default: %(default)g")
    recorder.add_argument(
        "--window-start-pattern", type=_pattern, metavar="REGEX", help="stdout line that starts the window"
    )
    recorder.add_argument("--window-end-pattern", type=_pattern, metavar="REGEX", help="stdout line that ends it")
    recorder.add_argument("command", nargs="+", metavar="COMMAND")
    return parser


def _cuda(arguments: argparse.Namespace) -> int:
    report = cuda_check.check(arguments.timeout, arguments.gpus)
    rows = [
        [str(d["index"]), d.get("bus_id", "?"), d.get("uuid", "?"), d.get("name", "?"), _device_state(d)]
        for d in report["devices"]
    ]
    return _print(report, arguments.json, ["GPU", "bus", "uuid", "name", "result"], rows)


def _device_state(device: dict[str, Any]) -> str:
    if not device["steps"]:
        return "not reached"
    return next((f"FAIL: {step['step']}" for step in device["steps"] if step["error"]), "ok")


def _p2p(arguments: argparse.Namespace) -> int:
    report = p2p_check.check(arguments.timeout, arguments.size * MIB, arguments.min_bandwidth, arguments.gpus)
    rows = [
        [
            f"{pair['src']} -> {pair['dst']}",
            f"{pair['src_bus_id']} -> {pair['dst_bus_id']}",
            {True: "yes", False: "NO", None: "?"}[pair["can_access"]],
            {True: "verified", False: "FAIL", None: "not reached"}[pair["verified"]],
            "-" if pair["gb_per_s"] is None else f"{pair['gb_per_s']:.1f}",
        ]
        for pair in report["pairs"]
    ]
    return _print(report, arguments.json, ["pair", "bus", "access", "data", "GB/s"], rows)


def _record(arguments: argparse.Namespace) -> int:
    if not arguments.out.parent.is_dir():
        sys.stderr.write(f"{arguments.out.parent} is not a directory\n")
        return 2
    return record(
        arguments.command, arguments.out, arguments.hz, arguments.window_start_pattern, arguments.window_end_pattern
    )


def _print(report: dict[str, Any], as_json: bool, titles: list[str], rows: list[list[str]]) -> int:
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        sys.stdout.write(_text(report, titles, rows))
    return 0 if report["verdict"] == PASS else 1


def _text(report: dict[str, Any], titles: list[str], rows: list[list[str]]) -> str:
    table = [titles, *rows] if rows else []
    widths = [max(len(row[column]) for row in table) for column in range(len(titles))] if table else []
    lines = ["  ".join(cell.ljust(widths[column]) for column, cell in enumerate(row)).rstrip() for row in table]
    for entry in report["problems"]:
        lines += ["", f"{entry['what']} ({entry['where']})", f"  why: {entry['why']}", f"  fix: {entry['fix']}"]
    lines += ["", f"verdict: {report['verdict']}"]
    return "\n".join(lines).lstrip("\n") + "\n"


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _floor(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must not be below 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"is no regular expression: {error}") from None
    return text


if __name__ == "__main__":
    raise SystemExit(main())
