# SPDX-License-Identifier: Apache-2.0
"""Wheels as files: names and tags, and archives that come out the same, byte for byte, on every machine.

Compressors differ from one zlib to the next, so nothing is compressed here: a patched wheel takes over the compressed
bytes of every file that it leaves alone, and stores the few that it changes.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import email.message
import email.parser
import hashlib
import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

PLATFORM = "linux_x86_64"
"""The platform of every release."""
UV_PLATFORM = "x86_64-manylinux_2_34"
"""The oldest C library that a container may have: Debian 12 has 2.36, Ubuntu 22.04 has 2.35."""
_GLIBC_MINOR = 34
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}

# Always the same: the digest of a release must not depend on who builds it, so SOURCE_DATE_EPOCH is not consulted.
_DOS_DATE = (1 << 5) | 1  # 1980-01-01, the first day that an archive can name
_UTF8 = 0x800
_ENCRYPTED = 0x1

MALFORMED = (
    ValueError, LookupError, RuntimeError, EOFError, csv.Error, struct.error, zipfile.BadZipFile, zlib.error
)  # fmt: skip
"""What reading a file that is no wheel, or a damaged one, may raise."""


def platforms() -> list[str]:
    """Platform tags that run on every container, best first."""
    tags: list[str] = []
    for minor in range(_GLIBC_MINOR, 4, -1):
        tags.append(f"manylinux_2_{minor}_x86_64")
        if minor in _LEGACY:
            tags.append(f"{_LEGACY[minor]}_x86_64")
    return [*tags, PLATFORM]


def supported_tags(python: str) -> list[Tag]:
    """Tags that the CPython `python` ("3.11") accepts, best first."""
    major, minor = (int(part) for part in python.split("."))
    interpreter = f"cp{major}{minor}"
    return [
        *cpython_tags((major, minor), [interpreter], platforms()),
        *compatible_tags((major, minor), interpreter, platforms()),
    ]


def marker_environment(python: str) -> dict[str, str]:
    """What the markers of requirements see on a container with Python `python` ("3.11"), without extras."""
    return {
        "extra": "",
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


@dataclasses.dataclass(frozen=True)
class WheelName:
    """What a wheel's file name says. `project` is normalised."""

    filename: str
    project: str
    version: str
    build: tuple[int, str] | tuple[()]
    tags: frozenset[Tag]

    @classmethod
    def parse(cls, filename: str) -> WheelName:
        """Raises ValueError for a name that is no wheel's."""
        try:
            project, version, build, tags = parse_wheel_filename(filename)
        except InvalidWheelFilename as error:
            raise ValueError(str(error)) from error
        return cls(filename, str(project), str(version), build, tags)


def best(filenames: Sequence[str], python: str) -> str | None:
    """The wheel that an installer for `python` would take, or None when none fits."""
    order = {tag: rank for rank, tag in enumerate(supported_tags(python))}
    ranked: list[tuple[int, tuple[int, str], str]] = []
    for filename in filenames:
        name = WheelName.parse(filename)
        ranks = [order[tag] for tag in name.tags if tag in order]
        if ranks:
            build = name.build or (-1, "")
            ranked.append((min(ranks), (-build[0], build[1]), filename))
    return min(ranked)[2] if ranked else None


def refuse_unsafe(archive: zipfile.ZipFile, filename: str) -> None:
    """Refuse what leads out of the directory that a wheel is unpacked into, or is read differently by some programs.

    Raises:
        ValueError: a path that is absolute or climbs, a link, or two members of one name.
    """
    seen: set[str] = set()
    for info in archive.infolist():
        name = info.orig_filename
        climbs = ".." in re.split(r"[/\\]", name)
        if climbs or name.startswith(("/", "\\")) or not name.isprintable():
            raise ValueError(f"{filename} holds {name!r}, which leads out of the directory that it is unpacked into")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise ValueError(f"{filename} holds {name!r}, which is a link")
        if name in seen:
            raise ValueError(f"{filename} holds {name!r} twice")
        seen.add(name)


@dataclasses.dataclass(frozen=True)
class _Entry:
    """One file for an archive, with its bytes as they stand in it."""

    name: str
    data: bytes
    method: int
    crc: int
    size: int
    mode: int


