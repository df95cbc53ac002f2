# SPDX-License-Identifier: Apache-2.0
"""Commands in a mount namespace of their own, so that nothing they mount outlives them or is seen outside.

Three things of a machine stand in LXC's way, and are mended in that namespace only:

* cgroup v1, or none mounted: inner containers and systemd 257 need cgroup v2 alone, as on Proxmox VE;
* a bare chroot: its root is no mount point, and LXC's pivot_root refuses that;
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

_ENTER = """
new=$1 text=$2; shift 2
mount --rbind / "$new"; mount --make-rprivate "$new"
exec chroot "$new" sh -c "$text" sh "$@"
"""


def root_is_mount_point(mountinfo: str) -> bool:
    """Whether ``/`` is a mount point, from the text of /proc/self/mountinfo; it is not in a bare chroot."""
    return any(line.split()[4] == "/" for line in mountinfo.splitlines() if len(line.split()) > 4)


def command(
    script: str, arguments: Sequence[str] = (), *, cgroup: bool = False, build: bool = False, scratch: Path
) -> list[str]:
    """The command line that runs a shell script (``$1``... are ``arguments``) in a private mount namespace.

    Args:
        script: shell text, run with ``set -eu``.
        cgroup: see cgroup v2, and only that, on /sys/fs/cgroup.
        build: end every process of it when the one that started it ends, however it ends, so that no leftover
            goes on writing below a ``*.partial`` that the next run removes. Not for what must outlive us.
        scratch: a directory that may be made and used as a mount point in a bare chroot.
    """
    text = "set -eu\n" + ("mount -t proc proc /proc\n" if build else "") + (_CGROUP if cgroup else "") + script
    unshare = ["unshare", "-m"]
    if build:
        unshare = ["setpriv", "--pdeathsig", "KILL", *unshare, "-p", "-f", "--kill-child=KILL"]
    if root_is_mount_point(Path("/proc/self/mountinfo").read_text()):
        return [*unshare, "--propagation", "private", "sh", "-c", text, "sh", *arguments]
    scratch.mkdir(parents=True, exist_ok=True)
    return [*unshare, "--propagation", "unchanged", "sh", "-euc", _ENTER, "sh", str(scratch), text, *arguments]
