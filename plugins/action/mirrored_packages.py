# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's side of mirrored_packages: sends the files of what the machine lacks."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import failure

_MODULE = "rackwell.gpu.mirrored_packages"
_FIX = "rackwell mirror where there is a network, bring the directory over, then rackwell build"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Looks, sends, installs."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """See the module's documentation."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = {name: value for name, value in self._task.args.items() if name not in ("staged", "index")}
        variables = task_vars or {}
        try:
            looked = self._call(given, variables)
            report = looked.get("rackwell_result") or {}
            if looked.get("failed") or self._task.check_mode or not report.get("missing"):
                result.update(looked)
                return result
            folder = os.path.join(os.path.expanduser(str(given["folder"])), str(report["suite"]))
            index, lacks = self._index(folder, list(report["missing"]))
            if lacks:
                what = "the mirror has no packages for %s: %s" % (report["suite"] or "this system", ", ".join(lacks))
                result.update(failed=True, changed=False, **failure("mirror-incomplete", what, folder, "", _FIX))
                return result
            remote = self._connection._shell.tmpdir or self._make_tmp_path()
            for name in index:
                self._transfer_file(os.path.join(folder, name), self._connection._shell.join_path(remote, name))
            result.update(self._call({**given, "staged": remote, "index": index}, variables))
            return result
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)

    def _index(self, folder: str, names: list[str]) -> tuple[dict[str, Any], list[str]]:
        """The files of the packages `names`, and those of `names` that are not there."""
        try:
            with open(os.path.join(folder, "index.json"), encoding="utf-8") as stream:
                told = json.load(stream)
        except (OSError, ValueError):
            return {}, names
        lacks = [name for name in names if name not in told["sets"]]
        files = sorted({file for name in names for file in told["sets"].get(name, [])})
        return {file: told["files"][file] for file in files}, lacks

    def _call(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(module_name=_MODULE, module_args=arguments, task_vars=variables)
        return result
