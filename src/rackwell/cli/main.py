# SPDX-License-Identifier: Apache-2.0
"""Where the program begins and ends: nothing slow is imported before Ctrl-C is taken care of."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from rackwell.errors import ExitCode

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a run to end: Ctrl-C, a service manager or `timeout`, a terminal or a connection that is closed."""

_Handler = Callable[[int, FrameType | None], object]


def run() -> None:
    """Entry point of the program. Ends the process with the command's exit code."""
    _handle(_leave)
    code = main(sys.argv[1:])
    # all is done and told: what comes now only hastens the end, and changes nothing of its code
    _handle(lambda *_: os._exit(code))
    sys.exit(code)


def main(arguments: list[str]) -> int:
    """Run the command line `arguments`; returns the exit code."""
    try:
        _handle(_interrupt)
        from rackwell.cli import app

        return app.call(arguments)
    except KeyboardInterrupt:
        # a second one has nothing to interrupt any more
        _handle(signal.SIG_IGN)
        _say_interrupted()
        return int(ExitCode.INTERRUPTED)


def _handle(handler: _Handler | signal.Handlers) -> None:
    for number in SIGNALS:
        # started by nohup: the end of the terminal is nothing to it
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise KeyboardInterrupt


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Nothing has begun yet."""
    del number, frame
    _say_interrupted()
    os._exit(int(ExitCode.INTERRUPTED))


def _say_interrupted() -> None:
    try:
        os.write(2, b"interrupted\n")
    except OSError:
        return  # the terminal is gone
