# SPDX-License-Identifier: Apache-2.0
"""What every laboratory starts from, made once and cached: Debian bases, templates, the host layer."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from rwlab import files, mirror, namespace
from rwlab.console import say
from rwlab.errors import LabError
from rwlab.paths import Cache
from rwlab.proc import run_long

SUITES = ("bookworm", "trixie")

# What a container of the laboratory has beyond Debian's minimum. kmod: NVIDIA's installer asks for it;
# zstd: a host unpacks templates; ifupdown: Proxmox VE writes /etc/network/interfaces into Debian containers.
# fmt: off
_BASE_PACKAGES = [
    "systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "openssh-server", "iproute2", "ca-certificates",
    "procps", "sudo", "kmod", "ifupdown", "iputils-ping", "zstd",
]
# fmt: on
# where a distribution's own package has it, and the loader finds it; NVIDIA's driver does not bring it
_NCCL = "usr/lib/x86_64-linux-gnu/libnccl.so.2"
_HOST_PACKAGES = ["lxc", "uidmap", "bridge-utils", "libpam-modules"]

_DPKG = """# The laboratory can be made again at any time: speed over safety, and no manuals.
force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
"""

_HOST_KEYS_UNIT = """[Unit]
Description=Make this container's own ssh host keys at its first start
ConditionPathExists=!/etc/ssh/ssh_host_ed25519_key
Before=ssh.service

[Service]
Type=oneshot
ExecStart=/usr/bin/ssh-keygen -A

