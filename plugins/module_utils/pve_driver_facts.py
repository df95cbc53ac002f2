# SPDX-License-Identifier: Apache-2.0
"""What a Proxmox VE host has of NVIDIA's driver: loaded, on the disk, built for each installed kernel, and kept.

What counts is the module file that a kernel would load, read by ``modinfo``: ``dkms status`` says "installed" of what
is not there, or is of another version.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import re
import shutil
import subprocess
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils import (
    bounded,
    nvidia_driver,
    pve_driver_apt,
    pve_driver_conf,
    pve_driver_initramfs,
    pve_driver_parameters,
    pve_driver_secure,
    pve_driver_vfio,
)

#: modules that CUDA needs
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset")
#: drivers that take the GPUs away from NVIDIA's
FOREIGN = ("nouveau", "nova_core")
STORE = "/var/lib/rackwell/driver"
STATE = STORE + "/state.json"
OPTIONS, LOAD = "/etc/modprobe.d/rackwell-nvidia.conf", "/etc/modules-load.d/rackwell-nvidia.conf"
PIN, NEXT_PIN = "/etc/kernel/proxmox-boot-pin", "/etc/kernel/next-boot-pin"
META_HEADERS = "proxmox-default-headers"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SIGNED = b"~Module signature appended~\n"
#: seconds for a question to a tool
ASK_S = 120.0


class Host:
    """The machine, or in a test a directory in place of ``/``."""

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def at(self, path: str) -> str:
        """Where a path of the host lies."""
        return path if self.root == "/" else os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str:
        """A file's text; empty when it cannot be read."""
        try:
            with open(self.at(path), encoding="utf-8", errors="replace") as stream:
                return stream.read()
        except OSError:
            return ""

    def tool(self, name: str) -> Optional[str]:
        """Where a program is; None when it is not installed."""
        return shutil.which(name, path=os.environ.get("PATH", "") + ":" + PATH)

    def run(self, words: list[str], seconds: float = ASK_S) -> subprocess.CompletedProcess[str]:
        """Run a program; one that is not there ends with 127. Raises bounded.DeadlineError."""
        found = self.tool(words[0])
        if found is None:
            return subprocess.CompletedProcess(words, 127, words[0] + " is not installed")
        environment = {**os.environ, "LC_ALL": "C", "PATH": os.environ.get("PATH", "") + ":" + PATH}
        done: subprocess.CompletedProcess[str] = bounded.run([found, *words[1:]], seconds, env=environment)
        return done


@dataclasses.dataclass(frozen=True)
class Module:
    """A module file. ``kernel``: the release that it was built for. ``open``: whether its licence is the open one's.
    ``signed``: whether it carries a signature, of whatever key."""

    path: str
    version: str
    kernel: str
    open: bool
    signed: bool = False


@dataclasses.dataclass(frozen=True)
class Kernel:
    """An installed kernel. ``modules``: what it would load, by name; a name that is not there has no file."""

    release: str
    headers: bool
    modules: dict[str, Module]

    def wrong(self, version: str, signed: bool = False) -> str:
        """Why this kernel would not come up with exactly this driver; empty when it would.

        Args:
            signed: whether only signed modules are loaded.
        """
        for name in MODULES:
            module = self.modules.get(name)
            if module is None:
                return "%s has no module %s" % (self.release, name)
            if module.version != version:
                return "%s is %s, needed is %s" % (module.path, module.version or "of no version", version)
            if module.kernel != self.release:
                return "%s was built for kernel %s" % (module.path, module.kernel or "unknown")
            if not module.open:
                return "%s is the proprietary module, needed is the open one" % module.path
            if signed and not module.signed:
                return "%s is not signed, and this machine loads signed modules only" % module.path
        return ""


