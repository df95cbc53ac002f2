# SPDX-License-Identifier: Apache-2.0
"""What is installed in an environment, held against the wheels that it was made of.

The wheel is the measure, since its own hash is known: what stands in the environment may have been damaged together
with the list of it. Only what the installer wrote itself (programs in ``bin``, its own notes) is held against the
``RECORD`` that it left. Files that no wheel brought, such as compiled Python, are not looked at. Standard library only.
"""

from __future__ import annotations

import base64
import binascii
import collections
import concurrent.futures
import csv
import hashlib
import os
import stat
import struct
import zipfile
import zlib
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

SETTLED_NS = 1577836800 * 10**9
"""Time of every installed file, 2020-01-01 UTC: the same on all machines and older than whatever is compiled from it,
so that a compiler's cache that came from another machine counts as new enough."""

_CHUNK = 1 << 20
_BATCH = 512
#: what reading a file that is no wheel, or a damaged one, may raise
BROKEN = (ValueError, LookupError, RuntimeError, EOFError, struct.error, zipfile.BadZipFile, zlib.error, csv.Error)


class Damage(NamedTuple):
    """One installed file that is not what it must be. `path` is relative to the environment."""

    project: str
    path: str
    why: str

    def __str__(self) -> str:
        return "%s (%s)" % (self.path, self.why)


class _File(NamedTuple):
    """What must stand at `path`: its hash as ``RECORD`` tells it, and the member of the wheel that brought it."""

    path: str
    hash: str
    project: str
    blob: str = ""
    member: str = ""


def site_packages(env: str, python: str) -> str:
    """Where packages lie in an environment of Python ``X.Y``."""
    return "%s/lib/python%s/site-packages" % (env, python)


def damaged(env: str, python: str, wheels: Iterable[Tuple[str, str]], *, settle: bool = False) -> List[Damage]:
    """The files of `env` that are not what their wheels say, in order of their path.

    Args:
        python: ``X.Y``.
        wheels: project and path of each wheel, whose content is known to be right.
        settle: give every file the time `SETTLED_NS`. Else nothing is changed.
    """
    found: List[Damage] = []
    files: List[_File] = []
    for project, blob in wheels:
        try:
            files += _expected(env, python, project, blob)
        except (OSError, *BROKEN) as error:
            found.append(Damage(project, os.path.basename(blob), "cannot be compared: %s" % (error or type(error))))
    batches = [files[start : start + _BATCH] for start in range(0, len(files), _BATCH)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        wrong = [one for batch in pool.map(lambda part: _look(part, settle), batches) for one in batch]
    wrong = [(file, why) for file, why in wrong if not _as_in_wheel(file)]
    # two wheels may bring one file, each its own (build_backend.py, by mistake): whichever came last stands there
    brought, failed = collections.Counter(f.path for f in files), collections.Counter(f.path for f, _ in wrong)
    found += [
        Damage(f.project, os.path.relpath(f.path, env), why) for f, why in wrong if failed[f.path] == brought[f.path]
    ]
    return sorted(found, key=lambda one: one.path)


def _expected(env: str, python: str, project: str, blob: str) -> List[_File]:
    site = site_packages(env, python)
    files: Dict[str, _File] = {}
    with zipfile.ZipFile(blob) as wheel:
        records = [n for n in wheel.namelist() if n.endswith(".dist-info/RECORD") and n.count("/") == 1]
        if len(records) != 1:
            raise ValueError("it holds %d lists of its files" % len(records))
        text = wheel.read(records[0]).decode("utf-8")
    info = records[0].rpartition("/")[0]
    for member, hash_ in _rows(text):
        path = _place(env, site, info[: -len(".dist-info")] + ".data/", member)
        if path and hash_:
            files[path] = _File(path, hash_, project, blob, member)
    own = "%s/%s/RECORD" % (site, info)
    try:
        with open(own, encoding="utf-8", newline="") as stream:
            written = list(_rows(stream.read()))
    except (OSError, UnicodeDecodeError, csv.Error):
        files[own] = _File(own, "", project)
        written = []
    for member, hash_ in written:
        path = os.path.normpath("%s/%s" % (site, member))
        if hash_ and path not in files and path.startswith(env + "/") and not member.endswith(".pyc"):
            files[path] = _File(path, hash_, project)
    return list(files.values())


def _rows(text: str) -> Iterable[Tuple[str, str]]:
    """Path and hash of each line of a ``RECORD``."""
    for row in csv.reader(text.splitlines()):
        if row:
            yield row[0], row[1] if len(row) > 1 else ""


def _place(env: str, site: str, data: str, member: str) -> str:
    """Where a wheel's file is installed as it is; empty for what the installer changes or puts elsewhere."""
    if not member.startswith(data):
        return "%s/%s" % (site, member)
    kind, _, rest = member[len(data) :].partition("/")
    return {"purelib": "%s/%s" % (site, rest), "platlib": "%s/%s" % (site, rest), "data": "%s/%s" % (env, rest)}.get(
        kind, ""
    )


def _look(files: List[_File], settle: bool) -> List[Tuple[_File, str]]:
    wrong = []
    for file in files:
        why = _wrong(file, settle)
        if why:
            wrong.append((file, why))
    return wrong


def _wrong(file: _File, settle: bool) -> str:
    """What is wrong with an installed file, empty for nothing."""
    if not file.hash:
        return "it is missing or cannot be read"
    name, _, wanted = file.hash.partition("=")
    try:
        digest = hashlib.new(name)
        handle = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except ValueError:
        return ""  # a hash that nobody can compute says nothing
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return error.strerror or str(error)
    try:
        with open(handle, "rb", buffering=0) as stream:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode):
                return "it is no file"
            while True:
                block = stream.read(_CHUNK)
                if not block:
                    break
                digest.update(block)
            if base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode() != wanted.rstrip("="):
                return "its content was changed"
            if settle and state.st_mtime_ns != SETTLED_NS:
                os.utime(handle, ns=(SETTLED_NS, SETTLED_NS))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _as_in_wheel(file: _File) -> bool:
    """Whether a file is what its wheel holds although the wheel's own list says otherwise: some lists are wrong."""
    if not file.member:
        return False
    try:
        with zipfile.ZipFile(file.blob) as wheel, open(file.path, "rb") as installed:
            return wheel.read(file.member) == installed.read()
    except (OSError, binascii.Error, *BROKEN):
        return False


def projects(found: Optional[List[Damage]]) -> List[str]:
    """The projects that damaged files belong to."""
    return sorted({one.project for one in found or []})


def summary(found: List[Damage], most: int = 20) -> List[Dict[str, Any]]:
    """For a module's result: the first of them."""
    return [one._asdict() for one in found[:most]]
