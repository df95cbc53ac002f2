# SPDX-License-Identifier: Apache-2.0
"""A host's platform against its declaration: a row for each item with its evidence, and what is wrong with its cure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_boot, pve_platform_pci
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_words as words
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_facts import HELPER, UNIT, Platform
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_plan import (
    CLEAR,
    Wanted,
    off_costs,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import Finding

PASS, DEGRADED, FAIL, NOT_MEASURED = "pass", "degraded", "fail", "not-measured"
_GRAVITY = {NOT_MEASURED: 0, PASS: 1, DEGRADED: 2, FAIL: 3}
_SHOWN = 4
_COMMAND = "rackwell host HOST"
_POLICY = _COMMAND + " --allow-reboot"
ITEMS = ("boot options", "iommu", "processors", "acs", "links")

Told = tuple[str, Finding]


@dataclasses.dataclass(frozen=True)
class Row:
    """One item. ``findings``: (verdict, finding) of what is wrong with it."""

    item: str
    verdict: str
    evidence: str
    findings: tuple[Told, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For a result."""
        told = [{"verdict": verdict, **finding.as_dict()} for verdict, finding in self.findings]
        return {"item": self.item, "verdict": self.verdict, "evidence": self.evidence, "findings": told}


def rows(found: Platform, want: Wanted) -> list[Row]:
    """Every item, in the order of :data:`ITEMS`."""
    made = {
        "boot options": (_boot_evidence(found), _boot(found, want)),
        "iommu": (_iommu_evidence(found), _iommu(found, want)),
        "processors": (_processors_evidence(found), _processors(found, want)),
        "acs": (_acs_evidence(found), _acs(found, want)),
        "links": (_links_evidence(found), _links(found, want)),
    }
    return [
        _row(item, evidence, [_named(verdict, finding, want) for verdict, finding in told])
        for item, (evidence, told) in made.items()
    ]


def _named(verdict: str, finding: Finding, want: Wanted) -> Told:
    """The remedy with the host's own name."""
    return verdict, dataclasses.replace(finding, fix=finding.fix.replace(_COMMAND, "rackwell host " + want.host))


def _row(item: str, evidence: tuple[str, str], told: list[Told]) -> Row:
    verdict = max([evidence[0], *(each for each, _ in told)], key=_GRAVITY.__getitem__)
    text = "; ".join([*(finding.what for _, finding in told), evidence[1]]) if told else evidence[1]
    return Row(item, verdict, text, tuple(told))


def _boot_evidence(found: Platform) -> tuple[str, str]:
    boot = found.boot
    if not boot.loader or boot.declared is None:
        there = boot.why + ("" if not boot.loader else ", whose file is not there or cannot be read")
        return NOT_MEASURED, there
    return PASS, "%s, %s: %s" % (
        boot.loader,
        next(iter(boot.files)),
        " ".join(pve_platform_boot.options(boot.declared)) or "no options",
    )


