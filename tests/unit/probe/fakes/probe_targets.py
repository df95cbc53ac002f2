# SPDX-License-Identifier: Apache-2.0
"""Functions that the tests of rackwell.probe.child run in a child."""

import os
import signal
import sys
import threading


def echo(emit, arguments):
    print("a library that prints to stdout")
    emit({"got": arguments})


def hang_after_event(emit, arguments):
    emit({"begin": "the call that hangs"})
    threading.Event().wait()


def segfault(emit, arguments):
    emit({"begin": "the call that crashes"})
    os.kill(os.getpid(), signal.SIGSEGV)


def raise_error(emit, arguments):
    raise RuntimeError("a fault of ours")


def leave(emit, arguments):
    emit({"begin": "x"})
    sys.exit(0)
