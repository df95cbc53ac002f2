# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from rackwell.topology.baseline import Baseline
from rackwell.topology.report import GpuReport

from . import samples


def report(name: str) -> GpuReport:
    """A sample report, read."""
    return GpuReport.model_validate(samples.ALL[name]())


@pytest.fixture
def baseline() -> Baseline:
    """The healthy machine's own figures."""
    return Baseline.model_validate(samples.baseline())