def _boot(found: Platform, want: Wanted) -> Iterator[Told]:
    boot = found.boot
    place = next(iter(boot.files), "")
    declared = words.of(boot.declared or ())
    clashes = words.conflicts(declared or words.of(boot.running), found.processors.vendor)
    if clashes:
        fix = "leave one of them in %s, then: %s, and reboot; or declare pve_host_iommu: pt (or off), and: %s" % (
            place or "the boot loader's file",
            boot.apply,
            _POLICY,
        )
        yield (
            DEGRADED,
            Finding("iommu-conflict", "the IOMMU's options contradict each other", place, "; ".join(clashes), fix),
        )
    if want.iommu != words.KEEP and boot.declared is not None and found.processors.vendor:
        wanted = words.wanted(want.iommu, found.processors.vendor, declared)
        if sorted(wanted) != sorted(declared):
            yield (
                FAIL,
                Finding(
                    "iommu-not-declared-at-boot",
                    "the next boot does not get the IOMMU's declared options",
                    place,
                    "it gets %s, declared is %s: %s" % (" ".join(declared) or "none", want.iommu, " ".join(wanted)),
                    _POLICY,
                ),
            )
    if boot.stale:
        grave = FAIL if want.iommu != words.KEEP and any(words.is_iommu(word[1:]) for word in boot.stale) else DEGRADED
        yield (
            grave,
            Finding(
                "boot-config-stale",
                "%s was edited, and update-grub was not run" % place,
                pve_platform_boot.GRUB_CONFIG,
                "of what the file says it has not: %s" % " ".join(boot.stale),
                "update-grub, then reboot the host when its guests may end",
            ),
        )
    elif boot.pending:
        known = boot.generated is not None
        why = "file against running kernel: " + " ".join(boot.pending)
        # one reads the partitions that are not mounted by no other way than a boot
        cause = (
            "the host was not booted since" if known else "the loader was not told, or the host was not booted since"
        )
        yield (
            DEGRADED,
            Finding(
                "boot-options-pending",
                "the kernel runs with other options than %s says" % place,
                place,
                "%s; %s" % (why, cause),
                "reboot the host when its guests may end" if known else boot.apply + ", then reboot the host",
            ),
        )
    path, stray = boot.elsewhere
    if stray:
        yield (
            DEGRADED,
            Finding(
                "boot-file-not-read",
                "options stand in a file that this host's boot loader does not read",
                path,
                "%s boots it (%s) and reads %s; there only: %s" % (boot.loader, boot.why, place, " ".join(stray)),
                "move them to %s, then: %s, and reboot" % (place, boot.apply),
            ),
        )
    for word, does in words.mistaken((*(boot.declared or ()), *boot.running)):
        yield (
            DEGRADED,
            Finding(
                "boot-option-mistaken",
                "%s does not help the GPUs' way to each other" % word,
                place,
                does,
                "take it out of %s, then: %s; ACS is cleared by pve_host_acs: clear" % (place, boot.apply),
            ),
        )
        break


def _iommu_evidence(found: Platform) -> tuple[str, str]:
    return (NOT_MEASURED if found.mode == "unknown" else PASS), "%s: %s" % (found.mode, _shortened(found.evidence))


def _iommu(found: Platform, want: Wanted) -> Iterator[Told]:
    if want.iommu == words.KEEP:
        if found.mode == "translated":
            yield (
                DEGRADED,
                Finding(
                    "iommu-translated",
                    "the IOMMU translates what GPUs send to each other",
                    "/sys/kernel/iommu_groups/*/type",
                    _shortened(found.evidence) + "; P2P is slow then, hangs, or arrives wrong without an error",
                    "declare pve_host_iommu: pt in group_vars/pve.yml, then: " + _POLICY,
                ),
            )
        return
    if found.mode == want.iommu:
        return
    started, vendor = words.of(found.boot.running), found.processors.vendor
    declared = words.wanted(want.iommu, vendor, started) if vendor else []
    if sorted(started) == sorted(declared):
        # the words are right and do not do it
        what, fix = {
            words.PT: ("it was booted for it", "turn the IOMMU on in the BIOS, or declare pve_host_iommu: off"),
            words.OFF: (
                "it was booted for it",
                "turn the IOMMU off in the BIOS; dmesg | grep -i -e iommu -e dmar tells who has it on",
            ),
        }[want.iommu]
        why = "it is %s, and %s with %s; %s" % (found.mode, what, " ".join(started), _shortened(found.evidence))
    else:
        why, fix = "it is %s: %s" % (found.mode, _shortened(found.evidence)), _POLICY
    yield FAIL, Finding("iommu-not-as-declared", "the IOMMU is not %s" % want.iommu, "pve_host_iommu", why, fix)


def _processors_evidence(found: Platform) -> tuple[str, str]:
    cpus = found.processors
    text = "%d present" % cpus.present + (", offline: %s" % cpus.offline_list if cpus.offline else ", all online")
    return PASS, text + ("" if cpus.vendor else "; of no known maker")


