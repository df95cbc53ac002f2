# SPDX-License-Identifier: Apache-2.0
"""The load generator: the engine's own, without torch, in its own environment."""

from __future__ import annotations

from testinfra.host import Host

MACHINE = "glm5-01"
PYTHON = "/opt/rackwell/bench-client/env/bin/python"


def test_it_is_sglang_0_5_9_without_torch(host: Host) -> None:
    assert (
        host.check_output("%s -c %s", PYTHON, "import importlib.metadata as m; print(m.version('sglang'))") == "0.5.9"
    )
    assert host.run("%s -c %s", PYTHON, "import torch").failed


def test_nothing_of_a_run_goes_on_running(host: Host) -> None:
    units = host.check_output("systemctl list-units --no-legend --plain --state=active 'rackwell-bench-*'")
    assert units == ""
