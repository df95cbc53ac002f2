# SPDX-License-Identifier: Apache-2.0
"""What a run is going to switch this host to: laid down while it is staged, long before anything is touched.

So a switch needs neither Ansible nor the declaration any more, and everything that cannot be rendered or does not fit
this host is told before the first host of the roll is switched.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, NamedTuple

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_preflight as preflight
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_activation import HELD, Check, Snapshot
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_preflight import Lack
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import run_condition

#: so many are kept, the newest: a roll may be resumed days later
KEPT = 8
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Wanted(NamedTuple):
    """What to switch to, and how to tell that it may be and that it serves.

    Attributes:
        fatal: rules that end the wait for a start, as module inference_server has them.
        condition: asks for the boot gate's verdict; empty where there is no gate.
    """

    unit: str
    environment: str
    release: str
    check: Check
    fatal: list[dict[str, Any]]
    user: str
    model_path: str
    condition: list[str]
    secrets: str = ""

    @classmethod
    def of(cls, data: dict[str, Any]) -> Wanted:
        """From what a run asks for. Raises TypeError, KeyError, ValueError: it does not hold."""
        check = data["check"]
        # a template may have made texts of them
        numbers = {name: int(check[name]) for name in ("port", "max_tokens", "ready_timeout")}
        return cls(**{**data, "check": Check(**{**check, **numbers})})

    def snapshot(self) -> Snapshot:
        """As it will be."""
        return Snapshot(
            self.unit, self.environment, self.release, active=True, enabled=True, secrets=self.secrets or None
        )

    def differs(self, present: Snapshot) -> list[str]:
        """What a switch would change, in words; empty: nothing, it is as wanted already."""
        pairs = (
            ("unit file", present.unit, self.unit),
            ("environment file", present.environment, self.environment),
            ("secrets file", present.secrets, self.secrets or None),
            ("release", present.release, self.release),
            ("not running", present.active, True),
        )
        return [name for name, there, wanted in pairs if there != wanted]

    def lacking(self, root: str, unit: str) -> list[Lack]:
        """What is missing on this host, or in the way. Touches nothing."""
        found: list[Lack] = preflight.lacking(root, self.release, self.user, self.model_path)
        found += preflight.bad_secrets(self.secrets)
        found += preflight.in_the_way(unit, self.check.host, self.check.port)
        return found

    def held(self, unit: str) -> list[Lack]:
        """The boot gate's objection, where it has one. Asks the gate, which may take its time."""
        why = run_condition(self.condition) if self.condition else ""
        return [Lack(HELD, "the boot gate would hold the server", unit, why, preflight.MEND_THE_GATE)] if why else []


class Prepared:
    """What runs have laid down here. The texts may hold secrets: root's alone."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, "wanted")

    def _path(self, run: str) -> str:
        if not _RUN.fullmatch(run):
            raise ValueError(f"{run!r} is no run's id")
        return os.path.join(self._directory, run + ".json")

    def put(self, run: str, data: dict[str, Any]) -> Wanted:
        """Lay it down; the oldest beyond KEPT go. Raises OSError; TypeError, KeyError, ValueError: it does not hold."""
        wanted = Wanted.of(data)
        path = self._path(run)
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        files.write(path, json.dumps(data, sort_keys=True) + "\n", 0o600)
        # a run's id begins with its time
        for old in sorted(name for name in os.listdir(self._directory) if name.endswith(".json"))[:-KEPT]:
            if old != os.path.basename(path):
                files.remove(os.path.join(self._directory, old))
        return wanted

    def get(self, run: str) -> Wanted | None:
        """What a run has laid down; None: nothing, it is gone, or it is damaged."""
        text = files.read_text(self._path(run))
        try:
            return Wanted.of(json.loads(text)) if text else None
        except (TypeError, KeyError, ValueError):
            # a host must go on answering whatever became of one file
            return None
