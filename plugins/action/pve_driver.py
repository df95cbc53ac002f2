# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's side of pve_driver: looks first, and sends the installer only when the host needs and lacks it."""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.rackwell.gpu.plugins.action.nvidia_userspace import check_room, told_as_declared
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_driver import DriverError
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_run_file import check_sha256, check_sha256_form
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import failure

_MODULE = "rackwell.gpu.pve_driver"


class ActionModule(ActionBase):  # type: ignore[misc]
    """One look; and only when something is to be done, the transfer and the work."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """See the module's documentation."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = {name: value for name, value in self._task.args.items() if value not in (None, "")}
        variables = task_vars or {}
        try:
            if given.get("sha256"):
                check_sha256_form(str(given["sha256"]))
            result.update(self._converge(given, variables))
        except DriverError as error:
            result.update(failed=True, changed=False, **failure(**error.parts))
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        result.pop("rackwell_free", None)
        return result

    def _converge(self, given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        remote = str(given.get("remote_src", False)).lower() in ("true", "yes", "on", "1")
        if given.get("state", "present") != "present" or self._task.check_mode or remote or not given.get("run_file"):
            return self._call(given, variables)
        # neither refused consent nor a host that is as wanted costs a transfer
        looked = self._call({**given, "state": "looked"}, variables)
        if looked.get("failed") or not looked["rackwell_result"]["file_needed"]:
            return looked if looked.get("failed") else self._call(given, variables)
        local = self._loader.path_dwim(os.path.expanduser(str(given["run_file"])))
        names = ("the run_file of pve_host_drivers", "its sha256 in pve_host_drivers")
        check_sha256(local, str(given.get("sha256", "")), names)
        check_room(os.path.getsize(local), looked["rackwell_free"], "free space on the host")
        folder = self._connection._shell.tmpdir or self._make_tmp_path()
        target = self._connection._shell.join_path(folder, os.path.basename(local))
        self._display.v("pve_driver: sending %s, %d bytes" % (local, os.path.getsize(local)))
        self._transfer_file(local, target)
        self._fixup_perms2((folder, target))
        done = self._call({**given, "run_file": target, "remote_src": True}, variables)
        told: dict[str, Any] = told_as_declared(done, str(target), local)
        return told

    def _call(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(module_name=_MODULE, module_args=arguments, task_vars=variables)
        return result