[Install]
WantedBy=multi-user.target ssh.service
"""

# $1 is the root. Nothing of the machine that made it may stay: keys, ids, names, apt's lists.
_SEAL = r"""
root=$1
rm -f "$root"/etc/ssh/ssh_host_* "$root"/var/log/*.log "$root"/var/log/apt/* "$root"/var/cache/apt/*.bin
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/archives/*.deb
# a first boot would start every unit by preset and ask questions; an empty file is filled silently
: >"$root/etc/machine-id"
rm -f "$root/etc/hostname"
ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
# no terminals, and nothing that reaches out of the container for what belongs to the machine's kernel
for unit in getty@tty1.service console-getty.service container-getty@.service systemd-sysctl.service \
    systemd-modules-load.service systemd-udevd.service systemd-udev-trigger.service dev-hugepages.mount \
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount apt-daily.timer apt-daily-upgrade.timer \
    e2scrub_all.timer fstrim.timer systemd-firstboot.service systemd-networkd-wait-online.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
"""

# $1 is the root, the rest is for apt-get install
_APT = r"""
root=$1; shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 0755 "$root/usr/sbin/policy-rc.d"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
chroot "$root" apt-get update -q -o Acquire::Languages=none
chroot "$root" apt-get install -q -y --no-install-recommends "$@"
rm -f "$root/usr/sbin/policy-rc.d" "$root/etc/resolv.conf"
"""


def ensure(cache: Cache, suites: Sequence[str], nccl: Path | None = None) -> Path:
    """Make what is missing of the cache for these suites (bookworm's base is always needed, for the hosts).

    Args:
        nccl: a libnccl.so.2 that the templates have in their library directory.

    Returns:
        The host layer: a whole root filesystem that hosts are started from.
    """
    for suite in suites:
        if suite not in SUITES:
            raise LabError(
                "suite-unknown", f"no suite {suite!r}", why=f"the laboratory knows {', '.join(SUITES)}", exit_code=2
            )
    layer: list[Path] = []

    def bookworm() -> None:
        _base(cache, "bookworm")
        # packing (zstd, disk) and installing (network, dpkg) hardly compete
        _together(lambda: layer.append(_layer(cache)), lambda: _template(cache, "bookworm", nccl))

    def other(suite: str) -> None:
        _base(cache, suite)
        _template(cache, suite, nccl)

    with files.locked(cache.root / ".lock", "cache"):
        # debootstrap keeps one core busy: two suites take hardly longer than one
        _together(bookworm, *(lambda s=suite: other(s) for suite in suites if suite != "bookworm"))
    return layer[0]


def _base_recipe() -> str:
    return files.digest(*_BASE_PACKAGES, _DPKG, _HOST_KEYS_UNIT, _SEAL)[:12]


def _base(cache: Cache, suite: str) -> Path:
    target = cache.base(suite)
    if _complete(target, _base_recipe()):
        return target
    partial = _fresh(target)
    files.write(partial / "etc/dpkg/dpkg.cfg.d/rackwell-lab", _DPKG)
    debs = cache.root / "debs" / suite
    debs.mkdir(parents=True, exist_ok=True)
    script = 'exec debootstrap --variant=minbase --cache-dir="$1" --include="$2" "$3" "$4" ${5+"$5"}'
    arguments = [str(debs), ",".join(_BASE_PACKAGES), suite, str(partial)]
    tried = [[site] for site in [mirror.of_machine()] if site] + [[]]
    for attempt in tried:
        try:
            run_long(
                namespace.command(script, [*arguments, *attempt], build=True),
                cache.logs / f"debootstrap-{suite}.log",
                suite,
                "fetching and unpacking Debian" + ("" if attempt else " (debootstrap's own mirror)"),
                env=mirror.proxy_environment(),
            )
            break
        except LabError:
            if attempt is tried[-1]:
                raise
            say(suite, "this machine's own mirror did not serve it")
            files.write(_fresh(target) / "etc/dpkg/dpkg.cfg.d/rackwell-lab", _DPKG)
    units = partial / "etc/systemd/system"
    files.write(units / "rackwell-lab-ssh-host-keys.service", _HOST_KEYS_UNIT)
    for wants in ("multi-user.target.wants", "ssh.service.wants"):
        (units / wants).mkdir(exist_ok=True)
        (units / wants / "rackwell-lab-ssh-host-keys.service").symlink_to("../rackwell-lab-ssh-host-keys.service")
    _sealed(cache, partial, f"seal-{suite}")
    return _finish(partial, target, _base_recipe())


def _template(cache: Cache, suite: str, nccl: Path | None) -> Path:
    """What `pct create` unpacks: the base, and NCCL as a system library, as a tar archive of zstd's fastest level."""
    target = cache.template(suite)
    recipe = _base_recipe() if nccl is None else f"{_base_recipe()} {files.digest(nccl)[:12]}"
    if _complete(target, recipe):
        return target
    partial = target.with_name(f"{target.name}.partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    left_out = "--exclude=./dev/* --exclude=./proc/* --exclude=./sys/*"
    arguments, extra = [str(cache.base(suite)), str(partial)], ""
    if nccl is not None:
        stage = _fresh(target.with_name(f"nccl-{suite}"))
        files.write(stage / _NCCL, nccl.read_bytes(), 0o644)
        # the one file, and not the directories above it: the base has those
        arguments, extra = [*arguments, str(stage)], f'-C "$3" {_NCCL}'
    script = f'exec tar -C "$1" --numeric-owner --xattrs {left_out} -I "zstd -1 -T0 -q" -cf "$2" . {extra}'
    run_long(
        namespace.command(script, arguments, build=True),
        cache.logs / f"template-{suite}.log",
        suite,
        f"packing {target.name}",
    )
    if nccl is not None:
        shutil.rmtree(stage)
    return _finish(partial, target, recipe)


def _layer(cache: Cache) -> Path:
    """A Proxmox VE host's root filesystem: bookworm's base and LXC. Named by its recipe, as hosts stand on it."""
    recipe = files.digest(_base_recipe(), *_HOST_PACKAGES, _APT)[:12]
    target = cache.layer(recipe)
    if target.is_dir():
        return target
    partial = _fresh(target)
    script = 'cp -a --reflink=auto "$1/." "$2/"; root=$2; shift 2; set -- "$root" "$@"\n' + _APT
    run_long(
        namespace.command(
            script,
            [str(cache.base("bookworm")), str(partial), *_HOST_PACKAGES],
            build=True,
        ),
        cache.logs / "host-layer.log",
        "host layer",
        "installing LXC",
        env=mirror.proxy_environment(),
    )
    # as Proxmox VE has it: the ids that unprivileged containers of root live in
    for name in ("subuid", "subgid"):
        files.write(partial / "etc" / name, "root:100000:65536\n")
    # its own bridge and its containers are the laboratory's, not those of Debian's lxc package
    for unit in ("lxc.service", "lxc-net.service", "lxc-monitord.service"):
        link = partial / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    _sealed(cache, partial, "seal-host-layer")
    partial.rename(target)
    return target


def _sealed(cache: Cache, root: Path, log: str) -> None:
    run_long(
        namespace.command(_SEAL, [str(root)], build=True),
        cache.logs / f"{log}.log",
        root.name.removesuffix(".partial"),
        "removing what must not be copied",
    )


def _complete(target: Path, recipe: str) -> bool:
    note = target.with_name(f"{target.name}.recipe")
    return target.exists() and note.exists() and note.read_text().strip() == recipe


def _fresh(target: Path) -> Path:
    """An empty directory to build in. What an interrupted build left holds no mounts: its namespace took them."""
    partial = target.with_name(f"{target.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    partial.chmod(0o755)
    return partial


def _finish(partial: Path, target: Path, recipe: str) -> Path:
    note = target.with_name(f"{target.name}.recipe")
    note.unlink(missing_ok=True)  # from here on the old one counts as incomplete
    if target.is_dir():
        shutil.rmtree(target)
    partial.rename(target)
    files.write(note, recipe + "\n")
    return target


def _together(*jobs: Callable[[], object]) -> None:
    """Run jobs at the same time; the first error counts once all have ended."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 (carried to the caller's thread)
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
