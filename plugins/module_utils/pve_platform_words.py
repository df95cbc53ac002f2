# SPDX-License-Identifier: Apache-2.0
"""Words of a kernel's command line: which of them concern the IOMMU, what they ask for, and whether they agree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

AMD, INTEL = "amd", "intel"
KEEP, OFF, PT = "keep", "off", "pt"
_OF_VENDOR = {AMD: "amd_iommu", INTEL: "intel_iommu"}
_KEYS = ("iommu", "amd_iommu", "intel_iommu", "iommu.passthrough")
#: values that decide whether and how the IOMMU works; others (pgtbl_v2, sm_on) only say how it does it
_DECIDING = {"on", "off", "force", "noforce", "force_enable", "soft", "pt", "nopt"}
#: words that people set for P2P, and that do something else or nothing
_MISTAKEN = (
    (
        re.compile(r"pcie_acs_override=\S+"),
        "it splits IOMMU groups for passing devices to virtual machines; it clears no ACS bit",
    ),
    (re.compile(r"pci=(?:\S+,)?noacs\b\S*"), "no kernel knows this option; lspci -vvv shows that ACS stays as it was"),
)


def is_iommu(word: str) -> bool:
    """Whether a word concerns the IOMMU."""
    return word.partition("=")[0] in _KEYS and "=" in word


def of(words: Iterable[str]) -> list[str]:
    """The words that concern the IOMMU, in their order."""
    return [word for word in words if is_iommu(word)]


def wanted(policy: str, vendor: str, there: Sequence[str]) -> list[str]:
    """The IOMMU's words for a policy.

    Args:
        vendor: :data:`AMD` or :data:`INTEL`. there: those that stand there: values of theirs that do not decide stay.
    """
    key = _OF_VENDOR[vendor]
    if policy == OFF:
        return ["%s=off" % key, "iommu=off"]
    kept = {name: _others(there, name) for name in (key, "iommu")}
    own = (["on"] if vendor == INTEL else []) + kept[key]
    return [*(["%s=%s" % (key, ",".join(own))] if own else []), "iommu=" + ",".join(["pt", *kept["iommu"]])]


def _others(words: Sequence[str], key: str) -> list[str]:
    values = [value for word in words if word.startswith(key + "=") for value in word.partition("=")[2].split(",")]
    return [value for value in dict.fromkeys(values) if value and value not in _DECIDING]


def conflicts(words: Sequence[str], vendor: str) -> list[str]:
    """What of the IOMMU's words contradicts another, or does nothing on this processor."""
    told = []
    for maker, key in _OF_VENDOR.items():
        foreign = [word for word in words if word.startswith(key + "=")]
        if vendor and maker != vendor and foreign:
            names = {AMD: "AMD", INTEL: "Intel"}
            told.append("%s does nothing here: the processor is %s's" % (" ".join(foreign), names[vendor]))
    mine = [word for word in words if not any(word.startswith(k + "=") for m, k in _OF_VENDOR.items() if m != vendor)]
    off = [word for word in mine if "off" in _values(word)]
    on = [word for word in mine if _asks_on(word)]
    passing = [word for word in mine if "pt" in _values(word) or word == "iommu.passthrough=1"]
    translating = [word for word in mine if "nopt" in _values(word) or word == "iommu.passthrough=0"]
    for one, other in ((off, on), (off, passing), (passing, translating)):
        if one and other:
            told.append("%s against %s" % (" ".join(one), " ".join(other)))
    return told


def _values(word: str) -> list[str]:
    key, _, value = word.partition("=")
    return value.split(",") if key != "iommu.passthrough" else []


def _asks_on(word: str) -> bool:
    return bool({"on", "force", "force_enable"} & set(_values(word)))


def mistaken(words: Iterable[str]) -> list[tuple[str, str]]:
    """(word, what it does instead) of those that are set for P2P and do not help it."""
    return [(word, why) for word in words for pattern, why in _MISTAKEN if pattern.fullmatch(word)]


def differences(there: Sequence[str], here: Sequence[str]) -> list[str]:
    """``+word`` of what ``there`` has more, ``-word`` of what ``here`` has more, each once."""
    added = ["+" + word for word in dict.fromkeys(there) if word not in here]
    return added + ["-" + word for word in dict.fromkeys(here) if word not in there]
