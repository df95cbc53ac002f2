# SPDX-License-Identifier: Apache-2.0
"""STAND-IN (see the package). The real LXC below: its configuration, its processes, its device nodes."""

from __future__ import annotations

import ctypes
import os
import platform
import random
import re
import shlex
import stat
import subprocess
import sys
import time
from pathlib import Path

from .errors import PveError
from .host import SHIFT, SHIFT_SIZE, Host
from .schema import Properties, parse_properties

INCLUDES = Path("/usr/share/lxc/config")
# see tests/lab/rwlab/kernel.py; a directory stands before what is mounted inside it
_STAND_INS = (
    *("/proc/driver", "/proc/devices", "/proc/cmdline", "/proc/sys/kernel/osrelease"),
    *("/sys/module", "/sys/bus/pci", "/sys/kernel/iommu_groups", "/sys/class", "/sys/class/iommu"),
    *("/sys/devices/virtual/dmi/id", "/sys/devices/system/node"),
)
_USERNS_MOUNTS = ("sys/kernel/debug", "sys/kernel/security", "sys/fs/pstore")
_SYSCALLS = {"open_tree": 428, "move_mount": 429}  # the same on every architecture of Linux
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _CLONE_NEWNS, _AT_FDCWD = 1, 4, 0x00020000, -100


def indexed(keys: dict[str, str], kind: str) -> list[str]:
    """The names ``kind0``, ``kind1``, … that are set, in numeric order."""
    return sorted((k for k in keys if re.fullmatch(kind + r"\d+", k)), key=lambda k: int(k[len(kind) :]))


def device_id(path: str) -> os.stat_result:
    """stat of a node that is to be passed through.

    Raises:
        PveError: with pve-container's words.
    """
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        raise PveError(f"Device {path} does not exist") from None
    except OSError as error:
        raise PveError(f"Error accessing device {path}: {error.strerror}") from None
    if not (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)):
        raise PveError(f"{path} is not a device")
    return found


