# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's side of nvidia_userspace: looks first, and sends the installer only when it is needed."""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_driver import DriverError
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_run_file import check_sha256, check_sha256_form
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import failure

_MODULE = "rackwell.gpu.nvidia_userspace"


class ActionModule(ActionBase):  # type: ignore[misc]
    """One look; and only when something is missing, the transfer and the installation."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """See the module's documentation."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = dict(self._task.args)
        variables = task_vars or {}
        remote = str(given.get("remote_src", False)).lower() in ("true", "yes", "on", "1")
        try:
            if given.get("sha256"):
                check_sha256_form(str(given["sha256"]))
            if remote or not given.get("run_file") or given.get("state", "present") != "present":
                result.update(self._call(given, variables))
            else:
                result.update(self._converge(given, variables))
        except DriverError as error:
            result.update(failed=True, changed=False, **failure(**error.parts))
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        result.pop("rackwell_free", None)
        return result

    def _converge(self, given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        # without the file: what it would do is told, and what does not need it is done
        bare = {**given, "run_file": None, "sha256": None}
        if self._task.check_mode:
            return self._call(bare, variables)
        looked = self._call({**bare, "state": "looked"}, variables)
        if looked.get("failed") or not looked["rackwell_result"]["needed"]:
            pending = not looked.get("failed") and looked["rackwell_result"].get("pending")
            return self._call(bare, variables) if pending else looked
        local = self._loader.path_dwim(os.path.expanduser(str(given["run_file"])))
        check_sha256(local, str(given["sha256"]))
        check_room(os.path.getsize(local), looked["rackwell_free"])
        folder = self._connection._shell.tmpdir or self._make_tmp_path()
        remote = self._connection._shell.join_path(folder, os.path.basename(local))
        self._display.v("nvidia_userspace: sending %s, %d bytes" % (local, os.path.getsize(local)))
        self._transfer_file(local, remote)
        self._fixup_perms2((folder, remote))
        installed = self._call({**given, "run_file": remote, "remote_src": True}, variables)
        return told_as_declared(installed, str(remote), local)

    def _call(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        arguments = {name: value for name, value in arguments.items() if value is not None}
        result: dict[str, Any] = self._execute_module(module_name=_MODULE, module_args=arguments, task_vars=variables)
        return result


def check_room(
    size: int,
    room: dict[str, Any],
    fix: str = "free space in the container, or give it a larger disk (pve_container_disk_size)",
) -> None:
    """Refuse before anything is sent. Raises DriverError."""
    if room["available"] < size:
        raise DriverError(
            "no-space",
            "there is no room for the driver's .run file",
            str(room["path"]),
            "it has %d bytes, available are %d; nothing was sent" % (size, room["available"]),
            fix,
        )


def told_as_declared(result: dict[str, Any], remote: str, local: str) -> dict[str, Any]:
    """An error about the sent copy names the file that the operator knows."""
    error = result.get("rackwell_error")
    if error:
        result["msg"] = str(result.get("msg", "")).replace(remote, local)
        result["rackwell_error"] = {key: str(value).replace(remote, local) for key, value in error.items()}
    return result
