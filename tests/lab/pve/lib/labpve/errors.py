# SPDX-License-Identifier: Apache-2.0
"""STAND-IN (see the package). How a command ends badly: the text and the exit code of the real tools."""

from __future__ import annotations

import errno


class PveError(Exception):
    """Ends the command: ``text`` goes to stderr, ``code`` is the exit status.

    A Perl ``die`` exits with errno when it is set and with 255 otherwise; a task that ended in error exits 255.
    """

    def __init__(self, text: str, code: int = 255) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class UsageError(PveError):
    """An option or parameter was refused before anything was done: ``400 …`` and the command's synopsis, exit 255."""

    def __init__(self, lines: list[str], unknown: bool = False) -> None:
        head = [*lines, "400 unable to parse option"] if unknown else ["400 Parameter verification failed.", *lines]
        super().__init__("\n".join(head), 255)


def missing_config(node: str, vmid: int) -> PveError:
    """What every command says of a container that does not exist."""
    return PveError(f"Configuration file 'nodes/{node}/lxc/{vmid}.conf' does not exist", errno.ENOENT)
