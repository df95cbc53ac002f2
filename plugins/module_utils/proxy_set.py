# SPDX-License-Identifier: Apache-2.0
"""The files of the proxy: a set in a directory of its own, named by its content, and a link to the one that is live."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from typing import NamedTuple

#: stands in the configuration for the name of its own set
MARK = "@SET@"
CONFIGURATION, KEYS, CERTIFICATE, KEY = "nginx.conf", "keys.conf", "certificate.pem", "key.pem"


class Wanted(NamedTuple):
    """A set as it is to be: its name, and the text of each file."""

    name: str
    files: Mapping[str, str]


def wanted(files: Mapping[str, str]) -> Wanted:
    """The set of `files`; `MARK` in the configuration becomes its name."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(b"%s\0%s\0" % (name.encode(), files[name].encode()))
    short = digest.hexdigest()[:20]
    return Wanted(short, {**files, CONFIGURATION: files[CONFIGURATION].replace(MARK, short)})


class Sets:
    """``ROOT/sets/NAME/`` and ``ROOT/live``, all of root alone."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.live = os.path.join(root, "live")
        self._sets = os.path.join(root, "sets")

    def path(self, name: str) -> str:
        """The directory of a set."""
        return os.path.join(self._sets, name)

    def current(self) -> str:
        """The name of the live set; empty when there is none."""
        try:
            name = os.path.basename(os.readlink(self.live))
        except OSError:
            return ""
        return name if os.path.isdir(self.path(name)) else ""

    def whole(self, want: Wanted) -> bool:
        """Whether the set is there, file for file, and nobody else can read it."""
        folder = self.path(want.name)
        try:
            if sorted(os.listdir(folder)) != sorted(want.files) or os.stat(folder).st_mode & 0o077:
                return False
            for name, text in want.files.items():
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as stream:
                    if stream.read() != text or os.stat(path).st_mode & 0o077:
                        return False
        except (OSError, UnicodeDecodeError):
            return False
        return True

    def read(self, name: str, file: str) -> str:
        """A file of a set; empty when it is not there."""
        try:
            with open(os.path.join(self.path(name), file), encoding="utf-8") as stream:
                return stream.read()
        except (OSError, UnicodeDecodeError):
            return ""

    def write(self, want: Wanted) -> None:
        """Write a set anew. It is there whole or not at all. Raises OSError."""
        for folder in (self.root, self._sets):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            os.chmod(folder, 0o700)
        folder, partial = self.path(want.name), self.path("." + want.name)
        for left in (partial, folder):
            shutil.rmtree(left, ignore_errors=True)
        os.mkdir(partial, 0o700)
        for name, text in want.files.items():
            handle = os.open(os.path.join(partial, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with open(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
        os.rename(partial, folder)

    def switch(self, name: str) -> None:
        """Make a set the live one; nobody ever finds none. Raises OSError."""
        beside = self.live + ".new"
        if os.path.lexists(beside):
            os.unlink(beside)
        os.symlink(os.path.join("sets", name), beside)
        os.replace(beside, self.live)

    def drop_link(self) -> None:
        """Have no live set."""
        if os.path.lexists(self.live):
            os.unlink(self.live)

    def keep_only(self, *names: str) -> None:
        """Remove all other sets, and what was left half-written."""
        if os.path.isdir(self._sets):
            for found in os.listdir(self._sets):
                if found not in names:
                    shutil.rmtree(os.path.join(self._sets, found), ignore_errors=True)


def keys_in(text: str) -> dict[str, str]:
    """Whose keys a file of keys holds, and what they are but for the case of letters."""
    return {name: key for key, name in re.findall(r'^    "bearer (\S+)" "(\S+)";$', text, re.MULTILINE)}
