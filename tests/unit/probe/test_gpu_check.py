# SPDX-License-Identifier: Apache-2.0
"""The module gpu_check, with scripts in the probe's place."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import gpu_check_probe
from ansible_collections.rackwell.gpu.plugins.modules import gpu_check

ME = pwd.getpwuid(os.getuid()).pw_name
Install = Callable[[str], Path]


def report(verdict: str = "pass", *findings: tuple[str, str], **more: Any) -> dict[str, Any]:
    """What the probe prints; findings as (code, verdict)."""
    problems = [
        {"code": code, "what": f"{code} happened", "where": "GPU 0", "why": "because", "fix": "mend it"}
        for code, kind in findings
        if kind in ("fail", "degraded")
    ]
    return {
        "schema": "rackwell.gpu/1",
        "verdict": verdict,
        "findings": [{"code": code, "verdict": kind} for code, kind in findings],
        "problems": problems,
        **more,
    }


def printing(document: Any, status: int = 0) -> str:
    """A probe that prints this and tells its arguments, its stdin and what it was given to read on stderr's side."""
    return (
        "#!/bin/sh\n"
        'here="$(dirname "$0")"; printf "%s\\n" "$@" >"$here/arguments"; cat >"$here/stdin"\n'
        'while [ $# -gt 1 ]; do [ "$1" = --expect ] && cat "$2" >"$here/expect"; shift; done\n'
        f"cat <<'END'\n{json.dumps(document)}\nEND\nexit {status}\n"
    )


@pytest.fixture
def install() -> Iterator[Install]:
    """An /opt/rackwell whose slot probe holds the script as its Python. Every user may reach it."""
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)

    def install(script: str) -> Path:
        python = top / "probe/env/bin/python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(script)
        python.chmod(0o755)
        return top

    yield install
    shutil.rmtree(top)


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check_probe, "server_runs", lambda: False)


def options(root: Path, **changes: Any) -> dict[str, Any]:
    defaults = {
        "timeout": 60,
        "gpus": None,
        "mode": "full",
        "size": 256,
        "expect": {},
        "baseline": None,
        "host_facts": None,
        "beside_server": None,
        "record_runs": None,
    }
    return {**defaults, "root": str(root), "user": ME, **changes}


def told(root: Path, name: str) -> str:
    return (root / "probe/env/bin" / name).read_text()


def problem_of(error: gpu_check_probe.CheckError) -> dict[str, str]:
    return dict(zip(("code", "what", "where", "why", "fix"), error.parts, strict=True))


def failed(arguments: dict[str, Any], look_only: bool = False) -> gpu_check_probe.CheckError:
    with pytest.raises(gpu_check_probe.CheckError) as caught:
        gpu_check.check(arguments, look_only)
    return caught.value


def test_the_report_is_the_result(install: Install) -> None:
    root = install(printing(report(seconds=3.5)))
    assert gpu_check.check(options(root), look_only=False) == report(seconds=3.5)
    assert told(root, "arguments").split() == (
        ["-m", "rackwell.probe", "check", "--mode", "full", "--json", "--timeout", "60", "--size", "256"]
    )
    assert told(root, "stdin") == ""


def test_all_options_reach_the_probe(install: Install) -> None:
    root = install(printing(report()))
    facts = {"schema": "rackwell.gpu_host/1", "iommu": {"mode": "off"}}
    expect = {"floors": {"nvlink": {"gb_per_s": 300}}, "environment": {"NCCL_P2P_LEVEL": "SYS"}}
    given = options(
        root, gpus=8, mode="quick", size=64, expect=expect, baseline="/b.json", host_facts=facts, beside_server=True
    )
    gpu_check.check(given, look_only=False)
    arguments = told(root, "arguments").split()
    place = arguments.index("--expect")
    assert " ".join(arguments[:place]) == (
        "-m rackwell.probe check --mode quick --json --timeout 60 --size 64 --gpus 8"
    )
    assert " ".join(arguments[place + 2 :]) == "--baseline /b.json --host-facts - --beside-server"
    assert json.loads(told(root, "stdin")) == facts
    assert json.loads(told(root, "expect")) == expect
    assert not Path(arguments[place + 1]).exists()


@pytest.mark.parametrize(("runs", "asked", "beside"), [(True, None, True), (True, False, False), (False, None, False)])
def test_beside_a_server(
    install: Install, monkeypatch: pytest.MonkeyPatch, runs: bool, asked: bool | None, beside: bool
) -> None:
    monkeypatch.setattr(gpu_check_probe, "server_runs", lambda: runs)
    root = install(printing(report()))
    gpu_check.check(options(root, beside_server=asked), look_only=False)
    assert ("--beside-server" in told(root, "arguments").split()) is beside


@pytest.mark.parametrize(
    ("state", "runs"), [("active", True), ("activating", True), ("inactive", False), ("failed", False)]
)
def test_the_units_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, runs: bool) -> None:
    monkeypatch.undo()
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\n[ "$*" = "is-active rackwell-inference.service" ] && echo {state}\nexit 3\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_check_probe.server_runs() is runs
    systemctl.unlink()
    assert gpu_check_probe.server_runs() is False


def test_degraded_is_no_failure(install: Install) -> None:
    root = install(printing(report("degraded", ("acs-on", "degraded"))))
    assert gpu_check.check(options(root), look_only=False)["problems"][0]["code"] == "acs-on"


