# SPDX-License-Identifier: Apache-2.0
"""Results and reports are handed around: no secret of a profile may be in them."""

from __future__ import annotations

import json
from pathlib import Path

from cli_rig import Rig


def test_secrets_among_the_flags_go_into_no_result_and_no_report(rig: Rig) -> None:
    rig.site.edit("profiles/toy.yml", "flags:", "flags:\n  api-key: hunter2\n  admin-api-key: hunter2")
    stored = Path(rig.json("bench", "glm5-01")["result"]["file"])
    flags = json.loads(stored.read_text())["profile"]["flags"]
    assert (flags["api-key"], flags["admin-api-key"], flags["tp-size"]) == ("***", "***", 8)
    assert not [path for path in stored.parent.iterdir() if "hunter2" in path.read_text()]
