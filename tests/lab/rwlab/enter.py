# SPDX-License-Identifier: Apache-2.0
"""Runs a command in a mount namespace of its own, whose root is this process's root. `enter.py COMMAND...`

`unshare -m` is not enough in a chroot: its namespace still has the outer machine's root, and from such a place the
kernel lets nobody make a user namespace (EPERM in unshare(2)), and with that no unprivileged container. So the
directory that is the root here becomes the namespace's root, as switch_root does it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MS_MOVE, _MS_REC, _MS_PRIVATE = 0x2000, 0x4000, 1 << 18
# the same numbers on every architecture of Linux
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_OPEN_TREE_CLONE, _AT_RECURSIVE, _AT_FDCWD, _MOVE_MOUNT_F_EMPTY_PATH = 1, 0x8000, -100, 4

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(what: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _mount(source: bytes | None, target: bytes, flags: int) -> None:
    _checked(f"mount {target.decode()}", _libc.mount(source, target, None, ctypes.c_ulong(flags), None))


def enter() -> None:
    """Leave the callers' mount namespace; nothing mounted from here on is seen outside."""
    _checked("unshare", _libc.unshare(_CLONE_NEWNS))
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    # entering a namespace goes to its own root, out of any chroot
    _checked("setns", _libc.setns(namespace, _CLONE_NEWNS))
    _mount(None, b"/", _MS_REC | _MS_PRIVATE)
    if os.path.samestat(Path("/").stat(), os.fstat(here)):
        return
    os.fchdir(here)
    # the directory may be no mount point: a copy of the tree below it, put onto it, is
    clone = _OPEN_TREE_CLONE | _AT_RECURSIVE
    tree = _checked("open_tree", _libc.syscall(_OPEN_TREE, _AT_FDCWD, b".", clone))
    _checked("move_mount", _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, b".", _MOVE_MOUNT_F_EMPTY_PATH))
    os.fchdir(tree)
    _mount(b".", b"/", _MS_MOVE)
    os.chroot(".")
    os.chdir("/")


if __name__ == "__main__":
    try:
        enter()
    except OSError as error:
        sys.exit(f"cannot make a mount namespace: {error.strerror}")
    os.execvp(sys.argv[1], sys.argv[1:])
