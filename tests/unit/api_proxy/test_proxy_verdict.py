# SPDX-License-Identifier: Apache-2.0
"""What `rackwell verify` and `rackwell provision` make of the proxy."""

from __future__ import annotations

from typing import Any

from rackwell.ansible.results import Failure, PlayResult, Reported
from rackwell.errors import ExitCode, Problem
from rackwell.provision import verifying


def played(report: dict[str, Any] | None, *failures: Failure) -> PlayResult:
    made = PlayResult("verify", None)  # type: ignore[arg-type] # its log is not looked at
    if report is not None:
        payload = {"schema": "rackwell.api_proxy/1", "port": 443, **report}
        made.results.append(Reported("glm5-01", "api_proxy", "Ask", False, payload))
    made.failures.extend(failures)
    return made


def proxy_of(of: PlayResult) -> tuple[str, str] | None:
    judged = verifying.judge(of, "glm5-01", "pve1", "again")
    return next(((item.verdict, item.evidence) for item in judged.items if item.item == "proxy"), None)


def report(days: int) -> dict[str, Any]:
    asked = [
        {"name": "GET /v1/models without a key", "expected": 401, "status": 401, "why": ""},
        {"name": "GET /server_info with the key", "expected": 404, "status": 404, "why": ""},
    ]
    return {
        "asked": asked,
        "engine_listens": ["127.0.0.1"],
        "certificate": {"from": "controller", "days_left": days, "warn_days": 21},
    }


def test_no_row_where_no_proxy_is_declared() -> None:
    assert proxy_of(played(None)) is None


def test_it_answers_and_its_certificate_has_days_left() -> None:
    found = proxy_of(played(report(60)))
    assert found is not None
    verdict, evidence = found
    assert verdict == verifying.PASS
    assert "401 GET /v1/models without a key" in evidence
    assert "engine on 127.0.0.1 alone; " in evidence
    assert "60 more days" in evidence


def test_a_certificate_that_ends_soon_degrades_and_does_not_fail() -> None:
    assert (proxy_of(played(report(21))) or ("",))[0] == verifying.DEGRADED
    assert (proxy_of(played(report(22))) or ("",))[0] == verifying.PASS


def test_what_it_does_wrong_is_told() -> None:
    problem = Problem("proxy-wrong-answer", "the proxy does not do what it should: GET /server_info with the key")
    failure = Failure("glm5-01", "api_proxy", "Ask", (problem,))
    found = proxy_of(played(report(60), failure))
    assert found == (verifying.FAIL, problem.what)


def test_a_change_that_was_taken_back_has_its_exit_code() -> None:
    problem = Problem("proxy-broken", "the proxy does not do what it should; the former configuration is back and runs")
    back = Failure("glm5-01", "api_proxy", "Have", (problem,), rolled_back=True, rollback_verified=True)
    lost = Failure("glm5-01", "api_proxy", "Have", (problem,))
    assert played(None, back).exit_code == ExitCode.ROLLED_BACK
    assert played(None, lost).exit_code == ExitCode.FAILED