@dataclasses.dataclass(frozen=True)
class Facts:
    """The host as it is.

    Attributes:
        running: the kernel that runs. pinned: the kernel that boots, empty without a pin. next_pin: for one boot only.
        loaded: version of the loaded module. flavour: open, proprietary or empty.
        userspace: version of the host's own libraries. firmware: the versions whose GSP firmware is there.
        sources: the versions that DKMS could build. foreign: drivers that hold the GPUs in the place of NVIDIA's.
        files: what rackwell's files say (:data:`OPTIONS`, :data:`LOAD`). hmm: whether nvidia_uvm has HMM on, None when
            unknown.
        packages: those of the needed packages that are not installed. kept: version -> sha256 of ``.run`` files here.
        current, previous: pairs that rackwell installed: ``version``, ``sha256``, ``kernel``.
        stale: kernel -> in what its initramfs differs from modprobe's files. unread: kernel -> why that is not known.
        leftovers: lines and GPUs of vfio-pci. secure: whether modules have to be signed, and are.
        parameters: ``module.name`` -> what was loaded. owner: ``package version`` of the libraries, empty when no
            package has them. uninstaller: whether a ``.run`` file installed the driver.
    """

    running: str
    kernels: tuple[Kernel, ...]
    pinned: str = ""
    next_pin: str = ""
    loaded: str = ""
    flavour: str = ""
    userspace: str = ""
    firmware: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    hmm: Optional[bool] = None
    packages: tuple[str, ...] = ()
    kept: dict[str, str] = dataclasses.field(default_factory=dict)
    current: dict[str, str] = dataclasses.field(default_factory=dict)
    previous: dict[str, str] = dataclasses.field(default_factory=dict)
    stale: dict[str, str] = dataclasses.field(default_factory=dict)
    unread: dict[str, str] = dataclasses.field(default_factory=dict)
    leftovers: tuple[pve_driver_vfio.Leftover, ...] = ()
    secure: pve_driver_secure.Secure = dataclasses.field(default_factory=pve_driver_secure.Secure)
    parameters: dict[str, str] = dataclasses.field(default_factory=dict)
    owner: str = ""
    uninstaller: bool = False

    @property
    def signed(self) -> bool:
        """Whether only signed modules are loaded."""
        return bool(self.secure.enforced)

    def kernel(self, release: str) -> Optional[Kernel]:
        """An installed kernel by its release."""
        return next((kernel for kernel in self.kernels if kernel.release == release), None)

    def as_dict(self) -> dict[str, Any]:
        """For a result."""
        found = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def look(host: Host, version: str) -> Facts:
    """Read everything. ``version`` is only for libraries whose name does not tell theirs."""
    state = stored(host)
    flavour = ""
    told = host.read("/proc/driver/nvidia/version")
    if told:
        flavour = "open" if "Open Kernel Module" in told else "proprietary"
    hmm = host.read("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm").strip()
    kernels = installed(host)
    firmware = glob.glob(host.at("/lib/firmware/nvidia") + "/*/gsp_ga10x.bin")
    stale, unread = _images(host, kernels)
    secure = pve_driver_secure.look(host)
    return Facts(
        running=host.read("/proc/sys/kernel/osrelease").strip(),
        kernels=kernels,
        pinned=host.read(PIN).strip(),
        next_pin=host.read(NEXT_PIN).strip(),
        loaded=nvidia_driver.kernel_module_version(host.root),
        flavour=flavour,
        userspace=nvidia_driver.look(version, host.root).version,
        firmware=tuple(sorted(path.split("/")[-2] for path in firmware)),
        sources=tuple(sorted(sources(host))),
        foreign=tuple(name for name in FOREIGN if os.path.isdir(host.at("/sys/module/" + name))),
        files={path: host.read(path) for path in (OPTIONS, LOAD, pve_driver_apt.PREFERENCES)},
        hmm=None if not hmm else hmm not in ("Y", "y", "1"),
        packages=_packages(host, kernels, secure),
        kept=_kept(host, state),
        current=state.get("current") or {},
        previous=state.get("previous") or {},
        stale=stale,
        unread=unread,
        leftovers=pve_driver_vfio.look(host),
        secure=secure,
        parameters=pve_driver_parameters.look(host),
        owner=pve_driver_apt.owner(host),
        uninstaller=os.path.exists(host.at("/usr/bin/nvidia-uninstall")),
    )


def installed(host: Host) -> tuple[Kernel, ...]:
    """The kernels that can be booted, with the modules that they would load."""
    releases = sorted(path.rsplit("vmlinuz-", 1)[1] for path in glob.glob(host.at("/boot") + "/vmlinuz-*"))
    return tuple(Kernel(release, headers(host, release), _modules(host, release)) for release in releases)


