# SPDX-License-Identifier: Apache-2.0
"""Commands in a mount namespace of their own, so that nothing they mount outlives them or is seen outside.

Three things of a machine stand in LXC's way, and are mended in that namespace only:

* cgroup v1, or none mounted: inner containers and systemd 257 need cgroup v2 alone, as on Proxmox VE;
* a chroot: LXC's pivot_root may refuse its root, and no user namespace can be made in it (see enter.py);
* a container without an init: its processes sit in the root of its cgroup, where no controller can be handed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_CGROUP = r"""
[ -d /sys/fs/cgroup ] || mount -t sysfs sysfs /sys
while mountpoint -q /sys/fs/cgroup; do umount -R /sys/fs/cgroup 2>/dev/null || break; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
group=/sys/fs/cgroup
# only the root of a cgroup namespace that is not the machine's root has this file
if [ -e $group/cgroup.type ] && [ -n "$(cat $group/cgroup.controllers)" ] && [ -n "$(cat $group/cgroup.procs)" ]; then
    # LXC takes the cgroup of pid 1 for its base and leaves out an ending "init.scope"
    mkdir -p $group/init.scope
    for pid in $(cat $group/cgroup.procs); do echo "$pid" 2>/dev/null >$group/init.scope/cgroup.procs || true; done
fi
"""

_ENTER = ["python3", "-B", str(Path(__file__).with_name("enter.py"))]


def command(script: str, arguments: Sequence[str] = (), *, cgroup: bool = False, build: bool = False) -> list[str]:
    """The command line that runs a shell script (``$1``... are ``arguments``) in a private mount namespace.

    Args:
        script: shell text, run with ``set -eu``.
        cgroup: see cgroup v2, and only that, on /sys/fs/cgroup.
        build: end every process of it when the one that started it ends, however it ends, so that no leftover
            goes on writing below a ``*.partial`` that the next run removes. Not for what must outlive us.
    """
    text = "set -eu\n" + ("mount -t proc proc /proc\n" if build else "") + (_CGROUP if cgroup else "") + script
    tied = ["setpriv", "--pdeathsig", "KILL", "unshare", "-p", "-f", "--kill-child=KILL"] if build else []
    return [*tied, *_ENTER, "sh", "-c", text, "sh", *arguments]
