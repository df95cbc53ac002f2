#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do the probe's checks pass in an LXC container that was given this machine's real NVIDIA GPUs?

Makes a container from a Debian root, passes every /dev/nvidia* node into it and mounts the driver's user space
read-only, starts systemd in it, installs the probe from wheels without network, and runs `cuda`, `p2p` and `record`
there as an unprivileged service user; then the same `p2p` outside, for comparison. Writes all of it as one JSON file,
prints a table, and removes what it made. Nothing of the GPUs is configured or reset.

    sudo tests/gpu/run_in_container.py --out results.json          the folder comes from tests/gpu/prepare.sh

Needs root, Python 3.10 or newer, and either LXC or dpkg (then LXC's packages are unpacked for this run only).
Exit status: 0 all checks pass inside, 1 one fails, 2 it cannot be run here.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA = "rackwell.gpu_container_run/1"
REPO = Path(__file__).resolve().parents[2]
NAME = "rackwell-gpu-check"
USER = "rackwell"
FIRST_ID, IDS = 100000, 65536  # the ids of an unprivileged container, as on Proxmox VE
DRIVER_DIR = "usr/local/nvidia/lib64"
PROBE = "/opt/rackwell/probe/env/bin/python"
BOOT_DEADLINE = 90.0


class CannotRunError(Exception):
    """This machine or the folder lacks something."""


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--carry", type=Path, default=REPO / ".gpu-carry", help="folder made by prepare.sh")
    parser.add_argument("--out", type=Path, required=True, help="results, JSON")
    parser.add_argument("--size", type=int, default=256, metavar="MIB", help="one copy of the P2P check")
    parser.add_argument("--timeout", type=int, default=180, metavar="S", help="deadline of each check")
    parser.add_argument("--mode", choices=["auto", "unprivileged", "privileged"], default="auto")
    parser.add_argument("--carried-lxc", action="store_true", help="use the carried LXC although this machine has one")
    parser.add_argument("--show-uuids", action="store_true", help="do not replace the GPUs' UUIDs in the results")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    try:
        if os.geteuid() != 0:
            raise CannotRunError("must run as root: it starts a container")
        with_unified_cgroups()
        return run(arguments)
    except CannotRunError as error:
        print(f"run_in_container: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def with_unified_cgroups() -> None:
    """A container's systemd needs cgroup v2 alone, as on Proxmox VE; elsewhere start again in a namespace with that."""
    kinds = {line.split()[2] for line in Path("/proc/self/mounts").read_text().splitlines() if "/sys/fs/cgroup" in line}
    if kinds == {"cgroup2"}:
        return
    script = 'umount -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"'
    again = [sys.executable, *sys.argv]
    os.execvp("unshare", ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", *again])


def run(arguments: argparse.Namespace) -> int:
    nodes = gpu_nodes()
    driver = DriverLibraries.find()
    modes = ["unprivileged", "privileged"] if arguments.mode == "auto" else [arguments.mode]
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command_line(arguments),
        "machine": machine(),
        "driver_libraries": {"version": driver.version, "files": [path.name for path in driver.files]},
        "device_nodes": [node_facts(node) for node in nodes],
        "tried": [],
    }
    with workspace() as work:
        lxc = Lxc(work, arguments.carry, arguments.carried_lxc)
        results["machine"]["lxc"] = lxc.version()
        for mode in modes:
            container = Container(lxc, work / mode, arguments.carry, mode == "unprivileged")
            try:
                with container.running(nodes, driver):
                    results["tried"].append({"mode": mode, "started": True})
                    results["container"] = container.facts()
                    results["inside"] = inside(container, arguments)
            except StartError as error:
                say(f"{mode}: {error}")
                results["tried"].append({"mode": mode, "started": False, "why": str(error)})
                continue
            break
        else:
            raise CannotRunError("no container could be started: " + "; ".join(t["why"] for t in results["tried"]))
        say("the same P2P check outside the container")
        results["outside"] = {"p2p": outside(work, arguments)}
    results["pairs"] = compare(results["inside"]["p2p"], results["outside"]["p2p"])
    results["hardware"] = results["inside"]["cuda"]["nvml"]
    passed = all(results["inside"][check]["verdict"] == "pass" for check in ("cuda", "p2p"))
    results["verdict"] = "pass" if passed else "fail"
    text = json.dumps(results, indent=1)
    if not arguments.show_uuids:
        text = without_uuids(text)
    arguments.out.write_text(text + "\n")
    print_table(results)
    return 0 if passed else 1


def command_line(arguments: argparse.Namespace) -> str:
    """What measured, without this machine's paths."""
    extra = " --carried-lxc" if arguments.carried_lxc else ""
    return (
        f"tests/gpu/run_in_container.py --out FILE --size {arguments.size} --timeout {arguments.timeout}"
        f" --mode {arguments.mode}{extra}"
    )


# ---------------------------------------------------------------------------------------------- the machine


def machine() -> dict[str, Any]:
    release = platform.freedesktop_os_release()
    return {
        "kernel": platform.release(),
        "os": release.get("PRETTY_NAME", "?"),
        "cpus": os.cpu_count(),
        "kernel_module": read(Path("/sys/module/nvidia/version")),
        "kernel_module_text": (read(Path("/proc/driver/nvidia/version")) or "").split("\n")[0],
    }


def gpu_nodes() -> list[Path]:
    nodes = [p for p in [*Path("/dev").glob("nvidia*"), *Path("/dev").glob("nvidia-*/*")] if p.is_char_device()]
    if not any(re.fullmatch(r"nvidia\d+", node.name) for node in nodes):
        raise CannotRunError("there is no /dev/nvidiaN here: no NVIDIA GPU, or its driver is not loaded")
    if not Path("/dev/nvidia-uvm").exists():
        raise CannotRunError("there is no /dev/nvidia-uvm here; make it with `nvidia-modprobe -c0 -u`")
    return sorted(nodes)


def node_facts(node: Path) -> dict[str, Any]:
    seen = node.stat()
    return {
        "path": str(node),
        "mode": f"{stat.S_IMODE(seen.st_mode):04o}",
        "major": os.major(seen.st_rdev),
        "minor": os.minor(seen.st_rdev),
    }


class DriverLibraries:
    """The driver's user space, where the loader finds it: every library of libcuda's version beside libcuda."""

    def __init__(self, version: str, files: list[Path], smi: str | None) -> None:
        self.version, self.files, self.smi = version, files, smi

    @classmethod
    def find(cls) -> DriverLibraries:
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CannotRunError(f"libcuda.so.1 does not load: {error}") from None
        maps = Path("/proc/self/maps").read_text()
        cuda = next(Path(match) for match in re.findall(r"(/\S*libcuda\.so\S*)", maps)).resolve()
        version = cuda.name.partition(".so.")[2]
        return cls(version, sorted(cuda.parent.glob(f"lib*.so.{version}")), shutil.which("nvidia-smi"))


# ---------------------------------------------------------------------------------------------- the container


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix="rackwell-gpu-", dir="/var/tmp"))
    work.chmod(0o755)  # the container's ids pass through it
    try:
        yield work
    finally:
        shutil.rmtree(work)