class Lxc:
    """The containers as LXC knows them."""

    def __init__(self, host: Host, properties: Properties) -> None:
        self.host = host
        self.properties = properties

    def _sub(self, kind: str) -> Properties:
        key = kind if kind in self.properties else f"{kind}[n]"
        form: Properties = self.properties[key]["format"]
        return form

    def parse(self, kind: str, text: str) -> dict[str, str]:
        """A value of ``net0``, ``dev3``, ``mp0``, ``features`` as its parts."""
        return parse_properties(text, self._sub(kind))

    def directory(self, vmid: int) -> Path:
        """/var/lib/lxc/<vmid>"""
        return self.host.lxc / str(vmid)

    # state ---------------------------------------------------------------

    def pid(self, vmid: int) -> int | None:
        """The container's init, or None when it does not run."""
        done = subprocess.run(
            ["lxc-info", "-P", str(self.host.lxc), "-n", str(vmid), "-p", "-H"],
            check=False,
            capture_output=True,
            text=True,
        )
        text = done.stdout.strip()
        return int(text) if done.returncode == 0 and text.isdigit() and int(text) > 0 else None

    def running(self, vmid: int) -> bool:
        """Whether it runs."""
        return self.pid(vmid) is not None

    # configuration ----------------------------------------------------------

    def write_config(self, vmid: int, keys: dict[str, str], raw: list[tuple[str, str]]) -> Path:
        """The LXC configuration of this start."""
        unprivileged = keys.get("unprivileged") == "1"
        features = self.parse("features", keys["features"]) if keys.get("features") else {}
        directory = self.directory(vmid)
        lines = [f"lxc.include = {INCLUDES}/common.conf"]
        if unprivileged:
            lines += [f"lxc.include = {INCLUDES}/userns.conf", "lxc.cgroup2.devices.allow = a"]
            lines += [f"lxc.idmap = {kind} 0 {SHIFT} {SHIFT_SIZE}" for kind in "ug"]
            # as in PVE's own userns.conf: systemd could not mount these itself
            lines += [f"lxc.mount.entry = /{path} {path} none bind,optional 0 0" for path in _USERNS_MOUNTS]
        if features.get("nesting") == "1":
            lines.append(f"lxc.include = {INCLUDES}/nesting.conf")
        lines += [
            "lxc.apparmor.profile = unconfined",
            f"lxc.arch = {keys['arch']}",
            f"lxc.uts.name = {keys.get('hostname', f'CT{vmid}')}",
            f"lxc.rootfs.path = dir:{directory}/rootfs",
            "lxc.environment = TERM=linux",
        ]
        lines += self._limits(keys, raw) + self._networks(vmid, keys) + self._mounts(keys) + self._devices(vmid, keys)
        lines += self._kernel_stand_ins(features.get("nesting") == "1")
        lines += [f"{key} = {value}" for key, value in raw]
        file = directory / "config"
        file.write_text("".join(line + "\n" for line in lines))
        return file

    def _limits(self, keys: dict[str, str], raw: list[tuple[str, str]]) -> list[str]:
        """Only what this kernel's cgroup v2 has a controller for; the rest is declared, not enforced."""
        file = Path("/sys/fs/cgroup/cgroup.controllers")
        controllers = file.read_text().split() if file.exists() else []
        lines = []
        if "memory" in controllers:
            lines.append(f"lxc.cgroup2.memory.max = {int(keys['memory']) << 20}")
            lines.append(f"lxc.cgroup2.memory.swap.max = {int(keys.get('swap', 0)) << 20}")
        if "cpuset" in controllers and "cores" in keys and not any(k == "lxc.cgroup2.cpuset.cpus" for k, _ in raw):
            online = sorted(os.sched_getaffinity(0))
            chosen = sorted(random.sample(online, min(int(keys["cores"]), len(online))))
            lines.append("lxc.cgroup2.cpuset.cpus = " + ",".join(map(str, chosen)))
        return lines

    def _networks(self, vmid: int, keys: dict[str, str]) -> list[str]:
        lines = []
        has_ifupdown = (self.directory(vmid) / "rootfs/usr/sbin/ifup").exists()
        for key in indexed(keys, "net"):
            net, at = self.parse("net", keys[key]), f"lxc.net.{key[3:]}"
            bridge = Path("/sys/class/net") / net.get("bridge", "")
            if "bridge" in net and not bridge.exists():
                raise PveError(f"bridge '{net['bridge']}' does not exist")
            if "mtu" in net and "bridge" in net:
                limit = int((bridge / "mtu").read_text())
                if int(net["mtu"]) > limit:
                    raise PveError(f"{key}: MTU size '{net['mtu']}' is bigger than bridge MTU '{limit}'")
                lines.append(f"{at}.mtu = {net['mtu']}")
            lines = [f"{at}.type = veth", f"{at}.name = {net['name']}", f"{at}.hwaddr = {net['hwaddr']}", *lines]
            lines.append(f"{at}.veth.pair = veth{vmid}i{key[3:]}")
            if "bridge" in net:
                lines.append(f"{at}.link = {net['bridge']}")
            lines.append(f"{at}.flags = up")
            if not has_ifupdown and "/" in net.get("ip", ""):
                # what PVE's host-managed=1 does for guests that cannot configure themselves
                lines.append(f"{at}.ipv4.address = {net['ip']}")
                lines += [f"{at}.ipv4.gateway = {net['gw']}"] if "gw" in net else []
        return lines

    def _mounts(self, keys: dict[str, str]) -> list[str]:
        lines = []
        for key in indexed(keys, "mp"):
            mount = self.parse("mp", keys[key])
            source = mount["volume"]
            if not source.startswith("/"):
                raise PveError(f"STAND-IN pct: {key}: only bind mounts work in the laboratory")
            if not Path(source).is_dir():
                raise PveError(f"directory '{source}' does not exist")
            options = ["rbind", "create=dir", *(["ro"] if mount.get("ro") == "1" else [])]
            options += mount.get("mountoptions", "").split(";") if mount.get("mountoptions") else []
            lines.append(
                f"lxc.mount.entry = {_escape(source)} {_escape(mount['mp'].lstrip('/'))} none {','.join(options)} 0 0"
            )
        return lines

    def _devices(self, vmid: int, keys: dict[str, str]) -> list[str]:
        names = indexed(keys, "dev")
        if not names:
            return []
        place = self.directory(vmid) / "passthrough"
        self.unmount_devices(vmid)
        place.mkdir(exist_ok=True)
        # a tmpfs of the host's own user namespace: nodes on it open, on the container's own /dev they would not
        _run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "none", str(place)])
        lines = []
        for key in names:
            device = self.parse("dev", keys[key])
            node = self.make_node(vmid, device, keys.get("unprivileged") == "1")
            lines.append(f"lxc.mount.entry = {node} {device['path'].lstrip('/')} none bind,create=file 0 0")
            found = device_id(device["path"])
            if keys.get("unprivileged") != "1":
                kind = "b" if stat.S_ISBLK(found.st_mode) else "c"
                access = "rm" if device.get("deny-write") == "1" else "rwm"
                lines.append(
                    f"lxc.cgroup2.devices.allow = {kind} {os.major(found.st_rdev)}:{os.minor(found.st_rdev)} {access}"
                )
        return lines

    def make_node(self, vmid: int, device: dict[str, str], unprivileged: bool, number: int | None = None) -> Path:
        """mknod below the container's passthrough directory: 0660 root:root unless the entry says otherwise.

        Args:
            number: another device than the host's node, for the laboratory's faults.
        """
        found = device_id(device["path"])
        node = self.directory(vmid) / "passthrough" / device["path"].lstrip("/")
        node.parent.mkdir(parents=True, exist_ok=True)
        node.unlink(missing_ok=True)
        os.mknod(node, stat.S_IFMT(found.st_mode), found.st_rdev if number is None else number)
        shift = SHIFT if unprivileged else 0
        os.chown(node, shift + int(device.get("uid", 0)), shift + int(device.get("gid", 0)))
        node.chmod(int(device.get("mode", "0660"), 8))
        return node

    def _kernel_stand_ins(self, nesting: bool) -> list[str]:
        """Where the host's view of the kernel is the laboratory's, the container sees the same one.

        With the real driver all of it is the kernel's own and shows in every container by itself.
        """
        mounted = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
        # its links lead into what only nesting.conf mounts
        left_out = set() if nesting else {"/sys/class"}
        return [
            f"lxc.mount.entry = {path} {path.lstrip('/')} none rbind 0 0"
            for path in _STAND_INS
            if path in mounted - left_out
        ]

    # processes -----------------------------------------------------------------

    def start(self, vmid: int, file: Path) -> None:
        """Start it and wait until LXC says that it runs."""
        self.host.run.mkdir(parents=True, exist_ok=True)
        errors, log = self.host.run / f"ct-{vmid}.stderr", self.host.run / f"ct-{vmid}.log"
        log.unlink(missing_ok=True)
        file, pinned = _without_cpuset(file)
        command = [
            *pinned,
            "systemd-run",
            "--scope",
            "--collect",
            "--quiet",
            "-p",
            "Delegate=yes",
            f"--unit=pve-container-{vmid}",
        ]
        command += [
            "lxc-start",
            "-P",
            str(self.host.lxc),
            "-n",
            str(vmid),
            "-f",
            str(file),
            "-o",
            str(log),
            "-l",
            "INFO",
        ]
        with errors.open("wb") as sink:
            # the monitor outlives this command: it must not hold the caller's pipes
            done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
        if done.returncode != 0:
            text = errors.read_text(errors="replace").strip()
            self.unmount_devices(vmid)
            if log.exists():
                text += "\n" + "\n".join(
                    line for line in log.read_text(errors="replace").splitlines() if " ERROR " in line
                )
            raise PveError(f"{text.strip()}\nstartup for container '{vmid}' failed")

    def shut_down(self, vmid: int, timeout: int, force: bool) -> None:
        """Ask init to stop; after ``timeout`` seconds kill it (force) or give up."""
        command = ["lxc-stop", "-P", str(self.host.lxc), "-n", str(vmid), "--timeout", str(timeout)]
        subprocess.run([*command, "--nokill"], check=False, capture_output=True)
        if self.running(vmid):
            if not force:
                raise PveError("container did not stop")
            self.kill(vmid)
        self._stopped(vmid)

    def kill(self, vmid: int) -> None:
        """Stop it at once."""
        subprocess.run(
            ["lxc-stop", "-P", str(self.host.lxc), "-n", str(vmid), "--kill"], check=False, capture_output=True
        )
        self._stopped(vmid)

    def _stopped(self, vmid: int) -> None:
        deadline = time.monotonic() + 30
        while self.running(vmid):
            if time.monotonic() > deadline:
                raise PveError("container did not stop")
            time.sleep(0.05)
        # the scope ends when the monitor has gone; a start before that would find its name taken
        while time.monotonic() < deadline:
            done = subprocess.run(["systemctl", "is-active", "--quiet", f"pve-container-{vmid}.scope"], check=False)
            if done.returncode != 0:
                break
            time.sleep(0.05)
        self.unmount_devices(vmid)

    def unmount_devices(self, vmid: int) -> None:
        """Take the passthrough tmpfs away."""
        place = self.directory(vmid) / "passthrough"
        while place.is_mount():
            _run(["umount", "-l", str(place)])

    def attach(self, vmid: int, command: list[str], keep_env: bool) -> list[str]:
        """The argument list that runs ``command`` in the container."""
        base = ["lxc-attach", "-P", str(self.host.lxc), "-n", str(vmid)]
        return base + ["--keep-env" if keep_env else "--clear-env"] + (["--", *command] if command else [])

    def plug_device(self, vmid: int, device: dict[str, str], unprivileged: bool, number: int | None = None) -> None:
        """Bring a new node into a running container: a mount moved into its mount namespace, as PVE does since 9.0."""
        place = self.directory(vmid) / "passthrough"
        if not place.is_mount():
            place.mkdir(exist_ok=True)
            _run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "none", str(place)])
        node = self.make_node(vmid, device, unprivileged, number)
        self._move_into(vmid, str(node), device["path"], unprivileged)

    def plug_mount(self, vmid: int, mount: dict[str, str], unprivileged: bool) -> None:
        """Bring a new bind mount into a running container."""
        self._move_into(vmid, mount["volume"], mount["mp"], unprivileged, mount.get("ro") == "1")

    def _move_into(self, vmid: int, source: str, target: str, unprivileged: bool, read_only: bool = False) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        pid = self.pid(vmid)
        child = os.fork()
        if child:
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
                raise PveError(f"failed to hotplug '{target}' into container '{vmid}'")
            return
        failed = 1
        try:
            tree = libc.syscall(_SYSCALLS["open_tree"], _AT_FDCWD, source.encode(), _OPEN_TREE_CLONE)
            root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
            namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
            directory = Path(source).is_dir()
            if tree < 0 or libc.setns(namespace, _CLONE_NEWNS) != 0:
                raise OSError(ctypes.get_errno(), "open_tree or setns")
            os.fchdir(root)
            os.chroot(".")
            place = Path(target)
            # files are made as the container's root: its file systems know no other owner
            for call in (libc.setfsgid, libc.setfsuid):
                call(SHIFT if unprivileged else 0)
            place.parent.mkdir(parents=True, exist_ok=True)
            if directory:
                place.mkdir(exist_ok=True)
            else:
                place.touch()
            for call in (libc.setfsuid, libc.setfsgid):
                call(0)
            if (
                libc.syscall(_SYSCALLS["move_mount"], tree, b"", _AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH)
                != 0
            ):
                raise OSError(ctypes.get_errno(), "move_mount")
            if read_only and libc.mount(None, target.encode(), None, 0x1000 | 0x20 | 0x1, None) != 0:
                raise OSError(ctypes.get_errno(), "remount read-only")
            failed = 0
        finally:  # the child must never return into the caller's code
            if failed:
                os.write(2, f"hotplug: {sys.exc_info()[1]}\n".encode())
            os._exit(failed)


def _without_cpuset(file: Path) -> tuple[Path, list[str]]:
    """(configuration to start with, what to start it by) on a machine that keeps the controller cpuset in cgroup v1.

    LXC could not write the group's files there. The processors are then given to it as its affinity, which its
    processes inherit, and which root of the container could change; memory nodes are not kept to.
    """
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    lines = file.read_text().splitlines()
    mine = [line for line in lines if line.startswith("lxc.cgroup2.cpuset.")]
    if not mine or (controllers.exists() and "cpuset" in controllers.read_text().split()):
        return file, []
    rest = file.with_name("config.without-cpuset")
    rest.write_text("".join(f"{line}\n" for line in lines if line not in mine))
    cpus = [line.partition("=")[2].replace(" ", "") for line in mine if line.startswith("lxc.cgroup2.cpuset.cpus")]
    return rest, ["taskset", "--cpu-list", cpus[-1]] if cpus else []


def _escape(path: str) -> str:
    """A path as fstab writes it."""
    return path.replace(" ", "\\040")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise PveError(f"command '{shlex.join(command)}' failed: {done.stderr.strip()}")


def machine_arch() -> str:
    """The host's architecture in PVE's word."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "amd64")
