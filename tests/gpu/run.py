#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does rackwell's main job work in the laboratory with this machine's real NVIDIA GPUs?

Brings a laboratory up, whose host gets the real GPUs; runs `rackwell provision` on it (host, unprivileged container,
the driver's user space, boot gate as the service user, release, server, benchmark), once more to see that nothing
changes; then, with the server stopped, the full GPU check in the container, its baseline, a reboot of the container
through the boot gate, and the same check outside any container. Writes all of it as one JSON file, prints a table, and
removes the laboratory. Nothing of the GPUs is configured or reset.

    sudo scripts/setup && sudo tests/gpu/run.py --out results.json                 a Debian machine with the network
    sudo tests/gpu/run.py --out results.json --machine .gpu-carry                any Linux with Python 3.11

The second form enters a prepared machine (tests/gpu/prepare.sh makes it) with chroot, in name spaces of its own.
The engine is the laboratory's stand-in: what the benchmark says of tokens and latencies is invented, what it says of
power and utilisation comes from the GPUs, which idle meanwhile.

Exit status: 0 all checks pass, 1 one fails, 2 it cannot be run here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/lab"))

import compare  # noqa: E402 (beside this file)
import summary  # noqa: E402
from rwlab import real  # noqa: E402 (the laboratory is no installed package)
from rwlab.errors import LabError  # noqa: E402
from rwlab.paths import Instance  # noqa: E402

SCHEMA = "rackwell.gpu_lab_run/1"
LAB = "gpu"
CONTAINER, HOST, VMID = "glm5-01", "pve1", "201"
INSIDE = "RACKWELL_GPU_INSIDE"
# in the prepared machine: where the checkout is, where results are left, and the releases and locks of the site
CHECKOUT, RESULTS, SITE = "srv/rackwell", "srv/results", "srv/site"
PARTS = "machine.tar.xz.*"
# where a copy takes less than a millisecond (NVLink), what it costs to start one shows with smaller buffers
SIZE_MIB = 512
CHECK = ("check", "--mode", "full", "--json", "--size", str(SIZE_MIB))

# The base of LXC's groups: it takes process 1's without an ending "init.scope", where no process may be then.
GROUP = Path("/sys/fs/cgroup/rackwell-gpu")
_START = f"""
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p {GROUP}/init.scope
    echo $$ >{GROUP}/init.scope/cgroup.procs
fi
exec unshare --mount --pid --fork --uts --ipc --kill-child sh -ec "$@"
"""

# $1 is the machine's root, the rest the command. Its shell is process 1 of a process name space: all ends with it.
_ENTER = """
tree=$1; shift
mount --make-rprivate /
mount --bind "$tree" "$tree"
mount -t proc proc "$tree/proc"
mount -t sysfs sys "$tree/sys"
mount --rbind /dev "$tree/dev"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$tree/dev/pts"
mount -t tmpfs -o mode=1777 shm "$tree/dev/shm"
hostname rackwell-gpu
env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 RACKWELL_GPU_INSIDE="$OUTSIDE" chroot "$tree" "$@"
exit $?
"""


class CannotRunError(Exception):
    """This machine or the prepared one lacks something."""


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="results, JSON; the runs' logs go beside it, FILE.log")
    parser.add_argument("--machine", type=Path, metavar="FOLDER", help="enter the machine that prepare.sh made")
    parser.add_argument("--root", type=Path, help="with --machine: unpack it there, keep it, take it if it is there")
    parser.add_argument(
        "--nccl", type=Path, metavar="FILE", help="a libnccl.so.2 that the container gets, for allreduce"
    )
    parser.add_argument("--peers", type=Path, metavar="FILE", help="what tests/gpu/peers.py measured on this machine")
    parser.add_argument(
        "--baseline-runs", type=int, default=3, metavar="N", help="default: %(default)s; 0: no baseline"
    )
    parser.add_argument("--no-bench", action="store_true", help="leave the benchmark out")
    parser.add_argument("--stand-in", action="store_true", help="rehearse, without GPUs")
    parser.add_argument("--keep", action="store_true", help="leave the laboratory up")
    parser.add_argument("--show-uuids", action="store_true", help="do not replace the GPUs' UUIDs in the results")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    try:
        if os.geteuid() != 0:
            raise CannotRunError("must run as root: it starts containers")
        if not real.present() and not arguments.stand_in:
            raise CannotRunError("NVIDIA's kernel module is not loaded here (--stand-in rehearses without GPUs)")
        return enter(arguments) if arguments.machine else run(arguments)
    except (CannotRunError, LabError) as error:
        print(f"tests/gpu/run.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


# ---------------------------------------------------------------------------------------------- a prepared machine


def enter(arguments: argparse.Namespace) -> int:
    """Run this script again in the prepared machine, and bring back what it wrote."""
    root = arguments.root or Path(tempfile.mkdtemp(prefix="rackwell-gpu-", dir="/var/tmp"))
    try:
        unpack(arguments.machine, root)
        checkout = root / CHECKOUT
        say("copying the checkout and the driver's user space into it")
        ignored = shutil.ignore_patterns(".git", ".venv", ".gpu-carry", ".mypy_cache", "__pycache__", ".hypothesis")
        shutil.copytree(REPO, checkout, ignore=ignored, dirs_exist_ok=True, symlinks=True)
        if real.present():
            copy_driver(root)
        results = root / RESULTS
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir()
        options = [flag for flag, on in own_flags(arguments).items() if on]
        options += ["--baseline-runs", str(arguments.baseline_runs)]
        for option, path in (("--nccl", arguments.nccl), ("--peers", arguments.peers)):
            if path:
                shutil.copyfile(path, root / "srv" / f"{option.strip('-')}.file")
                options += [option, f"/srv/{option.strip('-')}.file"]
        command = ["sh", "-ec", _START, "sh", _ENTER, "sh", str(root)]
        command += ["python3", f"/{CHECKOUT}/tests/gpu/run.py", *options]
        command += ["--out", f"/{RESULTS}/results.json"]
        outer = {"os": operating_system(), "command": command_line(arguments), "nccl": nccl_environment()}
        done = subprocess.run(command, env={**os.environ, "OUTSIDE": json.dumps(outer)}, check=False)
        for suffix in ("", ".log"):
            written = results / f"results.json{suffix}"
            if written.exists():
                shutil.copyfile(written, f"{arguments.out}{suffix}")
        return done.returncode
    finally:
        for group in [*sorted(GROUP.rglob("*/"), reverse=True), GROUP]:
            if group.is_dir():
                group.rmdir()
        if not arguments.root:
            shutil.rmtree(root)


def unpack(folder: Path, root: Path) -> None:
    complete = root / ".complete"
    if complete.exists():
        return
    parts = sorted(folder.glob(PARTS))
    if not parts:
        raise CannotRunError(f"there is no {PARTS} in {folder}: make it with tests/gpu/prepare.sh")
    say(f"unpacking the prepared machine, {sum(part.stat().st_size for part in parts) >> 20} MiB")
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    with tarfile.open(fileobj=cast(IO[bytes], Joined(parts)), mode="r|xz") as archive:
        extra: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        archive.extractall(root, numeric_owner=True, **extra)
    complete.touch()


class Joined:
    """Files read as one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._chunks = self._read(paths)
        self._rest = b""

    @staticmethod
    def _read(paths: Sequence[Path]) -> Iterator[bytes]:
        for path in paths:
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    yield chunk

    def read(self, size: int) -> bytes:
        while len(self._rest) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._rest += chunk
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


def copy_driver(root: Path) -> None:
    """This machine's own driver files, where the loader of the prepared machine looks."""
    for path in real.user_space():
        tool = ".so." not in path.name
        target = root / ("usr/bin" if tool else f"usr/lib/{platform.machine()}-linux-gnu") / path.name
        shutil.copyfile(path, target)
        target.chmod(0o755 if tool else 0o644)
    subprocess.run(["chroot", str(root), "ldconfig"], check=True)


def own_flags(arguments: argparse.Namespace) -> dict[str, bool]:
    return {
        "--no-bench": arguments.no_bench,
        "--stand-in": arguments.stand_in,
        "--keep": arguments.keep,
        "--show-uuids": arguments.show_uuids,
    }


def command_line(arguments: argparse.Namespace) -> str:
    """What measured, without this machine's paths."""
    machine = ["--machine", "FOLDER"] if arguments.machine else []
    machine += ["--nccl", "LIBRARY"] if arguments.nccl else []
    machine += ["--peers", "FILE"] if arguments.peers else []
    return " ".join(
        ["tests/gpu/run.py", "--out", "FILE", *machine, *(flag for flag, on in own_flags(arguments).items() if on)]
    )


# ---------------------------------------------------------------------------------------------- the run itself


def run(arguments: argparse.Namespace) -> int:
    outer = json.loads(os.environ.get(INSIDE) or "{}")
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": outer.get("command") or command_line(arguments),
        "machine": machine() | ({"os": outer["os"], "entered": operating_system()} if outer else {}),
    }
    try:
        if outer:
            shutil.copytree(Path("/", SITE), Instance.of(LAB).site, symlinks=True)
        say("laboratory up")
        nccl = ["--nccl", str(arguments.nccl)] if arguments.nccl else []
        laboratory("up", "--name", LAB, "--suite", suite(), *nccl)
        status = json.loads(laboratory("status", "--name", LAB, "--json", capture=True))
        site = Path(status["site"])
        environment = outer.get("nccl") or nccl_environment()
        declare(site, environment)
        results["laboratory"] = {key: status[key] for key in ("gpus", "driver_version", "suites")}
        bench = ["--no-bench"] if arguments.no_bench else []
        results["provision"] = rackwell("provision", CONTAINER, "-i", str(site), *bench)
        results["again"] = rackwell("provision", CONTAINER, "-i", str(site), "--no-bench")
        results["verify"] = rackwell("verify", CONTAINER, "-i", str(site))
        results["container"] = container()
        results["bench"] = stored_bench(site)
        say("the server stops; the full check in the container, and the same outside")
        inside("systemctl", "stop", "rackwell-inference.service")
        expect = {"environment": environment}
        results["inside"] = check_inside(expect)
        results["outside"] = check_outside(site, expect, arguments.nccl)
        results["inside_again"] = check_inside(expect)
        if arguments.baseline_runs:
            runs = ["--runs", str(arguments.baseline_runs), "--allow-stop-server"]
            results["baseline"] = rackwell("baseline", "record", CONTAINER, "-i", str(site), *runs)
        say("the container restarts, through the boot gate")
        results["reboot"] = rebooted()
        results["status"] = rackwell("status", "-i", str(site))
        peers = json.loads(arguments.peers.read_text()) if arguments.peers else {}
        results["peers"] = peers
        results["figures"] = compare.compare(results["inside"], results["outside"], peers)
        judge(results)
        print("\n".join(summary.lines(results)))
    finally:
        try:
            write(arguments, results)
        finally:
            if not arguments.keep:
                laboratory("down", "--name", LAB, "--purge", check=False)
    return 0 if results["verdict"] == "pass" else 1


