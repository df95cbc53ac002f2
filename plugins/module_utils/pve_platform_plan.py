# SPDX-License-Identifier: Apache-2.0
"""What has to be done to a host's platform, from what it shows alone; and what may not be done. Touches nothing."""

from __future__ import annotations

import dataclasses

from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_boot
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_words as words
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_plan import CONSENT
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_use import Use
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_facts import Platform
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import Finding, PveError, problem

CLEAR = "clear"
PT_INSTEAD = "declare pve_host_iommu: pt"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The declaration. ``iommu``: keep, off, pt. ``acs``: keep, clear. ``helper``, ``unit``: what the files must say.

    ``link_generation``, ``link_width``: of every GPU's link; 0 is the most that both its ends can. ``host``: its
    name, for the command in a remedy.
    """

    iommu: str = words.KEEP
    acs: str = words.KEEP
    helper: str = ""
    unit: str = ""
    link_generation: int = 0
    link_width: int = 0
    host: str = "HOST"


@dataclasses.dataclass(frozen=True)
class Todo:
    """What has to be done.

    Attributes:
        words: the IOMMU's words. edit: new text by file. tell: the boot loader has to be told of its file.
        reboot: why the host has to be rebooted; empty when it has not.
        files: the unit's files are to be written. enable, run: the unit. remove: unit and helper.
    """

    words: tuple[str, ...] = ()
    edit: dict[str, str] = dataclasses.field(default_factory=dict)
    tell: bool = False
    reboot: tuple[str, ...] = ()
    files: bool = False
    enable: bool = False
    run: bool = False
    remove: bool = False

    @property
    def boot(self) -> bool:
        """Whether the kernel's options are changed."""
        return bool(self.edit or self.tell)

    @property
    def unit(self) -> bool:
        """Whether something about the unit, or the ports, is changed."""
        return bool(self.files or self.enable or self.run or self.remove)


def plan(host: Host, found: Platform, want: Wanted) -> Todo:
    """Compare.

    Raises:
        PveError: the policy cannot be, or not by an edit that is sure: see :func:`boot_plan`.
    """
    if want.iommu == words.KEEP:
        return unit_plan(found, want, Todo())
    return unit_plan(found, want, boot_plan(host, found, want))


def boot_plan(host: Host, found: Platform, want: Wanted) -> Todo:
    """What the policy needs of the boot options.

    Raises:
        PveError: ``iommu-off-costs-processors``, ``processor-unknown``, ``boot-loader-unknown``,
            ``boot-options-unclear``; nothing was touched.
    """
    boot, vendor = found.boot, found.processors.vendor
    refuse(found, want)
    if not vendor:
        raise problem(
            "processor-unknown",
            "the IOMMU's options depend on the processor's maker, and /proc/cpuinfo does not tell it",
            "/proc/cpuinfo",
            "neither AuthenticAMD nor GenuineIntel",
            "declare pve_host_iommu: keep, and set the options by hand",
        )
    if not boot.loader or boot.declared is None:
        raise problem(
            "boot-loader-unknown",
            "it cannot be told where this host's kernel options stand",
            "%s or %s" % (pve_platform_boot.GRUB_FILE, pve_platform_boot.CMDLINE_FILE),
            boot.why
            + ("" if not boot.loader else ", and that loader's file is not there, or is no file that it reads"),
            "set the options by hand, and declare pve_host_iommu: keep",
        )
    # values that do not decide stay, wherever they stand
    policy_words = tuple(words.wanted(want.iommu, vendor, words.of(boot.declared)))
    edit = pve_platform_boot.edited(boot, policy_words) if _differ(boot.declared, policy_words) else {}
    pve_platform_boot.check_edit(host, boot, edit, policy_words)
    reboot = _reboot(found, want, policy_words)
    stale = any(_differ(entry, policy_words) for entry in boot.generated or ())
    # what systemd-boot got of its file cannot be seen: when the kernel runs without it, it is told once more
    untold = boot.generated is None and _differ(boot.running, policy_words)
    return Todo(policy_words, edit, bool(edit) or stale or untold, reboot)


def _differ(every: tuple[str, ...], policy_words: tuple[str, ...]) -> bool:
    return sorted(words.of(every)) != sorted(policy_words)


def _reboot(found: Platform, want: Wanted, policy_words: tuple[str, ...]) -> tuple[str, ...]:
    """A boot helps when the kernel was started with other words than the wanted, and is not as wanted."""
    if found.mode == want.iommu or not _differ(found.boot.running, policy_words):
        return ()
    started = " ".join(words.of(found.boot.running)) or "no IOMMU option"
    return (
        "the IOMMU is %s, and %s from a boot with %s (now: %s)"
        % (found.mode, want.iommu, " ".join(policy_words), started),
    )


def unit_plan(found: Platform, want: Wanted, todo: Todo) -> Todo:
    """What the ports need: the unit, and its run."""
    unit = found.unit
    if want.acs != CLEAR:
        return dataclasses.replace(todo, remove=unit.text is not None or unit.helper is not None)
    files = unit.text != want.unit or unit.helper != want.helper
    return dataclasses.replace(
        todo, files=files, enable=files or not unit.enabled, run=files or not unit.active or bool(found.redirecting)
    )


def refuse(found: Platform, want: Wanted) -> None:
    """The x2APIC trap. Raises PveError ``iommu-off-costs-processors``; nothing was touched."""
    lost = off_costs(found, want)
    if lost:
        raise PveError(lost)


def off_costs(found: Platform, want: Wanted) -> Finding | None:
    """What an IOMMU that is off costs this host, where it costs something."""
    cpus = found.processors
    if want.iommu != words.OFF or not cpus.lost_without_iommu:
        return None
    return Finding(
        "iommu-off-costs-processors",
        "with the IOMMU off %d of this host's %d processors do not start" % (cpus.lost_without_iommu, cpus.present),
        "pve_host_iommu",
        "interrupt remapping goes with the IOMMU, without it the kernel leaves x2APIC mode, and reaches %d processors"
        % 255
        + (" (the kernel said: %s)" % cpus.told if cpus.told else ""),
        PT_INSTEAD + "; or turn SMT off in the BIOS, so that at most 255 remain",
    )


def check_consent(todo: Todo, use: Use, allowed: bool, node: str) -> None:
    """A change of the kernel's options, and the reboot, are allowed.

    Raises:
        PveError: ``reboot-needed``, they are not; nothing was touched.
    """
    if allowed or not (todo.boot or todo.reboot):
        return
    reasons = list(todo.reboot)
    if todo.boot:
        reasons.append(
            "the kernel's options for the next boot have to be changed"
            if todo.edit
            else "the boot loader has to be told of its file"
        )
    ends = "a reboot: " + use.told() if todo.reboot else "no reboot is needed now"
    raise problem(
        "reboot-needed",
        "the IOMMU's policy needs other kernel options" + (", and a reboot of this host" if todo.reboot else ""),
        node,
        "%s; %s; nothing was touched" % ("; ".join(reasons), ends),
        "when that may be: " + CONSENT,
        held=True,
    )
