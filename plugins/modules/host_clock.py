#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A machine's clock against the controller's."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_clock
short_description: Compare a machine's clock with the controller's
version_added: 0.3.0
description:
  - Reads the clock, and compares it with the controller's before and after, so that the time of the way cannot pass for
    a difference.
  - A clock that is wrong has TLS refuse certificates, and journals, results and locks that do not fit together.
  - Reads only, by C(date) over the connection; it runs on the controller.
options:
  limit:
    description: Seconds of difference from which the module fails.
    type: int
    default: 60
attributes:
  check_mode:
    description: Reads only, so check mode returns the same.
    support: full
  diff_mode:
    description: Nothing changes, so there is no difference to show.
    support: none
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Compare the clocks
  rackwell.gpu.host_clock:
    limit: 60
"""

RETURN = r"""
rackwell_result:
  description: The comparison. Schema C(rackwell.host_clock/1).
  returned: always
  type: dict
  contains:
    offset:
      description: Seconds by which the machine is ahead (negative is behind) at the least; 0 when none can be told.
      type: float
    synchronized:
      description: Whether the machine's clock is synchronized; null when nobody tells. C(controller) likewise.
      type: bool
    checks:
      description: C(item), C(verdict), C(evidence) and C(findings), one item.
      type: list
      elements: dict
rackwell_error:
  description: C(clock-wrong), with what, where, why and fix.
  returned: failure
  type: dict
"""