def suite() -> str:
    """The one whose Python is this one's, so that the probe's own wheels serve outside too."""
    return "trixie" if sys.version_info[:2] == (3, 13) else "bookworm"


def laboratory(*words: str, capture: bool = False, check: bool = True) -> str:
    done = subprocess.run(
        [sys.executable, "-B", str(REPO / "tests/lab/lab.py"), *words],
        stdout=subprocess.PIPE if capture else sys.stderr,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if check and done.returncode != 0:
        raise CannotRunError(f"`rackwell lab {' '.join(words)}` ended with {done.returncode}")
    return done.stdout or ""


def rackwell(*words: str) -> dict[str, Any]:
    """A command of the product, with --json; its progress goes on to our standard error."""
    program = REPO / ".venv/bin/rackwell"
    if not program.exists():
        raise CannotRunError("rackwell's environment is missing; run scripts/setup first")
    say(f"rackwell {words[0]} {words[1]}")
    done = subprocess.run([str(program), *words, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.startswith("{"):
        what = {"what": f"rackwell {words[0]} gave no result", "where": "standard output", "why": "", "fix": ""}
        return {"ok": False, "exit_code": done.returncode, "problems": [what], "result": None}
    found: dict[str, Any] = pruned(json.loads(done.stdout))
    return found


def pruned(value: Any) -> Any:
    """Without what holds for this run only, and without the stand-in engine's tokens and latencies."""
    left_out = {"log", "changes", "endpoint", "host_keys", "bench"}
    if isinstance(value, dict):
        return {key: pruned(inner) for key, inner in value.items() if key not in left_out}
    return [pruned(inner) for inner in value] if isinstance(value, list) else value


def container() -> dict[str, Any]:
    """What the container is, as seen in it and in its configuration on the host."""

    def ask(where: str, *command: str) -> str:
        return laboratory("shell", "--name", LAB, where, *command, capture=True, check=False).strip()

    return {
        "config": ask(HOST, "pct", "config", VMID).splitlines(),
        "os": ask(CONTAINER, "sed", "-n", "s/^PRETTY_NAME=//p", "/etc/os-release").strip('"'),
        "systemd": ask(CONTAINER, "systemctl", "--version").split("\n")[0],
        "state": ask(CONTAINER, "systemctl", "is-system-running"),
        "uid_map": ask(CONTAINER, "cat", "/proc/self/uid_map").split(),
        "user": ask(CONTAINER, "id", "rackwell"),
        "nvidia_smi": ask(CONTAINER, "nvidia-smi", "-L").splitlines(),
        "nodes": [line for line in ask(CONTAINER, "ls", "-ln", "/dev").splitlines() if "nvidia" in line],
    }


def stored_bench(site: Path) -> dict[str, Any] | None:
    """The stored result's GPUs and telemetry; tokens and latencies are the stand-in engine's and say nothing here."""
    files = sorted((site / ".rackwell/results" / CONTAINER).glob("*/bench.json"))
    if not files:
        return None
    found = json.loads(files[-1].read_text())
    points = [
        {key: point.get(key) for key in ("concurrency", "status", "valid", "reasons", "remarks", "server", "telemetry")}
        for point in found["points"]
    ]
    note = "the engine is a stand-in that uses no GPU: these are the readings of idle GPUs, no performance figures"
    return {"note": note, "hardware": found["hardware"], "points": points}


def nccl_environment() -> dict[str, str]:
    """What this machine asks of NCCL: such as no multicast where its GPUs are shared."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")}


def declare(site: Path, environment: dict[str, str]) -> None:
    """Add to the laboratory's site what the real GPUs need: full buffers, and the machine's own demands of NCCL."""
    path = site / "host_vars" / f"{CONTAINER}.yml"
    text = path.read_text()
    text += f"gpu_probe_size: {SIZE_MIB}\ngpu_probe_environment: {json.dumps(environment)}\n"
    path.write_text(text)


def inside(*command: str) -> str:
    return laboratory("shell", "--name", LAB, CONTAINER, *command, capture=True, check=False)


def check_inside(expect: dict[str, Any]) -> dict[str, Any]:
    """The full check in the container as the service user, as `rackwell verify` runs it beside no server."""
    python = "/opt/rackwell/probe/env/bin/python"
    words = ["-m", "rackwell.probe", *CHECK, "--expect", "/run/rackwell-expect.json"]
    put = f"printf %s {shlex.quote(json.dumps(expect))} >/run/rackwell-expect.json"
    return parsed(inside(f"{put}; cd /; exec runuser -u rackwell -- {python} {' '.join(words)}"))


def check_outside(site: Path, expect: dict[str, Any], nccl: Path | None) -> dict[str, Any]:
    """The same on the machine itself, with the very wheels that the container's probe was made of."""
    release = (site / ".rackwell/builds/probe").resolve()
    wheels = json.loads((release / "manifest.json").read_text())["wheels"]
    with tempfile.TemporaryDirectory() as folder:
        for wheel in wheels:
            with zipfile.ZipFile(site / ".rackwell/blobs/sha256" / wheel["sha256"]) as packed:
                packed.extractall(folder)
        file = Path(folder, "expect.json")
        file.write_text(json.dumps({**expect, "nccl_library": str(nccl) if nccl else None}))
        command = [sys.executable, "-B", "-m", "rackwell.probe", *CHECK, "--expect", str(file)]
        environment = {**os.environ, "PYTHONPATH": folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/", check=False)
    return parsed(done.stdout) | {"python": platform.python_version()}


def parsed(text: str) -> dict[str, Any]:
    start = text.find("{")
    if start < 0:
        return {"verdict": "not run", "why": text[-1000:]}
    found: dict[str, Any] = json.loads(text[start:])
    return found


def rebooted() -> dict[str, Any]:
    """The boot gate's own verdict after `pct reboot`, and whether the server came up behind it."""
    laboratory("shell", "--name", LAB, HOST, "pct", "reboot", VMID, capture=True)
    # systemd tells when the boot is over: the gate is one of its jobs
    state = inside("systemctl", "is-system-running", "--wait").strip()
    found = parsed(inside("cat", "/run/rackwell/gate.json"))
    report = found.pop("report", None) or {}
    server = inside("systemctl", "show", "-P", "ActiveState", "rackwell-inference.service").strip()
    return {"system": state, "gate": found, "seconds": report.get("seconds"), "server": server}


# ---------------------------------------------------------------------------------------------- results


def judge(results: dict[str, Any]) -> None:
    """Add the verdict: all commands ended well, nothing changed twice, the checks pass, the gate let the server up.

    Degraded counts as passed: a borrowed machine's HMM, say, is not ours to switch off.
    """
    good = {"pass", "degraded"}
    unchanged = (results["again"].get("result") or {}).get("changed") == 0
    reboot = results["reboot"]
    passed = [
        results["provision"]["ok"],
        results["again"]["ok"] and unchanged,
        results["verify"]["ok"],
        {results["inside"]["verdict"], results["outside"]["verdict"]} <= good,
        results.get("baseline", {"ok": True})["ok"],
        reboot["gate"].get("verdict") in good and reboot["server"] in {"active", "activating"},
    ]
    results["verdict"] = "pass" if all(passed) else "fail"


def write(arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    results.setdefault("verdict", "fail")
    text = json.dumps(results, indent=1)
    if not arguments.show_uuids:
        text = without_uuids(text)
    arguments.out.write_text(text + "\n")
    state = Instance.of(LAB).state
    logs = sorted(state.glob("site/.rackwell/runs/*/log.txt"))
    if results["verdict"] != "pass":
        logs += sorted(state.glob("hosts/*/lxc*.*"))
    told = "".join(f"==== {log.relative_to(state)}\n{log.read_text(errors='replace')}\n" for log in logs)
    Path(f"{arguments.out}.log").write_text(told if arguments.show_uuids else without_uuids(told))


def without_uuids(text: str) -> str:
    """Each GPU's UUID by a number: they name hardware that is not ours to name."""
    for number, uuid in enumerate(dict.fromkeys(re.findall(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", text))):
        text = text.replace(uuid, f"GPU-00000000-0000-0000-0000-{number:012d}")
    return text


def machine() -> dict[str, Any]:
    return {
        "kernel": platform.release(),
        "os": operating_system(),
        "cpus": os.cpu_count(),
        "kernel_module": (read(Path("/proc/driver/nvidia/version")) or "").split("\n")[0].strip(),
        "device_nodes": {name: (node.major, node.minor) for name, node in real.nodes().items()},
        "lxc": subprocess.run(["lxc-start", "--version"], capture_output=True, text=True, check=False).stdout.strip(),
        "topology": topology(),
    }


def topology() -> list[str]:
    """`nvidia-smi topo -m`, without its colours."""
    if not shutil.which("nvidia-smi"):
        return []
    told = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False).stdout
    return [line for line in re.sub(r"\x1b\[\d*m", "", told).splitlines() if line.startswith(("\t", "GPU"))]


def operating_system() -> str:
    return platform.freedesktop_os_release().get("PRETTY_NAME", "?")


def read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
