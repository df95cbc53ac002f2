# SPDX-License-Identifier: Apache-2.0
"""Support bundles: what was collected, without secrets, in one file that `rackwell diagnose` reads again.

A bundle is a gzipped tar with one text a source, in a fixed order and with fixed times: the same collection gives the
same bytes. Its index (``rackwell.bundle/1``) names every file with what it holds and what was hidden.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import zlib
from pathlib import Path
from typing import Any

import rackwell
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision.collection import Collection, Taken
from rackwell.provision.scrubbing import Scrubber

SCHEMA = "rackwell.bundle/1"
ROOT = "rackwell-bundle"
INDEX = "index.json"
_MOST_FILES, _MOST_FILE, _MOST = 400, 8 << 20, 64 << 20
_README = """\
A support bundle of rackwell. index.json says what each file is, where it comes from and how much was hidden in it.
Secrets were replaced by <hidden:KIND>. Look through it before you give it away: what is secret only to you, no program
knows. It is read again by: rackwell diagnose FILE
"""


def write(path: Path, collection: Collection, extra: dict[str, str], scrubber: Scrubber) -> dict[str, Any]:
    """Write the bundle of `collection`, by rename.

    Args:
        extra: name -> further text, such as the profile and the diagnosis.

    Returns:
        Its index.

    Raises:
        RackwellError: it cannot be written (exit 1).
    """
    gate = json.dumps(collection.facts.get("gate"), indent=1, sort_keys=True)
    scrubber.learn([*(one.text for one in collection.taken), *extra.values(), gate])
    files: dict[str, bytes] = {}
    rows: list[dict[str, Any]] = []
    for one in sorted(collection.taken, key=lambda each: (each.machine, each.name)):
        before = scrubber.hidden.total()
        name = f"{_plain(one.machine)}/{_plain(one.name)}.txt"
        row = {"path": name, "machine": one.machine, "source": one.name, "earlier": one.earlier, "look": one.look}
        put = _put(files, name, scrubber.scrub(one.text))
        row |= {"unread": scrubber.scrub(one.unread), "hidden": scrubber.hidden.total() - before}
        rows.append(row | put)
    for name, text in sorted(extra.items()):
        before = scrubber.hidden.total()
        row = {"path": name, "machine": "", "source": name, "earlier": False, "look": False, "unread": ""}
        put = _put(files, name, scrubber.scrub(text))
        rows.append(row | {"hidden": scrubber.hidden.total() - before} | put)
    index = {
        "schema": SCHEMA,
        "rackwell": rackwell.__version__,
        "container": collection.container,
        "host": collection.host,
        "facts": scrubber.scrub_data(collection.facts),
        "hidden": dict(sorted(scrubber.hidden.items())),
        "files": rows,
    }
    files[INDEX] = (json.dumps(index, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
    files["README.txt"] = _README.encode()
    try:
        _replace(path, _packed(files))
    except OSError as error:
        raise RackwellError(
            Problem("cannot-write", "the bundle cannot be written", str(path), error.strerror or str(error))
        ) from error
    return index


def _put(files: dict[str, bytes], name: str, text: str) -> dict[str, Any]:
    data = (text.rstrip("\n") + "\n" if text else "").encode("utf-8", "replace")
    files[name] = data
    return {"bytes": len(data), "lines": data.count(b"\n"), "sha256": hashlib.sha256(data).hexdigest()}


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).strip(".") or "unnamed"


def _packed(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as packed,
        tarfile.open(mode="w", fileobj=packed, format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in (INDEX, "README.txt", *sorted(set(files) - {INDEX, "README.txt"})):
            entry = tarfile.TarInfo(f"{ROOT}/{name}")
            entry.size, entry.mode = len(files[name]), 0o600
            archive.addfile(entry, io.BytesIO(files[name]))
    return out.getvalue()


def _replace(path: Path, data: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    # it may hold what only its owner knows to be secret
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
    partial.replace(path)


def is_bundle(path: Path) -> bool:
    """Whether a file looks like a bundle: a gzipped tar whose first member is the index."""
    try:
        with path.open("rb") as stream:
            packed = stream.read(4096)
        head = zlib.decompressobj(31).decompress(packed, 512) if packed[:2] == b"\x1f\x8b" else b""
    except (OSError, zlib.error):
        return False
    return head.startswith(f"{ROOT}/{INDEX}".encode())


def read(path: Path) -> Collection:
    """The collection in a bundle. Nothing is unpacked onto the disk.

    Raises:
        RackwellError: it is none, or too large to be one (exit 1).
    """
    try:
        files = _members(path)
        index = json.loads(files[INDEX])
        if index["schema"] != SCHEMA:
            raise ValueError(f"its schema is {index['schema']}, this rackwell knows {SCHEMA}")
        found = Collection(str(index["container"]), str(index["host"]), facts=dict(index["facts"]))
        for row in index["files"]:
            if row["machine"]:
                text = files.get(row["path"], b"").decode("utf-8", "replace")
                found.taken.append(
                    Taken(row["machine"], row["source"], text, row["unread"], bool(row["earlier"]), bool(row["look"]))
                )
        return found
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, LookupError, TypeError) as error:
        why = f"{error!r} is missing" if isinstance(error, LookupError) else str(error)
        fix = "give a file that `rackwell diagnose --bundle` wrote"
        raise RackwellError(
            Problem("bundle-damaged", "the bundle cannot be read", str(path), why, fix), ExitCode.FAILED
        ) from error


def _members(path: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    with tarfile.open(path, mode="r|gz") as archive:
        for entry in archive:
            name = entry.name.removeprefix(f"{ROOT}/")
            total += entry.size
            if len(files) >= _MOST_FILES or entry.size > _MOST_FILE or total > _MOST:
                raise ValueError("it is larger than a bundle")
            stream = archive.extractfile(entry) if entry.isreg() else None
            if stream is not None:
                files[name] = stream.read()
    return files
