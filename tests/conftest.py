# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests: no bound on the time of one, which on a loaded machine says nothing about the product."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("rackwell", deadline=None)
settings.load_profile("rackwell")


@pytest.fixture(autouse=True)
def own_umask() -> Iterator[None]:
    """A module that is called in this process sets its own, and ends with it; the tests behind it do not."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
