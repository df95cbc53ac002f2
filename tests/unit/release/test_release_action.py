# SPDX-License-Identifier: Apache-2.0
"""The action and the module through ansible-playbook, with a local connection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tinywheels
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import BESIDE
from releasesite import Built

pytestmark = pytest.mark.skipif(
    not Path(f"/usr/bin/python{tinywheels.running_python()}").exists(),
    reason="the module takes the machine's Python, which is of another version than the one that runs the tests",
)

COMMON = {"root": "{{ base }}/opt", "cache": "{{ base }}/cache", "user": "{{ user }}", "slot": "current"}


def play(tmp_path: Path, user: str, steps: list[dict[str, Any]], **environment: str) -> list[dict[str, Any]]:
    """Run `steps` as tasks and return what each registered. A step is module arguments, or ``{"command": [...]}``.

    A step's ``check`` turns check mode on.
    """
    tasks: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        arguments = dict(step)
        check = arguments.pop("check", False)
        name = "ansible.builtin.command" if "command" in arguments else "rackwell.gpu.release_store"
        body = {"argv": arguments["command"]} if "command" in arguments else {**COMMON, **arguments}
        tasks.append(
            {
                "name": f"Step {number}",
                name: body,
                "check_mode": check,
                "diff": True,
                "register": f"step_{number}",
                "ignore_errors": True,
            }
        )
    results = "{{ [" + ", ".join(f"step_{number}" for number in range(len(steps))) + "] | to_json }}"
    tasks.append({"name": "Tell", "ansible.builtin.copy": {"content": results, "dest": "{{ base }}/out.json"}})
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    program = Path(sys.executable).with_name("ansible-playbook")
    variables = json.dumps({"base": str(tmp_path), "user": user, "ansible_connection": "local"})
    done = subprocess.run(
        [program, "-i", "localhost,", tmp_path / "play.yml", "--extra-vars", variables],
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "none"),
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
            "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            **environment,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tmp_path / "out.json").is_file(), done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads((tmp_path / "out.json").read_text())
    return found


@pytest.mark.parametrize("pipelining", ["True", "False"])
def test_from_nothing_to_active(tmp_path: Path, one: Built, two: Built, user: str, pipelining: str) -> None:
    bundle, digest = {"bundle": str(one.bundle)}, one.manifest.digest
    check, listed, staged, again, active, other = play(
        tmp_path,
        user,
        [
            {**bundle, "check": True},
            {"command": ["find", str(tmp_path), "-name", "opt"]},
            bundle,
            bundle,
            {**bundle, "state": "active"},
            {"bundle": str(two.bundle), "state": "active", "check": True},
        ],
        ANSIBLE_PIPELINING=pipelining,
    )
    size = sum(one.manifest.blobs.values())
    assert check["changed"]
    assert (check["rackwell_result"]["staged"], check["rackwell_result"]["sent_bytes"]) == (False, size)
    assert listed["stdout"] == "", "check mode makes nothing"
    assert staged["changed"]
    budget = staged["rackwell_result"].pop("budget")
    assert budget["blobs"] == size
    assert budget["needed"] > budget["blobs"] + budget["installed"] > size
    assert budget == check["rackwell_result"]["budget"] | {"available": budget["available"]}, "told before, too"
    assert staged["rackwell_result"] == {
        "schema": "rackwell.release_store/1",
        "name": "one",
        "digest": digest,
        "path": f"{tmp_path}/opt/releases/{digest}",
        "python": tinywheels.running_python(),
        "staged": True,
        "staged_before": False,
        "slot": "current",
        "slot_before": None,
        "slot_after": None,
        "blobs_missing": sorted(one.manifest.blobs),
        "blobs_damaged": [],
        "todo": ["environment", "settings", "caches"],
        "files_damaged": [],
        "files_damaged_count": 0,
        "beside": sorted(path.name for path in one.bundle.iterdir() if path.name in BESIDE),
        "sent_bytes": size,
        "transfers": 1,
    }
    assert f"one {digest[:12]}: not staged" in staged["diff"]["before"]
    assert f"one {digest[:12]}: staged" in staged["diff"]["after"]
    assert not again["changed"]
    assert again["rackwell_result"]["budget"] is None
    assert again["rackwell_result"]["transfers"] == 0
    assert active["changed"]
    assert active["rackwell_result"]["slot_after"] == digest
    assert "slot current: none" in active["diff"]["before"]
    assert f"slot current: {digest[:12]}" in active["diff"]["after"]
    assert str((tmp_path / "opt/current").readlink()) == f"releases/{digest}", "check mode switches nothing"
    assert other["changed"]
    assert len(other["rackwell_result"]["blobs_missing"]) == 1
    assert other["rackwell_result"]["slot_before"] == digest
    assert not list((tmp_path / "remote").glob("ansible-tmp-*")), "nothing is left on the container"


def test_says_what_is_wrong(tmp_path: Path, one: Built, old: Built, user: str) -> None:
    def link(name: str, *, manifest: str | None = None, drop: bool = False) -> str:
        """A copy of the site's state with something wrong in it."""
        state = tmp_path / name
        release = state / "releases" / one.manifest.digest
        release.mkdir(parents=True)
        (release / "manifest.json").write_text(manifest if manifest is not None else one.manifest.text)
        (release / "requirements.txt").write_text(one.requirements)
        (state / "blobs/sha256").mkdir(parents=True)
        for sha256 in one.manifest.blobs:
            data = (one.blobs / sha256).read_bytes()
            (state / "blobs/sha256" / sha256).write_bytes(data[:-1] + b"!" if drop else data)
        return str(release)

    changed = one.manifest.text.replace('"one"', '"two"')
    steps: list[tuple[str, dict[str, Any]]] = [
        ("bundle-missing", {"bundle": str(tmp_path / "nothing")}),
        ("bundle-damaged", {"bundle": link("renamed", manifest=changed)}),
        ("bundle-damaged", {"bundle": link("flipped", drop=True)}),
        ("python-mismatch", {"bundle": str(old.bundle)}),
        ("python-mismatch", {"bundle": str(old.bundle), "check": True}),
        ("wrong-slot", {"bundle": str(one.bundle), "slot": "../current"}),
        ("wrong-option", {"bundle": str(one.bundle), "step": "install"}),
        ("user-missing", {"bundle": str(one.bundle), "user": "no-such-user", "state": "active"}),
    ]
    results = play(tmp_path, user, [step for _code, step in steps])
    for (code, _step), result in zip(steps, results, strict=True):
        assert result["failed"]
        assert result["rackwell_error"]["code"] == code
        assert result["rackwell_error"]["what"] in result["msg"]
        assert result["rackwell_error"]["fix"]
    assert not (tmp_path / "opt/current").exists()