def _processors(found: Platform, want: Wanted) -> Iterator[Told]:
    cpus = found.processors
    costs = off_costs(found, want)
    if costs:
        yield FAIL, costs
    elif cpus.offline and found.mode == "off" and (cpus.lost_without_iommu or cpus.told):
        yield (
            DEGRADED,
            Finding(
                "processors-lost",
                "%d of %d processors did not start: the IOMMU is off" % (cpus.offline, cpus.present),
                "/sys/devices/system/cpu/offline",
                "offline: %s; %s"
                % (cpus.offline_list, cpus.told or "the kernel reaches 255 without interrupt remapping"),
                "declare pve_host_iommu: pt, then: %s; or turn SMT off in the BIOS" % _POLICY,
            ),
        )


def _acs_evidence(found: Platform) -> tuple[str, str]:
    if found.acs is None:
        return NOT_MEASURED, "the ports could not be read: " + found.unread.get("pci", "")
    if not found.acs:
        return NOT_MEASURED, "no port above a GPU has ACS"
    text = "%d ports above the GPUs, clear on %d" % (len(found.acs), len(found.acs) - len(found.redirecting))
    unit = found.unit
    if unit.text is not None:
        text += "; %s %s, %s" % (UNIT, "enabled" if unit.enabled else "not enabled", _ran(found))
    return PASS, text


def _ran(found: Platform) -> str:
    unit = found.unit
    if unit.active:
        return "ran " + unit.since if unit.since else "ran"
    return "failed" if unit.result not in ("", "success") else "did not run since the boot"


def _acs(found: Platform, want: Wanted) -> Iterator[Told]:
    on, unit = found.redirecting, found.unit
    grave = FAIL if want.acs == CLEAR else DEGRADED
    if on:
        by_value: dict[int, list[str]] = {}
        for bdf, ctl in sorted(on.items()):
            by_value.setdefault(ctl, []).append(bdf)
        shown = ["ACSCtl %#06x at %s (%s)" % (v, _some(at), pve_platform_pci.flags(v)) for v, at in by_value.items()]
        why = "; ".join([*shown, _cause(found, want)])
        fix = _COMMAND
        if want.acs != CLEAR:
            fix = "declare pve_host_acs: clear in group_vars/pve.yml, then: " + _COMMAND
        elif unit.result not in ("", "success"):
            fix = "journalctl -b -u %s; then: %s" % (UNIT, _COMMAND)
        what = "ACS redirects what GPUs send to each other at %d of %d ports" % (len(on), len(found.acs or {}))
        yield grave, Finding("acs-on", what, ", ".join(sorted(on)[:_SHOWN]), why, fix)
    if want.acs != CLEAR:
        return
    if unit.text is None or unit.text != want.unit or unit.helper != want.helper:
        why = "it is not there" if unit.text is None or unit.helper is None else "its files were changed"
        yield FAIL, Finding("acs-unit", "ACS is not cleared at the next boot", UNIT, why, _COMMAND)
    elif not unit.enabled:
        why = "the unit is there and not enabled: ACS is back on after the next boot"
        yield FAIL, Finding("acs-unit", "ACS is not cleared at the next boot", UNIT, why, _COMMAND)


def _cause(found: Platform, want: Wanted) -> str:
    """Why ACS is on, as far as the unit tells."""
    unit = found.unit
    if want.acs != CLEAR or unit.text is None:
        return "BIOS and kernel turn it on at each boot, and nothing here clears it"
    if unit.result not in ("", "success"):
        return "%s failed (%s)" % (UNIT, unit.result)
    if not unit.active:
        return "%s did not run since the boot%s" % (UNIT, "" if unit.enabled else ": it is not enabled")
    return "it was turned on again after %s had cleared it (%s): a reset of a port, or a hand" % (UNIT, unit.since)


def _links_evidence(found: Platform) -> tuple[str, str]:
    mine = [link for link in found.links if link["gpu"]]
    if not mine:
        return NOT_MEASURED, "no link of a GPU can be read" + (
            "" if found.acs is not None else ": " + found.unread.get("pci", "")
        )
    counts: dict[str, int] = {}
    for link in mine:
        text = "generation %s x%s" % (link["most_generation"] or "?", link["most_width"] or "?")
        counts[text] = counts.get(text, 0) + 1
    idle = len([link for link in mine if not link["busy"]])
    text = ", ".join("%d of %s" % (count, kind) for kind, count in counts.items())
    if idle:
        text += "; %d idle: their widths are judged, their speeds only under load" % idle
    return PASS, text


