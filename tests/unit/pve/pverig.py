# SPDX-License-Identifier: Apache-2.0
"""pve_container against a stand-in host: what the code uses of Ansible, and how the tests call it."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError
from ansible_collections.rackwell.gpu.plugins.modules import pve_container
from pvestandin import Standin

KEY = "ssh-ed25519 AAAAC3Nza-test operator@controller"


class Module:
    """What the code uses of an AnsibleModule; runs `pct` and `pvesh` in this process, and plays the guest for exec."""

    def __init__(self, standin: Standin) -> None:
        self.standin = standin
        self.params: dict[str, Any] = {}
        self.check_mode = False
        self.commands: list[list[str]] = []
        self.authorized = ""
        self.states = ["starting", "running"]
        self.break_reboot = 0
        self.limits = ""

    def get_bin_path(self, name: str, **_: Any) -> str:
        return name

    def run_command(self, words: list[str], data: str | None = None, **_: Any) -> tuple[int, str, str]:
        if words[0] == "timeout":
            words = words[3:]
        self.commands.append(words)
        if words[:2] == ["pct", "exec"]:
            return self.guest(words[words.index("--") + 1 :], data)
        if words[:2] == ["pct", "reboot"] and self.break_reboot:
            self.break_reboot -= 1
            self.standin.lxc.up.clear()
            return 255, "", "startup for container '201' failed"
        out, err = io.StringIO(), io.StringIO()
        tool = getattr(self.standin, words[0])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            rc = tool(*words[1:])
        return rc, out.getvalue(), err.getvalue()

    def guest(self, words: list[str], data: str | None) -> tuple[int, str, str]:
        if words[:2] == ["systemctl", "is-system-running"]:
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            return (0 if state == "running" else 1), state + "\n", ""
        if words == ["cat", "/root/.ssh/authorized_keys"]:
            return (0, self.authorized, "") if self.authorized else (1, "", "No such file")
        if words[0] == "sh" and "authorized_keys" in words[2]:
            self.authorized += data or ""
            return 0, "", ""
        if words[0] == "sh" and "/proc/1/limits" in words[2]:
            return 0, self.limits, ""
        if words[0] == "sh" and "ssh_host" in words[2]:
            return 0, "ssh-ed25519 AAAAhost root@glm5-01\necdsa-sha2-nistp256 AAAAother root@glm5-01\n", ""
        return 0, "", ""

    def changing(self) -> list[list[str]]:
        """The commands that change the host."""
        return [words for words in self.commands if words[0] == "pct" and words[1] != "exec"]


def converge(module: Module, check_mode: bool = False, **changed: Any) -> pve_container.Outcome:
    module.commands.clear()
    module.params.update(changed)
    module.check_mode = check_mode
    return pve_container.converge(module)


def refusal(module: Module, **changed: Any) -> PveError:
    with pytest.raises(PveError) as caught:
        converge(module, **changed)
    return caught.value


def diff_lines(out: pve_container.Outcome) -> list[str]:
    """The changed lines of the first diff."""
    before, after = (out.diffs[0][side].splitlines() for side in ("before", "after"))
    return [f"-{line}" for line in before if line not in after] + [f"+{line}" for line in after if line not in before]
