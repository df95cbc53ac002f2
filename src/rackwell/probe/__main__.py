# SPDX-License-Identifier: Apache-2.0
"""``python -m rackwell.probe check | baseline | gate | require | codes | record``.

Exit status: 0 pass or degraded, 1 fail, 2 usage; ``record`` gives its command's. What is slow to import is imported by
the command that needs it: ``require`` runs before every start of the server.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rackwell.probe import commands, gate


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
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.register(subparsers)
    gate.register(subparsers)
    recorder = subparsers.add_parser("record", help="run a command and record what the GPUs do meanwhile")
    recorder.set_defaults(run=_record)
    recorder.add_argument("--out", type=Path, required=True, metavar="FILE")
    recorder.add_argument("--hz", type=_positive, default=5.0, help="samples a second, default: %(default)g")
    recorder.add_argument(
        "--window-start-pattern", type=_pattern, metavar="REGEX", help="stdout line that starts the window"
    )
    recorder.add_argument("--window-end-pattern", type=_pattern, metavar="REGEX", help="stdout line that ends it")
    recorder.add_argument("--server", type=_address, metavar="HOST:PORT", help="read this server's own metrics as well")
    recorder.add_argument("--server-hz", type=_positive, default=1.0, help="so often a second, default: %(default)g")
    recorder.add_argument("command", nargs="+", metavar="COMMAND")
    return parser


def _record(arguments: argparse.Namespace) -> int:
    from rackwell.probe.record import record

    if not arguments.out.parent.is_dir():
        sys.stderr.write(f"{arguments.out.parent} is not a directory\n")
        return 2
    return record(
        arguments.command,
        arguments.out,
        arguments.hz,
        arguments.window_start_pattern,
        arguments.window_end_pattern,
        arguments.server,
        arguments.server_hz,
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError("is no HOST:PORT")
    return host.strip("[]"), int(port)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"is no regular expression: {error}") from None
    return text


if __name__ == "__main__":
    raise SystemExit(main())
