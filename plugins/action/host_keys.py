# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ansible.builtin.known_hosts for several keys of one host, under a lock: it replaces the whole file each time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import failure


class ActionModule(ActionBase):  # type: ignore[misc]
    """Runs on the controller: the lock is this process's."""

    _VALID_ARGS = frozenset(("path", "name", "keys"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """See the module's documentation."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(
            {
                "path": {"type": "path", "required": True},
                "name": {"type": "str", "required": True},
                "keys": {"type": "list", "elements": "str", "required": True, "no_log": False},
            }
        )
        result.update(changed=False, diff=[])
        # where it is a link, several sites may have the file: each has to find what another recorded
        path = os.path.realpath(given["path"])
        try:
            with locked(os.path.join(os.path.dirname(path), ".rackwell", "locks")):
                for key in given["keys"]:
                    arguments = {"path": path, "name": given["name"], "key": "%s %s" % (given["name"], key)}
                    one = self._execute_module("ansible.builtin.known_hosts", arguments, task_vars=task_vars)
                    if one.get("failed"):
                        return dict(one, changed=result["changed"])
                    result["changed"] = result["changed"] or bool(one.get("changed"))
                    result["diff"] += [one["diff"]] if one.get("changed") and one.get("diff") else []
        except OSError as error:
            why = error.strerror or str(error)
            fix = "make it writable for the user that runs rackwell"
            result.update(
                failed=True,
                **failure(
                    "lock-unwritable", "the lock of known_hosts cannot be written", str(error.filename), why, fix
                ),
            )
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return result


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Wait for the lock and hold it; it ends with the process, however that ends. Raises OSError."""
    os.makedirs(folder, exist_ok=True)
    handle = os.open(os.path.join(folder, "known_hosts.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
