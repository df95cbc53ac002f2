# SPDX-License-Identifier: Apache-2.0
"""`pct` and `pvesh` of the Proxmox VE host that a module runs on."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import Change, Conf, kind_of, parse_properties
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_file import ConfFile
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError, problem
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_raw import RawWanted, parse_line, same, settled

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

# one command inside a container must answer within this time, in seconds; a hung one must not hang the module
EXEC_TIMEOUT = 30
# and a question to the API: a cluster that lost its quorum or its file system may never answer
API_TIMEOUT = 120
# exit codes of timeout(1): it had to end the command by SIGTERM, or by SIGKILL
_TIMED_OUT = (124, 137)
POLL_S = 0.3
# where Proxmox VE keeps the containers' files and its locks of them, and what LXC was given at a container's last start
CONFS, LOCKS, STARTED = "/etc/pve/lxc", "/run/lock/lxc", "/var/lib/lxc"
# what pmxcfs knows of the cluster
MEMBERS = "/etc/pve/.members"
# as long as pct itself waits for the lock of a container
LOCK_WAIT_S = 10


class Pve:
    """The host's tools. Nothing here changes anything in check mode unless a caller asks for it."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.node = socket.gethostname().split(".")[0]
        self.pct = self._tool("pct")
        self.pvesh = self._tool("pvesh")

    def _tool(self, name: str) -> str:
        found: Optional[str] = self.module.get_bin_path(name, required=False, opt_dirs=["/usr/sbin", "/usr/bin"])
        if not found:
            raise problem(
                "no-proxmox",
                f"{name} is not on this machine",
                socket.gethostname(),
                "it is no Proxmox VE host",
                "pve_container_host must name the Proxmox VE host that carries the container",
            )
        return found

    def run(self, words: Sequence[str], data: Optional[str] = None, timeout: int = 0) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of a command."""
        command = (["timeout", "--kill-after=5", str(timeout)] if timeout else []) + list(words)
        rc, out, err = self.module.run_command(command, data=data, binary_data=False)
        return int(rc), str(out), str(err)

    def get(self, path: str, *options: str) -> Any:
        """JSON of an API path.

        Raises:
            PveError: `pvesh` failed or printed no JSON.
        """
        words = [self.pvesh, "get", path, *options, "--output-format", "json"]
        rc, out, err = self.run(words, timeout=API_TIMEOUT)
        try:
            if rc == 0:
                return json.loads(out)
            why = err.strip() or out.strip() or (f"no answer in {API_TIMEOUT} s" if rc in _TIMED_OUT else "")
        except ValueError:
            why = f"it printed no JSON: {out[:200]}"
        if "please run as root" in why:
            raise self._not_root(why)
        raise problem(
            "pvesh-failed",
            f"pvesh get {path} failed",
            self.node,
            f"exit {rc}: {why}",
            "run it by hand on the host: " + " ".join(words),
        )

    def _not_root(self, said: str) -> PveError:
        """Whoever ansible is on the host may not use its tools."""
        try:
            user = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            user = f"uid {os.geteuid()}"
        return problem(
            "not-root",
            f"ansible is {user} on the Proxmox host, and its tools are root's",
            self.node,
            f"pvesh says: {said}",
            "reach the host as root: ansible_user: root for the group pve; or, when that user may use sudo, "
            "ansible_become: true (a password is asked for by ansible_become_password, from the vault)",
        )

    def rows(self, path: str, key: str, *options: str) -> list[dict[str, Any]]:
        """The rows of an API path, each of which has `key`. Raises PveError when it answers anything else."""
        found = self.get(path, *options)
        if isinstance(found, list) and all(isinstance(row, dict) and key in row for row in found):
            return found
        raise self._unexpected(path, found, f"rows with '{key}'")

    def record(self, path: str) -> dict[str, Any]:
        """The object of an API path. Raises PveError when it answers anything else."""
        found = self.get(path)
        if isinstance(found, dict):
            return found
        raise self._unexpected(path, found, "an object")

    def _unexpected(self, path: str, found: Any, expected: str) -> PveError:
        return problem(
            "pvesh-failed",
            f"pvesh get {path} answered something unexpected",
            self.node,
            f"found {str(found)[:200]}, expected {expected}",
            f"run it by hand on the host: {self.pvesh} get {path} --output-format json",
        )

    # containers ---------------------------------------------------------------

    def exists(self, vmid: int) -> bool:
        """Whether this node has a container of this number.

        Raises:
            PveError: the number is a virtual machine's, or a guest's of another node.
        """
        for row in self.rows("/cluster/resources", "vmid", "--type", "vm"):
            if str(row["vmid"]) != str(vmid):
                continue
            if row.get("type") == "lxc" and row.get("node") == self.node:
                return True
            raise problem(
                "vmid-foreign",
                f"vmid {vmid} belongs to another guest",
                f"{row.get('node')}:{row.get('id')}",
                f"it is {row.get('type')} '{row.get('name', '')}' on node {row.get('node')}",
                "choose a free pve_container_vmid",
            )
        return False

    def options(self, vmid: int) -> Conf:
        """The container's options with what is pending, without its raw lines and digest: half the time."""
        return Conf.from_api(self.rows(f"/nodes/{self.node}/lxc/{vmid}/pending", "key"))

    def conf(self, vmid: int) -> Conf:
        """The container's configuration with what is pending."""
        # its digest first: what changes after this is noticed by the change that names it
        config = self.record(f"/nodes/{self.node}/lxc/{vmid}/config")
        return Conf.from_api(self.rows(f"/nodes/{self.node}/lxc/{vmid}/pending", "key"), config)

    def file_name(self, vmid: int) -> str:
        """Where the container's file lies."""
        return os.path.join(CONFS, f"{vmid}.conf")

    def file(self, vmid: int) -> Optional[ConfFile]:
        """The container's file; None when it cannot be read."""
        try:
            with open(self.file_name(vmid), encoding="utf-8", errors="surrogateescape", newline="") as handle:
                return ConfFile(handle.read())
        except OSError:
            return None

    def quorate(self) -> bool:
        """Whether /etc/pve can be written; a single host needs no quorum."""
        try:
            with open(MEMBERS, encoding="utf-8") as handle:
                known = json.load(handle)
        except (OSError, ValueError):
            return True
        cluster = known.get("cluster") if isinstance(known, dict) else None
        return not isinstance(cluster, dict) or str(cluster.get("quorate", 1)) != "0"

    def not_in_effect(self, vmid: int, want: RawWanted) -> list[str]:
        """Declared raw lines that the running container was started without, as after an edit by hand."""
        try:
            with open(os.path.join(STARTED, str(vmid), "config"), encoding="utf-8", errors="replace") as handle:
                text = handle.read()
        except OSError:
            return []
        started = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                started.append(parse_line(line))
        return sorted({line[0] for line in want.typed.values() if not any(same(line, one) for one in started)})

    def sharing(self, vmid: int, nodes: Sequence[str]) -> dict[int, tuple[bool, list[str]]]:
        """Other containers of this host that have one of these device nodes: vmid -> (whether it runs, the nodes)."""
        found = {}
        names = sorted(os.listdir(CONFS)) if os.path.isdir(CONFS) else []
        for name in names:
            number = name.partition(".")[0]
            if not name.endswith(".conf") or not number.isdigit() or int(number) == vmid:
                continue
            file = self.file(int(number))
            if file is None:
                continue
            values = file.values()
            paths = {parse_properties("dev", values[key]).get("path") for key in values if kind_of(key) == "dev"}
            paths |= {value.split()[0] for key, value in file.raw() if key == "lxc.mount.entry" and value.split()}
            both = [node for node in nodes if node in paths]
            if both:
                found[int(number)] = (self.running(int(number)), both)
        return found

    def running(self, vmid: int) -> bool:
        """Whether it runs."""
        status = self.record(f"/nodes/{self.node}/lxc/{vmid}/status/current")
        return status.get("status") == "running"

    def hotplugs_devices(self) -> bool:
        """Whether a new dev entry reaches a running container: Proxmox VE 9.0 and later."""
        version = self.record("/version")
        major = str(version.get("version", "0")).split(".")[0]
        return major.isdigit() and int(major) >= 9

    def volume_path(self, volume: str) -> str:
        """The file of a volume. Raises PveError: there is none."""
        rc, out, err = self.run([self._tool("pvesm"), "path", volume], timeout=API_TIMEOUT)
        if rc == 0 and out.strip():
            return out.strip()
        raise problem(
            "storage-missing",
            f"the file of {volume} is not known",
            self.node,
            f"pvesm path ended with {rc}: {(err or out).strip()[-300:]}",
            f"run it by hand on the host: pvesm path {volume}",
        )

    def create(self, vmid: int, template: str, options: Mapping[str, str]) -> tuple[int, str]:
        """(exit code, output) of `pct create`."""
        words = [self.pct, "create", str(vmid), template]
        for key in sorted(options):
            words += [f"--{key}", options[key]]
        rc, out, err = self.run(words)
        return rc, (out + err).strip()

    @contextlib.contextmanager
    def locked(self, vmid: int) -> Iterator[None]:
        """Hold Proxmox VE's own lock of the container's file.

        Raises:
            PveError: another process did not give it back in time.
        """
        os.makedirs(LOCKS, exist_ok=True)
        path = os.path.join(LOCKS, f"pve-config-{vmid}.lock")
        with open(path, "a", encoding="utf-8") as handle:
            deadline = time.monotonic() + LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise problem(
                            "busy",
                            f"another process changes container {vmid}",
                            f"{self.node}: container {vmid}",
                            f"it held {path} for {LOCK_WAIT_S} s",
                            f"wait for it, then run again; fuser -v {path} shows who it is",
                        ) from None
                    time.sleep(POLL_S)
            yield

    def digest(self, vmid: int) -> str:
        """What names the present content of the container's file."""
        return str(self.record(f"/nodes/{self.node}/lxc/{vmid}/config").get("digest") or "")

    def edit_raw(self, vmid: int, digest: str, want: RawWanted) -> ConfFile:
        """Change the raw lines of the file, and nothing else in it; returns the file as it was.

        Args:
            digest: of what the change was decided for; empty: whatever is there.

        Raises:
            PveError: the file is another one by now, or cannot be written; it is as it was.
        """
        place = self.file_name(vmid)
        with self.locked(vmid):
            before = self.file(vmid)
            if before is None:
                raise problem(
                    "conf-unreadable", "the container's file cannot be read", place, "", "see that it is there"
                )
            if digest and self.digest(vmid) != digest:
                raise conf_changed(vmid, self.node)
            text = before.with_raw(settled(before.raw(), want))
            new = f"{place}.tmp.{os.getpid()}"
            try:
                with open(new, "w", encoding="utf-8", errors="surrogateescape", newline="") as handle:
                    handle.write(text)
                os.replace(new, place)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.unlink(new)
                if error.errno == errno.ENOSPC:
                    raise conf_no_space(vmid, self.node, str(error)) from None
                raise unwritable(vmid, self.node, error.strerror or str(error)) from None
        return before

    def set(self, vmid: int, todo: Sequence[Change], digest: str = "") -> tuple[int, str]:
        """(exit code, output) of `pct set` with these changes in one call.

        Args:
            digest: of what the change was decided for: `pct` refuses it when the file is another one by now.
        """
        words = [self.pct, "set", str(vmid)]
        for change in todo:
            if change.after is not None:
                words += [f"--{change.key}", change.after]
        gone = [change.key for change in todo if change.after is None]
        if gone:
            words += ["--delete", ",".join(gone)]
        if digest:
            words += ["--digest", digest]
        rc, out, err = self.run(words)
        return rc, (out + err).strip()

    def act(self, action: str, vmid: int, *options: str) -> tuple[int, str]:
        """(exit code, output) of `pct start|reboot|destroy …`; a failed start brings the reason PVE keeps in a file."""
        rc, out, err = self.run([self.pct, action, str(vmid), *options])
        text = (out + err).strip()
        kept = f"/run/pve/ct-{vmid}.stderr"
        if rc != 0 and action in ("start", "reboot") and os.path.exists(kept):
            with open(kept, encoding="utf-8", errors="replace") as handle:
                more = handle.read().strip()[-2000:]
            text += "" if more in text else "\n" + more
        return rc, text

    def inside(self, vmid: int, command: Sequence[str], data: Optional[str] = None) -> tuple[int, str, str]:
        """A command in the running container, with a clean environment and a time limit."""
        words = [self.pct, "exec", str(vmid), "--keep-env", "0", "--", *command]
        return self.run(words, data=data, timeout=EXEC_TIMEOUT)

    def wait_for_systemd(self, vmid: int, seconds: int) -> str:
        """Wait until the container's systemd is ``running`` or ``degraded`` and return which.

        Raises:
            PveError: it did not get there in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            rc, out, err = self.inside(vmid, ["systemctl", "is-system-running"])
            state = out.strip()
            if state in ("running", "degraded"):
                return state
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        jobs = self.inside(vmid, ["systemctl", "list-jobs", "--no-legend"])[1].strip()
        raise problem(
            "container-not-ready",
            f"the container's systemd did not get ready in {seconds} s",
            f"{self.node}: container {vmid}",
            f"state '{state or err.strip()}' (exit {rc}); waiting jobs: {jobs or 'none'}",
            f"look: pct exec {vmid} -- journalctl -b; a larger pve_container_start_timeout gives it more time",
        )

    def being_created(self, vmid: int) -> Optional[int]:
        """The pid of a create of this container that runs now; None when there is none."""
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                with open(f"/proc/{name}/cmdline", "rb") as handle:
                    words = handle.read().decode(errors="replace").split("\0")
            except OSError:
                continue
            by_hand = (
                any(os.path.basename(word) == "pct" for word in words[:3]) and "create" in words and str(vmid) in words
            )
            if by_hand or (words[0].startswith("task UPID:") and f":vzcreate:{vmid}:" in words[0]):
                return int(name)
        return None


def numa_nodes(sysfs: str = "/sys/devices/system/node") -> dict[int, str]:
    """NUMA node of the host -> its processors, as the kernel writes them."""
    found = {}
    for name in os.listdir(sysfs) if os.path.isdir(sysfs) else []:
        if name.startswith("node") and name[4:].isdigit():
            with contextlib.suppress(OSError), open(os.path.join(sysfs, name, "cpulist"), encoding="utf-8") as handle:
                found[int(name[4:])] = handle.read().strip()
    return found


def numa_of(bus_id: str, sysfs: str = "/sys/bus/pci/devices") -> Optional[int]:
    """The NUMA node of a GPU; None where the machine does not tell."""
    try:
        with open(os.path.join(sysfs, bus_id, "numa_node"), encoding="utf-8") as handle:
            node = int(handle.read())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def conf_changed(vmid: int, node: str) -> PveError:
    """Somebody else was faster."""
    return problem(
        "conf-changed",
        f"container {vmid} was changed by somebody else meanwhile",
        f"{node}: container {vmid}",
        "its file is not what this run looked at; nothing was changed",
        "run again: what is there now is then held against the declaration",
    )


def conf_no_space(vmid: int, node: str, why: str) -> PveError:
    """/etc/pve, or the disk that it is kept on, is full."""
    return problem(
        "no-space",
        f"the configuration of container {vmid} cannot be written: no space is left",
        f"{node}: {CONFS}/{vmid}.conf",
        f"{why}; /etc/pve is kept in /var/lib/pve-cluster of the host's root file system; nothing was changed",
        "free space on the host: df -h / /var/lib/pve-cluster; journalctl --vacuum-size=200M; apt clean",
    )


def unwritable(vmid: int, node: str, why: str) -> PveError:
    """/etc/pve does not take a change."""
    return problem(
        "no-quorum",
        f"the configuration of container {vmid} cannot be written",
        f"{node}: {CONFS}/{vmid}.conf",
        f"{why}; /etc/pve is read-only while the cluster has no quorum, or when pve-cluster.service does not run",
        "pvecm status shows who is missing: bring it back. systemctl status pve-cluster on a single host",
    )
