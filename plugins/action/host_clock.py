# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""host_clock: the controller reads its own clock before and after the machine's."""

from __future__ import annotations

import re
import subprocess
import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.rackwell.gpu.plugins.module_utils import clock_compare
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import failure

_SYNCHRONIZED = "timedatectl show --property=NTPSynchronized --value"
_WORDS = {"yes": True, "no": False}


class ActionModule(ActionBase):  # type: ignore[misc]
    """Ask, and compare."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """See the module's documentation."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        name = str((task_vars or {}).get("inventory_hostname", "the machine"))
        # the first command connects, which may take seconds
        self._low_level_execute_command("true")
        before = time.time()
        there = self._now()
        after = time.time()
        if there is None:
            why, fix = "`date +%s.%N` printed no time", "see that coreutils are installed there"
            parts = ("clock-unknown", "the clock of %s cannot be read" % name, name, why, fix)
            result.update(failed=True, changed=False, **failure(*parts))
            return result
        sure: tuple[bool | None, bool | None] = (None, None)
        if abs(clock_compare.offset(before, there, after)) >= clock_compare.TOLD_S:
            told = self._low_level_execute_command(_SYNCHRONIZED)
            sure = (_WORDS.get(str(told.get("stdout", "")).strip()), _own())
        limit = float(self._task.args.get("limit") or 60)
        found, wrong = clock_compare.compare(name, before, there, after, limit, sure)
        result.update(changed=False, rackwell_result=found)
        if wrong is not None:
            result.update(failed=True, **failure(**wrong.as_dict()))
        return result

    def _now(self) -> float | None:
        told = self._low_level_execute_command("date +%s.%N")
        # a banner or a profile may print before it
        found = re.search(r"^(\d{9,}(?:\.\d+)?)\s*$", str(told.get("stdout", "")), re.MULTILINE)
        return float(found[1]) if found else None


def _own() -> bool | None:
    """Whether this machine's clock is said to be synchronized."""
    try:
        done = subprocess.run(
            _SYNCHRONIZED.split(), capture_output=True, text=True, check=False, timeout=10, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _WORDS.get(done.stdout.strip())
