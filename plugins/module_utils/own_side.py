# SPDX-License-Identifier: Apache-2.0
"""A machine's own side of a roll or of a router: a program that answers one JSON object with another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


def asked(module: AnsibleModule, program: str, request: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The answer; or nothing, and why there is none."""
    code, out, err = module.run_command([program, "ask"], data=json.dumps(request))
    try:
        return dict(json.loads(out)), ""
    except (TypeError, ValueError):
        return {}, (err or out).strip()[-400:] or "it ended with %d" % code
