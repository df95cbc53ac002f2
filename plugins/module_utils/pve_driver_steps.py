# SPDX-License-Identifier: Apache-2.0
"""Bring a host to a pair of driver and kernel: checked, installed, built for each kernel, verified file by file."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from typing import IO

from ansible_collections.rackwell.gpu.plugins.module_utils import nvidia_run_file, pve_driver_apt, pve_driver_vfio
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_driver import DriverError
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import (
    MODULES,
    NEXT_PIN,
    PIN,
    STATE,
    STORE,
    Facts,
    Host,
    installed,
    kept_file,
    look,
    sources,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_plan import Todo, Wanted

DECLARED = ("pve_host_drivers", "pve_host_drivers")
FLAGS = (
    "--silent",
    "--dkms",
    "--kernel-module-type=open",
    "--no-install-compat32-libs",
    "--no-x-check",
    "--no-nouveau-check",
    "--no-backup",
    "--no-check-for-alternate-installs",
    "--allow-installation-with-running-driver",
    "--no-rebuild-initramfs",
)
#: held by the process that installs; gone after a boot, as that process is
BUSY, BUSY_S = "/run/rackwell-driver.lock", 3600.0
#: seconds for building one kernel's modules, and for making all initramfs
BUILD_S, INITRAMFS_S = 1800.0, 900.0
#: what the tools say when something of the host is in the way
_TOLD = (
    (r"appears to already be loaded in your kernel|is in use", "module-in-use", "the driver's module is in use"),
    (r"Nouveau kernel driver is currently in use", "nouveau-loaded", "nouveau holds the GPUs"),
    (
        r"Unable to find the kernel source tree|kernel headers for kernel \S+ cannot be found",
        "kernel-headers-missing",
        "kernel headers are not installed",
    ),
    (r"No space left on device", "no-space", "there is no room to install the driver"),
    (
        r"Key was rejected by service|Required key not available",
        "module-signature",
        "Secure Boot refuses the module: it is not signed with a key that the machine knows",
    ),
    (r"through DKMS|Bad return status for module build", "dkms-build-failed", "DKMS did not build the module"),
)
_LINES = 20
TOO_OLD = "a driver that is older than the kernel often does not build: choose a newer driver or an older kernel"


def alone(host: Host, changes: bool) -> IO[str] | None:
    """Wait for another process that installs: its controller may have died, and a build goes on for minutes without it.

    Args:
        changes: this one is about to install: others wait for as long as what is returned is open. Else it only waits.

    Raises:
        DriverError: ``driver-busy``, it did not end in time; nothing was touched.
    """
    path = host.at(BUSY)
    if not changes and not os.path.exists(path):
        return None
    os.makedirs(os.path.dirname(path), exist_ok=True)
    stream = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (the lock is the open file)
    end = time.monotonic() + BUSY_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return stream
        if time.monotonic() >= end:
            stream.close()
            why = "it was waited for %d s, nothing was touched" % BUSY_S
            fix = "ps -ef | grep -e nvidia-installer -e dkms; when it has ended, run again"
            raise DriverError("driver-busy", "another process installs a driver on this host", BUSY, why, fix)
        time.sleep(1.0)


def check_file(host: Host, path: str, sha256: str, version: str) -> str:
    """The ``.run`` file is the declared one, of this version, and there is room for it. Where it unpacks.

    Raises:
        DriverError: ``run-file-missing``, ``run-file-checksum``, ``run-file-unknown``, ``run-file-version`` or
            ``no-space``; nothing was touched.
    """
    nvidia_run_file.check_sha256_form(sha256)
    nvidia_run_file.check_sha256(path, sha256, DECLARED)
    nvidia_run_file.check_version(path, version)
    size = os.path.getsize(path)
    first = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 (the installer's own default)
    places = tuple(dict.fromkeys((host.at(first), host.at("/var/tmp"))))  # noqa: S108
    fix = "free space on the host: apt clean; old kernels: apt autoremove --purge"
    directory = nvidia_run_file.place_to_unpack(size, places, host.at("/usr/lib"), fix)
    # a copy stays; an initramfs is made beside the one before
    lacking = _lacking(host.at("/var/lib"), size) or _lacking(host.at("/boot"), _largest_initramfs(host))
    if lacking:
        raise DriverError("no-space", "there is no room to install the driver", "/boot, /var/lib", lacking, fix)
    return str(directory)


def _lacking(directory: str, needed: int) -> str:
    free = shutil.disk_usage(directory).free
    if free >= needed:
        return ""
    return "%s has %d MiB free, needed are %d MiB; nothing was touched" % (directory, free >> 20, -(-needed >> 20))


def _largest_initramfs(host: Host) -> int:
    return max([os.path.getsize(path) for path in glob.glob(host.at("/boot") + "/initrd.img-*")], default=0)


def bring(host: Host, todo: Todo, want: Wanted, facts: Facts, path: str = "", directory: str = "") -> None:
    """Do what has to be done, all but the reboot.

    Args:
        path: the checked ``.run`` file. directory: where it unpacks.

    Raises:
        DriverError: what could not be done.
    """
    _settings(host, todo, want, facts)
    if todo.run and want.packages:
        with _explained("apt could not install the driver"), _compiler_heard(host, want.version, todo.kernel):
            pve_driver_apt.install(host, want.version, want.packages)
    elif todo.run:
        flags: tuple[str, ...] = FLAGS
        if todo.reboot or facts.running != todo.kernel:
            flags = (*flags, "--skip-module-load", "--kernel-name=" + todo.kernel)
        with _explained("NVIDIA's installer failed"), _compiler_heard(host, want.version, todo.kernel):
            nvidia_run_file.install(path, directory, host.at(nvidia_run_file.LOG), flags)
    build(host, want.version, facts.signed)
    if todo.initramfs:
        _tool(host, ["update-initramfs", "-u", "-k", "all"], INITRAMFS_S, "initramfs-failed")
        _tool(host, ["proxmox-boot-tool", "refresh"], INITRAMFS_S, "boot-tool-failed")
        _check_images(host, want.version)
    if todo.pin:
        pin(host, todo.kernel)
    if not todo.reboot and not facts.loaded:
        _tool(host, ["modprobe", "-a", *MODULES], 300.0, "driver-not-loaded")


def _settings(host: Host, todo: Todo, want: Wanted, facts: Facts) -> None:
    """Leftovers out, rackwell's files in."""
    if todo.vfio:
        boot = [name for name in pve_driver_vfio.remove(host, facts.leftovers) if name.startswith("/etc/default/")]
        if boot and host.tool("update-grub"):
            _tool(host, ["update-grub"], INITRAMFS_S, "boot-tool-failed")
    if todo.options:
        for name, text in want.files.items():
            if text:
                _write(host.at(name), text)
            elif os.path.exists(host.at(name)):
                os.unlink(host.at(name))


