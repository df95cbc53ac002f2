# SPDX-License-Identifier: Apache-2.0
"""The boot loader's files: which one counts, what they come to, and what an edit leaves of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_boot as boots
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError

BY_GRUB = "BOOT_IMAGE=/boot/vmlinuz-6.17.13-2-pve root=/dev/mapper/pve-root ro quiet"
BY_SYSTEMD_BOOT = r"initrd=\EFI\proxmox\6.17.13-2-pve\initrd.img-6.17.13-2-pve root=ZFS=rpool/ROOT/pve-1 boot=zfs"
GRUB_CFG = """menuentry 'one' {{
\tlinux\t/boot/vmlinuz-6.17.13-2-pve root=/dev/mapper/pve-root ro  {0}
}}
menuentry 'recovery' {{
\tlinux\t/boot/vmlinuz-6.17.13-2-pve root=/dev/mapper/pve-root ro single
}}
"""

Place = Callable[..., Host]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """``place(BY_GRUB, **{"etc/default/grub": "..."})`` -> a host made of files."""

    def make(cmdline: str, files: dict[str, str]) -> Host:
        for name, text in {"proc/cmdline": cmdline + "\n", **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return Host(str(tmp_path))

    return make


def test_grub_s_files_are_read_as_grub_mkconfig_does(place: Place) -> None:
    files = {
        "etc/default/grub": 'A="quiet"\nGRUB_CMDLINE_LINUX_DEFAULT="$A a=1"\nGRUB_CMDLINE_LINUX="root=ZFS=x"\n',
        "etc/default/grub.d/10.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT iommu=pt"\n',
        "boot/grub/grub.cfg": GRUB_CFG.format("quiet a=1 iommu=pt"),
    }
    found = boots.look(place(BY_GRUB + " a=1 iommu=pt", files))
    assert found.loader == boots.GRUB
    assert found.declared == ("root=ZFS=x", "quiet", "a=1", "iommu=pt")
    assert (found.stale, found.pending) == ([], [])


def test_a_file_that_was_edited_and_not_told(place: Place) -> None:
    files = {
        "etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt"\n',
        "boot/grub/grub.cfg": GRUB_CFG.format("quiet"),
    }
    assert boots.look(place(BY_GRUB, files)).stale == ["+iommu=pt"]


def test_systemd_boot_reads_another_file(place: Place) -> None:
    files = {
        "etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt"\n',
        "etc/kernel/cmdline": "root=ZFS=rpool/ROOT/pve-1 boot=zfs\n",
    }
    host = place(BY_SYSTEMD_BOOT, files)
    found = boots.look(host)
    assert (found.loader, found.apply) == (boots.SYSTEMD_BOOT, "proxmox-boot-tool refresh")
    assert found.elsewhere == ("/etc/default/grub", ("iommu=pt",))
    edit = boots.edited(found, ["iommu=pt"])
    assert edit == {"/etc/kernel/cmdline": "root=ZFS=rpool/ROOT/pve-1 boot=zfs iommu=pt\n"}
    boots.write(host, edit)
    assert boots.look(host).pending == ["+iommu=pt"]


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ('GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n', 'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt"\n'),
        ("GRUB_CMDLINE_LINUX_DEFAULT='quiet'  # mine\n", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt"  # mine\n'),
        ("GRUB_CMDLINE_LINUX_DEFAULT=\n", 'GRUB_CMDLINE_LINUX_DEFAULT="iommu=pt"\n'),
        (
            'GRUB_CMDLINE_LINUX="amd_iommu=off"\nGRUB_CMDLINE_LINUX_DEFAULT="iommu=off quiet"\n',
            'GRUB_CMDLINE_LINUX=""\nGRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt"\n',
        ),
        ("GRUB_TIMEOUT=5\n", 'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT="iommu=pt"\n'),
        (
            '#GRUB_CMDLINE_LINUX_DEFAULT="a"\n',
            '#GRUB_CMDLINE_LINUX_DEFAULT="a"\nGRUB_CMDLINE_LINUX_DEFAULT="iommu=pt"\n',
        ),
    ],
)
def test_an_edit_leaves_the_rest_as_it_is(place: Place, text: str, after: str) -> None:
    host = place(BY_GRUB, {"etc/default/grub": text})
    found = boots.look(host)
    edit = boots.edited(found, ["iommu=pt"])
    assert edit == {"/etc/default/grub": after}
    assert "iommu=pt" in boots.check_edit(host, found, edit, ["iommu=pt"])
    boots.write(host, edit)
    assert boots.edited(boots.look(host), ["iommu=pt"]) == {}


def test_a_part_that_decides_is_edited_and_not_the_file(place: Place) -> None:
    files = {
        "etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n',
        "etc/default/grub.d/x.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT="iommu=off"\n',
    }
    edit = boots.edited(boots.look(place(BY_GRUB, files)), ["iommu=pt"])
    assert edit == {"/etc/default/grub.d/x.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT="iommu=pt"\n'}


def test_a_file_that_composes_its_options_is_left_to_a_person(place: Place) -> None:
    text = 'X="iommu=off"\nGRUB_CMDLINE_LINUX_DEFAULT="quiet $X"\n'
    host = place(BY_GRUB, {"etc/default/grub": text})
    found = boots.look(host)
    with pytest.raises(PveError) as caught:
        boots.check_edit(host, found, boots.edited(found, ["iommu=pt"]), ["iommu=pt"])
    assert caught.value.finding.code == "boot-options-unclear"
    assert "iommu=off iommu=pt" in caught.value.finding.why


def test_who_boots_cannot_be_told(place: Place) -> None:
    files = {"etc/default/grub": "", "etc/kernel/cmdline": "quiet"}
    assert boots.look(place("quiet", files)).loader == ""
