# SPDX-License-Identifier: Apache-2.0
"""Becomes ansible-playbook, tied to the life of the process that started it.

    python -m rackwell.ansible.tether PARENT-PID ARGUMENT...

ansible-runner starts its child with SIGHUP ignored. So, after the controller was killed, a play would go on for as long
as its step takes, unseen and with its container's lock free. The kernel sends it the signal of a Ctrl-C instead.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def become(parent: int, arguments: list[str]) -> None:
    """Replace this process by the ansible-playbook beside its Python; it gets SIGINT when process `parent` ends.

    Raises:
        SystemExit: the parent is gone already.
        OSError: there is no ansible-playbook.
    """
    # the setting survives exec, and is for this process alone: ansible ends its workers itself
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT))
    if os.getppid() != parent:
        raise SystemExit("rackwell: the run that started this play has ended")
    # a background shell starts its children with it ignored, and so would ansible
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    os.execv(program, [program, *arguments])  # noqa: S606 - to become the command is this file's purpose


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
