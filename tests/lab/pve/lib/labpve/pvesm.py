# SPDX-License-Identifier: Apache-2.0
"""STAND-IN (see the package). `pvesm path VOLUME` of a template; nothing else of it."""

from __future__ import annotations

import sys
from pathlib import Path

from .errors import PveError
from .host import Host


class Pvesm:
    """One invocation."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def run(self, words: list[str]) -> int:
        """Do what the words say; the exit code."""
        try:
            self.host.require_root()
            if len(words) != 2 or words[0] != "path":
                raise PveError("STAND-IN pvesm: only `pvesm path VOLUME` is in the laboratory")
            print(self.host.template(words[1]))
        except PveError as error:
            print(error.text, file=sys.stderr)
            return error.code
        return 0


def main(arguments: list[str] | None = None, root: str | None = None) -> int:
    """Entry of the script."""
    return Pvesm(Host(Path(root or "/"))).run(sys.argv[1:] if arguments is None else arguments)
