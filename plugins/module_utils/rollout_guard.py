# SPDX-License-Identifier: Apache-2.0
"""Whether a roll is under way on this host, for those that are no part of it."""

from __future__ import annotations

import json
import os

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_lock import Locks, now

_UNDER_WAY = ("switching", "open", "returning")


def rolling(state: str) -> str:
    """Why nobody but that roll may change the server now; empty when there is none.

    Args:
        state: where rackwell keeps what it knows of this host.
    """
    directory = os.path.join(state, "rollout")
    moment = now()
    held = Locks(directory).present()
    if held is not None and not held.over(moment):
        told = held.told(moment)
        return f"run {held.run} of {held.owner} holds this host for {told['left_s']:.0f} s more, and renews that"
    text = files.read_text(os.path.join(directory, "change.json"))
    change = json.loads(text) if text else {}
    if change.get("state") in _UNDER_WAY:
        return f"the change of run {change['run']} is {change['state']}: it is neither confirmed nor taken back"
    return ""
