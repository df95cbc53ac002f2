# SPDX-License-Identifier: Apache-2.0
"""What is read of a host beside its modules: initramfs, leftovers of a passthrough, Secure Boot, parameters."""

from __future__ import annotations

import gzip
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import (
    pve_driver_apt,
    pve_driver_conf,
    pve_driver_initramfs,
    pve_driver_parameters,
    pve_driver_secure,
    pve_driver_vfio,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host

CONF = "blacklist nouveau\noptions nvidia_uvm \\\n  uvm_disable_hmm=1\n# options nvidia NVreg_X=1\n"


def cpio(files: dict[str, bytes]) -> bytes:
    """An archive, as mkinitramfs writes it."""
    out = b""
    for name, content in {**files, "TRAILER!!!": b""}.items():
        fields = [1, 0o100644, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + "".join(f"{field:08X}" for field in fields).encode() + name.encode() + b"\0"
        out += head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)
    return out


MAIN = {
    "etc/modprobe.d/rackwell-nvidia.conf": CONF.encode(),
    "usr/lib/modules/6.17.13-2-pve/updates/dkms/nvidia-uvm.ko.zst": b"x" * 4097,
    "usr/lib/modprobe.d/other.conf": b"options vfio-pci ids=10de:2bb5\n",
    "bin/sh": b"\0" * 70000,
}


@pytest.mark.parametrize("packer", ["gzip", "xz", "zstd", "lz4", "none"])
def test_an_image_is_read_behind_its_microcode(tmp_path: Path, packer: str) -> None:
    program = {"zstd": "zstd", "lz4": "lz4"}.get(packer)
    if program and not shutil.which(program):
        pytest.skip(f"needs {program}")
    main = cpio(MAIN)
    if packer == "gzip":
        main = gzip.compress(main)
    elif packer == "xz":
        main = lzma.compress(main)
    elif program:
        main = subprocess.run([program, "-c"], input=main, capture_output=True, check=True).stdout
    early = cpio({"kernel/x86/microcode/AuthenticAMD.bin": b"\1" * 1000})
    path = tmp_path / "initrd.img"
    path.write_bytes(early + bytes(-len(early) % 512) + main)
    image = pve_driver_initramfs.read(str(path), shutil.which)
    assert image.problem == ""
    assert image.modules == ("nvidia_uvm",)
    assert pve_driver_conf.about_gpus(image.text) == {
        "blacklist nouveau",
        "options nvidia_uvm uvm_disable_hmm=1",
        "options vfio-pci ids=10de:2bb5",
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "empty"), (b"old\n", "no form"), (b"\x28\xb5\x2f\xfdxx", "zstd is not"), (cpio(MAIN)[:300], "cut off")],
)
def test_an_image_that_cannot_be_read_says_why(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "initrd.img").write_bytes(content)
    assert problem in pve_driver_initramfs.read(str(tmp_path / "initrd.img"), lambda _name: None).problem


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(str(tmp_path))


def put(host: Host, path: str, text: str) -> None:
    Path(host.at(path)).parent.mkdir(parents=True, exist_ok=True)
    Path(host.at(path)).write_text(text)


def test_leftovers_are_found_and_taken_out_and_others_stay(host: Host) -> None:
    put(
        host,
        "/etc/modprobe.d/a.conf",
        "options vfio-pci ids=10de:2bb5,8086:1572\nblacklist nvidiafb\nblacklist nvidia\n",
    )
    put(host, "/etc/modprobe.d/b.conf", "softdep nvidia pre: vfio-pci\noptions vfio-pci \\\n ids=10DE:2BB5\n")
    put(host, "/etc/modules", "# loaded\nvfio\nvfio_pci\n")
    line = 'GRUB_CMDLINE_LINUX_DEFAULT="quiet vfio-pci.ids=10de:2bb5 modprobe.blacklist=nvidia,snd iommu=pt"\n'
    put(host, "/etc/default/grub", line)
    put(host, "/proc/cmdline", "ro quiet vfio-pci.ids=10de:2bb5,10de:22e8\n")
    found = pve_driver_vfio.look(host)
    assert [(one.path, one.first, one.now) for one in found] == [
        ("/etc/modprobe.d/a.conf", 1, False),
        ("/etc/modprobe.d/a.conf", 3, False),
        ("/etc/modprobe.d/b.conf", 1, False),
        ("/etc/modprobe.d/b.conf", 2, False),
        ("/etc/default/grub", 1, False),
        ("/proc/cmdline", 0, True),
        ("/etc/modules", 3, False),
    ]
    pve_driver_vfio.remove(host, found)
    assert host.read("/etc/modprobe.d/a.conf").splitlines() == [
        "# rackwell: options vfio-pci ids=10de:2bb5,8086:1572",
        "options vfio-pci ids=8086:1572",
        "blacklist nvidiafb",
        "# rackwell: blacklist nvidia",
    ]
    assert all(row.startswith("# rackwell: ") for row in host.read("/etc/modprobe.d/b.conf").splitlines())
    assert host.read("/etc/default/grub") == 'GRUB_CMDLINE_LINUX_DEFAULT="quiet modprobe.blacklist=snd iommu=pt"\n'
    assert host.read("/etc/modules") == "# loaded\nvfio\n# rackwell: vfio_pci\n"
    assert [one.path for one in pve_driver_vfio.look(host)] == ["/proc/cmdline"], "until a boot"


