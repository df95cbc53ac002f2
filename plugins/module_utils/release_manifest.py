# SPDX-License-Identifier: Apache-2.0
"""The manifest of a release as both ends read it, and the pieces in which its wheels travel."""

from __future__ import annotations

import hashlib
import json
import re
import stat
import tarfile
import zipfile
from typing import Any, BinaryIO, Dict, List, Tuple, Union

from ansible_collections.rackwell.gpu.plugins.module_utils import cuda_compiler

SCHEMA = "rackwell.release/1"
CHUNK_BYTES = 512 << 20
"""The most that one transfer holds, so that neither side needs room for the whole release twice."""

BESIDE = ("sbom.cdx.json", "provenance.json", "manifest.json.sig")
"""What may lie beside a manifest and travels with it: bill of materials, provenance, signature."""

DIGEST = re.compile(r"^[0-9a-f]{64}\Z")
SLOT = re.compile(r"^[a-z][a-z0-9-]{0,63}\Z")
RESERVED = ("store", "releases", "uv", "cache")
_PYTHON = re.compile(r"^3\.[0-9]{1,2}\Z")
_WHEEL = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl\Z")
_MEMBER = re.compile(r"^([0-9a-f]{64})\.([0-9]+)\Z")


class ReleaseError(Exception):
    """Something that ends the task; the parts are those of every rackwell error."""

    def __init__(self, code: str, what: str, where: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.parts: Dict[str, str] = {"code": code, "what": what, "where": where, "why": why, "fix": fix}


class Manifest:
    """A manifest that was checked. `digest` is the release's name, `python` the ``X.Y`` it was made for."""

    def __init__(self, text: str, where: str = "manifest.json") -> None:
        """Raises ReleaseError for a text that is not a manifest of this schema."""
        self.text = text
        self.digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        try:
            data = json.loads(text, parse_constant=_no_constant)
            if data["schema"] != SCHEMA:
                raise ValueError("its schema is %s, this rackwell knows %s" % (data["schema"], SCHEMA))
            self.name = str(data["name"])
            self.python = str(data["python"])
            self.platform = str(data["platform"])
            self.requirements_sha256 = str(data["requirements_sha256"])
            self.wheels: List[Dict[str, Any]] = list(data["wheels"])
            self.uv: Dict[str, Any] = dict(data["uv"])
            self.cuda: Any = data.get("cuda")
            """The compiler of its kernels; `cuda_compiler` reads it. None when the build does not declare one."""
            cuda_compiler.declared(self.cuda, "")
            self.blobs: Dict[str, int] = {}
            """Every file that must be in the store: SHA-256 -> bytes."""
            for wheel in [*self.wheels, self.uv]:
                if not DIGEST.match(wheel["sha256"]) or not _WHEEL.match(wheel["filename"]):
                    raise ValueError("it names a wheel as %r" % (wheel,))
                size = wheel["size"]
                if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                    raise ValueError("it gives a wheel the size %r" % (size,))
                self.blobs[wheel["sha256"]] = size
            if not _PYTHON.match(self.python):
                raise ValueError("it names Python %r" % (self.python,))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else "%r is missing or wrong" % (error,)
            raise ReleaseError(
                "manifest-malformed", "the release's manifest cannot be used", where, why, "run `rackwell build` again"
            ) from error


def _no_constant(name: str) -> None:
    raise ValueError("it holds %s" % name)


def unsafe_member(archive: zipfile.ZipFile) -> str:
    """What in a wheel leads out of the directory that it is unpacked into, or is a link; empty when nothing does."""
    for info in archive.infolist():
        name = info.orig_filename
        if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or stat.S_ISLNK(info.external_attr >> 16):
            return name
    return ""


def check_slot(slot: str) -> None:
    """Raises ReleaseError for a name that is none, or that the store uses itself."""
    if not SLOT.match(slot) or slot in RESERVED:
        raise ReleaseError(
            "wrong-slot",
            "%r cannot be a slot" % (slot,),
            "slot",
            "a slot is a link in the release root, of small letters, digits and dashes; taken: %s"
            % ", ".join(RESERVED),
            "use another name",
        )


Piece = Tuple[str, int, int]
"""Part of a blob: its SHA-256, offset and length in bytes."""


def pieces(blobs: Dict[str, int], limit: int = CHUNK_BYTES) -> List[List[Piece]]:
    """How `blobs` (SHA-256 -> bytes) are spread over transfers of at most `limit` bytes each, in the order of sending.

    A blob that is larger goes in several pieces, each in the transfer after the one before.
    """
    chunks: List[List[Piece]] = []
    room = 0
    for sha256 in sorted(blobs):
        offset, size = 0, blobs[sha256]
        while True:
            if room <= 0:
                chunks.append([])
                room = limit
            length = min(size - offset, room)
            chunks[-1].append((sha256, offset, length))
            room -= length
            offset += length
            if offset >= size:
                break
    return chunks


class _Part:
    """The next `length` bytes of a stream, as a file that tarfile can read."""

    def __init__(self, stream: BinaryIO, length: int) -> None:
        self.stream = stream
        self.left = length

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(self.left if size < 0 else min(size, self.left))
        self.left -= len(data)
        return data


def pack(chunk: List[Piece], folder: str, path: str) -> None:
    """Write the pieces of `chunk`, taken from the blobs in `folder`, to the archive `path`."""
    with tarfile.open(path, "w") as archive:
        for sha256, offset, length in chunk:
            info = tarfile.TarInfo("%s.%d" % (sha256, offset))
            info.size = length
            with open("%s/%s" % (folder, sha256), "rb") as stream:
                stream.seek(offset)
                archive.addfile(info, _Part(stream, length))


def member(name: str) -> Union[Tuple[str, int], None]:
    """SHA-256 and offset that the name of an archive's member tells, None for a foreign member."""
    match = _MEMBER.match(name)
    return (match.group(1), int(match.group(2))) if match else None