def test_the_first_failing_problem_is_the_error_and_all_are_told(install: Install) -> None:
    document = report("fail", ("acs-on", "degraded"), ("cuda-hang", "fail"), ("p2p-hang", "fail"))
    error = failed(options(install(printing(document, 1))))
    assert problem_of(error) == {
        "code": "cuda-hang",
        "what": "cuda-hang happened (and 2 more)",
        "where": "GPU 0",
        "why": "because",
        "fix": "mend it",
    }
    assert [problem["code"] for problem in error.extra["problems"]] == ["cuda-hang", "p2p-hang", "acs-on"]
    assert error.extra["rackwell_result"] == document


@pytest.mark.parametrize("verdict", ["fail", "not-measured", "odd"])
def test_what_is_not_good_without_a_reason_fails_too(install: Install, verdict: str) -> None:
    assert problem_of(failed(options(install(printing(report(verdict))))))["code"] == "gpu-check-failed"


@pytest.mark.parametrize("changes", [{}, {"user": "no-such-user"}])
def test_check_mode_before_the_probe_is_there_runs_nothing(tmp_path: Path, changes: dict[str, str]) -> None:
    assert gpu_check.check(options(tmp_path, **changes), look_only=True)["verdict"] == "not-measured"


def test_check_mode_with_the_probe_there_checks(install: Install) -> None:
    assert gpu_check.check(options(install(printing(report()))), look_only=True)["verdict"] == "pass"


def test_a_missing_probe_or_user_is_told(tmp_path: Path) -> None:
    for changes, code in (({}, "probe-missing"), ({"user": "no-such-user"}, "user-missing")):
        assert problem_of(failed(options(tmp_path, **changes)))["code"] == code


@pytest.mark.parametrize("output", ["not json", "[]", '{"verdict": "pass"}', ""])
def test_what_is_no_report_is_no_pass(install: Install, output: str) -> None:
    root = install(f"#!/bin/sh\necho '{output}'\necho why it broke >&2\nexit 3\n")
    problem = problem_of(failed(options(root)))
    assert problem["code"] == "probe-failed"
    assert "status 3: why it broke" in problem["why"]


def test_a_probe_that_ignores_its_own_deadline_is_killed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check_probe, "ALLOWANCE", 0)
    root = install("#!/bin/sh\nexec sleep infinity\n")
    assert problem_of(failed(options(root, timeout=1)))["code"] == "probe-hang"


@pytest.mark.parametrize(("option", "value"), [("timeout", 0), ("gpus", 0), ("size", -1), ("record_runs", 1)])
def test_values_that_cannot_be(tmp_path: Path, option: str, value: float) -> None:
    error = failed(options(tmp_path, **{option: value}), look_only=True)
    assert (error.parts[0], error.parts[2]) == ("invalid-option", option)


WRITES = """#!/bin/sh
here="$(dirname "$0")"; printf "%s\\n" "$@" >"$here/arguments"
while [ "$1" != --out ]; do shift; done
{write}
exit {status}
"""
BASELINE = {"schema": "rackwell.gpu_baseline/1", "runs": 3, "values": {}}


def test_a_baseline_comes_back(install: Install) -> None:
    root = install(WRITES.format(write=f"echo '{json.dumps(BASELINE)}' >\"$2\"", status=0))
    assert gpu_check.check(options(root, record_runs=3, gpus=2, baseline="/old.json"), look_only=False) == BASELINE
    arguments = told(root, "arguments").split()
    assert arguments[:5] == ["-m", "rackwell.probe", "baseline", "--runs", "3"]
    assert arguments[7:] == ["--json", "--timeout", "60", "--size", "256", "--gpus", "2"]


def test_no_baseline_of_a_machine_that_fails(install: Install) -> None:
    document = report("fail", ("p2p-hang", "fail"))
    root = install(WRITES.format(write=f"echo '{json.dumps(document)}'", status=1))
    error = failed(options(root, record_runs=3))
    assert problem_of(error)["code"] == "p2p-hang"
    assert error.extra["rackwell_result"] == document


@pytest.mark.parametrize("write", [":", 'echo "{}" >"$2"', 'ln -s /etc/passwd "$2"'])
def test_no_baseline_is_an_error(install: Install, write: str) -> None:
    error = failed(options(install(WRITES.format(write=write, status=0)), record_runs=3))
    assert problem_of(error)["code"] == "probe-failed"


def test_no_baseline_beside_a_server(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check_probe, "server_runs", lambda: True)
    error = failed(options(install("#!/bin/sh\n"), record_runs=3))
    assert problem_of(error)["code"] == "server-running"
    assert error.extra == {"held": True}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_check_runs_as_the_user_without_our_environment(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_ROOT", "x")
    document = (
        '{\\"verdict\\": \\"pass\\", \\"problems\\": [], \\"id\\": \\"$(id -u) $(id -G) ${SECRET_OF_ROOT-none}\\"}'
    )
    root = install(f'#!/bin/sh\necho "{document}"\n')
    nobody = pwd.getpwnam("nobody")
    result = gpu_check.check(options(root, user="nobody"), look_only=False)
    assert result["id"] == f"{nobody.pw_uid} {nobody.pw_gid} none"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_user_may_read_what_is_expected_and_write_the_baseline(install: Install) -> None:
    write = f'cat "$(dirname "$2")/expect.json" >/dev/null && echo \'{json.dumps(BASELINE)}\' >"$2"'
    root = install(
        WRITES.replace('here="$(dirname "$0")"; printf "%s\\n" "$@" >"$here/arguments"\n', "").format(
            write=write, status=0
        )
    )
    given = options(root, user="nobody", record_runs=2, expect={"environment": {"NCCL_X": "1"}})
    assert gpu_check.check(given, look_only=False) == BASELINE