def test_a_passthrough_of_other_devices_is_nobodys_business(host: Host) -> None:
    put(
        host,
        "/etc/modprobe.d/a.conf",
        "options vfio-pci ids=8086:1572\nblacklist nouveau\nsoftdep nouveau pre: vfio-pci\n",
    )
    put(host, "/etc/modules", "vfio_pci\n")
    put(host, "/proc/cmdline", "ro quiet vfio-pci.ids=8086:1572 modprobe.blacklist=nouveau\n")
    assert pve_driver_vfio.look(host) == ()


def test_a_gpu_that_vfio_holds(host: Host) -> None:
    for bus_id, vendor, driver in (("0000:01:00.0", "0x10de", "vfio-pci"), ("0000:02:00.0", "0x10de", "nvidia")):
        place = f"/sys/bus/pci/devices/{bus_id}"
        put(host, place + "/vendor", vendor + "\n")
        put(host, place + "/class", "0x030200\n")
        Path(host.at(place + "/driver")).symlink_to(f"../../../bus/pci/drivers/{driver}")
    put(host, "/etc/pve/qemu-server/100.conf", "name: old\nhostpci0: 0000:01:00.0,pcie=1\n")
    assert [one.told for one in pve_driver_vfio.look(host)] == [
        "/sys/bus/pci/devices/0000:01:00.0: vfio-pci holds this GPU"
    ]
    assert pve_driver_vfio.machines(host) == ["100 (hostpci0: 0000:01:00.0,pcie=1)"]


@pytest.mark.parametrize(
    ("said", "enrolled", "problem"),
    [
        ("mok.pub is already enrolled", True, ""),
        ("mok.pub is not enrolled", False, "is not enrolled"),
        ("Failed to read", None, ""),
    ],
)
def test_secure_boot(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, enrolled: bool | None, problem: str
) -> None:
    assert pve_driver_secure.look(host).problem == ""
    place = Path(host.at("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"))
    place.parent.mkdir(parents=True)
    place.write_bytes(b"\6\0\0\0\1")
    seen = pve_driver_secure.look(host)
    assert "DKMS has no key to sign with" in seen.problem
    assert "dkms generate_mok" in seen.fix
    put(host, pve_driver_secure.DKMS_KEY, "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mokutil").write_text(f"#!/bin/sh\necho '{said}'\n")
    (tmp_path / "bin/mokutil").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    seen = pve_driver_secure.look(host)
    assert seen.enrolled is enrolled
    assert problem in seen.problem
    assert bool(seen.problem) == bool(problem)


def test_parameters_are_compared_as_the_driver_shows_them(host: Host) -> None:
    options = {"nvidia": {"NVreg_EnableResizableBar": True, "NVreg_Absent": 1}, "nvidia_uvm": {"uvm_perf": "0x10"}}
    want = pve_driver_parameters.wanted(options, {"RMForceP2PType": 1, "ForceP2P": "0x11"})
    assert [pve_driver_parameters.line(*each) for each in want][-2:] == [
        'options nvidia NVreg_RegistryDwords="ForceP2P=0x11;RMForceP2PType=1"',
        "options nvidia_uvm uvm_perf=0x10",
    ]
    put(host, "/proc/driver/nvidia/params", 'EnableResizableBar: 1\nRegistryDwords: "RMForceP2PType=1;ForceP2P=17"\n')
    put(host, "/sys/module/nvidia_uvm/parameters/uvm_perf", "17\n")
    left = pve_driver_parameters.difference(want, pve_driver_parameters.look(host))
    assert left == [("nvidia.NVreg_Absent", "1", None), ("nvidia_uvm.uvm_perf", "0x10", "17")]


@pytest.mark.parametrize("value", ["a b", 'a"b', "a\nb", "$(reboot)"])
def test_a_value_that_modprobe_would_read_otherwise_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        pve_driver_parameters.wanted({"nvidia": {"NVreg_X": value}}, {})


@pytest.mark.parametrize(
    ("package", "fits"),
    [("595.58.03-1", True), ("1:595.58.03-0ubuntu1", True), ("595.58.031-1", False), ("595.58-1", False), ("", False)],
)
def test_a_packages_version_is_the_drivers(package: str, fits: bool) -> None:
    assert pve_driver_apt.fits(package, "595.58.03") is fits
