# SPDX-License-Identifier: Apache-2.0
"""The drivers that a host may get."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from rackwell.site.variables import PveHost

PAIR = {"version": "595.58.03", "run_file": "/srv/a.run", "sha256": "0" * 64, "kernel": "6.17.13-2-pve"}


def host(**variables: Any) -> PveHost:
    return PveHost.model_validate({"pve_host_driver_version": "595.58.03", **variables})


def test_the_declared_driver_is_among_them() -> None:
    assert host(pve_host_manage_driver=True, pve_host_drivers=[PAIR]).pve_host_drivers[0].kernel == "6.17.13-2-pve"
    assert not host().pve_host_manage_driver


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"pve_host_manage_driver": True}, "needs 595.58.03 in pve_host_drivers (there: none)"),
        ({"pve_host_drivers": [PAIR, PAIR]}, "twice"),
        ({"pve_host_drivers": [{**PAIR, "packages": ["nvidia-open"]}]}, "either run_file and sha256, or packages"),
        ({"pve_host_drivers": [{"version": "595.58.03"}]}, "either run_file and sha256, or packages"),
        (
            {"pve_host_registry": {"EnableResizableBar": 1}},
            "pve_host_module_options: {nvidia: {NVreg_EnableResizableBar",
        ),
        ({"pve_host_module_options": {"nouveau": {"modeset": 0}}}, "pve_host_module_options"),
        ({"pve_host_drivers": [{**PAIR, "sha256": "x"}]}, "sha256"),
        ({"pve_host_drivers": [{**PAIR, "version": 595.84}]}, "version"),
        ({"pve_host_kernel": "-x; rm"}, "pve_host_kernel"),
    ],
)
def test_what_does_not_hold(variables: dict[str, Any], told: str) -> None:
    with pytest.raises(pydantic.ValidationError) as refused:
        host(**variables)
    assert told in str(refused.value)
