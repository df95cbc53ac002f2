# SPDX-License-Identifier: Apache-2.0
"""What is said of a model that is not there, not complete or not readable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.modules.model_weights import problem


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "toy"
    path.mkdir()
    (path / "config.json").write_text("{}")
    # every directory above must let others through
    for parent in [path, *path.parents][:-1]:
        if parent.stat().st_uid == os.getuid():
            parent.chmod(parent.stat().st_mode | 0o055)
    return path


def test_a_readable_model(model: Path) -> None:
    assert problem(str(model), ["config.json"], "root") is None


def test_no_directory(tmp_path: Path) -> None:
    found = problem(str(tmp_path / "none"), [], "root")
    assert found is not None
    assert found[0] == "model-missing"
    assert "pve_container_mounts" in found[4]


def test_an_empty_directory_says_that_nothing_is_mounted(tmp_path: Path) -> None:
    found = problem(str(tmp_path), ["config.json"], "root")
    assert found is not None
    assert "nothing is mounted" in found[3]


def test_a_missing_file_is_named(model: Path) -> None:
    found = problem(str(model), ["config.json", "tokenizer.json"], "root")
    assert found is not None
    assert found[2].endswith("tokenizer.json")


def test_an_unknown_user(model: Path) -> None:
    found = problem(str(model), ["config.json"], "no-such-user")
    assert found is not None
    assert found[0] == "user-missing"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_file_that_the_user_may_not_read(model: Path) -> None:
    assert problem(str(model), ["config.json"], "nobody") is None
    (model / "config.json").chmod(0o600)
    found = problem(str(model), ["config.json"], "nobody")
    assert found is not None
    assert (found[0], found[2]) == ("model-missing", str(model / "config.json"))
    assert "Permission denied" in found[3]
