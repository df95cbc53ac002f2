# SPDX-License-Identifier: Apache-2.0
"""STAND-IN (see the package). What `pct` and the API do to a container, without their command lines."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import guest, schema
from .config import Config, Section
from .errors import PveError, UsageError
from .host import SHIFT, SHIFT_SIZE, Host
from .lxc import Lxc, device_id, indexed, machine_arch

# parameters of create that are no options of the configuration
CREATE_ONLY = (
    "ostemplate",
    "storage",
    "password",
    "ssh-public-keys",
    "ignore-unpack-errors",
    "bwlimit",
    "start",
    "ha-managed",
    "force",
    "restore",
    "unique",
    "pool",
    "rootfs",
)
READ_ONLY = ("unprivileged", "template", "arch", "ostype")
REQUIRED = ("arch", "ostype", "memory", "rootfs")
# a running container takes these at once; the rest waits for its next start
FAST = ("description", "onboot", "startup", "protection", "hostname", "hookscript", "cores", "tags", "lock")
HOT = ("cpulimit", "cpuunits", "memory", "swap")
HOT_DELETE = ("swap", "cpulimit", "cpuunits")


class Containers:
    """Every operation on the containers of one host."""

    def __init__(self, host: Host, tables: dict[str, schema.Properties], lxc: Lxc | None = None) -> None:
        self.host = host
        self.tables = tables
        self.lxc = lxc or Lxc(host, tables["create"])

    # create -------------------------------------------------------------------

    def create(self, vmid: int, options: dict[str, str]) -> None:
        """A new container from a template; what a failed create has made is removed again."""
        stored = schema.check(options, self.tables["create"])
        if "ostemplate" not in stored:
            raise UsageError(["ostemplate: property is missing and it is not optional"])
        unsupported = [key for key in ("force", "restore", "password", "pool", "ha-managed") if key in stored]
        if unsupported:
            raise PveError(f"STAND-IN pct: not in the laboratory: {', '.join(unsupported)}")
        if vmid in self.host.vmids():
            raise PveError(f"unable to create CT {vmid} - CT {vmid} already exists on node '{self.host.node}'")
        archive = self.host.template(stored["ostemplate"])
        conf = self._new_config(vmid, stored)
        with self.host.lock(vmid), _interruptible():
            self.host.write(vmid, Config(Section({**conf.keys, "lock": "create"})))
            try:
                self._unpack(vmid, archive, conf.keys, stored.get("ssh-public-keys"))
            except BaseException as error:
                shutil.rmtree(self.lxc.directory(vmid), ignore_errors=True)
                self.host.remove(vmid)
                if isinstance(error, PveError):
                    raise PveError(f"unable to create CT {vmid} - {error.text}") from None
                raise
            self.host.write(vmid, conf)
        if stored.get("start") == "1":
            self.start(vmid)

    def _new_config(self, vmid: int, stored: dict[str, str]) -> Config:
        keys = {"arch": machine_arch(), "memory": "512", "swap": "512", "unprivileged": "1", "hostname": f"CT{vmid}"}
        keys.update({key: value for key, value in stored.items() if key not in CREATE_ONLY})
        keys.setdefault("ostype", _ostype(stored["ostemplate"]))
        keys["rootfs"] = self._root_volume(vmid, stored)
        self._check_values(keys)
        for key in indexed(keys, "net"):
            keys[key] = self._with_address(keys[key])
        conf = Config()
        conf.set_description(keys.pop("description", ""))
        conf.keys.update(keys)
        return conf

    def _root_volume(self, vmid: int, stored: dict[str, str]) -> str:
        text = stored.get("rootfs", f"{stored.get('storage', 'local')}:4")
        volume = self.lxc.parse("rootfs", text)["volume"]
        name, _, size = volume.partition(":")
        storage = self.host.storage(name)
        if "rootdir" not in storage.content:
            raise PveError(f"storage '{name}' does not allow content type 'rootdir' (Container)")
        if not re.fullmatch(r"\d+(\.\d+)?", size):
            raise PveError(f"unable to parse volume ID '{volume}'")
        return f"{name}:{vmid}/vm-{vmid}-disk-0.raw,size={size}G"

    def _with_address(self, text: str) -> str:
        net = self.lxc.parse("net", text)
        net.setdefault("hwaddr", "BC:24:11:" + ":".join(f"{byte:02X}" for byte in secrets.token_bytes(3)))
        net["type"] = "veth"
        return schema.print_properties(net, self.tables["create"]["net[n]"]["format"], "name")

    def _check_values(self, keys: dict[str, str]) -> None:
        """What PVE checks beyond the schema when a value is set."""
        for key in indexed(keys, "dev"):
            device = self.lxc.parse("dev", keys[key])
            if "path" not in device:
                raise PveError(f"Path is not defined for passthrough device {key}")
            device_id(device["path"])
        for key in indexed(keys, "net"):
            net = self.lxc.parse("net", keys[key])
            if "bridge" in net and not (Path("/sys/class/net") / net["bridge"]).exists():
                raise PveError(f"bridge '{net['bridge']}' does not exist")

    def _unpack(self, vmid: int, archive: Path, keys: dict[str, str], public_keys: str | None) -> None:
        unprivileged = keys["unprivileged"] == "1"
        owner = SHIFT if unprivileged else 0
        root = self.lxc.directory(vmid) / "rootfs"
        root.mkdir(parents=True)
        os.chown(root, owner, owner)
        print(f"extracting archive '{archive}'", flush=True)
        kind = {".zst": "--zstd", ".xz": "--xz", ".gz": "--gzip"}.get(archive.suffix, "--auto-compress")
        # device nodes of the template cannot be made in a user namespace, and LXC makes its own
        tar = [
            "tar",
            "xpf",
            "-",
            kind,
            "--totals",
            "--numeric-owner",
            "--exclude=./dev/*",
            "--exclude=dev/*",
            "-C",
            str(root),
        ]
        if unprivileged:
            maps = [f"{kind_}:0:{SHIFT}:{SHIFT_SIZE}" for kind_ in "ug"]
            tar = ["lxc-usernsexec", "-m", maps[0], "-m", maps[1], "--", *tar]
        with archive.open("rb") as source:
            done = subprocess.run(tar, check=False, stdin=source, stderr=subprocess.PIPE, text=True)
        print(done.stderr, end="", flush=True)
        if done.returncode != 0:
            raise PveError(f"command '{' '.join(tar)}' failed: exit code {done.returncode}")
        print(f"Detected container architecture: {keys['arch']}", flush=True)
        guest.set_up(root, keys, self.tables["create"]["net[n]"]["format"])
        guest.make_host_keys(root, keys["hostname"], owner)
        if public_keys:

            def write() -> None:
                guest.put("/root/.ssh/authorized_keys", public_keys.rstrip("\n") + "\n", owner, 0o600)

            guest.in_root(root, write)

    # change -------------------------------------------------------------------

    def set(
        self,
        vmid: int,
        options: dict[str, str],
        delete: list[str],
        digest: str | None = None,
        revert: tuple[str, ...] = (),
    ) -> None:
        """Change options: at once where PVE does it at once, else as pending changes of a running container."""
        stored = schema.check(options, self.tables["set"])
        if not stored and not delete and not revert:
            raise PveError("no options specified")
        with self.host.lock(vmid):
            conf = self.host.read(vmid)
            if digest and digest != self.digest(vmid):
                raise PveError("detected modified configuration - file changed by other user? Try again.")
            self._refuse(conf, stored, delete)
            self._check_values({key: value for key, value in stored.items() if conf.effective().get(key) != value})
            for key in indexed(stored, "net"):
                stored[key] = self._keep_address(conf, key, stored[key])
            for key in revert:
                conf.pending.pop(key, None)
                conf.deleted = [name for name in conf.deleted if name != key]
            running = self.lxc.running(vmid)
            for key in delete:
                conf.pending.pop(key, None)
                if key in conf.main.all_keys() and key not in conf.deleted:
                    conf.deleted.append(key)
            for key, value in stored.items():
                conf.deleted = [name for name in conf.deleted if name != key]
                conf.pending[key] = value
            self._settle(vmid, conf, running)
            self.host.write(vmid, conf)

    def _refuse(self, conf: Config, stored: dict[str, str], delete: list[str]) -> None:
        if "lock" in conf.keys:
            raise PveError(f"CT is locked ({conf.keys['lock']})")
        for key in delete:
            if schema.find(self.tables["set"], key) is None or key in ("delete", "digest", "revert"):
                raise UsageError([f"delete: invalid format - unknown option '{key}'"])
            if key in REQUIRED:
                raise PveError(f"unable to delete required option '{key}'")
            if key in READ_ONLY:
                raise PveError(f"unable to delete read-only option: '{key}'")
            if key in stored:
                raise UsageError([f"{key}: cannot use '-{key}' and '-delete {key}' at the same time"])
        for key in stored:
            if key in READ_ONLY or key == "rootfs":
                raise PveError(f"unable to modify read-only option: '{key}'")

    def _keep_address(self, conf: Config, key: str, text: str) -> str:
        """PVE keeps no address that the caller left out: it makes a new one. True to it."""
        net = self.lxc.parse("net", text)
        old = self.lxc.parse("net", conf.keys[key]) if key in conf.keys else {}
        if "hwaddr" in net and net["hwaddr"].upper() == old.get("hwaddr", "").upper():
            net["hwaddr"] = old["hwaddr"]
        return self._with_address(schema.print_properties(net, self.tables["set"]["net[n]"]["format"], "name"))

    def _settle(self, vmid: int, conf: Config, running: bool) -> None:
        """Move pending changes that can be taken now into the main part."""
        for key in list(conf.deleted):
            fast = key in FAST or key in HOT_DELETE or re.fullmatch(r"(unused|net)\d+", key)
            if not running or fast:
                conf.deleted.remove(key)
                if key == "description":
                    conf.set_description("")
                conf.keys.pop(key, None)
        unprivileged = conf.keys.get("unprivileged") == "1"
        for key, value in list(conf.pending.items()):
            if key == "description":
                conf.set_description(value)
            elif conf.keys.get(key) == value:
                pass
            elif not running or key in FAST + HOT or key.startswith("net"):
                conf.keys[key] = value
            elif key.startswith("dev") and key not in conf.keys:
                self.lxc.plug_device(vmid, self.lxc.parse("dev", value), unprivileged)
                conf.keys[key] = value
            elif re.fullmatch(r"mp\d+", key) and key not in conf.keys:
                self.lxc.plug_mount(vmid, self.lxc.parse("mp", value), unprivileged)
                conf.keys[key] = value
            else:
                continue
            del conf.pending[key]

    # run ----------------------------------------------------------------------

    def start(self, vmid: int) -> None:
        """Start it, with what was pending."""
        with self.host.lock(vmid):
            conf = self.host.read(vmid)
            if "lock" in conf.keys:
                raise PveError(f"CT is locked ({conf.keys['lock']})")
            if self.lxc.running(vmid):
                raise PveError(f"CT {vmid} already running")
            if conf.keys.get("template") == "1":
                raise PveError("you can't start a CT if it's a template")
            conf.apply_pending()
            self.host.write(vmid, conf)
            for required in ("arch", "ostype"):
                if required not in conf.keys:
                    raise PveError(f"missing '{required}' - internal error")
            root = self.lxc.directory(vmid) / "rootfs"
            for key in indexed(conf.keys, "dev"):
                device_id(self.lxc.parse("dev", conf.keys[key])["path"])
            guest.set_up(root, conf.keys, self.tables["create"]["net[n]"]["format"])
            file = self.lxc.write_config(vmid, conf.keys, conf.main.lxc)
            self.lxc.start(vmid, file)

    def stop(self, vmid: int) -> None:
        """Kill it."""
        with self.host.lock(vmid):
            self.host.read(vmid)
            if not self.lxc.running(vmid):
                raise PveError(f"CT {vmid} not running")
            self.lxc.kill(vmid)

    def shutdown(self, vmid: int, timeout: int = 60, force: bool = False) -> None:
        """Ask it to stop."""
        with self.host.lock(vmid):
            self.host.read(vmid)
            if not self.lxc.running(vmid):
                raise PveError(f"CT {vmid} not running")
            self.lxc.shut_down(vmid, timeout, force)

    def reboot(self, vmid: int, timeout: int = 60) -> None:
        """Shut down and start, which applies what is pending."""
        self.host.read(vmid)
        if not self.lxc.running(vmid):
            raise PveError(f"VM {vmid} not running")
        self.shutdown(vmid, timeout, force=True)
        self.start(vmid)

    def destroy(self, vmid: int, force: bool = False) -> None:
        """Remove it with its files."""
        with self.host.lock(vmid):
            conf = self.host.read(vmid)
            if conf.keys.get("protection") == "1":
                raise PveError(f"can't remove CT {vmid} - protection mode enabled")
            if self.lxc.running(vmid):
                if not force:
                    raise PveError(f"unable to destroy CT {vmid} - container is running")
                self.lxc.kill(vmid)
            if "lock" in conf.keys and not force:
                raise PveError(f"CT is locked ({conf.keys['lock']})")
            self.lxc.unmount_devices(vmid)
            shutil.rmtree(self.lxc.directory(vmid), ignore_errors=False) if self.lxc.directory(vmid).exists() else None
            self.host.remove(vmid)

    def unlock(self, vmid: int) -> None:
        """Take a left-over lock away."""
        with self.host.lock(vmid):
            conf = self.host.read(vmid)
            if "lock" not in conf.keys:
                raise PveError("no lock found trying to remove lock")
            del conf.keys["lock"]
            self.host.write(vmid, conf)

    # read -----------------------------------------------------------------------

    def digest(self, vmid: int) -> str:
        """SHA-1 of the file as it lies there, whoever wrote it, as the API gives it."""
        return hashlib.sha1(self.host.content(vmid), usedforsecurity=False).hexdigest()

    def status(self, vmid: int) -> dict[str, Any]:
        """What /status/current shows."""
        conf = self.host.read(vmid)
        keys = conf.keys
        pid = self.lxc.pid(vmid)
        size = re.search(r"size=(\d+)G", keys.get("rootfs", ""))
        found: dict[str, Any] = {
            "vmid": vmid,
            "name": keys.get("hostname", f"CT{vmid}"),
            "status": "running" if pid else "stopped",
            "type": "lxc",
            "cpus": int(keys.get("cores", os.cpu_count() or 1)),
            "cpu": 0,
            "maxmem": int(keys.get("memory", 512)) << 20,
            "maxswap": int(keys.get("swap", 0)) << 20,
            "maxdisk": (int(size[1]) if size else 0) << 30,
            "disk": 0,
            "mem": 0,
            "swap": 0,
            "netin": 0,
            "netout": 0,
            "diskread": 0,
            "diskwrite": 0,
            "uptime": 0,
            "ha": {"managed": 0},
        }
        if pid:
            with contextlib.suppress(FileNotFoundError):
                ticks = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
                up = float(Path("/proc/uptime").read_text().split()[0])
                found["uptime"] = max(0, int(up - ticks / os.sysconf("SC_CLK_TCK")))
            found["pid"] = pid
        found.update({key: keys[key] for key in ("lock", "tags") if key in keys})
        return found

    def pending(self, vmid: int) -> list[dict[str, Any]]:
        """What the API's pending list shows: every key, with its waiting value or deletion."""
        conf = self.host.read(vmid)
        current = conf.main.all_keys()
        rows = []
        for key in sorted({*current, *conf.pending}):
            row: dict[str, Any] = {"key": key}
            if key in current:
                row["value"] = current[key]
            if key in conf.pending:
                row["pending"] = conf.pending[key]
            if key in conf.deleted:
                row["delete"] = 1
            rows.append(row)
        return rows

    # files of the guest -----------------------------------------------------------

    def push(self, vmid: int, source: Path, target: str, user: str | None, group: str | None, mode: str | None) -> None:
        """Copy a file of the host into a running container."""
        root, shift = self._guest_root(vmid)
        data = source.read_bytes()
        owner, team = int(user or 0), int(group or 0)

        def write() -> None:
            place = Path(target)
            place.write_bytes(data)
            os.chown(place, shift + owner, shift + team)
            place.chmod(int(mode or "0644", 8))

        guest.in_root(root, write)

    def pull(self, vmid: int, source: str, target: Path) -> None:
        """Copy a file of a running container to the host."""
        root, _ = self._guest_root(vmid)
        with tempfile.TemporaryFile() as handle:

            def read() -> None:
                with Path(source).open("rb") as file:
                    shutil.copyfileobj(file, handle)
                handle.flush()

            guest.in_root(root, read)
            handle.seek(0)
            with target.open("wb") as out:
                shutil.copyfileobj(handle, out)

    def _guest_root(self, vmid: int) -> tuple[Path, int]:
        conf = self.host.read(vmid)
        pid = self.lxc.pid(vmid)
        if pid is None:
            raise PveError(f"container '{vmid}' not running!")
        return Path(f"/proc/{pid}/root"), SHIFT if conf.keys.get("unprivileged") == "1" else 0


def _ostype(template: str) -> str:
    name = template.rsplit("/", 1)[-1]
    return next(
        (kind for kind in ("debian", "ubuntu", "fedora", "alpine", "archlinux") if name.startswith(kind)), "unmanaged"
    )


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """A signal that would end the command becomes an exception, so that the half-made container is removed."""

    def stop(number: int, _frame: object) -> None:
        raise PveError(f"received interrupt ({signal.Signals(number).name})")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
