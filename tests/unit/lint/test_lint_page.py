# SPDX-License-Identifier: Apache-2.0
"""docs/lint.md is what the rules say."""

from __future__ import annotations

from pathlib import Path

from rackwell.lint import page

ROOT = Path(__file__).parents[3]


def test_the_page_is_made_from_the_rules() -> None:
    made = page.text(ROOT / "catalog")
    assert (ROOT / "docs" / "lint.md").read_text(encoding="utf-8") == made, "python -m rackwell.lint.page docs/lint.md"