def _check_images(host: Host, version: str) -> None:
    """Raises DriverError when update-initramfs ended well, and an image is not what modprobe's files say."""
    for release, why in sorted(look(host, version).stale.items()):
        what = "the initramfs of kernel %s was not made anew" % release
        fix = "update-initramfs -u -k %s -v; is there room in /boot, and is the kernel on hold?" % release
        raise DriverError("initramfs-stale", what, "/boot/initrd.img-" + release, why, fix)


def build(host: Host, version: str, signed: bool = False) -> None:
    """Have DKMS build for each kernel that lacks the module, and look at the files, whatever DKMS says.

    Args:
        signed: only signed modules are loaded.

    Raises:
        DriverError: ``kernel-headers-missing`` or ``dkms-build-failed``, with the end of the build's log.
    """
    said = {}
    name = sources(host).get(version, "nvidia")
    for kernel in installed(host):
        if not kernel.wrong(version, signed):
            continue
        words = ["-m", name, "-v", version, "-k", kernel.release]
        if not kernel.wrong(version):
            # it is signed when it is built, and what is built is not built again by itself
            host.run(["dkms", "build", *words, "--force"], BUILD_S)
        said[kernel.release] = host.run(["dkms", "install", *words, "--force"], BUILD_S).stdout
    for kernel in installed(host):
        wrong = kernel.wrong(version, signed)
        if not wrong:
            continue
        lines = _make_log(host, version, kernel.release, name) or said.get(kernel.release, "").splitlines()[-_LINES:]
        status = host.run(["dkms", "status", "-m", name, "-v", version, "-k", kernel.release]).stdout.strip()
        if not kernel.headers:
            fix = "apt install proxmox-headers-%s, then run again" % kernel.release
            raise DriverError(
                "kernel-headers-missing", "kernel headers are not installed", kernel.release, wrong, fix, log=lines
            )
        errors = _errors(lines)
        why = "%s; dkms status says: %s" % (wrong, status or "nothing")
        raise DriverError(
            "dkms-build-failed",
            "DKMS did not build the module for kernel %s" % kernel.release,
            "/var/lib/dkms/%s/%s" % (name, version),
            why + ("; " + errors[0] if errors else ""),
            TOO_OLD,
            log=lines,
        )


