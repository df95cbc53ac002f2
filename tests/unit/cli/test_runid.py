# SPDX-License-Identifier: Apache-2.0
"""Ids of runs: the newest is the last, however fast one comes after the other."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest

from rackwell import runid


def test_what_began_later_sorts_later_within_one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return dt.datetime(2026, 11, 30, 10, 0, 0, 999_990, tz)

    monkeypatch.setattr(runid.dt, "datetime", Stopped)
    monkeypatch.setattr(runid, "_last", 0)
    made = [runid.new() for _ in range(5)]
    assert [name for name, _ in made] == sorted({name for name, _ in made})
    # the clock stood still at the end of a second, and the moment is that of the name
    assert made[0][0] == "20261130T100000Z-ffff"
    assert made[1] == ("20261130T100001Z-0000", dt.datetime(2026, 11, 30, 10, 0, 1, tzinfo=dt.UTC))


def test_the_verb_stands_in_the_middle() -> None:
    assert re.fullmatch(r"\d{8}T\d{6}Z-status-[0-9a-f]{4}", runid.new("status")[0])
