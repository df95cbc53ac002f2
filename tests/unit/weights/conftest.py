# SPDX-License-Identifier: Apache-2.0
"""A hub on this machine and a program that fetches from it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from hubserver import Hub
from weightsrig import Fetcher


@pytest.fixture
def hub() -> Iterator[Hub]:
    served = Hub()
    yield served
    served.stop()


@pytest.fixture
def fetcher(tmp_path: Path, hub: Hub) -> Fetcher:
    return Fetcher(tmp_path, hub.endpoint)
