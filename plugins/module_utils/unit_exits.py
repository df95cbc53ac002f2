# SPDX-License-Identifier: Apache-2.0
"""What it means when systemd could not even run a unit's program: the statuses from 200 on are its own."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import System, UnitState

_ANEW = "rackwell provision CONTAINER"
FIXES = {
    "unit-sandbox": "take out the drop-in or the option that it names, and systemctl daemon-reload; where the "
    "container lost its nesting: pct set VMID --features nesting=1 on the host and restart it; "
    f"then {_ANEW}, which tries anew what holds",
    "unit-credential": f"have the file of the secrets written anew: {_ANEW}; "
    "and look for a drop-in that clears LoadCredential=",
    "unit-user": f"have the service user made: {_ANEW}",
    "unit-program": f"have the release staged and active: {_ANEW}",
    "unit-setup": "see what systemd names in journalctl -u {unit}, take out drop-ins that rackwell did not write; then "
    + _ANEW,
}
#: exit status -> name in systemd's own words, code, what
_SETUP = {
    200: ("CHDIR", "unit-program", "systemd cannot enter the release's directory"),
    203: ("EXEC", "unit-program", "systemd cannot run the unit's program"),
    216: ("GROUP", "unit-user", "systemd cannot become the unit's group"),
    217: ("USER", "unit-user", "systemd cannot become the unit's user"),
    218: ("CAPABILITIES", "unit-sandbox", "systemd cannot set the unit's capabilities here"),
    225: ("NETWORK", "unit-sandbox", "systemd cannot set up the unit's network namespace here"),
    226: ("NAMESPACE", "unit-sandbox", "systemd cannot set up the unit's mount namespace here"),
    228: ("SECCOMP", "unit-sandbox", "systemd cannot set up the unit's filter of system calls here"),
    233: ("RUNTIME_DIRECTORY", "unit-setup", "systemd cannot make the unit's runtime directory"),
    243: ("CREDENTIALS", "unit-credential", "systemd cannot hand out the unit's credentials"),
}
_STATUS = re.compile(r"exit code (\d+)")
_SAID = re.compile(r"Failed to (?:set up|get|load|read|change|locate|determine) ")


class Setup(NamedTuple):
    """Why a program was never run; the fields are those of an error."""

    code: str
    what: str
    why: str
    fix: str


def told(system: System, unit: str, state: UnitState) -> Optional[Setup]:
    """What a unit's end says, when it is systemd's own; None when the program itself ran."""
    # a condition that could not be asked holds the unit as one that said no
    status = _STATUS.match(system.condition_exit(unit) if state.held else state.exit_text)
    known = _SETUP.get(int(status.group(1))) if status else None
    if status is None or known is None:
        return None
    name, code, what = known
    # which option it was, systemd writes into the journal, and nowhere else
    lines = [line.strip() for line in system.journal_of(unit)]
    said = [line for line in lines if _SAID.search(line)] or [line for line in lines if "Failed at step" in line]
    why = f"status {status.group(1)}/{name}"
    if said:
        why += f"; {said[-1]}"
    # one of rackwell's own is there while it watches a start
    foreign = [path for path in system.drop_ins(unit) if not path.endswith("50-rackwell-gate.conf")]
    if foreign:
        why += f"; drop-ins: {', '.join(foreign)}"
    return Setup(code, what, why, FIXES[code].format(unit=unit))
