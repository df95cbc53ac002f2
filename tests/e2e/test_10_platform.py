# SPDX-License-Identifier: Apache-2.0
"""What lies under the GPUs of a Proxmox host: boot options and IOMMU, ACS, processors, links, clock, and who may look.

Boot loader, IOMMU and registers are stand-ins (tests/lab); ssh, Ansible, systemd, the unit and the reboots are real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Ended, inside, lab, more, rackwell

Edit = Callable[..., Path]
SEED = "/usr/share/rackwell-lab/seed-boot"
UNIT = "rackwell-gpu-acs.service"
GUEST = "990"
#: switch ports above the first and the second GPU, and the second's and later GPUs
PORT, OTHER_PORT, GPUS = "0000:10:03.0", "0000:10:04.0", ("0000:12:00.0", "0000:61:00.0", "0000:62:00.0")


def verdicts(ended: Ended) -> dict[str, str]:
    return {check["item"]: check["verdict"] for check in ended.result["checks"]}


def codes(ended: Ended) -> set[str]:
    """Of everything that is wrong, whether it fails the run or not."""
    return {finding["code"] for check in ended.result["checks"] for finding in check["findings"]}


def finding(ended: Ended, code: str) -> dict[str, Any]:
    found = [f for check in ended.result["checks"] for f in check["findings"] if f["code"] == code]
    assert len(found) == 1, (code, codes(ended))
    return dict(found[0])


def changes(ended: Ended) -> list[tuple[str, str]]:
    return [(change["role"], change["task"]) for change in ended.result["changes"]]


@pytest.fixture
def declared(edited: Edit, host: str, site: Path) -> Callable[..., Path]:
    """``declared(pve_host_iommu="pt")`` -> the site with that said of the host."""
    return lambda **variables: edited({f"host_vars/{host}.yml": variables})


@pytest.fixture
def booted(host: str) -> Iterator[Callable[..., None]]:
    """``booted("grub", "iommu=pt")``: the host has such a boot loader, and was started by it; not so afterwards."""

    def boot(loader: str, *options: str) -> None:
        inside(host, SEED, loader, *options)
        lab("reboot", host)

    yield boot
    inside(host, "rm", "-f", "/etc/rackwell-lab-boot", "/etc/kernel/proxmox-boot-uuids", "/etc/kernel/cmdline")
    inside(
        host, f"systemctl disable --now {UNIT} 2>/dev/null; rm -f /etc/systemd/system/{UNIT}; systemctl daemon-reload"
    )
    inside(host, "rm", "-rf", "/usr/local/lib/rackwell-gpu-acs", "/etc/default/grub", "/etc/default/grub.d")
    lab("reset", "--host", host)
    lab("reboot", host)


@pytest.fixture
def guest(host: str) -> Iterator[str]:
    """A container that a reboot would end."""
    template = inside(host, "ls /var/lib/vz/template/cache | head -n 1")
    inside(host, "pct", "create", GUEST, f"local:vztmpl/{template}", "--hostname", "guest", "--onboot", "0")
    inside(host, "pct", "start", GUEST)
    yield "guest"
    inside(host, f"pct stop {GUEST} 2>/dev/null; pct destroy {GUEST} --purge 1 --force 1")


def test_a_host_shows_each_item_with_its_evidence(site: Path, host: str, faults: Callable[..., str]) -> None:
    """ACS on one switch port only, and lanes that are lost: told with cause and cure; idle links are no fault."""
    faults("gpu", f'acs.on=["{PORT}"]', "gpus.0.pcie_width=8")
    ended = rackwell("verify", host, "-i", site)
    assert (ended.code, ended.result["verdict"]) == (0, "degraded")
    assert {"clock", "iommu", "processors", "driver", "gpus", "device nodes"} <= set(verdicts(ended))
    assert {item for item, verdict in verdicts(ended).items() if verdict == "degraded"} == {"acs", "links"}
    assert codes(ended) == {"acs-on", "link-width"}
    acs = finding(ended, "acs-on")
    assert acs["where"] == PORT
    assert "0x001d" in acs["why"]
    assert "ReqRedir+" in acs["why"]
    assert all(check["evidence"] for check in ended.result["checks"])


def test_a_name_that_is_nobody_s_is_told(site: Path) -> None:
    ended = rackwell("verify", "pve99", "-i", site)
    assert (ended.code, ended.codes) == (2, ["unknown-container"])


@more
def test_a_translating_iommu_and_acs_that_comes_back(
    declared: Callable[..., Path], booted: Callable[..., None], guest: str, host: str, site: Path
) -> None:
    """Consent is asked for; check mode tells exactly; then hands undo it, and a run brings it back."""
    lab("set", "--host", host, "gpu", "acs.on=true")
    booted("grub")
    inside(host, "pct", "start", GUEST)
    seen = rackwell("verify", host, "-i", site)
    assert (seen.code, codes(seen)) == (0, {"iommu-translated", "acs-on"})

    wanted = declared(pve_host_iommu="pt", pve_host_acs="clear")
    refused = rackwell("host", host, "-i", wanted)
    assert (refused.code, refused.codes) == (4, ["reboot-needed"])
    why = refused.json["problems"][0]["why"]
    assert f"container {GUEST} ({guest})" in why
    assert "nothing was touched" in why
    assert changes(refused) == []
    assert "iommu" not in inside(host, "cat", "/etc/default/grub", "/boot/grub/grub.cfg")
    assert inside(host, f"test -e /etc/systemd/system/{UNIT} || echo none") == "none"

    predicted = rackwell("host", host, "-i", wanted, "--check", "--allow-reboot")
    before = inside(host, "cat", "/proc/sys/kernel/random/boot_id")
    done = rackwell("host", host, "-i", wanted, "--allow-reboot")
    assert (predicted.code, done.code) == (0, 0), done.json["problems"]
    assert changes(predicted) == changes(done)
    assert ("pve_host", "Reboot the host, as was consented to") in changes(done)
    assert inside(host, "cat", "/proc/sys/kernel/random/boot_id") != before
    assert "iommu=pt" in inside(host, "cat", "/proc/cmdline")
    # the firmware had turned it on again at that boot, and the unit cleared it before the guests
    assert "ACSCtl was 0x001d, is 0x0000" in inside(host, "journalctl", "-b", "-u", UNIT)
    again = rackwell("host", host, "-i", wanted)
    assert (again.code, changes(again)) == (0, [])


@more
def test_what_hands_undo_is_told_and_brought_back(
    declared: Callable[..., Path], booted: Callable[..., None], host: str
) -> None:
    """Options that contradict each other, update-grub not run, ACS back on at two ports, the unit disabled."""
    booted("grub", "iommu=pt")
    wanted = declared(pve_host_iommu="pt", pve_host_acs="clear")
    made = rackwell("host", host, "-i", wanted)
    # the options are there and booted: no consent is needed for the unit
    assert made.code == 0, made.json["problems"]
    inside(host, "sed -i 's/iommu=pt/amd_iommu=off iommu=pt/' /etc/default/grub")
    inside(host, "systemctl", "disable", UNIT)
    lab("set", "--host", host, "gpu", f'acs.on=["{PORT}", "{OTHER_PORT}"]')
    seen = rackwell("verify", host, "-i", wanted)
    assert seen.code == 1
    told = {"iommu-conflict", "iommu-not-declared-at-boot", "boot-config-stale", "acs-on", "acs-unit"}
    assert codes(seen) == told
    assert "turned on again after" in finding(seen, "acs-on")["why"]
    mended = rackwell("host", host, "-i", wanted, "--allow-reboot")
    assert mended.code == 0, mended.json["problems"]
    # what runs is as declared: nobody is rebooted for a file
    assert changes(mended) == [("pve_host", "Have the boot options, and ACS off at each boot")]
    assert "amd_iommu" not in inside(host, "cat", "/etc/default/grub", "/boot/grub/grub.cfg")
    assert inside(host, "systemctl", "is-enabled", UNIT) == "enabled"


@more
def test_systemd_boot_and_the_file_that_it_does_not_read(
    declared: Callable[..., Path], booted: Callable[..., None], host: str, site: Path
) -> None:
    inside(host, SEED, "systemd-boot")
    inside(host, """sed -i 's/"quiet"/"quiet iommu=pt"/' /etc/default/grub""")
    lab("reboot", host)
    seen = rackwell("verify", host, "-i", site)
    assert codes(seen) == {"boot-file-not-read", "iommu-translated"}
    assert "/etc/kernel/cmdline" in finding(seen, "boot-file-not-read")["fix"]
    done = rackwell("host", host, "-i", declared(pve_host_iommu="pt"), "--allow-reboot")
    assert done.code == 0, done.json["problems"]
    assert inside(host, "cat", "/etc/kernel/cmdline") == "root=ZFS=rpool/ROOT/pve-1 boot=zfs iommu=pt"
    assert "iommu=pt" in inside(host, "cat", "/proc/cmdline")


@more
def test_an_iommu_that_is_off_costs_processors(
    declared: Callable[..., Path], booted: Callable[..., None], host: str, site: Path
) -> None:
    booted("grub", "amd_iommu=off", "iommu=off")
    lab("set", "--host", host, "kernel", "cpus=384")
    seen = rackwell("verify", host, "-i", site)
    assert (seen.code, codes(seen)) == (0, {"processors-lost"})
    lost = finding(seen, "processors-lost")
    assert "129 of 384" in lost["what"]
    assert "x2apic" in lost["why"]
    refused = rackwell("host", host, "-i", declared(pve_host_iommu="off"), "--allow-reboot")
    assert (refused.code, refused.codes, changes(refused)) == (1, ["iommu-off-costs-processors"], [])


@more
def test_links_that_are_slow_under_load_or_held_down(site: Path, host: str, faults: Callable[..., str]) -> None:
    faults("gpu", "gpus.1.pcie_target=3", "gpus.2.pcie_stays=true", "gpus.3.pcie_gen=4")
    idle = rackwell("verify", host, "-i", site)
    assert codes(idle) == {"link-capped", "link-frozen"}
    load = "while :; do echo $(date +%s) 90 10 1000 >/dev/shm/rackwell-lab-load; sleep 0.5; done"
    inside(host, f"systemd-run --unit=lab-load sh -c '{load}'")
    try:
        busy = rackwell("verify", host, "-i", site)
    finally:
        inside(host, "systemctl stop lab-load; rm -f /dev/shm/rackwell-lab-load")
    # under load the second is at its full speed: nothing held it, it was idle
    assert {"link-capped", "link-generation"} <= codes(busy)
    assert "generation 4 of 5" in finding(busy, "link-generation")["what"]


@more
def test_a_user_who_is_not_root(edited: Edit, host: str, site: Path) -> None:
    key = (site / "id_ed25519.pub").read_text().strip()
    inside(host, "useradd -m -s /bin/sh operator-e2e; install -d -m 700 -o operator-e2e ~operator-e2e/.ssh")
    inside(host, f"echo '{key}' >~operator-e2e/.ssh/authorized_keys; chown -R operator-e2e: ~operator-e2e/.ssh")
    variables = {"ansible_user": "operator-e2e"}
    try:
        plain = rackwell("verify", host, "-i", edited({f"host_vars/{host}.yml": variables}))
        assert plain.code == 1
        assert "not-root" in plain.codes
        fix = next(problem["fix"] for problem in plain.json["problems"] if problem["code"] == "not-root")
        assert "ansible_become" in fix
        with_sudo = edited({f"host_vars/{host}.yml": {"ansible_become": True}})
        refused = rackwell("verify", host, "-i", with_sudo)
        assert (refused.code, set(refused.codes)) == (1, {"become-failed"})
        inside(host, "echo 'operator-e2e ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/operator-e2e")
        allowed = rackwell("verify", host, "-i", with_sudo)
        assert allowed.code == 0, allowed.json["problems"]
    finally:
        inside(host, "rm -f /etc/sudoers.d/operator-e2e; userdel -r operator-e2e 2>/dev/null")


@more
def test_a_clock_that_is_wrong(declared: Callable[..., Path], host: str, site: Path) -> None:
    """The clock is this machine's for everybody here; so the program that tells it is what is wrong."""
    program = '#!/bin/sh\\n[ "$1" != +%%s.%%N ] || exec /usr/bin/date -d -2hours +%%s.%%N\\nexec /usr/bin/date "$@"\\n'
    inside(host, f"printf '{program}' >/usr/local/bin/date; chmod 755 /usr/local/bin/date")
    try:
        seen = rackwell("verify", host, "-i", site)
        assert (seen.code, verdicts(seen)["clock"]) == (1, "fail")
        told = finding(seen, "clock-wrong")
        assert f"the clock of {host} is 2.0 hours behind this machine's" == told["what"]
        assert "synchronized" in told["why"]
        refused = rackwell("host", host, "-i", declared(pve_host_acs="clear"))
        assert (refused.code, refused.codes, changes(refused)) == (1, ["clock-wrong"], [])
    finally:
        inside(host, "rm", "/usr/local/bin/date")
