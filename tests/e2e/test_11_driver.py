# SPDX-License-Identifier: Apache-2.0
"""Driver and kernel of a host as a pair, and the user space in its container: each fault is repaired, or told.

The host is made one that has a driver of its own (seed-driver); apt, dpkg and ldconfig are the real programs, dkms,
update-initramfs and what a kernel loads at its start are the laboratory's (tests/lab/README.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import REPOSITORY, Ended, inside, lab, more, rackwell

DRIVER, OLDER, NEWER = "595.58.03", "590.48.01", "610.43.03"
KERNEL, OTHER_KERNEL, NEW_KERNEL = "6.17.13-2-pve", "6.17.4-1-pve", "6.18.1-1-pve"
OPTIONS = "/etc/modprobe.d/rackwell-nvidia.conf"
#: what the tests leave on a host is taken away, so that it is again one that has no driver of its own
CLEAN = """
systemctl disable --now rackwell-gpu-power.service 2>/dev/null
nvidia-uninstall --silent >/dev/null 2>&1
apt-get purge -y '*nvidia*' 'libcuda1' proxmox-headers-* >/dev/null 2>&1
rm -rf /etc/kernel/proxmox-boot-pin /etc/modprobe.d/* /etc/modules-load.d/* /boot/* /etc/rackwell-lab-* /usr/local/bin/*
rm -rf /var/lib/rackwell/driver /usr/local/lib/rackwell/gpu-power /etc/systemd/system/rackwell-gpu-power.service
rm -rf /etc/apt/preferences.d/rackwell-nvidia /etc/apt/sources.list.d/rackwell-lab.list /var/lib/vz/driver
rm -rf /var/lib/dkms /usr/src/nvidia-* /lib/modules/6.1* /sys/module/module
systemctl daemon-reload
"""


@pytest.fixture(scope="module")
def drivers() -> Path:
    """Where the laboratory's drivers lie: VERSION/ unpacked, and the ``.run`` files."""
    place = Path(os.environ.get("RACKWELL_LAB_CACHE", "/var/cache/rackwell-lab")) / "driver"
    for version in (DRIVER, OLDER, NEWER):
        subprocess.run(["sh", REPOSITORY / "tests/lab/gpu/build.sh", place, version], check=True, capture_output=True)
    return place


@pytest.fixture(scope="module")
def seeded(site: Path, host: str, drivers: Path) -> Iterator[str]:
    """The host with two kernels and a driver, as somebody installed it by hand. Given back as it was."""
    lab("reset", "--host", host)
    folder = site.parent / "hosts" / host / "vz/driver"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for version in (DRIVER, OLDER, NEWER):
        shutil.copy(drivers / f"NVIDIA-Linux-x86_64-{version}.run", folder)
        shutil.copytree(drivers / version, folder / version, symlinks=True, dirs_exist_ok=True)
    inside(host, "/usr/share/rackwell-lab/seed-driver", f"/var/lib/vz/driver/NVIDIA-Linux-x86_64-{DRIVER}.run")
    words = [f"headers={KERNEL}", f"headers={OTHER_KERNEL}", f"headers={NEW_KERNEL}"]
    words += [f"{version}=/var/lib/vz/driver/{version}" for version in (DRIVER, OLDER)]
    inside(host, "/usr/share/rackwell-lab/seed-apt", "/var/lib/vz/driver/apt", *words)
    lab("reboot", host)
    yield host
    inside(host, CLEAN)
    lab("reset", "--host", host)
    lab("reboot", host)


@pytest.fixture
def pair(edited: Callable[..., Path], drivers: Path) -> Callable[..., Path]:
    """``pair(pve_host_power_limit=450)`` -> a site that has rackwell manage the host's driver."""

    def declare(version: str = DRIVER, **changes: Any) -> Path:
        files = {each: drivers / f"NVIDIA-Linux-x86_64-{each}.run" for each in (DRIVER, OLDER)}
        pairs = [
            {
                "version": each,
                "run_file": str(file),
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
                "kernel": KERNEL,
            }
            for each, file in files.items()
        ]
        declared = {
            "pve_host_manage_driver": True,
            "pve_host_driver_version": version,
            "pve_host_drivers": pairs,
            "pve_host_persistence": True,
            "pve_host_power_limit": 450,
            "pve_host_registry": {"ForceP2P": "0x11"},
            "pve_host_module_options": {"nvidia": {"NVreg_DmaRemapPeerMmio": 0}},
        }
        return edited({"group_vars/pve.yml": declared | changes})

    return declare


@pytest.fixture
def converged(seeded: str, pair: Callable[..., Path]) -> str:
    """A host that rackwell brought to its pair, in whatever order the tests run."""
    if inside(seeded, f"cat {OPTIONS} 2>/dev/null || true") == "":
        code, said = driver(pair(), seeded, reboot=True)
        assert code == 0, said
    return seeded


def changed(ended: Ended) -> list[str]:
    """The tasks that changed something, or would."""
    return [change["task"] for change in ended.result["changes"] if not change.get("item")]


def rows(ended: Ended) -> dict[str, str]:
    """Item -> verdict of a host."""
    return {check["item"]: check["verdict"] for check in ended.result["checks"]}


def told(ended: Ended, code: str) -> dict[str, str]:
    """The problem of a code, which has to have all its parts."""
    found: dict[str, str] = next(problem for problem in ended.json["problems"] if problem["code"] == code)
    assert all(found[part] for part in ("what", "where", "why", "fix")), found
    return found


def played(book: str, site: Path, name: str, tags: str, *options: str) -> tuple[int, str]:
    """One role's part by itself, as Ansible plays it without the command line: whole runs take minutes."""
    command = [Path(sys.executable).parent / "ansible-playbook", f"rackwell.gpu.{book}", "-i", site / "hosts.yml"]
    command += ["--limit", name, "--tags", tags, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


def driver(site: Path, host: str, *, reboot: bool = False) -> tuple[int, str]:
    """Bring the host to its pair of driver and kernel."""
    return played("host", site, host, "pve_host_driver", "-e", json.dumps({"pve_host_allow_reboot": reboot}))


def userspace(site: Path, container: str) -> tuple[int, str]:
    """Bring the container to its user space."""
    return played("provision", site, container, "nvidia_userspace_look,nvidia_userspace_install")


#: somebody's rule reset a mode; nvidia_uvm was loaded anew, and has another number
NODES = "chmod 0600 /dev/nvidia3; rm /dev/nvidia-uvm; mknod /dev/nvidia-uvm c 234 0"


@more
def test_nodes_of_the_host_are_made_anew_when_their_mode_or_number_is_wrong(
    site: Path, host: str, faults: Callable[..., str]
) -> None:
    inside(host, NODES)
    ended = rackwell("host", host, "-i", site)
    # and the unit that makes them at each boot, on a host that was never provisioned
    assert ended.code == 0, ended.json
    assert ended.result["changed"] >= 1
    assert inside(host, "stat", "-c", "%a", "/dev/nvidia3") == "666"
    assert "234" not in inside(host, "stat", "-c", "%Hr", "/dev/nvidia-uvm")


@more
def test_nodes_of_the_host_are_told_each_with_its_cause(site: Path, host: str, faults: Callable[..., str]) -> None:
    inside(host, NODES)
    seen = rackwell("verify", host, "-i", site)
    assert seen.code == 1
    assert set(seen.codes) == {"device-mode", "device-stale"}
    assert "0600" in told(seen, "device-mode")["why"]


@pytest.fixture(scope="module")
def repository(site: Path, container: str, host: str, drivers: Path) -> Iterator[None]:
    """A newer driver's packages for the container's real apt. The tests behind it change the host's own driver."""
    folder = site.parent / "hosts" / host / "vz/newer"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(drivers / NEWER, folder / NEWER, symlinks=True)
    vmid = yaml.safe_load((site / f"host_vars/{container}.yml").read_text())["pve_container_vmid"]
    seed = f"/usr/share/rackwell-lab/seed-apt /var/lib/vz/newer/apt {NEWER}=/var/lib/vz/newer/{NEWER}"
    pack = "rm /etc/apt/sources.list.d/rackwell-lab.list; tar -C /var/lib/vz/newer -cf /var/lib/vz/newer.tar apt"
    inside(host, f"{seed}; {pack}; pct push {vmid} /var/lib/vz/newer.tar /root/newer.tar")
    listed = "echo 'deb [trusted=yes] file:/root/apt ./' >/etc/apt/sources.list.d/rackwell-lab.list"
    # the sandbox's user cannot read below /root
    inside(container, f"tar -C /root -xf /root/newer.tar; {listed}; apt-get update")
    yield
    inside(container, "rm -rf /root/apt /root/newer.tar /etc/apt/sources.list.d/rackwell-lab.list")
    inside(host, "rm", "-rf", "/var/lib/vz/newer", "/var/lib/vz/newer.tar")


@more
def test_an_upgrade_in_the_container_does_not_replace_the_user_space(
    site: Path, container: str, repository: None, edited: Callable[..., Path]
) -> None:
    refused = inside(container, "apt-get -y install nvidia-driver-cuda 2>&1; apt-get -y dist-upgrade; true")
    assert "610" not in inside(container, "readlink", "-f", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"), refused
    # before rackwell pinned, or where a hand took the pin away
    upgrade = "rm /etc/apt/preferences.d/rackwell-nvidia; apt-get -y install nvidia-driver-cuda; ldconfig"
    inside(container, "export DEBIAN_FRONTEND=noninteractive; " + upgrade)
    assert NEWER in inside(container, "readlink", "-f", "/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    seen = rackwell("verify", container, "-i", site, "--quick")
    assert seen.code == 1
    assert {"driver-userspace", "driver-unpinned"} <= set(seen.codes), seen.codes
    assert "libcuda1" in told(seen, "driver-userspace")["why"]
    # the role by itself, as Ansible runs it: a whole provision takes minutes
    code, said = userspace(site, container)
    assert code != 0
    assert "packages bring another version of the driver into this container" in said
    assert "apt-get purge libcuda1" in said
    may = edited({f"host_vars/{container}.yml": {"nvidia_userspace_remove_others": True}})
    code, said = userspace(may, container)
    assert (code, "changed=1" in said) == (0, True), said
    assert DRIVER in inside(container, "readlink", "-f", "/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    assert inside(container, f"ls /usr/lib/x86_64-linux-gnu/*{NEWER}* 2>/dev/null || true") == ""
    code, said = userspace(may, container)
    assert (code, "changed=0" in said) == (0, True), said


@more
def test_check_mode_says_what_is_then_done(seeded: str, pair: Callable[..., Path]) -> None:
    site = pair()
    held = rackwell("host", seeded, "-i", site)
    assert (held.code, held.codes) == (4, ["reboot-needed"]), held.json["problems"]
    assert "HMM" in told(held, "reboot-needed")["why"]
    assert "NVreg_DmaRemapPeerMmio is 1, and 0 at a boot" in told(held, "reboot-needed")["why"]
    predicted = rackwell("host", seeded, "-i", site, "--check", "--allow-reboot")
    assert predicted.code == 0, predicted.json["problems"]
    assert inside(seeded, f"ls {OPTIONS} 2>&1 || true").startswith("ls:"), "check mode wrote"
    done = rackwell("host", seeded, "-i", site, "--allow-reboot")
    assert done.code == 0, done.json["problems"]
    assert changed(predicted) == changed(done)
    seen = rackwell("verify", seeded, "-i", site)
    assert seen.code == 0, seen.json["problems"]
    items = ("pair", "kernels", "initramfs", "parameters", "passthrough", "signatures", "power", "hmm", "device nodes")
    assert {item: rows(seen)[item] for item in items} == dict.fromkeys(items, "pass")


@more
def test_a_new_kernel_a_stale_initramfs_and_lost_settings_are_told_and_repaired_once(
    converged: str, pair: Callable[..., Path]
) -> None:
    """A kernel came by an upgrade without headers, an image was made before the options, the GPUs forgot theirs."""
    site = pair()
    made = f"mkdir -p /lib/modules/{NEW_KERNEL}; cd /lib/modules/{NEW_KERNEL}; touch modules.order modules.builtin"
    made += f"; ln -sfn /usr/src/linux-headers-{NEW_KERNEL} build; touch /boot/vmlinuz-{NEW_KERNEL}"
    made += f"; mv {OPTIONS} /root/; update-initramfs -u -k all; mv /root/{Path(OPTIONS).name} {OPTIONS}"
    inside(converged, made + "; nvidia-smi -pm 0; nvidia-smi -pl 600")
    seen = rackwell("verify", converged, "-i", site)
    assert seen.code == 1
    assert {"kernel-without-module", "initramfs-stale", "persistence-off", "power-limit"} == set(seen.codes)
    assert f"apt install proxmox-headers-{NEW_KERNEL}" in told(seen, "kernel-without-module")["fix"]
    assert "lacks `blacklist nouveau`" in told(seen, "initramfs-stale")["why"]
    assert "options nvidia_uvm uvm_disable_hmm=1" in told(seen, "initramfs-stale")["why"]
    ended = rackwell("host", converged, "-i", site)
    assert ended.code == 0, ended.json["problems"]
    assert {"Have what building the module needs", "Have persistence mode and power limit, now and at each boot"} < set(
        changed(ended)
    )
    again = rackwell("host", converged, "-i", site)
    assert (again.code, again.result["changed"]) == (0, 0), again.result["changes"]
    assert "450.00" in inside(converged, "nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader,nounits")


@more
def test_secure_boot_is_told_before_anything_is_touched(seeded: str, pair: Callable[..., Path]) -> None:
    inside(seeded, "mkdir -p /sys/module/module/parameters; echo Y >/sys/module/module/parameters/sig_enforce")
    code, said = driver(pair(), seeded)
    inside(seeded, "rm -r /sys/module/module")
    assert code != 0
    assert '"code": "module-signature"' in said, said
    assert "mokutil --import /var/lib/dkms/mok.pub" in said
    assert "Enroll MOK" in said


@more
def test_what_a_passthrough_left_nouveau_and_hmm_are_taken_away_with_consent(
    converged: str, pair: Callable[..., Path]
) -> None:
    conf = "options vfio-pci ids=10de:2bb5,8086:1572 disable_vga=1\\nblacklist nvidia\\n"
    script = (
        f"printf '{conf}' >/etc/modprobe.d/vfio.conf; echo vfio-pci >>/etc/modules; touch /etc/rackwell-lab-nouveau"
    )
    # rackwell's own file is right, and was not when the images were made
    stale = f"mv {OPTIONS} /root/; update-initramfs -u -k all; mv /root/{Path(OPTIONS).name} {OPTIONS}"
    inside(converged, f"{script}; {stale}")
    lab("reboot", converged)
    seen = rackwell("verify", converged, "-i", pair())
    assert seen.code == 1
    assert {"vfio-leftovers", "nouveau-loaded", "initramfs-stale", "driver-not-loaded"} <= set(seen.codes), seen.codes
    assert (
        "/etc/modprobe.d/vfio.conf:1: options vfio-pci ids=10de:2bb5,8086:1572" in told(seen, "vfio-leftovers")["why"]
    )
    code, said = driver(pair(), converged, reboot=True)
    assert code != 0
    assert '"code": "vfio-leftovers"' in said, said
    assert '"held": true' in said
    code, said = driver(pair(pve_host_remove_vfio=True), converged, reboot=True)
    assert code == 0, said
    left = inside(converged, "cat /etc/modprobe.d/vfio.conf")
    assert "\noptions vfio-pci ids=8086:1572 disable_vga=1\n" in left, "the others' devices stay theirs"
    assert "\n# rackwell: blacklist nvidia" in left
    assert inside(
        converged, "cat /sys/module/nvidia/version /sys/module/nvidia_uvm/parameters/uvm_disable_hmm"
    ).split() == [
        DRIVER,
        "Y",
    ]


@more
def test_packages_pinned_against_a_real_upgrade(seeded: str, pair: Callable[..., Path]) -> None:
    """apt is the real one: without the pin it would take the newer driver of the repository."""
    packages = [{"version": OLDER, "packages": ["nvidia-driver-cuda", "nvidia-kernel-open-dkms"], "kernel": KERNEL}]
    site = pair(OLDER, pve_host_drivers=packages)
    code, said = driver(site, seeded, reboot=True)
    assert code != 0
    assert '"code": "driver-form"' in said, said
    inside(seeded, "nvidia-uninstall --silent")
    code, said = driver(site, seeded, reboot=True)
    assert code == 0, said
    inside(seeded, "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get -y dist-upgrade")
    assert inside(seeded, "dpkg-query --show --showformat '${Version}' libcuda1") == f"{OLDER}-1"
    assert inside(seeded, "cat /sys/module/nvidia/version") == OLDER
    # the hand that takes the pin away, and the upgrade that follows: the host's libraries are not the module's
    inside(seeded, "rm /etc/apt/preferences.d/rackwell-nvidia; apt-get -y install nvidia-driver-cuda")
    assert DRIVER in inside(seeded, "dpkg-query --show --showformat '${Version}' libcuda1")
    seen = rackwell("verify", seeded, "-i", site)
    assert {"driver-host-only", "module-options"} <= set(seen.codes), seen.codes
    code, said = driver(site, seeded)
    assert code == 0, said
    assert inside(seeded, "dpkg-query --show --showformat '${Version}' libcuda1") == f"{OLDER}-1"
