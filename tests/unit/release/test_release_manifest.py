# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import tarfile
import zipfile
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import (
    Manifest,
    ReleaseError,
    check_slot,
    member,
    pack,
    pieces,
    unsafe_member,
)
from hypothesis import given
from hypothesis import strategies as st
from releasesite import Built

digests = st.text("0123456789abcdef", min_size=64, max_size=64)


def test_reads_what_build_writes(one: Built) -> None:
    manifest = one.manifest
    assert manifest.digest == one.bundle.resolve().name
    assert manifest.name == "one"
    assert len(manifest.blobs) == len(manifest.wheels) + 1
    assert all((one.blobs / sha256).stat().st_size == size for sha256, size in manifest.blobs.items())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "rackwell.release/2"),
        ("python", "3.11; rm"),
        ("wheels", None),
        ("uv", {"sha256": "0", "filename": "uv.whl", "size": 1}),
        ("wheels", [{"sha256": "a" * 64, "filename": "../../etc/x.whl", "size": 1}]),
        ("wheels", [{"sha256": "a" * 64, "filename": ".hidden.whl", "size": 1}]),
        ("wheels", [{"sha256": "../" + "a" * 61, "filename": "x-1-py3-none-any.whl", "size": 1}]),
        ("wheels", [{"sha256": "a" * 64, "filename": "x-1-py3-none-any.whl"}]),
        *(
            ("wheels", [{"sha256": "a" * 64, "filename": "x-1-py3-none-any.whl", "size": size}])
            for size in (-1, True, "1", 1.5, float("inf"), float("nan"), None)
        ),
        ("wheels", ["x"]),
        ("wheels", 5),
        ("uv", []),
        ("uv", [[1, 2]]),
    ],
)
def test_refuses_what_is_none(one: Built, key: str, value: object) -> None:
    text = json.dumps({**json.loads(one.manifest.text), key: value})
    with pytest.raises(ReleaseError) as caught:
        Manifest(text)
    assert caught.value.parts["code"] == "manifest-malformed"
    assert caught.value.parts["why"]


@pytest.mark.parametrize(
    "text", ["", "[", "[" * 100_000, "null", "5", "[]", "{}", '"\ud800"', '{"schema": "\ud800"}', "\0"]
)
def test_refuses_what_is_no_manifest_at_all(text: str) -> None:
    with pytest.raises(ReleaseError) as caught:
        Manifest(text)
    assert caught.value.parts["code"] == "manifest-malformed"
    assert caught.value.parts["fix"]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a\\..\\x"])
def test_a_member_that_leads_out_is_seen(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr("fine/..x/x..", "")
        assert unsafe_member(archive) == ""
        archive.writestr(name, "")
        assert unsafe_member(archive) == name
    with zipfile.ZipFile(tmp_path / "y.whl", "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc")
        assert unsafe_member(archive) == "link"


@pytest.mark.parametrize("slot", ["", "a/b", "..", "releases", "store", "Current", "-x", "current\n"])
def test_slots_cannot_leave_the_root(slot: str) -> None:
    with pytest.raises(ReleaseError):
        check_slot(slot)
    check_slot("bench-client")


@given(st.dictionaries(digests, st.integers(0, 50), max_size=8), st.integers(1, 40))
def test_pieces_carry_everything_once_within_the_limit(blobs: dict[str, int], limit: int) -> None:
    chunks = pieces(blobs, limit)
    carried: dict[str, int] = {}
    for chunk in chunks:
        assert chunk
        assert sum(length for _sha256, _offset, length in chunk) <= limit
        for sha256, offset, length in chunk:
            assert carried.get(sha256, 0) == offset, "in order"
            carried[sha256] = offset + length
    assert carried == blobs


def test_packs_parts_of_files(tmp_path: Path) -> None:
    sha256 = "a" * 64
    (tmp_path / sha256).write_bytes(b"0123456789")
    pack([(sha256, 3, 4)], str(tmp_path), str(tmp_path / "x.tar"))
    with tarfile.open(tmp_path / "x.tar") as archive:
        (info,) = archive.getmembers()
        stream = archive.extractfile(info)
        assert stream is not None
        assert (member(info.name), stream.read()) == ((sha256, 3), b"3456")
    assert member("../x") is None
    assert member("a" * 63 + ".0") is None
