# SPDX-License-Identifier: Apache-2.0
"""The module gpu_check, with the real probe on the stand-in for the driver."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.modules import gpu_check

FAKES = Path(__file__).parent / "fakes"
SOURCES = Path(__file__).parents[3] / "src"
ME = pwd.getpwuid(os.getuid()).pw_name
Install = Callable[..., Path]


@pytest.fixture
def install() -> Iterator[Install]:
    """An /opt/rackwell whose slot probe holds a Python with the fakes. Every user may reach it."""
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)

    def install(script: str | None = None, **faults: Any) -> Path:
        python = top / "probe/env/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(
            script
            or f"#!/bin/sh\nexport PYTHONPATH={FAKES}:{SOURCES}\n"
            f"export RACKWELL_FAKE_CUDA='{json.dumps(faults)}'\nexec {sys.executable} \"$@\"\n"
        )
        python.chmod(0o755)
        return top

    yield install
    shutil.rmtree(top)


def options(root: Path, **changes: Any) -> dict[str, Any]:
    defaults = {"timeout": 60, "gpus": 2, "p2p": True, "p2p_size": 1, "p2p_min_bandwidth": 0.0}
    return {**defaults, "root": str(root), "user": ME, **changes}


def problem_of(error: gpu_check.CheckError) -> dict[str, str]:
    return dict(zip(("code", "what", "where", "why", "fix"), error.parts, strict=True))


def test_both_reports_come_back(install: Install) -> None:
    result = gpu_check.check(options(install()), look_only=False)
    assert (result["schema"], result["verdict"]) == ("rackwell.gpu_check/1", "pass")
    assert result["cuda"]["schema"] == "rackwell.cuda/1"
    assert [pair["verified"] for pair in result["p2p"]["pairs"]] == [True, True]
    assert result["p2p"]["size"] == 1 << 20


def test_p2p_only_when_asked_for(install: Install) -> None:
    assert gpu_check.check(options(install(), p2p=False), look_only=False)["p2p"] is None


def test_the_first_problem_is_the_error_and_all_are_told(install: Install) -> None:
    root = install(corrupt={"0>1": "drop", "1>0": "zero"})
    with pytest.raises(gpu_check.CheckError) as caught:
        gpu_check.check(options(root), look_only=False)
    problem = problem_of(caught.value)
    assert problem["code"] == "p2p-wrong-data"
    assert problem["what"].endswith("(and 1 more)")
    assert "GPU 0" in problem["where"]
    assert problem["fix"]
    assert len(caught.value.extra["problems"]) == 2
    assert caught.value.extra["rackwell_result"]["verdict"] == "fail"
    assert caught.value.extra["rackwell_result"]["cuda"]["verdict"] == "pass"


def test_a_hang_ends_with_its_step(install: Install) -> None:
    with pytest.raises(gpu_check.CheckError) as caught:
        gpu_check.check(options(install(hang="cuInit"), timeout=1), look_only=False)
    assert problem_of(caught.value)["code"] == "cuda-hang"
    assert caught.value.extra["rackwell_result"]["p2p"] is None


def test_the_floor_is_passed_on(install: Install) -> None:
    with pytest.raises(gpu_check.CheckError) as caught:
        gpu_check.check(options(install(), p2p_min_bandwidth=60.0), look_only=False)
    assert problem_of(caught.value)["code"] == "p2p-slow"


@pytest.mark.parametrize("changes", [{}, {"user": "no-such-user"}])
def test_check_mode_before_the_probe_is_there_runs_nothing(tmp_path: Path, changes: dict[str, str]) -> None:
    assert gpu_check.check(options(tmp_path, **changes), look_only=True)["verdict"] == "skipped"


def test_check_mode_with_the_probe_there_checks(install: Install) -> None:
    assert gpu_check.check(options(install()), look_only=True)["verdict"] == "pass"


def test_a_missing_probe_or_user_is_told(tmp_path: Path, install: Install) -> None:
    for changes, code in (({"root": str(tmp_path)}, "probe-missing"), ({"user": "no-such-user"}, "user-missing")):
        with pytest.raises(gpu_check.CheckError) as caught:
            gpu_check.check({**options(tmp_path), **changes}, look_only=False)
        assert problem_of(caught.value)["code"] == code


@pytest.mark.parametrize("output", ["not json", "[]", '{"verdict": "pass"}', ""])
def test_what_is_no_report_is_no_pass(install: Install, output: str) -> None:
    root = install(script=f"#!/bin/sh\necho '{output}'\necho why it broke >&2\nexit 3\n")
    with pytest.raises(gpu_check.CheckError) as caught:
        gpu_check.check(options(root), look_only=False)
    problem = problem_of(caught.value)
    assert problem["code"] == "probe-failed"
    assert "status 3: why it broke" in problem["why"]


def test_a_probe_that_ignores_its_own_deadline_is_killed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "ALLOWANCE", 0)
    root = install(script="#!/bin/sh\nexec sleep infinity\n")
    with pytest.raises(gpu_check.CheckError) as caught:
        gpu_check.check(options(root, timeout=1), look_only=False)
    assert problem_of(caught.value)["code"] == "probe-hang"


@pytest.mark.parametrize(
    ("option", "value"), [("timeout", 0), ("gpus", 0), ("p2p_size", -1), ("p2p_min_bandwidth", float("nan"))]
)
def test_values_that_cannot_be(tmp_path: Path, option: str, value: float) -> None:
    with pytest.raises(gpu_check.CheckError) as caught:
        gpu_check.check(options(tmp_path, **{option: value}), look_only=True)
    assert (caught.value.parts[0], caught.value.parts[2]) == ("invalid-option", option)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_checks_run_as_the_user_without_our_environment(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_ROOT", "x")
    report = '{\\"verdict\\": \\"pass\\", \\"problems\\": [], \\"id\\": \\"$(id -u) $(id -G) ${SECRET_OF_ROOT-none}\\"}'
    root = install(script=f'#!/bin/sh\necho "{report}"\n')
    nobody = pwd.getpwnam("nobody")
    result = gpu_check.check(options(root, user="nobody", p2p=False), look_only=False)
    assert result["cuda"]["id"] == f"{nobody.pw_uid} {nobody.pw_gid} none"