class Wheel:
    """A wheel opened for reading. Use as a context manager."""

    def __init__(self, path: Path, filename: str = "") -> None:
        self.name = WheelName.parse(filename or path.name)
        self._zip = zipfile.ZipFile(path)
        refuse_unsafe(self._zip, self.name.filename)
        self._infos = {info.filename: info for info in self._zip.infolist() if not info.is_dir()}
        records = [name for name in self._infos if name.endswith(".dist-info/RECORD") and name.count("/") == 1]
        if len(records) != 1:
            raise ValueError(f"{self.name.filename} has {len(records)} RECORD files, a wheel has one")
        self.dist_info = records[0].removesuffix("/RECORD")

    def __enter__(self) -> Wheel:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def read(self, name: str) -> bytes | None:
        """The content of a file, None when the wheel has none of that name."""
        return self._zip.read(name) if name in self._infos else None

    def metadata(self) -> tuple[str, str]:
        """Name and version as the metadata has them."""
        message = email.parser.BytesHeaderParser().parsebytes(self.read(f"{self.dist_info}/METADATA") or b"")
        return str(message.get("Name", "")), str(message.get("Version", ""))

    def entries(self) -> Iterator[_Entry]:
        """Every file, compressed as it stands."""
        stream = self._zip.fp
        assert stream is not None  # noqa: S101 (open until __exit__)
        for info in self._infos.values():
            if info.flag_bits & _ENCRYPTED:
                raise ValueError(f"{info.filename} in {self.name.filename} is encrypted")
            stream.seek(info.header_offset)
            header = stream.read(30)
            name_length, extra_length = struct.unpack("<HH", header[26:30])
            stream.seek(info.header_offset + 30 + name_length + extra_length)
            data = stream.read(info.compress_size)
            mode = info.external_attr >> 16
            yield _Entry(
                info.filename, data, info.compress_type, info.CRC, info.file_size, 0o755 if mode & 0o111 else 0o644
            )


def metadata_of(path: Path) -> email.message.Message:
    """The fields of a wheel's METADATA; the rest of the wheel is not looked at. Raises one of `MALFORMED`."""
    data = _found_at_once(path)
    if data is None:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if _is_metadata(name.encode())]
            data = archive.read(names[0])
    # text, not bytes: the fields are UTF-8, which the parser of bytes does not take them for
    return email.parser.HeaderParser().parsestr(data.decode("utf-8", "replace"))


def _is_metadata(name: bytes) -> bool:
    return name.endswith(b".dist-info/METADATA") and name.count(b"/") == 1


def _found_at_once(path: Path) -> bytes | None:
    """METADATA without reading of every other file in the wheel, of which an environment has 100,000.

    None for a wheel that is not of the plain form; `zipfile` knows the others.
    """
    with path.open("rb") as stream:
        stream.seek(max(stream.seek(0, io.SEEK_END) - 22, 0))
        end = stream.read()
        if not end.startswith(b"PK\5\6"):
            return None
        size, start = struct.unpack("<II", end[12:20])
        stream.seek(start)
        central, at = stream.read(size), 0
        while (at := central.find(b".dist-info/METADATA", at + 1)) >= 0:
            head = central.rfind(b"PK\1\2", 0, at)
            length = int.from_bytes(central[head + 28 : head + 30], "little")
            if head < 0 or not _is_metadata(central[head + 46 : head + 46 + length]):
                continue
            method = int.from_bytes(central[head + 10 : head + 12], "little")
            packed, offset = (int.from_bytes(central[head + n : head + n + 4], "little") for n in (20, 42))
            stream.seek(offset)
            local = stream.read(30)
            stream.seek(sum(struct.unpack("<HH", local[26:30])), io.SEEK_CUR)
            data = stream.read(packed)
            if method == zipfile.ZIP_DEFLATED:
                return zlib.decompress(data, -zlib.MAX_WBITS)
            return data if method == zipfile.ZIP_STORED else None
    return None


def patched(wheel: Wheel, changes: Mapping[str, bytes | None], tag: str) -> tuple[str, bytes]:
    """A wheel with `changes` made, told apart by a build tag; its version stays.

    Args:
        changes: path -> new content, None deletes the file.
        tag: eight hexadecimal digits; the build tag is ``1<tag>``.

    Returns:
        File name and bytes.

    Raises:
        ValueError: the wheel has a build tag of its own, or is malformed.
    """
    if wheel.name.build:
        raise ValueError(f"{wheel.name.filename} has a build tag already")
    build = f"1{tag}"
    stem, version, *rest = wheel.name.filename.split("-")
    filename = "-".join([stem, version, build, *rest])
    record_name, wheel_name = f"{wheel.dist_info}/RECORD", f"{wheel.dist_info}/WHEEL"
    contents = dict(changes)
    contents[wheel_name] = _with_build(wheel.read(wheel_name) or b"", build)
    kept = [entry for entry in wheel.entries() if entry.name not in contents and entry.name != record_name]
    modes = {entry.name: entry.mode for entry in wheel.entries()}
    fresh = [_stored(name, data, modes.get(name, 0o644)) for name, data in contents.items() if data is not None]
    rows = {row[0]: row for row in csv.reader(io.StringIO((wheel.read(record_name) or b"").decode())) if row}
    for name, data in contents.items():
        rows.pop(name, None)
        if data is not None:
            rows[name] = _record_row(name, data)
    signatures = {f"{record_name}.jws", f"{record_name}.p7s"}
    rows = {name: row for name, row in rows.items() if name not in signatures and name != record_name}
    missing = {entry.name for entry in kept} - rows.keys() - signatures
    if missing:
        raise ValueError(f"RECORD of {wheel.name.filename} does not list {min(missing)}")
    kept = [entry for entry in kept if entry.name not in signatures]
    record = _stored(record_name, _record([*rows.values()], record_name), 0o644)
    return filename, _archive(kept + fresh, wheel.dist_info, record)


