# SPDX-License-Identifier: Apache-2.0
"""Outer containers, in the role of Proxmox VE hosts: their configuration, their files, start and stop."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rwlab import files, namespace
from rwlab.console import say
from rwlab.errors import LabError
from rwlab.nodes import Node, making
from rwlab.paths import SOURCE, HostPaths, Instance
from rwlab.proc import last_lines, run, start_time
from rwlab.record import Host, Record

# on the host, in the state: plain directories, since inner containers may put an overlay of their own there
SHARED = {"vz": "var/lib/vz", "lxc": "var/lib/lxc", "pve": "etc/pve", "models": "srv/models"}

LINK = stat.S_IFLNK

_CONFIG = """# made by rackwell's laboratory; remade at every start
lxc.uts.name = {name}
lxc.rootfs.path = dir:{rootfs}
lxc.autodev = 1
lxc.hook.autodev = {hook}
lxc.pty.max = 1024
lxc.tty.max = 0
lxc.cap.drop = mac_admin mac_override sys_time sys_module sys_rawio
lxc.apparmor.profile = unconfined
lxc.signal.halt = SIGRTMIN+3
lxc.mount.auto = cgroup:rw proc:rw sys:rw
# whole, uncovered mounts of proc and sys: the kernel lets an unprivileged inner container mount its own only then
lxc.mount.entry = proc dev/.lxc/proc proc create=dir,optional 0 0
lxc.mount.entry = sys dev/.lxc/sys sysfs create=dir,optional 0 0
lxc.cgroup2.devices.allow = a
lxc.net.0.type = veth
lxc.net.0.link = {bridge}
lxc.net.0.veth.pair = rwl{id}h{octet}
lxc.net.0.name = eth0
lxc.net.0.hwaddr = {mac}
lxc.net.0.flags = up
"""

_INTERFACES = """auto lo
iface lo inet loopback

iface eth0 inet manual

auto vmbr0
iface vmbr0 inet static
	address {address}/24
	gateway {gateway}
	bridge-ports eth0
	bridge-stp off
	bridge-fd 0
	bridge-hw {mac}
"""

_GUESTS_UNIT = """[Unit]
Description=STAND-IN: start the containers that have onboot: 1, stop all at shutdown
After=network.target ssh.service
RequiresMountsFor=/etc/pve /var/lib/lxc

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/share/rackwell-lab/guests start
ExecStop=/usr/share/rackwell-lab/guests stop
TimeoutStopSec=60

