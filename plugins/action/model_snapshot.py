# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's side of model_snapshot: asks again and again, each time briefly, until the fetch has ended.

A fetch takes hours. No connection is held that long without a word, and what is cut leaves the fetch as it is.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from ansible.plugins.action import ActionBase
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import failure

_MODULE = "rackwell.gpu.model_snapshot"
_OWN = ("step", "run", "before", "poll")
_GB = 1e9


class ActionModule(ActionBase):  # type: ignore[misc]
    """Begin; then wait until it has ended."""

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        result: Dict[str, Any] = super().run(tmp, task_vars)
        given = dict(self._task.args)
        if internal := [name for name in _OWN if name in given]:
            why = "%s is set by the action plugin" % internal[0]
            result.update(failed=True, **failure("wrong-option", "option %s cannot be given" % internal[0], "", why))
            return result
        answer = self._call(given, {}, task_vars)
        wait = given.get("wait", True) not in (False, "false", "False", "no")
        while "rackwell_run" in answer and wait:
            self._tell(answer)
            before = answer["rackwell_result"]["before"]
            step = {"step": "wait", "run": answer["rackwell_run"], "before": before}
            answer = self._call(given, step, task_vars)
        answer.pop("rackwell_run", None)
        answer.pop("rackwell_progress", None)
        result.update(answer)
        return result

    def _call(self, given: Dict[str, Any], step: Dict[str, Any], task_vars: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        answer: Dict[str, Any] = self._execute_module(
            module_name=_MODULE, module_args={**given, **step}, task_vars=task_vars or {}
        )
        return answer

    def _tell(self, answer: Dict[str, Any]) -> None:
        progress, found = answer.get("rackwell_progress") or {}, answer["rackwell_result"]
        done, total = progress.get("done_bytes") or 0, progress.get("bytes") or 0
        part = 100 * done / total if total else 0
        self._display.display(
            "%s at %s: %s, %.1f of %.1f GB (%.0f %%)"
            % (found["repository"], found["revision"][:12], progress.get("phase"), done / _GB, total / _GB, part)
        )