class StartError(Exception):
    """The container did not come up."""


class Lxc:
    """LXC's programs: the machine's own, or unpacked into the workspace."""

    def __init__(self, work: Path, carry: Path, carried: bool) -> None:
        self.root = Path("/")
        self.containers = work / "containers"
        self.containers.mkdir()
        self.rootfs_mount = work / "rootfs-mount"
        self.rootfs_mount.mkdir()
        self.empty = work / "empty"
        self.empty.mkdir()
        if carried or shutil.which("lxc-start") is None:
            self.root = work / "lxc"
            for package in sorted((carry / "debs").glob("*.deb")):
                check(["dpkg", "-x", str(package), str(self.root)])
        self.libraries = self.root / f"usr/lib/{platform.machine()}-linux-gnu"

    def version(self) -> str:
        return self.output("lxc-start", "--version").strip()

    def command(self, program: str, *args: str) -> list[str]:
        return [str(self.root / "usr/bin" / program), *args]

    def environment(self) -> dict[str, str]:
        """No PATH: where newuidmap is found, LXC insists on entries for root in /etc/subuid."""
        private = {} if self.root == Path("/") else {"LD_LIBRARY_PATH": str(self.libraries)}
        return {"PATH": str(self.empty), "LANG": "C.UTF-8", **private}

    def output(self, program: str, *args: str) -> str:
        done = subprocess.run(
            self.command(program, *args), env=self.environment(), capture_output=True, text=True, check=False
        )
        return done.stdout