def _make_log(host: Host, version: str, release: str, name: str = "nvidia") -> list[str]:
    base = "/var/lib/dkms/%s/%s/" % (name, version)
    for place in (base + "build/make.log", base + release + "/x86_64/log/make.log"):
        text: str = host.read(place)
        if release in text:
            return text.splitlines()[-_LINES:]
    return []


def _errors(lines: list[str]) -> list[str]:
    """The lines in which a compiler complains."""
    return [line.strip() for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]


@contextlib.contextmanager
def _compiler_heard(host: Host, version: str, release: str) -> Iterator[None]:
    """Add what the compiler said: the installer only says that DKMS failed."""
    try:
        yield
    except DriverError as error:
        lines = _make_log(host, version, release)
        errors = _errors(lines)
        if errors and re.search("DKMS|dkms", error.parts["why"] + " ".join(map(str, error.extra.get("log") or []))):
            error.parts["why"] += "; " + errors[0]
            error.parts["fix"] = TOO_OLD
            error.extra["log"] = lines
        raise


def pin(host: Host, kernel: str) -> None:
    """Have this kernel boot. Raises DriverError when the tool fails, or says that it did and did not."""
    if host.read(PIN).strip() != kernel:
        _tool(host, ["proxmox-boot-tool", "kernel", "pin", kernel], INITRAMFS_S, "kernel-not-pinned")
    if host.read(NEXT_PIN).strip() not in ("", kernel):
        _tool(host, ["proxmox-boot-tool", "kernel", "unpin", "--next-boot"], INITRAMFS_S, "kernel-not-pinned")
    found = host.read(PIN).strip()
    if found != kernel:
        raise DriverError(
            "kernel-not-pinned",
            "proxmox-boot-tool pinned nothing",
            PIN,
            "it says %s, pinned was %s" % (found or "nothing", kernel),
            "proxmox-boot-tool kernel list; proxmox-boot-tool kernel pin " + kernel,
        )


def remember(host: Host, want: Wanted, kernel: str, sha256: str, path: str, facts: Facts) -> None:
    """Keep the pair, the one before, and their ``.run`` files, so that there is something to return to."""
    now = {"version": want.version, "sha256": sha256, "kernel": kernel}
    if want.packages:
        now["packages"] = " ".join(want.packages)
    before = facts.previous
    if facts.userspace and facts.userspace != want.version:
        known = facts.current if facts.current.get("version") == facts.userspace else {}
        before = {"version": facts.userspace, "sha256": "", "kernel": facts.pinned or facts.running, **known}
    os.makedirs(host.at(STORE), mode=0o700, exist_ok=True)
    place = host.at(kept_file(want.version))
    if path and os.path.abspath(path) != place:
        shutil.copyfile(path, place + ".new")
        os.replace(place + ".new", place)
    _write(host.at(STATE), json.dumps({"current": now, "previous": before}, sort_keys=True) + "\n")
    kept = {host.at(kept_file(str(pair.get("version")))) for pair in (now, before)}
    for other in glob.glob(host.at(STORE) + "/*.run"):
        if other not in kept:
            os.unlink(other)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(path + ".new", 0o644)
    os.replace(path + ".new", path)


def _tool(host: Host, words: list[str], seconds: float, code: str) -> None:
    done = host.run(words, seconds)
    if done.returncode == 0:
        return
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    why = "it ended with %d: %s" % (done.returncode, " ".join(lines[-3:]) or "it said nothing")
    error = DriverError(code, "`%s` failed" % " ".join(words), words[0], why, "mend what it says and run again")
    error.extra["log"] = lines[-_LINES:]
    with _explained(error.parts["what"]):
        raise error


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Give a tool's failure the code of its cause, where its words tell one."""
    try:
        yield
    except DriverError as error:
        log = error.extra.get("log")
        text = "\n".join([error.parts["why"], *(map(str, log) if isinstance(log, list) else [])])
        for pattern, code, cause in _TOLD:
            if re.search(pattern, text):
                error.parts.update(code=code, what="%s: %s" % (what, cause))
                break
        raise
