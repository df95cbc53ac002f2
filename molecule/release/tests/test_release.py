# SPDX-License-Identifier: Apache-2.0
"""The staged release: complete, what its digest says, and not switched to."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from testinfra.host import Host

MACHINE = "glm5-01"
RELEASES = "/opt/rackwell/releases"


@pytest.fixture
def release(host: Host) -> tuple[str, dict[str, Any]]:
    for digest in host.check_output("ls %s", RELEASES).split():
        manifest = json.loads(host.file(f"{RELEASES}/{digest}/manifest.json").content_string)
        if manifest["name"] == "lab":
            return digest, manifest
    raise AssertionError("no release of the build lab is staged")


def test_its_name_is_the_digest_of_its_manifest(host: Host, release: tuple[str, dict[str, Any]]) -> None:
    digest, _ = release
    assert hashlib.sha256(host.file(f"{RELEASES}/{digest}/manifest.json").content).hexdigest() == digest
    assert host.file(f"{RELEASES}/{digest}/complete").exists


def test_every_blob_is_what_the_manifest_says(host: Host, release: tuple[str, dict[str, Any]]) -> None:
    _, manifest = release
    for wheel in manifest["wheels"]:
        assert host.file(f"/opt/rackwell/store/sha256/{wheel['sha256']}").sha256sum == wheel["sha256"]


def test_the_patch_is_in_what_is_installed(host: Host, release: tuple[str, dict[str, Any]]) -> None:
    digest, manifest = release
    assert "sglang/flashinfer-autotune-cutlass" in [patch["name"] for patch in manifest["patches"]]
    runner = host.check_output("find %s/%s/env -path '*sglang/srt/model_executor/model_runner.py'", RELEASES, digest)
    assert '\n            "flashinfer_cutlass",\n' in host.file(runner).content_string


def test_the_version_stays_what_the_source_says(host: Host, release: tuple[str, dict[str, Any]]) -> None:
    digest, _ = release
    python = f"{RELEASES}/{digest}/env/bin/python"
    assert (
        host.check_output("%s -c %s", python, "import importlib.metadata as m; print(m.version('sglang'))") == "0.5.9"
    )


def test_the_caches_belong_to_this_release_and_the_service_user(
    host: Host, release: tuple[str, dict[str, Any]]
) -> None:
    digest, _ = release
    assert host.file(f"/var/cache/rackwell/{digest}").user == "rackwell"
    assert digest in host.file(f"{RELEASES}/{digest}/release.env").content_string


def test_staging_does_not_switch(host: Host, release: tuple[str, dict[str, Any]]) -> None:
    current = host.file("/opt/rackwell/current")
    assert not current.exists or release[0] not in current.linked_to or host.service("rackwell-inference").is_running


def test_a_second_copy_of_a_file_is_a_link(host: Host, release: tuple[str, dict[str, Any]]) -> None:
    digest, _ = release
    found = host.check_output("find %s/%s/env -path '*sglang/srt/model_executor/model_runner.py'", RELEASES, digest)
    assert int(host.check_output("stat -c %%h %s", found)) > 1


def test_installed_files_are_older_than_what_is_compiled_from_them(
    host: Host, release: tuple[str, dict[str, Any]]
) -> None:
    digest, _ = release
    found = host.check_output("find %s/%s/env -path '*sglang/srt/model_executor/model_runner.py'", RELEASES, digest)
    assert host.check_output("stat -c %%Y %s", found) == "1577836800"