def repacked(wheel: Wheel) -> bytes:
    """The same files in an archive that does not tell when, where and with which compressor it was made.

    Raises:
        ValueError: the wheel has a build tag, or is malformed.
    """
    if wheel.name.build:
        raise ValueError(f"{wheel.name.filename} has a build tag")
    record_name = f"{wheel.dist_info}/RECORD"
    left_out = {record_name, f"{record_name}.jws", f"{record_name}.p7s"}
    entries = [
        _stored(entry.name, wheel.read(entry.name) or b"", entry.mode)
        for entry in wheel.entries()
        if entry.name not in left_out
    ]
    rows = [_record_row(entry.name, entry.data) for entry in entries]
    record = _stored(record_name, _record(rows, record_name), 0o644)
    return _archive(entries, wheel.dist_info, record)


def from_files(stem: str, files: Mapping[str, bytes], metadata: str) -> tuple[str, bytes]:
    """A pure wheel from files.

    Args:
        stem: ``name_with_underscores-version``.
        files: path -> content.
        metadata: the text of METADATA.

    Returns:
        File name and bytes.
    """
    dist_info = f"{stem}.dist-info"
    contents = dict(files)
    contents[f"{dist_info}/METADATA"] = metadata.encode()
    contents[f"{dist_info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: rackwell\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    rows = [_record_row(name, data) for name, data in contents.items()]
    record = _stored(f"{dist_info}/RECORD", _record(rows, f"{dist_info}/RECORD"), 0o644)
    entries = [_stored(name, data, 0o644) for name, data in contents.items()]
    return f"{stem}-py3-none-any.whl", _archive(entries, dist_info, record)


def _with_build(text: bytes, build: str) -> bytes:
    lines = [line for line in text.splitlines() if line.strip() and not line.lower().startswith(b"build:")]
    if not any(line.lower().startswith(b"wheel-version:") for line in lines):
        raise ValueError("the wheel has no Wheel-Version")
    first_tag = next((at for at, line in enumerate(lines) if line.lower().startswith(b"tag:")), len(lines))
    lines.insert(first_tag, b"Build: " + build.encode())
    return b"\n".join(lines) + b"\n"


def _stored(name: str, data: bytes, mode: int) -> _Entry:
    return _Entry(name, data, zipfile.ZIP_STORED, zlib.crc32(data), len(data), mode)


def _record_row(name: str, data: bytes) -> list[str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return [name, f"sha256={digest}", str(len(data))]


def _record(rows: Sequence[list[str]], own: str) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([*sorted(rows), [own, "", ""]])
    return out.getvalue().encode()


def _archive(entries: Sequence[_Entry], dist_info: str, record: _Entry) -> bytes:
    """A zip archive: files by name, the metadata after them, RECORD last, all of one date."""
    order = sorted(entries, key=lambda entry: (entry.name.startswith(f"{dist_info}/"), entry.name))
    out = bytearray()
    central = bytearray()
    for entry in [*order, record]:
        name = entry.name.encode()
        flags = 0 if entry.name.isascii() else _UTF8
        common = struct.pack(
            "<HHHHHIIIHH", 20, flags, entry.method, 0, _DOS_DATE, entry.crc, len(entry.data), entry.size, len(name), 0
        )
        made_by = (3 << 8) | 20  # Unix, so that the mode counts
        attributes = (0o100000 | entry.mode) << 16
        central += b"PK\1\2" + struct.pack("<H", made_by) + common
        central += struct.pack("<HHHII", 0, 0, 0, attributes, len(out)) + name
        out += b"PK\3\4" + common + name + entry.data
    count = len(order) + 1
    if count > 0xFFFE or len(out) + len(central) > 0xFFFFFFFE:
        raise ValueError("too large for an archive of this form (4 GiB, 65,534 files)")
    start = len(out)
    out += central
    out += b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, count, count, len(central), start, 0)
    return bytes(out)