def _images(host: Host, kernels: tuple[Kernel, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """(kernel -> how its initramfs differs, kernel -> why it could not be read)."""
    stale, unread = {}, {}
    wanted = pve_driver_conf.gpu_lines(host)
    for kernel in kernels:
        path = host.at("/boot/initrd.img-" + kernel.release)
        if not os.path.exists(path):
            stale[kernel.release] = "it has no initramfs"
            continue
        image = pve_driver_initramfs.read(path, host.tool)
        if image.problem:
            unread[kernel.release] = image.problem
            continue
        found = pve_driver_conf.about_gpus(image.text)
        parts = [
            "%s %s" % (word, ", ".join("`%s`" % line for line in sorted(lines)))
            for word, lines in (("lacks", wanted - found), ("still has", found - wanted))
            if lines
        ]
        if parts:
            inside = "; in it are the modules " + ", ".join(image.modules) if image.modules else ""
            stale[kernel.release] = "it " + ", and ".join(parts) + inside
    return stale, unread


def headers(host: Host, release: str) -> bool:
    """Whether a module can be built for this kernel."""
    link = host.at("/lib/modules/%s/build" % release)
    if host.root != "/" and os.path.islink(link):
        link = host.at(os.readlink(link))
    return os.path.isfile(os.path.join(link, "Makefile"))


def stored(host: Host) -> dict[str, Any]:
    """What rackwell remembers of the pairs that it installed; empty when that is nothing, or cannot be read."""
    try:
        found = json.loads(host.read(STATE) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def kept_file(version: str) -> str:
    """Where the ``.run`` file of a version is kept."""
    return "%s/%s.run" % (STORE, version)


def _kept(host: Host, state: dict[str, Any]) -> dict[str, str]:
    """What is there of the files that the state names; their hashes are compared before one is run."""
    pairs = [state.get("current") or {}, state.get("previous") or {}]
    return {
        str(pair["version"]): str(pair["sha256"])
        for pair in pairs
        if pair.get("version") and pair.get("sha256") and os.path.isfile(host.at(kept_file(str(pair["version"]))))
    }


def sources(host: Host) -> dict[str, str]:
    """Version -> the name by which DKMS knows the driver: a ``.run`` file says ``nvidia``, packages may say more."""
    found = {}
    for path in glob.glob(host.at("/usr/src") + "/nvidia*/dkms.conf"):
        with open(path, encoding="utf-8", errors="replace") as stream:
            fields = dict(re.findall(r"^(PACKAGE_NAME|PACKAGE_VERSION)=[\"']?([^\"'\n]*)", stream.read(), re.MULTILINE))
        folder = path.split("/")[-2]
        name = fields.get("PACKAGE_NAME") or folder.rpartition("-")[0]
        version = fields.get("PACKAGE_VERSION") or folder.rpartition("-")[2]
        found[version if nvidia_driver.VERSION.fullmatch(version) else folder.rpartition("-")[2]] = name
    return found


def _packages(host: Host, kernels: tuple[Kernel, ...], secure: pve_driver_secure.Secure) -> tuple[str, ...]:
    """What building needs and is not there: the meta package too, or the next kernel comes without headers."""
    wanted = [("dkms", host.tool("dkms")), ("build-essential", host.tool("make") and host.tool("gcc"))]
    if secure.enforced:
        wanted.append(("mokutil", host.tool("mokutil")))
    missing = [package for package, found in wanted if not found]
    answer = host.run(["dpkg-query", "--show", "--showformat", "${db:Status-Status}", META_HEADERS])
    if answer.returncode != 0 or answer.stdout.strip() != "installed":
        missing.append(META_HEADERS)
    missing += ["proxmox-headers-" + kernel.release for kernel in kernels if not kernel.headers]
    return tuple(missing)


def _modules(host: Host, release: str) -> dict[str, Module]:
    found = {}
    base = [] if host.root == "/" else ["--basedir", host.root]
    for name in MODULES:
        where = host.run(["modinfo", *base, "--set-version", release, "--field", "filename", name])
        path = where.stdout.strip().splitlines()[-1] if where.returncode == 0 and where.stdout.strip() else ""
        if not os.path.isfile(path):
            continue
        fields: dict[str, str] = {}
        for line in host.run(["modinfo", path]).stdout.splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
        shown = path if host.root == "/" else "/" + os.path.relpath(path, host.root)
        built_for = fields.get("vermagic", "").split(" ", 1)[0]
        signed = bool(fields.get("signer") or fields.get("sig_id")) or _ends_signed(path)
        found[name] = Module(shown, fields.get("version", ""), built_for, "MIT" in fields.get("license", ""), signed)
    return found


def _ends_signed(path: str) -> bool:
    """Whether a plain module file ends as a signed one does: an old modinfo does not tell."""
    with open(path, "rb") as stream:
        stream.seek(max(0, os.path.getsize(path) - len(_SIGNED)))
        return stream.read() == _SIGNED
