# SPDX-License-Identifier: Apache-2.0
"""Starts a Python program with options that stand on no command line. On the host: /usr/local/lib/rackwell/serve.py

Run as ``python serve.py MODULE OPTION...``; it is what ``python -m MODULE OPTION...`` would be, with the options of the
file ``flags`` among them, that systemd hands out in ``$CREDENTIALS_DIRECTORY`` (or in ``$RUNTIME_DIRECTORY``). Engines
log their arguments: the secrets are hidden in what this process writes. Its children do not log them.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

HIDDEN = "***"
#: what is shorter would be blotted out in the middle of other words
SHORTEST = 8
#: systemd does not try again after it
WRONG_USAGE = 2


class Masked:
    """A text stream that hides secrets in whatever is written to it."""

    def __init__(self, stream: Any, secrets: Iterable[str]) -> None:
        self._stream = stream
        known = list(secrets)
        forms = {
            form for one in known if len(one) >= SHORTEST for form in (one, repr(one)[1:-1], json.dumps(one)[1:-1])
        }
        self._forms = sorted(forms, key=len, reverse=True)
        # a short one is hidden where its name says what it is
        short = "|".join(re.escape(repr(one)) for one in known if len(one) < SHORTEST)
        self._named = re.compile(rf"((?:key|password|secret|token)=)(?:{short})") if short else None

    def write(self, text: str) -> int:
        """Write, without the secrets."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, HIDDEN)
        if self._named is not None:
            text = self._named.sub(rf"\1'{HIDDEN}'", text)
        self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def end(why: str) -> NoReturn:
    """End before the engine is asked, in a way that systemd and the log of the start can tell."""
    sys.stderr.write(f"rackwell: error: credential flags: {why}; write it anew: rackwell provision CONTAINER\n")
    raise SystemExit(WRONG_USAGE)


def read(environment: dict[str, str]) -> dict[str, str]:
    """The options of the credential; ends the process where there is none, or an empty one."""
    folder = environment.get("CREDENTIALS_DIRECTORY") or environment.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if not folder:
        end("systemd handed out none")
    try:
        with open(os.path.join(folder, "flags"), encoding="utf-8") as stream:
            text = stream.read()
    except OSError as error:
        end(f"{error.strerror} ({error.filename})")
    if not text.strip():
        end("it is empty")
    try:
        flags = {str(name): str(value) for name, value in json.loads(text).items()}
    except (ValueError, AttributeError):
        # the text is not told: it may be half a secret
        end("it is damaged")
    for name, value in flags.items():
        if not value:
            end(f"{name} is empty")
    return flags


def main(arguments: list[str], environment: dict[str, str]) -> None:
    """Become the program."""
    flags = read(environment)
    sys.stdout = Masked(sys.stdout, flags.values())
    sys.stderr = Masked(sys.stderr, flags.values())
    # with `=`, a value may begin with a dash
    sys.argv = [*arguments, *(f"--{name}={value}" for name, value in flags.items())]
    # as `python -m` has it
    sys.path[0] = os.getcwd()
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:], dict(os.environ))
