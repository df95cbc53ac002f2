# SPDX-License-Identifier: Apache-2.0
"""The declaration of a model that is to be brought: pinned, mounted, and where the profile says."""

from __future__ import annotations

import pytest
from sitemaker import SiteMaker
from test_declaration import only

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROFILE = "profiles/toy.yml"
PATH = f"/srv/models/nvidia--toy/{COMMIT}"
GROUP_VARS = "group_vars/gpu_containers.yml"
HOST_VARS = "host_vars/glm5-01.yml"


@pytest.fixture
def pinned(site: SiteMaker) -> SiteMaker:
    """The site, with a model that is brought from a hub."""
    site.edit(PROFILE, "  path: /srv/models/toy", f"  repository: nvidia/toy\n  revision: {COMMIT}\n  path: {PATH}")
    site.edit(GROUP_VARS, "model_weights_path: /srv/models/toy\n", "")
    site.edit(
        HOST_VARS,
        "source: /srv/models/toy\n    target: /srv/models/toy",
        "source: /srv/models\n    target: /srv/models",
    )
    return site


def test_a_pinned_model_holds(pinned: SiteMaker) -> None:
    loaded = pinned.load()
    assert loaded.problems_of() == []
    assert loaded.weights_build(loaded.container("glm5-01")) == ("weights", "3.11")


def test_without_a_repository_nothing_is_built_for_it(site: SiteMaker) -> None:
    loaded = site.load()
    assert loaded.weights_build(loaded.container("glm5-01")) is None


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:12], COMMIT.upper()])
def test_what_is_no_commit_is_refused_with_the_reason(pinned: SiteMaker, revision: str) -> None:
    pinned.edit(PROFILE, f"revision: {COMMIT}", f'revision: "{revision}"')
    problem = only(pinned.problems())
    assert problem.where == pinned.line(PROFILE, "revision:")
    assert "a branch, a tag or a short id can come to mean other weights" in problem.why + problem.what


def test_a_repository_needs_a_commit(pinned: SiteMaker) -> None:
    pinned.edit(PROFILE, f"  revision: {COMMIT}\n", "")
    problem = only(pinned.problems())
    assert "revision" in problem.what + problem.why


def test_a_repository_is_org_and_name(pinned: SiteMaker) -> None:
    pinned.edit(PROFILE, "nvidia/toy", "https://hub.example/nvidia/toy")
    assert only(pinned.problems()).where == pinned.line(PROFILE, "repository:")


def test_a_path_elsewhere_is_told_with_the_right_one(pinned: SiteMaker) -> None:
    pinned.edit(PROFILE, f"path: {PATH}", "path: /srv/models/toy")
    problem = only(pinned.problems())
    assert (problem.code, problem.fix) == ("weights-path", f"set `path: {PATH}`")


def test_a_mount_of_the_snapshot_itself_is_refused(pinned: SiteMaker) -> None:
    pinned.edit(HOST_VARS, "source: /srv/models\n    target: /srv/models", f"source: {PATH}\n    target: {PATH}")
    problem = only(pinned.problems())
    assert problem.code == "weights-not-mounted"
    assert "{source: /srv/models, target: /srv/models}" in problem.fix


def test_a_mount_may_lead_to_another_place(pinned: SiteMaker) -> None:
    pinned.edit(HOST_VARS, "target: /srv/models", "target: /weights")
    pinned.edit(PROFILE, f"path: {PATH}", f"path: /weights/nvidia--toy/{COMMIT}")
    assert pinned.problems() == []


def test_a_token_in_clear_is_refused_and_not_repeated(pinned: SiteMaker) -> None:
    pinned.add(GROUP_VARS, "model_weights_token: hf_neverinclear\n")
    problem = only(pinned.problems())
    assert problem.code == "token-in-clear"
    assert problem.where == pinned.line(GROUP_VARS, "model_weights_token")
    assert "hf_neverinclear" not in str(problem)


def test_a_token_by_lookup_is_fine(pinned: SiteMaker) -> None:
    pinned.add(GROUP_VARS, "model_weights_token: \"{{ lookup('ansible.builtin.env', 'HUB_TOKEN') }}\"\n")
    assert pinned.problems() == []


def test_a_directory_as_source_must_be_named(pinned: SiteMaker) -> None:
    pinned.add(GROUP_VARS, "model_weights_from: directory\n")
    problem = only(pinned.problems())
    assert "model_weights_source" in str(problem)
    pinned.add(GROUP_VARS, "model_weights_source: /srv/incoming\n")
    assert pinned.problems() == []