def _links(found: Platform, want: Wanted) -> Iterator[Told]:
    for link in found.links:
        told = _width(link, want), _speed(link, want)
        yield from ((DEGRADED, finding) for finding in told if finding)


def _where(link: dict[str, Any]) -> str:
    return "%s above %s" % (link["above"], link["below"])


def _width(link: dict[str, Any], want: Wanted) -> Finding | None:
    """Lanes do not come back by themselves, and do not go when a link is idle."""
    now, most, below = link["width"], link["most_width"], link["below"]
    if now and most and now < most:
        return Finding(
            "link-width",
            "the link of %s has %d of %d lanes" % (below, now, most),
            _where(link),
            "both ends can %d: a card or riser that does not sit well, a dirty contact, or the slot's bifurcation"
            % most,
            "power off, reseat card and riser; the slot's lanes in the BIOS; lspci -vvv -s %s | grep Lnk" % below,
        )
    if link["gpu"] and most and most < want.link_width:
        what = "the slot of %s has %d lanes, declared are %d" % (below, most, want.link_width)
        fix = "a slot of %d lanes, or the slot's bifurcation in the BIOS" % want.link_width
        return Finding("link-slot", what, _where(link), "one end of the link has no more", fix)
    return None


def _speed(link: dict[str, Any], want: Wanted) -> Finding | None:
    """An idle link is slow by itself: it is judged at work, or when something holds it down."""
    now, most, below = link["generation"], link["most_generation"], link["below"]
    slow = bool(now and most and now < most)
    if link["target"] and most and link["target"] < most:
        return Finding(
            "link-capped",
            "the link of %s is held at generation %d of %d" % (below, link["target"], most),
            _where(link),
            "Target Link Speed of %s says so; no load lifts it" % link["above"],
            "the slot's speed in the BIOS to auto; now: setpci -s {0} CAP_EXP+30.w={1:x}:f CAP_EXP+10.w=20:20".format(
                link["above"], most
            ),
        )
    if slow and link["stays"]:
        return Finding(
            "link-frozen",
            "the link of %s stays at generation %d of %d" % (below, now, most),
            _where(link),
            "Hardware Autonomous Speed Disable was set while the link was slow: no load lifts it",
            "setpci -s {0} CAP_EXP+30.w=0:20; setpci -s {1} CAP_EXP+30.w=0:20; set it under load only".format(
                link["above"], below
            ),
        )
    if slow and link["busy"]:
        return Finding(
            "link-generation",
            "the link of %s runs at generation %d of %d under load" % (below, now, most),
            _where(link),
            "a GPU behind it is at work, at each of %d looks" % pve_platform_pci.LOOKS,
            "reseat card and riser (cables over 30 cm are too long for generation 5); dmesg | grep -i aer; "
            "the slot's speed in the BIOS",
        )
    if link["gpu"] and most and most < want.link_generation:
        what = "the link of %s can do generation %d, declared is %d" % (below, most, want.link_generation)
        fix = "a slot of generation %d, or the slot's speed in the BIOS" % want.link_generation
        return Finding("link-slot", what, _where(link), "one end of it can do no more", fix)
    return None


def _some(parts: list[str]) -> str:
    more = len(parts) - _SHOWN
    return ", ".join(parts[:_SHOWN]) + (" and %d more" % more if more > 0 else "")


def _shortened(evidence: str) -> str:
    """The types of the GPUs' groups, a type once."""
    told, separator, rest = evidence.partition("; ")
    parts = told.split(", ")
    return (_some(parts) if len(parts) > _SHOWN else told) + separator + rest


__all__ = ["DEGRADED", "FAIL", "HELPER", "ITEMS", "NOT_MEASURED", "PASS", "Row", "rows"]