class Container:
    """One container in the workspace, from unpacking to removal."""

    def __init__(self, lxc: Lxc, home: Path, carry: Path, unprivileged: bool) -> None:
        self.lxc, self.carry, self.unprivileged = lxc, carry, unprivileged
        self.root = home / "root"
        self.log = home / "lxc.log"
        home.mkdir()

    @contextlib.contextmanager
    def running(self, nodes: list[Path], driver: DriverLibraries) -> Iterator[None]:
        say(f"unpacking the root of the {'' if self.unprivileged else 'NOT '}unprivileged container")
        self._unpack()
        self._prepare(nodes, driver)
        try:
            say("starting systemd in it")
            self._start()
            yield
        finally:
            self._lxc("lxc-stop", "-k", check=False)

    def _unpack(self) -> None:
        shift = FIRST_ID if self.unprivileged else 0

        def shifted(member: tarfile.TarInfo, _path: str) -> tarfile.TarInfo:
            return member.replace(uid=member.uid + shift, gid=member.gid + shift, uname="", gname="")

        with tarfile.open(self.carry / "rootfs.tar.xz") as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(self.root, numeric_owner=True, filter=shifted)
            else:
                members = [shifted(member, "") for member in archive]
                archive.extractall(self.root, members, numeric_owner=True)
        os.chown(self.root, shift, shift)

    def _prepare(self, nodes: list[Path], driver: DriverLibraries) -> None:
        """Wheels and the places of the driver's files, then the configuration."""
        shutil.copytree(self.carry / "wheels", self.root / "opt/wheels")
        libraries = self.root / DRIVER_DIR
        libraries.mkdir(parents=True)
        if self.unprivileged:
            os.chown(libraries, FIRST_ID, FIRST_ID)  # ldconfig makes the links to the names that programs ask for
        loader = self.root / "etc/ld.so.conf.d/nvidia.conf"
        loader.write_text(f"/{DRIVER_DIR}\n")
        (self.root / "etc/hostname").write_text(f"{NAME}\n")
        # debugfs cannot be mounted with shifted ids; Debian's unit for it would fail
        (self.root / "etc/systemd/system/sys-kernel-debug.mount").symlink_to("/dev/null")
        lines = [
            f"lxc.rootfs.path = dir:{self.root}",
            f"lxc.rootfs.mount = {self.lxc.rootfs_mount}",
            f"lxc.uts.name = {NAME}",
            "lxc.arch = linux64",
            "lxc.net.0.type = empty",
            "lxc.apparmor.profile = unconfined",
            "lxc.mount.auto = cgroup:rw proc:rw sys:rw",
            "lxc.autodev = 1",
            "lxc.pty.max = 1024",
            "lxc.tty.max = 0",
            "lxc.console.path = none",
        ]
        if self.unprivileged:
            lines += [f"lxc.idmap = {kind} 0 {FIRST_ID} {IDS}" for kind in "ug"]
        lines += [f"lxc.mount.entry = {node} {str(node)[1:]} none bind,create=file" for node in nodes]
        files = [(path, f"{DRIVER_DIR}/{path.name}") for path in driver.files]
        if driver.smi:
            files.append((Path(driver.smi).resolve(), "usr/bin/nvidia-smi"))
        lines += [f"lxc.mount.entry = {path} {place} none bind,ro,create=file" for path, place in files]
        config = self.lxc.containers / NAME / "config"
        config.parent.mkdir(exist_ok=True)
        config.write_text("\n".join(lines) + "\n")

    def _start(self) -> None:
        started = self._lxc("lxc-start", "-d", "-o", str(self.log), "-l", "INFO", check=False)
        if started.returncode != 0:
            raise StartError("lxc-start: " + self._log_errors())
        end = time.monotonic() + BOOT_DEADLINE
        state = ""
        while time.monotonic() < end:
            asked = self.run(["systemctl", "is-system-running", "--wait"], timeout=BOOT_DEADLINE, check=False)
            state = asked.stdout.strip()
            if state in {"running", "degraded"}:
                return
            if "RUNNING" not in self.lxc.output("lxc-info", "-P", str(self.lxc.containers), "-n", NAME, "-s"):
                raise StartError("the container stopped: " + self._log_errors())
            time.sleep(0.2)
        raise StartError(f"systemd is {state or 'silent'} after {BOOT_DEADLINE:g} s: " + self._log_errors())

    def _log_errors(self) -> str:
        lines = (read(self.log) or "").splitlines()
        return " | ".join([line for line in lines if " ERROR " in line][:4]) or "nothing in LXC's log"

    def _lxc(self, program: str, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = self.lxc.command(program, "-P", str(self.lxc.containers), "-n", NAME, *args)
        return subprocess.run(command, env=self.lxc.environment(), text=True, check=check, stdin=subprocess.DEVNULL)

    def run(
        self, command: list[str], timeout: float = 120, check: bool = True, user: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as its root or as ``user``."""
        if user:
            command = ["runuser", "-u", user, "--", *command]
        attach = self.lxc.command(
            "lxc-attach", "-P", str(self.lxc.containers), "-n", NAME, "--clear-env",
            "-v", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "-v", "LANG=C.UTF-8", "--", *command,
        )  # fmt: skip
        done = subprocess.run(
            attach,
            env=self.lxc.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
        if check and done.returncode != 0:
            raise CannotRunError(f"inside the container `{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")
        return done

    def facts(self) -> dict[str, Any]:
        release = self.run(["sh", "-c", ". /etc/os-release; echo $PRETTY_NAME"]).stdout.strip()
        return {
            "unprivileged": self.unprivileged,
            "os": release,
            "systemd": self.run(["systemctl", "--version"]).stdout.split("\n")[0],
            "state": self.run(["systemctl", "is-system-running"], check=False).stdout.strip(),
            "failed_units": self.run(["systemctl", "--failed", "--plain", "--no-legend"]).stdout.splitlines(),
            "uid_map": self.run(["cat", "/proc/self/uid_map"]).stdout.split(),
        }


# ---------------------------------------------------------------------------------------------- the checks


def inside(container: Container, arguments: argparse.Namespace) -> dict[str, Any]:
    say("installing the probe in it, offline")
    container.run(["ldconfig"])
    container.run(["useradd", "--system", "--home-dir", "/var/lib/rackwell", "--shell", "/usr/sbin/nologin", USER])
    container.run(["python3", "-m", "venv", "--without-pip", "/opt/rackwell/probe/env"])
    pip = container.run(["sh", "-c", "ls /opt/wheels/pip-*.whl"]).stdout.strip()
    container.run(
        [PROBE, f"{pip}/pip", "install", "-q", "--no-index", "--no-cache-dir", "--find-links", "/opt/wheels",
         "rackwell-probe", "cuda-bindings", "nvidia-ml-py"]
    )  # fmt: skip
    found: dict[str, Any] = {"user": container.run(["id"], user=USER).stdout.strip()}
    found["packages"] = json.loads(container.run([PROBE, f"{pip}/pip", "list", "--format", "json"]).stdout)
    for check in ("cuda", "p2p"):
        say(f"{check} check inside, as {USER}")
        extra = ["--size", str(arguments.size)] if check == "p2p" else []
        done = container.run(
            [PROBE, "-m", "rackwell.probe", check, "--json", "--timeout", str(arguments.timeout), *extra],
            timeout=arguments.timeout + 90,
            check=False,
            user=USER,
        )
        if not done.stdout.startswith("{"):
            raise CannotRunError(f"the {check} check gave no report: {done.stderr[-2000:]}")
        found[check] = json.loads(done.stdout)
    say("telemetry of a P2P check inside")
    found["telemetry"] = telemetry(container, arguments)
    return found


def telemetry(container: Container, arguments: argparse.Namespace) -> dict[str, Any]:
    """What `record` says of a load; of the samples their number only."""
    out = "/tmp/telemetry.json"
    load = [PROBE, "-m", "rackwell.probe", "p2p", "--size", str(arguments.size)]
    container.run(
        [PROBE, "-m", "rackwell.probe", "record", "--out", out, "--hz", "10", "--", *load],
        timeout=arguments.timeout + 90,
        check=False,
        user=USER,
    )
    record: dict[str, Any] = json.loads(container.run(["cat", out]).stdout)
    return {
        "command": ["python", *load[1:]],
        "exit_code": record["exit_code"],
        "seconds": record["clock"]["seconds"],
        "hz": record["hz"],
        "telemetry": record["telemetry"],
        "summary": record["summary"],
        "first_sample": record["samples"][0] if record["samples"] else None,
        "problems": record["problems"],
    }


def outside(work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The P2P check in this Python on the machine itself; its own bindings, or those that were carried for it."""
    paths = [str(unpack_probe(work, arguments.carry))]
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        paths += unpack_bindings(work, arguments.carry)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "rackwell.probe", "p2p", "--json", "--timeout", str(arguments.timeout)]
    command += ["--size", str(arguments.size)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/", check=False)
    if not done.stdout.startswith("{"):
        return {"verdict": "not run", "why": done.stderr[-1000:], "pairs": []}
    report: dict[str, Any] = json.loads(done.stdout)
    version = "from importlib.metadata import version; print(version('cuda-bindings'))"
    asked = subprocess.run(
        [sys.executable, "-c", version], env=environment, capture_output=True, text=True, check=False
    )
    return {**report, "python": platform.python_version(), "cuda_bindings": asked.stdout.strip() or None}


def unpack_probe(work: Path, carry: Path) -> Path:
    place = work / "probe"
    with zipfile.ZipFile(next((carry / "wheels").glob("rackwell_probe-*.whl"))) as wheel:
        wheel.extractall(place)
    return place


def unpack_bindings(work: Path, carry: Path) -> list[str]:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheels = [
        *(carry / "wheels").glob(f"cuda_bindings-*-{tag}-*.whl"),
        *(carry / "wheels").glob("cuda_pathfinder-*.whl"),
    ]
    place = work / "bindings"
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(place)
    return [str(place)]


def compare(inner: dict[str, Any], outer: dict[str, Any]) -> list[dict[str, Any]]:
    speeds = {(pair["src"], pair["dst"]): pair["gb_per_s"] for pair in outer["pairs"]}
    return [
        {
            "src": pair["src"],
            "dst": pair["dst"],
            "can_access": pair["can_access"],
            "verified": pair["verified"],
            "inside_gb_per_s": pair["gb_per_s"],
            "outside_gb_per_s": speeds.get((pair["src"], pair["dst"])),
        }
        for pair in inner["pairs"]
    ]


# ---------------------------------------------------------------------------------------------- output


def print_table(results: dict[str, Any]) -> None:
    inner = results["inside"]
    devices = inner["cuda"]["devices"]
    names = sorted({device.get("name", "?") for device in devices})
    kind = "unprivileged" if results["container"]["unprivileged"] else "privileged"
    print(f"{len(devices)}x {', '.join(names)}, driver {inner['cuda']['driver_version']}, {results['date']}")
    print(f"{kind} container, {results['container']['os']}, systemd {results['container']['state']}, {inner['user']}")
    print(
        f"cuda: {inner['cuda']['verdict']}   p2p: {inner['p2p']['verdict']}   copies: {inner['p2p']['size'] >> 20} MiB"
    )
    print("pair      data      inside GB/s  outside GB/s")
    for pair in results["pairs"]:
        data = "verified" if pair["verified"] else "FAIL"
        speeds = [pair["inside_gb_per_s"], pair["outside_gb_per_s"]]
        shown = ["-" if speed is None else f"{speed:.1f}" for speed in speeds]
        print(f"{pair['src']} -> {pair['dst']}    {data:9} {shown[0]:>11}  {shown[1]:>12}")
    for check in ("cuda", "p2p"):
        for problem in inner[check]["problems"]:
            print(f"problem: {problem['what']} ({problem['where']}): {problem['why']}. Fix: {problem['fix']}")


def without_uuids(text: str) -> str:
    """Each GPU's UUID by a number: they name hardware that is not ours to name."""
    for number, uuid in enumerate(dict.fromkeys(re.findall(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", text))):
        text = text.replace(uuid, f"GPU-00000000-0000-0000-0000-{number:012d}")
    return text


def read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def check(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotRunError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
