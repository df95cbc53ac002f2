# SPDX-License-Identifier: Apache-2.0
"""Persistence mode and power limit of a host's GPUs: what they have, and the unit that sets them at each boot."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import Finding, problem

UNIT = "rackwell-gpu-power.service"
HELPER = "/usr/local/lib/rackwell/gpu-power"
_UNIT = """\
# Written by rackwell. Changes made here are undone by its next run.
[Unit]
Description=Persistence mode and power limit of the NVIDIA GPUs (rackwell)
After=systemd-modules-load.service rackwell-gpu-nodes.service nvidia-persistenced.service
# An order and no requirement: guests start whatever this comes to.
Before=pve-guests.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={helper}{options}
TimeoutStartSec=240

[Install]
WantedBy=multi-user.target
"""
_FIELDS = "index,pci.bus_id,persistence_mode,power.limit,power.min_limit,power.max_limit"


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What one GPU has. Watts; None where the tool does not tell."""

    index: str
    bus_id: str
    persistence: Optional[bool]
    limit: Optional[float]
    least: Optional[float]
    most: Optional[float]

    def as_dict(self) -> dict[str, Any]:
        """The parts by name."""
        return dataclasses.asdict(self)


def unit(persistence: bool, limit: int) -> str:
    """Text of the unit; empty when there is nothing that it had to do."""
    options = (" --persistence" if persistence else "") + (" --limit %d" % limit if limit else "")
    return _UNIT.format(helper=HELPER, options=options) if options else ""


def read(host: Any) -> list[Gpu]:
    """Ask nvidia-smi. Raises PveError when it does not answer."""
    done = host.run(["nvidia-smi", "--query-gpu=" + _FIELDS, "--format=csv,noheader,nounits"])
    if done.returncode != 0:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        raise problem(
            "power-unknown",
            "persistence mode and power limit of the GPUs cannot be read",
            "nvidia-smi",
            "it ended with %d: %s" % (done.returncode, " ".join(lines[-2:]) or "it said nothing"),
            "nvidia-smi has to answer on the host: is the driver loaded, and of its version?",
        )
    found = []
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 6:
            mode = {"enabled": True, "disabled": False}.get(cells[2].lower())
            found.append(Gpu(cells[0], cells[1], mode, *(_watts(cell) for cell in cells[3:])))
    return found


def findings(gpus: Sequence[Gpu], persistence: bool, limit: int) -> list[Finding]:
    """What is not as declared."""
    found = []
    again = "systemctl restart %s, or rackwell provision; it sets both at each boot" % UNIT
    off = [gpu for gpu in gpus if persistence and gpu.persistence is False]
    if off:
        why = (
            "each first program has to bring the GPU up again, which takes seconds, and the power limit is lost with it"
        )
        found.append(Finding("persistence-off", "%s: persistence mode is off" % _names(off), "nvidia-smi", why, again))
    wrong = [gpu for gpu in gpus if limit and gpu.limit is not None and abs(gpu.limit - limit) >= 1]
    if wrong:
        have = ", ".join(sorted({"%g W" % gpu.limit for gpu in wrong if gpu.limit is not None}))
        why = "declared is %d W, found is %s: the limit does not last over a boot or a reload of the driver" % (
            limit,
            have,
        )
        found.append(Finding("power-limit", "%s: another power limit" % _names(wrong), "nvidia-smi", why, again))
    return found


def impossible(gpus: Sequence[Gpu], limit: int) -> Optional[Finding]:
    """The limit is one that a GPU does not take."""
    for gpu in gpus:
        if limit and gpu.least is not None and gpu.most is not None and not gpu.least <= limit <= gpu.most:
            why = "GPU %s takes %g to %g W" % (gpu.bus_id, gpu.least, gpu.most)
            what = "a power limit of %d W cannot be set" % limit
            return Finding("power-limit-invalid", what, "pve_host_power_limit", why, "declare a limit within that")
    return None


def files(persistence: bool, limit: int, helper: str) -> dict[str, str]:
    """Path -> text of what has to lie there; empty for what has to be gone."""
    text = unit(persistence, limit)
    return {HELPER: helper if text else "", "/etc/systemd/system/" + UNIT: text}


def differing(host: Any, wanted: dict[str, str]) -> list[str]:
    """Files that are not so."""
    return [path for path, text in wanted.items() if (host.read(path) if os.path.exists(host.at(path)) else "") != text]


def shown(gpus: Sequence[Gpu]) -> str:
    """What the GPUs have, in a few words."""
    on = sum(gpu.persistence is True for gpu in gpus)
    limits = sorted({"%g W" % gpu.limit for gpu in gpus if gpu.limit is not None})
    return "persistence mode on for %d of %d, limit %s" % (on, len(gpus), " and ".join(limits) or "unknown")


def _names(gpus: Sequence[Gpu]) -> str:
    return ("GPU " if len(gpus) == 1 else "GPUs ") + ", ".join(gpu.index for gpu in gpus)


def _watts(text: str) -> Optional[float]:
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return None
