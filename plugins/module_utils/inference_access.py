# SPDX-License-Identifier: Apache-2.0
"""What another user can read, asked by becoming that user in a child process."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Sequence


def has_user(name: str) -> bool:
    """Whether the machine knows the user."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _unreadable(paths: Sequence[str]) -> list[tuple[str, str]]:
    """Paths that this process cannot read, with the system's reason."""
    bad = []
    for path in paths:
        try:
            if os.path.isdir(path):
                os.listdir(path)
            else:
                with open(path, "rb") as stream:
                    stream.read(1)
        except OSError as error:
            bad.append((path, error.strerror or str(error)))
    return bad


def unreadable_as(user: str, paths: Sequence[str]) -> list[tuple[str, str]]:
    """Paths that ``user`` cannot read, each with the system's reason; empty when all can be read.

    Raises:
        KeyError: there is no such user.
    """
    account = pwd.getpwnam(user)
    if os.getuid() != 0 or account.pw_uid == os.getuid():
        return _unreadable(paths)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # nothing but system calls and os._exit, whatever happens: the child must not run the module's clean-up
        try:
            os.close(reader)
            try:
                os.initgroups(user, account.pw_gid)
                os.setgid(account.pw_gid)
                os.setuid(account.pw_uid)
                answer = _unreadable(paths)
            except OSError as error:
                answer = [(path, f"cannot become {user}: {error}") for path in paths]
            with os.fdopen(writer, "w") as out:
                json.dump(answer, out)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    if not text:
        return [(paths[0], f"the look as {user} ended without an answer")]
    return [(str(path), str(why)) for path, why in json.loads(text)]
