# SPDX-License-Identifier: Apache-2.0
"""The reference of findings says what the probe says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from rackwell.topology import codes

from . import samples

DOCS = Path(__file__).parents[3] / "docs"


def test_the_reference_is_that_of_the_probe() -> None:
    published = (DOCS / "codes.md").read_text()
    assert published == codes.text(), "renew it: python -m rackwell.topology.codes docs/codes.md"
    said = subprocess.run([sys.executable, "-m", "rackwell.probe", "codes", "--json"], capture_output=True, check=True)
    table = json.loads(said.stdout)["codes"]
    assert re.findall(r"^### (\S+)$", published, re.MULTILINE) == [
        code["code"] for check in codes.CHECKS for code in table if code["check"] == check
    ]


def test_samples_use_the_checks_and_codes_that_there_are() -> None:
    for make in samples.ALL.values():
        report = make()
        assert [check["id"] for check in report["checks"]] == list(codes.CHECKS)
        for finding in report["findings"]:
            for each in (finding, *finding["consequences"]):
                assert each["code"] in codes.CODES