[Install]
WantedBy=multi-user.target
"""

_GUESTS = """#!/bin/sh
# STAND-IN, laboratory only: what pve-guests.service does. One container's trouble must not keep others from it.
command -v pct >/dev/null || exit 0
for file in /etc/pve/lxc/*.conf; do
    [ -e "$file" ] || continue
    vmid=$(basename "$file" .conf)
    case $1 in
    start) ! sed '/^\\[/,$d' "$file" | grep -q '^onboot: 1$' || pct start "$vmid" || true ;;
    stop) [ "$(pct status "$vmid")" != "status: running" ] || pct shutdown "$vmid" --forceStop 1 --timeout 20 || true ;;
    esac
done
"""

# $1 lower, $2 upper, $3 work (both empty: the root filesystem is a copy), $4 rootfs, $5 tree, lxc-start's arguments.
# The overlay is mounted here, in the namespace that LXC's monitor lives in, and goes when the container has ended.
_START = r"""
lower=$1 upper=$2 work=$3 rootfs=$4 tree=$5; shift 5
[ -z "$upper" ] || mount -t overlay overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$work" "$rootfs"
tar -C "$tree" --owner=0 --group=0 -cf - . | tar -C "$rootfs" --no-overwrite-dir -xpf -
exec lxc-start "$@"
"""

_PROBE = r"""
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3" "$4"
mv "$4/etc/hosts.probe" "$4/etc/hosts.moved"; rm -rf "$4/etc"; mkdir "$4/etc"
"""

_READY_S = 90.0
_HALT_S = 45.0


def mac(record: Record, octet: int) -> str:
    """The address of a host's network card: its own, and the same after every start."""
    return f"02:{record.id[:2]}:{record.id[2:4]}:{record.id[4:6]}:{record.id[6:]}:{octet:02x}"


def overlay_works(scratch: Path) -> bool:
    """Whether a directory of ``scratch``'s filesystem can be an overlay's upper one (where it is no overlay itself)."""
    probe = scratch / ".overlay-probe"
    shutil.rmtree(probe, ignore_errors=True)
    for name in ("lower/etc", "upper", "work", "merged"):
        (probe / name).mkdir(parents=True)
    (probe / "lower/etc/hosts.probe").write_text("x")
    try:
        arguments = [str(probe / name) for name in ("lower", "upper", "work", "merged")]
        done = run(namespace.command(_PROBE, arguments), check=False)
        # a directory made anew must hide the lower one: that needs trusted.* attributes
        return done.returncode == 0 and (probe / "upper/etc").is_dir()
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def create(paths: HostPaths, host: Host, layer: Path) -> None:
    """Make the directories of a host; where overlays are refused, its root filesystem becomes a copy of the layer."""
    for name in SHARED:
        paths.shared(name).mkdir(parents=True, exist_ok=True)
    paths.rootfs.mkdir(parents=True, exist_ok=True)
    if host.rootfs == "overlay":
        for directory in (paths.upper, paths.work):
            directory.mkdir(exist_ok=True)
            directory.chmod(0o755)
        return
    if (paths.rootfs / "etc").is_dir():
        return
    say(host.name, "copying its root filesystem (this filesystem refuses overlays)")
    partial = paths.root / "rootfs.partial"
    shutil.rmtree(partial, ignore_errors=True)
    run(["cp", "-a", "--reflink=auto", str(layer), str(partial)])
    paths.rootfs.rmdir()
    partial.rename(paths.rootfs)


def write_tree(
    paths: HostPaths, record: Record, host: Host, *, key: str, extra: Mapping[str, tuple[bytes, int]]
) -> str:
    """Write the files that belong into this host and return their digest.

    Args:
        key: the public key that may log in as root.
        extra: path in the host -> (content, mode), or (target, :data:`LINK`) for a symbolic link.
    """
    tree = paths.tree
    tree.mkdir(parents=True, exist_ok=True)
    (tree / "root").mkdir(mode=0o700, exist_ok=True)
    (tree / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    (tree / "etc/ssh").mkdir(parents=True, exist_ok=True)
    secret = tree / "etc/ssh/ssh_host_ed25519_key"
    if not (secret.exists() and secret.with_suffix(".pub").exists()):
        secret.unlink(missing_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"root@{host.name}", "-f", str(secret)])
    address, gateway = record.address(host.octet), record.address(1)
    wanted: dict[str, tuple[bytes, int]] = {
        "etc/hostname": (f"{host.name}\n".encode(), 0o644),
        "etc/hosts": (f"127.0.0.1 localhost\n{address} {host.name}.lab.invalid {host.name}\n".encode(), 0o644),
        "etc/resolv.conf": (resolver().encode(), 0o644),
        "etc/network/interfaces": (
            _INTERFACES.format(address=address, gateway=gateway, mac=mac(record, host.octet)).encode(),
            0o644,
        ),
        "root/.ssh/authorized_keys": (key.encode(), 0o600),
        "etc/systemd/system/pve-guests.service": (_GUESTS_UNIT.encode(), 0o644),
        "etc/systemd/system/multi-user.target.wants/pve-guests.service": (b"../pve-guests.service", LINK),
        "usr/share/rackwell-lab/guests": (_GUESTS.encode(), 0o755),
        **extra,
    }
    for name, (content, mode) in wanted.items():
        if mode == LINK:
            files.link(tree / name, content.decode())
        else:
            files.write(tree / name, content, mode)
    keep = {tree / name for name in wanted} | {secret, secret.with_suffix(".pub")}
    for path in tree.rglob("*"):
        if path not in keep and (path.is_symlink() or not path.is_dir()):
            path.unlink()
    return files.digest(tree)


def resolver() -> str:
    """What a container's /etc/resolv.conf should say: this machine's servers, unless they are on its loopback."""
    for path in (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")):
        try:
            lines = [line for line in path.read_text().splitlines() if line.split()[:1] in (["nameserver"], ["search"])]
        except OSError:
            continue
        if any(line.startswith("nameserver") and not line.split()[1].startswith(("127.", "::1")) for line in lines):
            return "\n".join(lines) + "\n"
    return ""


def running(instance: Instance, host: Host) -> bool:
    """Whether the recorded process is that host's init still."""
    return host.pid > 0 and host.started > 0 and start_time(host.pid) == host.started


def find(instance: Instance, host: Host) -> None:
    """Bring the record up to date with LXC: an interrupted ``up`` may have left a host that runs unrecorded."""
    if running(instance, host):
        return
    host.pid = host.started = 0
    done = run(["lxc-info", "-P", str(instance.lxc), "-n", host.name, "-pH"], check=False)
    if done.returncode == 0 and done.stdout.strip().isdigit():
        pid = int(done.stdout)
        host.pid, host.started = pid, start_time(pid) or 0


def start(
    instance: Instance,
    record: Record,
    host: Host,
    layer: Path,
    *,
    mounts: Sequence[str],
    nodes: Mapping[str, Node],
) -> None:
    """Start a host that is down and record its init.

    Args:
        mounts: further ``lxc.mount.entry`` values. nodes: what LXC puts into its /dev.
    """
    paths = instance.host(host.name)
    config = instance.lxc / host.name / "config"
    hook = paths.root / "make-nodes"
    write_hook(hook, nodes)
    text = _CONFIG.format(
        name=host.name,
        rootfs=paths.rootfs,
        hook=hook,
        bridge=record.bridge,
        id=record.id,
        octet=host.octet,
        mac=mac(record, host.octet),
    )
    text += "".join(f"lxc.mount.entry = {paths.shared(d)} {to} none rbind,create=dir 0 0\n" for d, to in SHARED.items())
    text += "".join(f"lxc.mount.entry = {entry}\n" for entry in mounts)
    files.write(config, text)
    log, errors = paths.root / "lxc.log", paths.root / "lxc-start.err"
    log.unlink(missing_ok=True)
    overlay = host.rootfs == "overlay"
    arguments = [
        str(layer),
        *([str(paths.upper), str(paths.work)] if overlay else ["", ""]),
        str(paths.rootfs),
        str(paths.tree),
    ]
    arguments += ["-P", str(instance.lxc), "-n", host.name, "-f", str(config), "-o", str(log), "-l", "INFO", "-d"]
    command = namespace.command(_START, arguments, cgroup=True)
    # the monitor lives on and must not hold a pipe of ours
    with errors.open("w") as sink:
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    if done.returncode:
        found = (
            [line for line in log.read_text(errors="replace").splitlines() if " ERROR " in line] if log.exists() else []
        )
        raise LabError(
            "host-start",
            f"{host.name} does not start",
            where=str(log),
            why=last_lines(errors.read_text(errors="replace")) + " | " + last_lines("\n".join(found)),
            fix="see the log; lab.py down, then up again",
        )
    find(instance, host)
    if not host.pid:
        raise LabError("host-start", f"{host.name} ended right after its start", where=str(log))


def write_hook(hook: Path, nodes: Mapping[str, Node]) -> None:
    """The program that LXC runs, also when the host reboots, to fill its /dev."""
    lines = [making(name, node, "$dev") for name, node in nodes.items()]
    # a pinned kernel and its driver show themselves, and what a boot loader says; a host without is left as it is
    pinned = (
        f'PYTHONPATH={SOURCE} python3 -B -m rwlab.booting {hook.parent} "$LXC_ROOTFS_MOUNT" >{hook}.log 2>&1 || true'
    )
    own = ("etc/kernel/proxmox-boot-pin", "etc/rackwell-lab-boot")
    lines += [f'[ ! -e "$LXC_ROOTFS_MOUNT/{name}" ] || pinned=yes' for name in own]
    lines.append(f'[ -z "${{pinned:-}}" ] || {pinned}')
    files.write(hook, "#!/bin/sh\nset -e\numask 0\ndev=$LXC_ROOTFS_MOUNT/dev\n" + "\n".join(lines) + "\n", 0o755)


def install(host: Host, paths: HostPaths) -> None:
    """Put the tree into a running host."""
    into = ["nsenter", "-t", str(host.pid), "-m", "--", "tar", "-C", "/", "--no-overwrite-dir", "-xpf", "-"]
    script = 'tar -C "$1" --owner=0 --group=0 -cf - . | { shift; "$@"; }'
    run(["sh", "-c", script, "sh", str(paths.tree), *into])


def wait_ready(record: Record, host: Host, ssh: Sequence[str]) -> None:
    """Wait until root can log in and systemd has finished starting.

    Args:
        ssh: the command line that reaches the host, without a remote command.
    """
    deadline = time.monotonic() + _READY_S
    why = "its port 22 is closed"
    while time.monotonic() < deadline:
        if start_time(host.pid) != host.started:
            why = "its init has ended"
            break
        with contextlib.suppress(OSError), socket.create_connection((record.address(host.octet), 22), timeout=2):
            done = run([*ssh, "systemctl", "is-system-running", "--wait"], check=False, timeout=_READY_S)
            if done.stdout.strip() in ("running", "degraded"):
                return
            why = f"{done.stdout.strip()} {last_lines(done.stderr)}"
        time.sleep(0.1)
    raise LabError(
        "host-not-ready",
        f"{host.name} did not get ready in {_READY_S:.0f} s",
        where=record.address(host.octet),
        why=why,
        fix=f"nsenter -t {host.pid} -a journalctl -b",
    )


def wait_port(address: str, name: str) -> None:
    """Wait until sshd of a container answers.

    Raises:
        LabError: it does not in time.
    """
    deadline, why = time.monotonic() + _READY_S, ""
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((address, 22), timeout=2):
                return
        except OSError as error:
            why = str(error)
        time.sleep(0.1)
    raise LabError("container-not-ready", f"{name} does not answer after the restart", where=address, why=why)


def stop(instance: Instance, host: Host) -> None:
    """Shut a host down as systemd does it; kill its init, and with it everything inside, when that takes too long."""
    find(instance, host)
    if not running(instance, host):
        return
    say(host.name, "shutting down")
    pidfd = os.pidfd_open(host.pid)
    try:
        if not running(instance, host):  # the pid might have been another's by the time of the open
            return
        # LXC's monitor would start it again on a reboot only; SIGRTMIN+3 is systemd's "halt"
        signal.pidfd_send_signal(pidfd, signal.SIGRTMIN + 3)
        if not _gone(instance, host, _HALT_S):
            say(host.name, f"still up after {_HALT_S:.0f} s: killing its init")
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if not _gone(instance, host, 10):
                raise LabError("host-stop", f"{host.name} cannot be stopped", where=f"pid {host.pid}")
    finally:
        os.close(pidfd)
    host.pid = host.started = 0


def _gone(instance: Instance, host: Host, seconds: float) -> bool:
    """Wait for the end of a host's init and of LXC's monitor, which cleans up after it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not running(instance, host):
            state = run(["lxc-info", "-P", str(instance.lxc), "-n", host.name, "-sH"], check=False)
            if state.stdout.strip() in ("STOPPED", ""):
                return True
        time.sleep(0.1)
    return False
